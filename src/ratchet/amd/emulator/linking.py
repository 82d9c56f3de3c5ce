"""Take one kernel out of an assembly text with many, and give its variables addresses.

A kernel reaches a variable relative to its program counter. Here the counter reads 0 and the
distance is the address, so the code adds up to the same.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import re
from collections.abc import Callable
from typing import Final

from ratchet.amd.compile.assembly import LABEL
from ratchet.amd.emulator.decode import FUNCTION, DecodedKernel, called_functions, decode
from ratchet.amd.emulator.launch import LaunchMemory
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
REFERRED: Final = re.compile(r"([A-Za-z_.$][\w.$]*)@(?:rel32|gotpcrel32)@lo")
END: Final = ".Lfunc_end"
FILE: Final = re.compile(r"^\s+\.file\s")
DEBUG: Final = re.compile(r"^\s+\.section\s+\.debug")
ANY_SECTION: Final = re.compile(r"^\s+\.(?:section|text|data|bss|amdgpu_metadata)\b")


class KernelTexts:
    def __init__(self, text: str) -> None:
        functions = set(FUNCTION.findall(text))
        self._pieces: list[tuple[str, list[str]]] = [("", [])]
        debug = False
        for line in text.splitlines(keepends=True):
            if (label := LABEL.match(line)) and label[1] in functions:
                self._pieces.append((label[1], []))
            elif line.startswith(END):
                self._pieces.append(("", []))
            elif ANY_SECTION.match(line):
                debug = DEBUG.match(line) is not None
            if not debug:
                self._pieces[-1][1].append(line)
        self.names = set(re.findall(r"^\s+\.amdhsa_kernel (\S+)$", text, re.MULTILINE))

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
    after = re.search(r"^\S", last, re.MULTILINE)  # what follows the last kernel: `amdhsa.target:`
    last, tail = (last[: after.start()], last[after.start() :]) if after else (last, "")
    names = ((one, NAME.search(one)) for one in (*rest, last))
    own = [one for one, said in names if said and said[1].strip("'\"") == name]
    if len(own) != 1:
        raise KernelError(f"the assembly describes {len(own)} kernels called {name!r:.80}")
    block = found[1] + head + own[0] + tail + found[3]
    kept = text[: found.start()] + block + text[found.end() :]
    return DESCRIPTOR.sub(lambda one: one[0] if one[1] == name else "", kept)


def plain_name(mangled: str) -> str:
    """Return a function's name in its source, if the mangled one tells it: `_Z4rowsPKf`."""
    found = re.match(r"_ZN?L?(?:12_GLOBAL__N_1)?(\d+)", mangled)
    if found is None:
        return mangled
    name = mangled[found.end() : found.end() + int(found[1])]
    return name if len(name) == int(found[1]) else mangled


SECTION: Final = re.compile(r"^\s+\.(?:section\s+\.?(\w+)|(bss|data|text)\b)")
COMMON: Final = re.compile(r"^\s+\.comm\s+([\w.$]+),\s*(\d+)", re.MULTILINE)
"""A variable of zeros without a label."""
OBJECT: Final = re.compile(r"^\s+\.type\s+([\w.$]+),@object", re.MULTILINE)
REFERENCE: Final = re.compile(r"([A-Za-z_.$][\w.$]*)@(rel32|gotpcrel32)@(lo|hi)([+-]\d+)")
COUNTER: Final = re.compile(r"^(\s+)s_getpc_b64 (s\[\d+:\d+\])", re.MULTILINE)
AFTER_COUNTER: Final = re.compile(r"^\.L\w*getpc\w*:")
"""The label behind a counter that a far branch adds to; `decode` knows that one."""
INSTRUCTION: Final = re.compile(r"^\s+[a-z]")
WORD: Final = 4  # bytes of an instruction, and of its literal
WIDTHS: Final = {"byte": 1, "short": 2, "long": 4, "quad": 8}
MOST_BYTES: Final = 64 << 20


def device_variables(text: str) -> dict[str, bytes]:
    """Return what the variables of an assembly text begin with, by name.

    Raises KernelError for data that is not known.
    """
    wanted = set(OBJECT.findall(text))
    common = {name: min(int(size), MOST_BYTES + 1) for name, size in COMMON.findall(text)}
    found = {name: bytearray(size) for name, size in common.items() if name in wanted}
    current: bytearray | None = None
    inside = False
    for line in text.splitlines() if wanted else ():
        if section := SECTION.match(line):
            inside = (section[1] or section[2]) not in ("text", "AMDGPU", "note", "debug_info")
            current = None
        elif label := LABEL.match(line):
            if label[1] in wanted and inside:
                current = found.setdefault(label[1], bytearray())
            elif not label[1].startswith(".L"):
                current = None
        elif line.lstrip().startswith(".size"):
            current = None
        elif current is not None:
            current += _data(line)
    if any(len(data) > MOST_BYTES for data in found.values()):
        raise KernelError("a variable of more than 64 MiB is not emulated")
    return {name: bytes(data) for name, data in found.items()}


