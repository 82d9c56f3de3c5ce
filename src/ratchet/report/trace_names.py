"""Names of kernels, shapes and modules, short enough to read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_NAMESPACE = re.compile(r"(?:\b[A-Za-z_]\w*|\(anonymous namespace\)|\{[^}]*\})::(?=[\w~(<{])")
_PART = re.compile(r"(\d+)(.*)", re.DOTALL)
_RETURNS = re.compile(r"^(?:void|auto|decltype\(auto\)) ")


def short_kernel(name: str, width: int = 56) -> str:
    """A kernel's name without namespaces, return type and argument list, cut to a width."""
    if name.startswith("_ZN"):
        name = _unmangled(name)
    elif "<" in name or ("::" in name and "(" in name):
        name = _NAMESPACE.sub("", _without_arguments(_RETURNS.sub("", name)))
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _unmangled(name: str) -> str:
    """The function of a mangled nested name, such as `_ZN2ck6device4gemmE`: its last part."""
    rest, last = name[3:], name
    while found := _PART.match(rest):
        length = int(found[1])
        last, rest = found[2][:length], found[2][length:]
    return last


def _without_arguments(name: str) -> str:
    """A demangled name without the parameters that follow its template's."""
    depth = 0
    for place, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and place and name[place - 1] not in " :":
            return name[:place]
    return name


def short_shapes(text: str) -> str:
    """`Input Dims` as [2, 3] × [3, 4]: scalars and absent inputs left out."""
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return text
    return " × ".join(_shape_words(found)) if isinstance(found, list) else text


def _shape_words(entries: Sequence[Any]) -> Iterator[str]:
    """Each shape that stands in `Input Dims`, those inside lists of tensors too."""
    for entry in entries:
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            yield from _shape_words(entry)
        elif entry:
            whole = isinstance(entry, list)
            yield f"[{', '.join(str(extent) for extent in entry)}]" if whole else str(entry)


def last_modules(path: str, depth: int = 2) -> str:
    """The innermost modules of a path."""
    names = path.split(" > ")
    return " > ".join(names[-depth:]) if len(names) <= depth else f"… {' > '.join(names[-depth:])}"
