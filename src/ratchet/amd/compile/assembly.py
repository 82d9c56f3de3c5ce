"""Read the assembly text of LLVM's AMD backend: resources, instructions, loops.

The text comes from a candidate's process, so nothing is assumed about its form.
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass, field
from typing import Final

MAX_LINES, MAX_LOOPS, MAX_BLOCKS_WALKED = 100_000, 256, 200_000
"""No real kernel comes near these; a text made to keep the judge busy might."""
LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*):")
INSTRUCTION = re.compile(r"^\s+([a-z][a-z0-9_]*)(?:\s+(.*))?$")
KERNEL_ITEM = re.compile(r"^  - \.")
KERNEL_KEY = re.compile(r"^(?:  - |    )\.(\w+):\s*(\S.*)?$")
ARGUMENT_KEY = re.compile(r"^(      - |        )\.(\w+):\s*(\S+)")
MATRIX: Final = ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of machine code; `depth` counts the loops around it."""

    name: str
    operands: str
    depth: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCode:
    """One kernel: its metadata, and its instructions in order."""

    name: str
    metadata: dict[str, str]
    instructions: list[Instruction]
    loops: list[tuple[int, int]]  # first and last instruction of each loop, inner ones included

    def number(self, key: str) -> int:
        """Return a number of the metadata, such as `vgpr_count`; 0 if it is missing."""
        text = self.metadata.get(key, "")
        return int(text) if text.isdecimal() else 0

    def hot_loop(self) -> list[Instruction]:
        """Return the innermost loop with most matrix instructions, else the longest, else all."""
        inner = [one for one in self.loops if not any(_inside(other, one) for other in self.loops)]
        bodies = [self.instructions[first : last + 1] for first, last in inner]
        return max(bodies, key=_weight, default=self.instructions)


@dataclass(slots=True)
class _Body:
    """A function whose lines are being read."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse(text: str) -> list[KernelCode]:
    """Return every kernel that the metadata at the end lists; none of an endless text."""
    if text.count("\n") > MAX_LINES:
        return []
    bodies = _bodies(text)
    found = []
    for own, _ in metadata(text):
        if body := bodies.get(own.get("name", "")):
            found.append(_kernel(own, body))
    return found


def _kernel(own: dict[str, str], body: _Body) -> KernelCode:
    loops = _loops(body)
    steps = [0] * (len(body.instructions) + 1)
    for first, last in loops:
        steps[first] += 1
        steps[last + 1] -= 1
    depths = itertools.accumulate(steps[:-1])
    nested = [
        Instruction(one.name, one.operands, depth)
        for one, depth in zip(body.instructions, depths, strict=True)
    ]
    return KernelCode(
        name=own["name"],
        metadata=own,
        instructions=nested,
        loops=loops,
    )


def _bodies(text: str) -> dict[str, _Body]:
    """Return the lines of each function, by its name."""
    bodies: dict[str, _Body] = {}
    current = _Body()
    for line in text.splitlines():
        if label := LABEL.match(line):
            name = label.group(1)
            if not name.startswith((".L", "$")):
                current = bodies.setdefault(name, _Body())
            else:
                current.labels[name] = len(current.instructions)
        elif found := INSTRUCTION.match(line):
            operands = re.split(r";|//", found.group(2) or "", maxsplit=1)[0].strip()
            current.instructions.append(Instruction(found.group(1), operands))
    return bodies


def _loops(body: _Body) -> list[tuple[int, int]]:
    """Return the branches back to a place that reaches them; those to one place are one loop.

    A seldom-run block lies behind the end of the kernel and branches back, which is no loop.
    """
    back: dict[int, list[int]] = {}
    jumps: dict[int, int | None] = {}
    for index, one in enumerate(body.instructions):
        if one.name.startswith(("s_cbranch", "s_branch")):
            target = jumps[index] = body.labels.get(one.operands.split(",")[-1].strip())
            if target is not None and target <= index:
                back.setdefault(target, []).append(index)
        elif one.name.startswith(("s_endpgm", "s_setpc")):
            jumps[index] = None
    walk = _Walk(body.instructions, jumps)
    found = []
    for target in sorted(back)[:MAX_LOOPS]:
        reached = walk.blocks_from(target)
        ends = [end for end in back[target] if reached is None or walk.ending(end) in reached]
        if ends:
            found.append((target, max(ends)))
    return found


class _Walk:
    """The flow between blocks of a function; a block is identified by its last instruction."""

    def __init__(self, instructions: list[Instruction], jumps: dict[int, int | None]) -> None:
        self._instructions = instructions
        self._jumps = jumps
        self._ends = [*jumps, len(instructions)]
        self._left = MAX_BLOCKS_WALKED

    def ending(self, place: int) -> int:
        return self._ends[bisect.bisect_left(self._ends, place)]

    def blocks_from(self, start: int) -> set[int] | None:
        """Return every block reached from an instruction; None if that takes too long."""
        seen: set[int] = set()
        waiting = [self.ending(start)]
        while waiting:
            end = waiting.pop()
            if end in seen or end == len(self._instructions):
                continue
            seen.add(end)
            self._left -= 1
            if self._left < 0:
                return None
            target = self._jumps[end]
            if target is not None:
                waiting.append(self.ending(target))
            if self._instructions[end].name.startswith("s_cbranch"):
                waiting.append(self.ending(end + 1))
        return seen


def metadata(text: str) -> list[tuple[dict[str, str], list[dict[str, str]]]]:
    """Return the keys of each kernel that `.amdgpu_metadata` describes, and of its arguments."""
    _, _, rest = text.partition(".amdgpu_metadata")
    block, _, _ = rest.partition(".end_amdgpu_metadata")
    found: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    inside = False
    for line in block.splitlines():
        if KERNEL_ITEM.match(line):
            found.append(({}, []))
            inside = True
        elif not line.startswith(" "):
            inside = False
        if not inside:
            continue
        own, arguments = found[-1]
        if key := KERNEL_KEY.match(line):
            own[key[1]] = (key[2] or "").strip("'\" ")
        elif key := ARGUMENT_KEY.match(line):
            if key[1].endswith("- "):
                arguments.append({})
            if arguments:
                arguments[-1][key[2]] = key[3]
    return found


def _inside(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and other[0] <= one[0] and one[1] <= other[1]


def _weight(body: list[Instruction]) -> tuple[int, int]:
    return sum(one.name.startswith(MATRIX) for one in body), len(body)