def _data(line: str) -> bytes:
    said = re.match(r"^\s+\.(\w+)\s*([^;]*?)\s*(?:;.*)?$", line.replace('\\"', "\\042"))
    if said is None or said[1] in ("p2align", "globl", "type", "protected", "weak", "hidden"):
        return b""
    kind, rest = said[1], said[2]
    try:
        if kind in WIDTHS:
            numbers = (int(one, 0) for one in rest.split(","))
            width = WIDTHS[kind]
            return b"".join((one % (1 << 8 * width)).to_bytes(width, "little") for one in numbers)
        if kind in ("zero", "skip", "space"):
            count, _, value = rest.partition(",")
            return bytes([int(value or "0", 0)]) * min(int(count, 0), MOST_BYTES + 1)
        if kind == "fill":
            count, width, value = (int(one, 0) for one in rest.split(","))
            return value.to_bytes(width, "little") * count
        if kind in ("ascii", "asciz"):
            text = line[line.index('"') : line.rindex('"') + 1]
            octal = re.sub(r"\\([0-7]{1,3})", lambda one: f"\\x{int(one[1], 8) & 255:02x}", text)
            return bytes(ast.literal_eval("b" + octal)) + (b"\0" if kind == "asciz" else b"")
    except (ValueError, SyntaxError) as error:
        raise KernelError(f"a variable that holds {rest:.60} is not emulated") from error
    raise KernelError(f"data in .{kind} is not emulated")


class PlacedVariables:
    """The variables of an assembly text in memory that a launch may touch."""

    def __init__(self, text: str, place: Callable[[bytes], int] | None = None) -> None:
        """`place` puts bytes into such memory and returns where; by default, this process's own."""
        self._held: list[ctypes.Array[ctypes.c_char]] = []
        self.memories: list[LaunchMemory] = []
        self.begin_with = device_variables(text)
        self._put = place or self._place
        self.addresses = {name: self._put(one) for name, one in self.begin_with.items()}

    def pointer_to(self, address: int) -> int:
        return self._put(address.to_bytes(8, "little"))

    def _place(self, begins: bytes) -> int:
        held = (ctypes.c_char * (len(begins) + 64))()
        self._held.append(held)
        at = -(-ctypes.addressof(held) // 64) * 64
        ctypes.memmove(at, begins, len(begins))
        self.memories.append(LaunchMemory(at, len(begins)))
        return at


def linked_kernel(text: str, name: str) -> tuple[DecodedKernel, PlacedVariables | None]:
    """Return a kernel of an assembly text, and the variables of a text that has some or calls.

    Raises KernelError as `decode` does, and for a kernel that prints or asserts: it asks the host.
    """
    if "hidden_hostcall_buffer" in text:
        raise KernelError("printing and assertions on the device are not emulated")
    if COUNTER.search(text) is None:
        return decode(text), None
    placed = PlacedVariables(text)
    return decode(linked(KernelTexts(text).of(name), placed)), placed


def linked(text: str, variables: PlacedVariables) -> str:
    """Return the text of one kernel with addresses instead of distances.

    Raises KernelError for a name without an address: a function that was not inlined, or a variable
    of another file.
    """
    if "@rel32@" not in text and "@gotpcrel32@" not in text:
        return text
    addresses = variables.addresses | called_functions(text)
    pointer_to = functools.cache(variables.pointer_to)

    def placed(found: re.Match[str]) -> str:
        name, way, half = found[1], found[2], found[3]
        offset = int(found[4]) - since - WORD
        if name not in addresses:
            raise KernelError(
                f"{name:.80} is called or read, and is not in this file: not emulated"
            )
        if way == "rel32":
            address = addresses[name] + offset
        elif offset == 0:
            address = pointer_to(addresses[name])
        else:
            raise KernelError(f"the address of {name:.80} is read with an offset: not emulated")
        return hex(address & 0xFFFFFFFF if half == "lo" else address >> 32)

    lines = []
    since = 0  # bytes from the counter's value to the line
    given = text.splitlines()
    for line, after in zip(given, [*given[1:], ""], strict=True):
        if COUNTER.match(line) and not AFTER_COUNTER.match(after):
            line, since = COUNTER.sub(r"\1s_mov_b64 \2, 0", line), 0
        elif INSTRUCTION.match(line):
            line, has_literal = REFERENCE.subn(placed, line)
            since += WORD * (1 + has_literal)
        lines.append(line)
    return "\n".join(lines)
