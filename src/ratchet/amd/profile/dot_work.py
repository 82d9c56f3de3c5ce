"""Count the operations of one launch's `tl.dot`s, from Triton's first intermediate form (TTIR).

TTIR is structured text: loops with bounds, branches, one operation per line. A loop's bounds are
mostly arithmetic on the kernel's integer arguments and on the program's place in the grid. Both are
known here, so its trips are counted without running anything. A loop with a bound that is read from
memory counts as never run, and the sum is marked as inexact: it is a lower bound.
"""

from __future__ import annotations

import math
import operator
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_PROGRAMS, MAX_STEPS = 4096, 400_000
"""Programs that are counted, and lines that are read for all of them."""
PARAMETER = re.compile(r"(%[\w.#]+): ")
ASSIGNED = re.compile(r"^(%[\w.#]+)(?::(\d+))? = (.*)$")
MAX_LINE = 20_000
LOCATION = re.compile(r"\s*loc\([^()]*(?:\([^()]*\)[^()]*)*\)")
TENSOR = re.compile(r"tensor<((?:\d+x)+)[^>]*>")
FOR = re.compile(r"scf\.for (?:unsigned )?(%[\w.#]+) = (%[\w.#]+) to (%[\w.#]+) step (%[\w.#]+)")
VALUE = re.compile(r"%[\w.#]+")
WORD = 1 << 63
AXES = {"x": 0, "y": 1, "z": 2}

Environment = dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class DotWork:
    """Operations of all dots of a launch; `exact` unless a part was unknown or sampled."""

    flops: float
    exact: bool


@dataclass(slots=True)
class _Operation:
    """One line, with the blocks that it opens."""

    text: str
    blocks: list[list[_Operation]] = field(default_factory=list)
    dots: bool = False  # true if the line or its blocks hold a dot


def dot_work(ttir: str, grid: Sequence[int], arguments: Sequence[object]) -> DotWork | None:
    """Return the work of one launch; None if the text is not understood.

    `arguments` are the kernel's own, in order, without constants.
    """
    parsed = _parse(ttir)
    if parsed is None:
        return None
    names, body = parsed
    if not any(one.dots for one in body):
        return DotWork(flops=0.0, exact=True)
    known = {
        name: int(value)
        for name, value in zip(names, arguments, strict=False)
        if isinstance(value, int)
    }
    return _over_grid(body, known, [max(1, int(size)) for size in grid])


class DotCounter:
    """Counts launches, equal ones once, within a time limit against hostile kernels."""

    def __init__(self, limit_s: float) -> None:
        self._left_s = limit_s
        self._known: dict[str, DotWork | None] = {}

    def count(self, ttir: str, grid: Sequence[int], arguments: Sequence[object]) -> DotWork | None:
        """Return what `dot_work` does; None also if the time for all launches is over."""
        numbers = [one if isinstance(one, int) else None for one in arguments]
        key = f"{hash(ttir)} {list(grid)} {numbers}"
        if key not in self._known and self._left_s > 0:
            began = time.monotonic()
            self._known[key] = dot_work(ttir, grid, arguments)
            self._left_s -= time.monotonic() - began
        return self._known.get(key)


