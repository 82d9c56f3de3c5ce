"""The parts of a prelude: a source takes those that it calls, and what these need, as text."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ratchet.write.form.form import UnsupportedOp


def parts_of(paths: Sequence[Path], mark: str, used: Iterable[str], where: str = "") -> list[str]:
    """Return the texts of the parts that code uses, in the order of the files.

    A part begins with a line of the mark, its name and the parts that it needs.

    Raises:
        UnsupportedOp: no file has such a part; `where` says in which language.
    """
    parts = {name: part for path in paths for name, part in _parts(path, mark).items()}
    wanted: set[str] = set()

    def want(name: str) -> None:
        if name not in parts:
            raise UnsupportedOp(name, where)
        for need in parts[name][0]:
            want(need)
        wanted.add(name)

    for name in used:
        want(name)
    return [_as_torch(parts[name][1]) for name in parts if name in wanted]


def _as_torch(text: str) -> str:
    """Write into a part what depends on the torch that runs.

    Beyond 464, e4m3 has NaN in torch 2.11 and 2.12, and its largest number, 448, in 2.13.
    """
    return text.replace("E4M3_BEYOND", hex(_e4m3_beyond())) if "E4M3_BEYOND" in text else text


@functools.cache
def _e4m3_beyond() -> int:
    """Return torch's e4m3 code of a number beyond its largest."""
    return int(torch.tensor(1e4).to(torch.float8_e4m3fn).view(torch.uint8))


@functools.cache
def _parts(path: Path, mark: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return name -> (parts that it needs, text)."""
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for part in path.read_text(encoding="utf-8").split(mark)[1:]:
        first, _, text = part.partition("\n")
        name, *needs = first.split()
        found[name] = (tuple(needs), text)
    return found
