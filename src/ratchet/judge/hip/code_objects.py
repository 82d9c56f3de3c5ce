"""Take one kernel out of an assembly text that describes several, as clang writes it for HIP."""

from __future__ import annotations

import re

from ratchet.base.errors import KernelError

METADATA = re.compile(r"(\.amdgpu_metadata\n)(.*?)(\n?[ \t]*\.end_amdgpu_metadata)", re.DOTALL)
DESCRIPTOR = re.compile(
    r"^[ \t]*\.amdhsa_kernel (\S+)\n.*?\.end_amdhsa_kernel\n", re.MULTILINE | re.DOTALL
)
NAME = re.compile(r"^    \.name:\s*(\S+)\s*$", re.MULTILINE)


def one_kernel(text: str, name: str) -> str:
    """Return the text without the other kernels' descriptions; KernelError if there is no `name`.

    Their code stays: it is told apart by its label.
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
    """Split what follows the list of kernels, `amdhsa.target:` and the like, from the last one."""
    found = re.search(r"^\S", item, re.MULTILINE)
    return (item, "") if found is None else (item[: found.start()], item[found.start() :])


def _plain(name: str) -> str:
    return name.strip("'\"")