def _over_grid(body: list[_Operation], known: Environment, grid: Sequence[int]) -> DotWork:
    programs = math.prod(grid)
    counter = _Counter(grid)
    counted: list[float] = []
    # In random order: a regular sample could match a regular pattern, and in the grid's own order
    # the programs with the longest loops might be the only ones that the steps are enough for.
    for place in random.Random(programs).sample(range(programs), min(programs, MAX_PROGRAMS)):
        x, rest = place % grid[0], place // grid[0]
        counter.place = (x, rest % grid[1], rest // grid[1])
        flops = counter.block(body, dict(known))
        if counter.steps > MAX_STEPS:
            break
        counted.append(flops)
        if not counter.varies:  # all programs do the same
            break
    if not counted:
        return DotWork(flops=0.0, exact=False)
    sampled = counter.varies and len(counted) < programs
    mean = sum(counted) / len(counted)
    return DotWork(flops=mean * programs, exact=counter.exact and not sampled)


class _Counter:
    """Evaluates the integers of one program, and sums its dots."""

    def __init__(self, grid: Sequence[int]) -> None:
        self.grid = grid
        self.place = (0, 0, 0)
        self.exact = True
        self.varies = False  # true if a loop or branch depends on the program's place in the grid
        self.steps = 0
        self._placed: set[str] = set()

    def block(self, operations: Sequence[_Operation], known: Environment) -> float:
        """Return the operations of a block's dots, run once."""
        return sum(self._operation(one, known) for one in operations)

    def _operation(self, one: _Operation, known: Environment) -> float:
        self.steps += 1
        found = ASSIGNED.match(one.text)
        name, text = (found.group(1), found.group(3)) if found else ("", one.text)
        if text.startswith("scf.for"):
            return self._loop(one, text, known)
        if text.startswith("scf.if"):
            return self._branch(one, text, known)
        if one.blocks:
            self.exact &= not one.dots
            return 0.0
        if text.startswith(("tt.dot ", "tt.dot_scaled ")):
            return _dot_flops(text)
        if name and (value := self._value(text, known)) is not None and abs(value) < WORD:
            known[name] = value
            operands = VALUE.findall(text)
            if text.startswith("tt.get_program_id") or self._placed.intersection(operands):
                self._placed.add(name)
        return 0.0

    def _loop(self, one: _Operation, text: str, known: Environment) -> float:
        body = one.blocks[0] if one.blocks else []
        if not one.dots:
            return 0.0
        found = FOR.match(text)
        bounds = [known.get(name) for name in found.groups()[1:]] if found else []
        if found is None or None in bounds or not bounds[2]:
            self.exact = False
            return 0.0
        if self._placed.intersection(found.groups()[1:]):
            self.varies = True
            self._placed.add(found.group(1))
        first, last, step = (bound or 0 for bound in bounds)
        trips = max(0, -(-(last - first) // step))
        if not any(inner.blocks and inner.dots for inner in body):
            return trips * self.block(body, dict(known)) if trips else 0.0
        total = 0.0
        for value in range(first, last, step):
            if self.steps > MAX_STEPS:
                self.exact = False
                break
            total += self.block(body, {**known, found.group(1): value})
        return total

    def _branch(self, one: _Operation, text: str, known: Environment) -> float:
        found = VALUE.search(text)
        condition = known.get(found.group()) if found else None
        if found is None or condition is None:
            self.exact &= not one.dots
            return 0.0
        self.varies |= one.dots and found.group() in self._placed
        taken = 0 if condition else 1
        return self.block(one.blocks[taken], dict(known)) if taken < len(one.blocks) else 0.0

    def _value(self, text: str, known: Environment) -> int | None:
        """Return the integer result of a line, if its operands are known."""
        operation, _, rest = text.partition(" ")
        if operation == "arith.constant":
            word = rest.split(" ")[0]
            if word in ("true", "false"):
                return int(word == "true")
            return int(word) if re.fullmatch(r"-?\d+", word) else None
        if operation == "tt.get_program_id":
            return self.place[AXES.get(rest[:1], 0)]
        if operation == "tt.get_num_programs":
            return self.grid[AXES.get(rest[:1], 0)]
        operands = [known.get(name) for name in VALUE.findall(rest)]
        if not operands or None in operands:
            return None
        values = [one for one in operands if one is not None]
        return _arithmetic(operation, rest, values)


def _arithmetic(operation: str, rest: str, values: Sequence[int]) -> int | None:
    kind = operation.removeprefix("arith.")
    if kind in ("extsi", "extui", "trunci", "index_cast"):
        return values[0]
    if kind == "select" and len(values) == 3:
        return values[1] if values[0] else values[2]
    if len(values) != 2:
        return None
    if kind == "cmpi":  # `slt`, `ult`: with and without sign
        kind = rest.split(",")[0].strip().lstrip("su")
    elif kind in DIVISIONS and not values[1]:
        return None
    combine = ARITHMETIC.get(kind)
    return None if combine is None else int(combine(*values))


def _quotient(a: int, b: int) -> int:
    """Divide towards zero, as hardware does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


DIVISIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "divsi": _quotient,
    "divui": _quotient,
    "remsi": lambda a, b: a - _quotient(a, b) * b,
    "remui": lambda a, b: a - _quotient(a, b) * b,
    "ceildivsi": lambda a, b: -(-a // b),
}
ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul,
    "andi": operator.and_, "ori": operator.or_, "xori": operator.xor,
    "minsi": min, "minui": min, "maxsi": max, "maxui": max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, **DIVISIONS,
}  # fmt: skip


def _dot_flops(text: str) -> float:
    """Return 2 m n k, times the batch if there is one, from the types of a dot's operands."""
    shapes = [
        [int(size) for size in found.rstrip("x").split("x")] for found in TENSOR.findall(text)
    ]
    if len(shapes) < 3 or len(shapes[0]) < 2 or len(shapes[-1]) < 2:
        return 0.0
    packed = 2 if text.startswith("tt.dot_scaled") and "e2m1" in text.split(":")[0] else 1
    return 2.0 * math.prod(shapes[-1]) * shapes[0][-1] * packed


def _mark_dots(operations: Sequence[_Operation]) -> bool:
    for one in operations:
        inside = [_mark_dots(block) for block in one.blocks]
        one.dots = any(inside) or "tt.dot" in one.text
    return any(one.dots for one in operations)


def _scalars_and_dots(operations: Sequence[_Operation]) -> list[_Operation]:
    """Drop lines that neither hold a dot nor give a single number."""
    kept = []
    for one in operations:
        one.blocks = [_scalars_and_dots(block) for block in one.blocks]
        if one.dots or not (one.blocks or "tensor<" in one.text):
            kept.append(one)
    return kept


def _parse(ttir: str) -> tuple[list[str], list[_Operation]] | None:
    """Return the parameters and operations of the kernel; None if the text has another form."""
    lines = (LOCATION.sub("", line[:MAX_LINE]).strip() for line in ttir.splitlines())
    for line in lines:
        if line.startswith("tt.func") and line.endswith("{"):
            body = _block(lines)
            _mark_dots(body)
            return PARAMETER.findall(line), _scalars_and_dots(body)
    return None


def _block(lines: Iterator[str]) -> list[_Operation]:
    """Return the operations up to the closing brace, with nesting up to 64."""
    stack: list[list[_Operation]] = [[]]
    for line in lines:
        if line.startswith("}"):
            if len(stack) == 1:
                break
            stack.pop()
            if line.endswith("{"):  # `} else {` or `} do {`: a further block of the same operation
                stack.append([])
                stack[-2][-1].blocks.append(stack[-1])
        elif line:
            operation = _Operation(line)
            stack[-1].append(operation)
            if line.endswith("{") and len(stack) < 64:
                block: list[_Operation] = []
                operation.blocks.append(block)
                stack.append(block)
    return stack[0]
