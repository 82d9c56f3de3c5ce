"""Sizes in the text of a Python file, and what changes with them in the file of its answer.

A size is an integer that the file assigns to a name at its top. If a problem's sizes change, those
that its kernel's file repeats follow: by their name, or by their value where it is one size alone.
Imports no torch.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.judge.problems.case import SizeChange

SMALLEST_FOLLOWED: Final = 8  # A smaller number without the name of a size is no size
SMALLEST_PRODUCT: Final = 4096
"""A number that is the product of two sizes follows both, from here on."""
DRAWN: Final = "get_inputs #"
"""Beginning of the names of numbers that `get_inputs` writes out."""
TILE = re.compile(r"block|tile|warp|thread|stage|vec|unroll|group|chunk|split|lane|wave", re.I)
"""Names of a kernel's own parameters, which are no sizes of its problem."""
ON_DEVICE: Final = ("jit", "autotune", "heuristics")
C_SIZE = re.compile(
    r"(#define\s+|\b(?:int|long|unsigned|size_t|auto|u?int(?:32|64)_t)\s+)(\w+)(\s*=\s*|\s+)(\d+)\b"
)
"""A size in C++ text that a Python file holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignedSize:
    """An integer that the file assigns to a name, and its position in the text."""

    name: str
    value: int
    line: int
    start: int
    end: int


def sizes(text: str) -> list[AssignedSize]:
    """Return the integers above 1 at the top of a file whose names are assigned once.

    An element of a tuple or list is named after it and its position: `shape[0]`.
    """
    found: dict[str, AssignedSize] = {}
    given: set[str] = set()
    twice: set[str] = set()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Name):
            continue
        if target.id in given:
            twice.add(target.id)
        given.add(target.id)
        many = value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
        for place, one in enumerate([value] if many is None else many):
            number = whole_number(one)
            if number is not None and number > 1 and one.lineno == one.end_lineno:
                end = one.end_col_offset
                assert end is not None
                name = target.id if many is None else f"{target.id}[{place}]"
                found[name] = AssignedSize(
                    name=name, value=number, line=one.lineno, start=one.col_offset, end=end
                )
    named = [size for name, size in found.items() if name.partition("[")[0] not in twice]
    return named + _drawn(ast.parse(text))


def _drawn(module: ast.Module) -> list[AssignedSize]:
    """Return the numbers that `get_inputs` gives to calls, such as `torch.rand(n, 3, 224, 224)`."""
    inputs = [one for one in module.body if getattr(one, "name", "") == "get_inputs"]
    calls = (node for one in inputs for node in ast.walk(one) if isinstance(node, ast.Call))
    numbers = [
        one
        for call in calls
        for given in call.args
        for one in (given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given])
        if isinstance(one, ast.Constant) and type(one.value) is int
    ]
    return [
        AssignedSize(
            name=f"{DRAWN}{at}",
            value=one.value,
            line=one.lineno,
            start=one.col_offset,
            end=one.end_col_offset or one.col_offset,
        )
        for at, one in enumerate(numbers)
        if isinstance(one.value, int) and one.value >= SMALLEST_FOLLOWED
    ]


def rewritten(text: str, values: Mapping[str, int]) -> str:
    """Return the text with other numbers for some of its sizes."""
    lines = text.encode().splitlines(keepends=True)
    for size in sorted(
        sizes(text), key=lambda size: -size.start
    ):  # from the end, since a change moves the rest of its line
        if size.name in values:
            line = lines[size.line - 1]
            number = str(values[size.name]).encode()
            lines[size.line - 1] = line[: size.start] + number + line[size.end :]
    return b"".join(lines).decode()


def changes(old: str, new: str) -> tuple[SizeChange, ...]:
    """Return the sizes that differ between two texts of one file."""
    after = {size.name: size.value for size in sizes(new)}
    return tuple(
        SizeChange(name=size.name, old=size.value, new=after[size.name])
        for size in sizes(old)
        if after.get(size.name, size.value) != size.value
    )


def is_batch(name: str) -> bool:
    return "batch" in name.lower() or name in ("B", "bs", "b")


def whole_number(node: ast.expr) -> int | None:
    """Return the value of a whole number, or of a sum or product of such; None for others."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub)):
        left, right = whole_number(node.left), whole_number(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        return left + right if isinstance(node.op, ast.Add) else left - right
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """Rules by which numbers of a kernel's file follow the changes of its problem's sizes."""

    changes: Sequence[SizeChange]
    kept: Collection[int]
    """The values of sizes that stay: a number of this value follows by its name alone."""
    stay: Collection[str] = ()  # The names of sizes that stay

    @staticmethod
    def of_shrunk(text: str, changes: Sequence[SizeChange]) -> Followed:
        """Return the rules after these changes of a problem's file, which led to `text`."""
        if not changes:
            return Followed(changes=(), kept=())
        changed = {one.name for one in changes}
        stay = [one for one in sizes(text) if one.name not in changed]
        same = [SizeChange(name="", old=one.value, new=one.value) for one in stay]
        products = [
            SizeChange(name="", old=one.old * other.old, new=one.new * other.new)
            for one, other in itertools.combinations([*changes, *same], 2)
            if one.old * other.old >= SMALLEST_PRODUCT and other.old > 1
        ]
        return Followed(
            changes=[*changes, *(one for one in products if one.old != one.new)],
            kept=[one.value for one in stay],
            stay=[one.name for one in stay],
        )

    @staticmethod
    def of_rows(text: str, old: int, new: int, others: Collection[int]) -> Followed:
        """Return the rules for a call with other rows; `others` are the other dimensions' sizes."""
        named = [one.name for one in sizes(text) if one.value == old]
        rows = [one for one in named if is_batch(one)] or (named if len(named) == 1 else [])
        return Followed(
            changes=[SizeChange(name=one, old=old, new=new) for one in rows or ["batch"]],
            kept=others,
            stay=[one.name for one in sizes(text) if one.name not in rows],
        )

    def new_value(self, name: str, value: int) -> int:
        """Return what a number becomes that a file gives to `name`, which is "" for none."""
        same = [one for one in self.changes if one.old == value]
        for one in same:
            if _plain(one.name) == _plain(name) != "" or (is_batch(one.name) and is_batch(name)):
                return one.new
        if _plain(name) in map(_plain, self.stay) or TILE.search(name):
            return value
        found = {one.new for one in same}
        if len(found) != 1 or value in self.kept or value <= SMALLEST_FOLLOWED:
            return value
        return found.pop()

    def applied(self, text: str) -> str:
        """Return the text of a kernel's file with the sizes that follow."""
        if not self.changes:
            return text
        lines = text.encode().splitlines(keepends=True)
        for number, name, value in sorted(
            _numbers(ast.parse(text), self), key=lambda one: (one[0].lineno, -one[0].col_offset)
        ):
            new, end = self.new_value(name, value), number.end_col_offset
            if new != value and end is not None:
                line = lines[number.lineno - 1]
                lines[number.lineno - 1] = line[: number.col_offset] + b"%d" % new + line[end:]
        return C_SIZE.sub(self._c_size, b"".join(lines).decode())

    def _c_size(self, found: re.Match[str]) -> str:
        head, name, between, value = found.groups()
        return f"{head}{name}{between}{self.new_value(name, int(value))}"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.rpartition(".")[2]).lower()


