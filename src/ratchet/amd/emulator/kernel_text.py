"""The assembly text of one kernel, out of a file's text with many."""

from __future__ import annotations

import re
from typing import Final

from ratchet.base.errors import KernelError

METADATA = re.compile(r"(\.amdgpu_metadata\n)(.*?)(\n?[ \t]*\.end_amdgpu_metadata)", re.DOTALL)
DESCRIPTOR = re.compile(
    r"^[ \t]*\.amdhsa_kernel (\S+)\n.*?\.end_amdhsa_kernel\n", re.MULTILINE | re.DOTALL
)
NAME = re.compile(r"^    \.name:\s*(\S+)\s*$", re.MULTILINE)
AFTER_TRAP: Final = re.compile(
    r"^\s+(?:s_sendmsg_rtn_b32 .*GET_DOORBELL|s_sendmsg sendmsg\(MSG_INTERRUPT\)|s_mov_b32 .*ttmp2)"
    r".*$",
    re.MULTILINE,
)
"""RDNA's instructions after a trap, which ends a launch here."""
FUNCTION: Final = re.compile(r"^\s+\.type\s+(\S+),@function", re.MULTILINE)
REFERRED: Final = re.compile(r"([A-Za-z_.$][\w.$]*)@(?:rel32|gotpcrel32)@lo")
LABEL: Final = re.compile(r"^([A-Za-z_.$][\w.$]*):")
END: Final = ".Lfunc_end"
FILE: Final = re.compile(r"^\s+\.file\s")
DEBUG: Final = re.compile(r"^\s+\.section\s+\.debug")
SECTION: Final = re.compile(r"^\s+\.(?:section|text|data|bss|amdgpu_metadata)\b")


class KernelTexts:
    """The kernels of one assembly text."""

    def __init__(self, text: str) -> None:
        functions = set(FUNCTION.findall(text))
        self._pieces: list[tuple[str, list[str]]] = [("", [])]
        debug = False
        for line in text.splitlines(keepends=True):
            if (label := LABEL.match(line)) and label[1] in functions:
                self._pieces.append((label[1], []))
            elif line.startswith(END):
                self._pieces.append(("", []))
            elif SECTION.match(line):
                debug = DEBUG.match(line) is not None
            if not debug:
                self._pieces[-1][1].append(line)
        self._names = set(re.findall(r"^\s+\.amdhsa_kernel (\S+)$", text, re.MULTILINE))

    def has(self, name: str) -> bool:
        """Return whether the text has a kernel of this name."""
        return name in self._names

    def of(self, name: str) -> str:
        """Return a kernel's text, the functions that it calls, and the data that all share.

        Raises KernelError without that kernel.
        """
        kept: list[str] = []
        own = {"", name, *self._called(name)}
        for owner, lines in self._pieces:
            kept += lines if owner in own else [one for one in lines if FILE.match(one)]
        return AFTER_TRAP.sub("\ts_nop 0", one_kernel("".join(kept), name))

    def _called(self, kernel: str) -> set[str]:
        """Return the functions that a kernel reaches by calls."""
        bodies = {owner: "".join(lines) for owner, lines in self._pieces if owner}
        found: set[str] = set()
        left = [kernel]
        while left:
            names = set(REFERRED.findall(bodies.get(left.pop(), ""))) & bodies.keys()
            left += names - found
            found |= names
        return found


def one_kernel(text: str, name: str) -> str:
    """Return the text without the other kernels' metadata; raises KernelError without this one.

    Their code stays, under its own labels.
    """
    found = METADATA.search(text)
    if found is None:
        raise KernelError("the assembly has no description of its kernels")
    head, *items = re.split(r"^(?=  - )", found[2], flags=re.MULTILINE)
    *rest, last = items or [""]
    last, tail = _tail(last)
    own = [one for one in (*rest, last) if (said := NAME.search(one)) and _plain(said[1]) == name]
    if len(own) != 1:
        raise KernelError(f"the assembly describes {len(own)} kernels called {name!r:.80}")
    block = found[1] + head + own[0] + tail + found[3]
    kept = text[: found.start()] + block + text[found.end() :]
    return DESCRIPTOR.sub(lambda one: one[0] if one[1] == name else "", kept)


def _tail(item: str) -> tuple[str, str]:
    """Split off what follows the last kernel, such as `amdhsa.target:`."""
    found = re.search(r"^\S", item, re.MULTILINE)
    return (item, "") if found is None else (item[: found.start()], item[found.start() :])


def _plain(name: str) -> str:
    return name.strip("'\"")


def plain_name(mangled: str) -> str:
    """Return a function's name in its source, if the mangled one tells it: `_Z4rowsPKf`."""
    found = re.match(r"_ZN?L?(?:12_GLOBAL__N_1)?(\d+)", mangled)
    if found is None:
        return mangled
    name = mangled[found.end() : found.end() + int(found[1])]
    return name if len(name) == int(found[1]) else mangled