def _numbers(tree: ast.Module, rules: Followed) -> list[tuple[ast.expr, str, int]]:
    """Return each whole number of a file on one line that follows, and the name it is given to."""
    found: dict[tuple[int, int], tuple[ast.expr, str, int]] = {}
    for node, name in _named(tree, ""):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        value = whole_number(node)
        if value is not None and rules.new_value(name, value) != value:
            inside = any(
                line == node.lineno and start <= node.col_offset < (one[0].end_col_offset or 0)
                for (line, start), one in found.items()
            )
            if not inside:  # the parts of a product belong to it
                found[node.lineno, node.col_offset] = (node, name, value)
    return list(found.values())


def _named(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes below one, without those that run on a device, and the names they go to."""
    if isinstance(node, ast.FunctionDef) and any(
        ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2] in ON_DEVICE
        for one in node.decorator_list
        if "script" not in ast.unparse(one)
    ):
        return
    if isinstance(node, ast.Assign):
        yield from _assigned(node.targets[0], node.value)
        return
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _assigned(node.target, node.value)
        return
    if isinstance(node, ast.arguments):
        given = node.args[len(node.args) - len(node.defaults) :]
        pairs = [*zip(given, node.defaults, strict=True)]
        pairs += [
            (one, default)
            for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
            if default is not None
        ]
        for argument, default in pairs:
            yield from _below(default, argument.arg)
        return
    for child in ast.iter_child_nodes(node):
        own = child.arg or "" if isinstance(child, ast.keyword) else name
        yield from _below(child, own)


def _below(node: ast.AST, name: str) -> Iterator[tuple[ast.AST, str]]:
    yield node, name
    yield from _named(node, name)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _below(part, ast.unparse(one))
        return
    is_number = whole_number(value) is not None
    yield from _below(value, ast.unparse(target) if is_number else "")
