"""Conditions on positions: comparisons as extents, and what they make of values and of reads.

Masked attention's scores are compared with a diagonal. Past it a probability is 0 and a score goes
unread, so products need not touch half of their squares. As everywhere in masks, numbers are taken
to be finite: 0 times a value is 0, and minus infinity plus a value stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ratchet.write.form import (
    Choice,
    Constant,
    Fold,
    Map,
    Matmul,
    Node,
    Position,
    Scan,
    View,
    axes_of,
    over_of,
    own_axes,
)
from ratchet.write.form.extent import ONE, ZERO, Extent, whole
from ratchet.write.form.op_table import MAPS

Places = tuple[Extent, ...]
Value = Literal["zero", "-inf"]
WHOLE: Final = ("int64", "int32")
COMPARED: Final = ("le", "lt", "ge", "gt")
_MINUS: Final = ONE * -1


def condition_of(node: Node, index: Places) -> Extent | None:
    """Return the extent that is at least 0 where a comparison of positions holds."""
    if not isinstance(node, Map) or node.op not in COMPARED:
        return None
    left, right = (_position(one, index) for one in node.args)
    if left is None or right is None:
        return None
    difference = right - left if node.op in ("le", "lt") else left - right
    return difference - (1 if node.op in ("lt", "gt") else 0)


def _position(node: Node, index: Places) -> Extent | None:
    """Return a whole number that depends on the index alone."""
    if node.dtype not in WHOLE:
        return None
    if isinstance(node, Constant):
        return whole(int(node.value))
    if isinstance(node, Position):
        return node.value.replace(own_axes(index))
    if isinstance(node, View):
        places = _moved(node, index)
        return None if places is None else _position(node.arg, places)
    if isinstance(node, Map) and node.op in ("add", "sub", "mul", "cast", "copy"):
        args = [_position(one, index) for one in node.args]
        if any(one is None for one in args):
            return None
        first, *rest = [one for one in args if one is not None]
        if node.op in ("cast", "copy"):
            return first
        if node.op == "mul":
            return first * rest[0]
        return first + rest[0] if node.op == "add" else first - rest[0]
    return None


def _moved(node: View, index: Places) -> Places | None:
    own = own_axes(index)
    places = [one.replace(own) for one in node.places if isinstance(one, Extent)]
    return tuple(places) if len(places) == len(node.places) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Columns next to the diagonal: row + `first` to before row + `end`; None is no bound."""

    first: Extent | None = None
    end: Extent | None = None

    @property
    def text(self) -> str:
        low = "-BAND_NONE" if self.first is None else self.first.text
        return f"{low}, {'BAND_NONE' if self.end is None else self.end.text}"


def left_band(node: Matmul) -> Band:
    """Return where the left operand of a product may be other than 0."""
    index = axes_of(node.left.shape)
    masks = Masks().of(node.left, index)
    return _band([one for one, value in masks.items() if value == "zero"], index)


def needed_band(node: Matmul, readers: Sequence[Node], kept: frozenset[Node]) -> Band:
    """Return where a product's result has an effect; `readers` are all nodes with memory."""
    masks, axes = Masks(), axes_of(node.shape)
    shared: set[Extent] | None = None
    for reader in readers:
        for one, index, live in _reads(reader, axes_of(over_of(reader)), kept, masks):
            if one is not node:
                continue
            back = {
                name: own
                for own, place in zip(axes, index, strict=True)
                for name in place.names
                if place.factor_of(name) == ONE and not place.replace({name: ZERO}).terms
            }
            known = {one.replace(back) for one in live if _axes(one) <= back.keys()}
            shared = known if shared is None else shared & known
    return _band(sorted(shared or (), key=lambda one: one.text), axes)


def _axes(extent: Extent) -> set[str]:
    return {name for name in extent.names if name.startswith("#")}


def _band(conditions: Sequence[Extent], axes: Places) -> Band:
    row, column = (next(iter(one.names), "") for one in axes[-2:])
    first = end = None
    for one in conditions:
        rest = one.replace({row: ZERO, column: ZERO})
        if not row or not column or _axes(rest):
            continue
        steps = one.factor_of(row), one.factor_of(column)
        if steps == (ONE, _MINUS) and end is None:  # row - column + rest >= 0
            end = rest + 1
        elif steps == (_MINUS, ONE) and first is None:
            first = rest * -1
    return Band(first=first, end=end)


class Masks:
    """Remembers which conditions decide a value where they do not hold."""

    def __init__(self) -> None:
        self.known: dict[tuple[Node, Places], dict[Extent, Value]] = {}

    def of(self, node: Node, index: Places) -> dict[Extent, Value]:
        """Return for each condition the value that a node has wherever it fails."""
        key = (node, index)
        if key not in self.known:
            self.known[key] = self._of(node, index)
        return self.known[key]

    def _of(self, node: Node, index: Places) -> dict[Extent, Value]:
        if isinstance(node, View):
            places = _moved(node, index)
            return {} if places is None else self.of(node.arg, places)
        if isinstance(node, Choice):
            own = own_axes(index)
            return self._either(
                [one.replace(own) for one in node.when], node.arg, node.other, index
            )
        if not isinstance(node, Map):
            return {}
        args = node.args
        match node.op:
            case "where":
                chosen = self._either(conditions_of(args[0], index), args[1], args[2], index)
                exact = exact_condition(args[0], index)
                if exact is not None:
                    chosen |= self._either([negated(exact)], args[2], args[1], index)
                return chosen
            case "cast" | "copy":
                return self.of(args[0], index)
            case name if MAPS[name].fades:
                return {one: "zero" for one, v in self.of(args[0], index).items() if v == "-inf"}
            case "add" | "sub":
                left, right = (self.of(one, index) for one in args)
                found: dict[Extent, Value] = {
                    one: "zero" for one in left if left[one] == right.get(one) == "zero"
                }
                either = left if node.op == "sub" else left | right
                return found | {
                    one: "-inf" for one in either if "-inf" in (left.get(one), right.get(one))
                }
            case "mul" | "div":
                masks = [self.of(one, index) for one in args[: 1 if node.op == "div" else 2]]
                found = {one: "zero" for own in masks for one in own if own[one] == "zero"}
                other = args[1]
                if isinstance(other, Constant) and other.value > 0:
                    found |= {one: "-inf" for one, v in masks[0].items() if v == "-inf"}
                return found
        return {}

    def _either(
        self, conditions: Sequence[Extent], held: Node, other: Node, index: Places
    ) -> dict[Extent, Value]:
        first, second = _constant(held), _constant(other)
        left, right = self.of(held, index), self.of(other, index)
        found: dict[Extent, Value] = {}
        for one in conditions:
            value = second or right.get(one)
            if value is not None:
                found[one] = value
        for one in left | right:
            value = first or left.get(one)
            if value is not None and value == (second or right.get(one)):
                found[one] = value
        return found


def conditions_of(node: Node, index: Places) -> list[Extent]:
    """Return extents that are at least 0 wherever a truth value is true."""
    if isinstance(node, View):
        places = _moved(node, index)
        return [] if places is None else conditions_of(node.arg, places)
    if isinstance(node, Map) and node.op == "and":
        return [found for one in node.args for found in conditions_of(one, index)]
    if isinstance(node, Map) and node.op in ("copy", "cast") and node.args[0].dtype == "bool":
        return conditions_of(node.args[0], index)
    found = condition_of(node, index)
    return [] if found is None else [found]


def exact_condition(node: Node, index: Places) -> Extent | None:
    """Return the extent that is at least 0 exactly where a truth value is true."""
    if isinstance(node, View):
        places = _moved(node, index)
        return None if places is None else exact_condition(node.arg, places)
    if isinstance(node, Map) and node.op == "and":
        rest = [one for one in node.args if not (isinstance(one, Constant) and one.value)]
        return exact_condition(rest[0], index) if len(rest) == 1 else None
    if isinstance(node, Map) and node.op == "not":
        found = exact_condition(node.args[0], index)
        return None if found is None else negated(found)
    if isinstance(node, Map) and node.op in ("copy", "cast") and node.args[0].dtype == "bool":
        return exact_condition(node.args[0], index)
    return condition_of(node, index)


def negated(condition: Extent) -> Extent:
    """Return the condition that holds where another one does not."""
    return condition * -1 - 1


def _constant(node: Node) -> Value | None:
    while isinstance(node, View):
        node = node.arg
    if isinstance(node, Map) and node.op in ("cast", "copy"):
        return _constant(node.args[0])
    if not isinstance(node, Constant):
        return None
    if node.value == 0:
        return "zero"
    return "-inf" if node.value == -math.inf else None


def _reads(
    node: Node, index: Places, kept: frozenset[Node], masks: Masks
) -> Iterator[tuple[Node, Places, frozenset[Extent]]]:
    """Yield what a node reads from memory, with conditions under which the read has an effect."""
    seen: set[tuple[Node, Places, frozenset[Extent]]] = set()
    stack = _below(node, index, frozenset(), masks)
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if item[0] in kept:
            yield item
        else:
            stack += _below(*item, masks)


def _below(
    node: Node, index: Places, live: frozenset[Extent], masks: Masks
) -> list[tuple[Node, Places, frozenset[Extent]]]:
    if isinstance(node, Fold | Scan):
        return [(node.arg, index, live)]
    if isinstance(node, View):
        places = _moved(node, index)
        if places is None:
            return [(one, axes_of(one.shape), frozenset()) for one in node.inputs]
        return [(node.arg, places, live)]
    if isinstance(node, Choice):
        own = own_axes(index)
        held = live | {one.replace(own) for one in node.when}
        return [(node.arg, index, held), (node.other, index, live)]
    if not isinstance(node, Map):
        return [(one, axes_of(one.shape), frozenset()) for one in node.inputs]
    args = node.args
    if node.op == "where":
        held = live | set(conditions_of(args[0], index))
        exact = exact_condition(args[0], index)
        rest = live if exact is None else live | {negated(exact)}
        return [(args[0], index, live), (args[1], index, held), (args[2], index, rest)]
    if node.op in ("add", "mul") and len(args) == 2:
        ends: Value = "-inf" if node.op == "add" else "zero"
        found = []
        for one, other in (args, args[::-1]):
            decided = {c for c, value in masks.of(other, index).items() if value == ends}
            found.append((one, index, live | decided))
        return found
    return [(one, index, live) for one in args]


# Loops are cut where a condition turns. The compiler turns a load under a condition into a masked
# one, or gives the loop up. A condition that is linear in the loop's variable holds on one side of
# a cut, so the loop runs in pieces: one where every such condition holds, and what is left around
# it.

LEAST: Final = 16  # Steps below which a loop stays whole: the compiler unrolls it


@dataclass(frozen=True, kw_only=True)
class LoopPiece:
    """A part of a loop: where it starts and ends, and the lines that open its body."""

    first: str
    end: str
    opening: tuple[str, ...] = ()
    failed: tuple[Extent, ...] = ()  # Conditions that hold nowhere in it


@dataclass(kw_only=True)
class LoopSplits:
    """Conditions that turn along one loop, with the names of their truth in its body."""

    variable: str
    depth: int  # The loop's scope; conditions are cut only on names from outside of it
    tag: str
    steps: int = LEAST
    found: dict[Extent, str] = field(default_factory=dict)

    def name_of(self, condition: Extent) -> str | None:
        """Return the name of `condition >= 0`; None if the loop is not cut there."""
        if self.steps < LEAST or condition.factor_of(self.variable) not in (ONE, _MINUS):
            return None
        return self.found.setdefault(condition, f"{self.tag}_{len(self.found)}")

    def pieces(self, first: str, end: str) -> tuple[list[str], list[LoopPiece]]:
        """Return lines before the loop, and the loop's pieces in order."""
        if not self.found:
            return [], [LoopPiece(first=first, end=end)]
        lows: dict[Extent, str] = {}
        highs: dict[Extent, str] = {}
        for condition in self.found:
            rest = condition.replace({self.variable: ZERO})
            if condition.factor_of(self.variable) == ONE:
                lows[condition] = (rest * -1).text
            else:
                highs[condition] = (rest + 1).text
        low, high = f"{self.tag}_from", f"{self.tag}_upto"
        lines = [
            f"const int64_t {low} = {_clamped('max', list(lows.values()), first, end)};",
            f"const int64_t {high} = {_clamped('min', list(highs.values()), low, end)};",
        ]
        alone = len(self.found) == 1
        outside = tuple(
            f"{'constexpr' if alone else 'const'} bool {name} = "
            f"{'false' if alone else f'{condition.text} >= 0'};"
            for condition, name in self.found.items()
        )
        within = tuple(f"constexpr bool {name} = true;" for name in self.found.values())
        never = tuple(negated(one) for one in self.found)
        pieces = [LoopPiece(first=low, end=high, opening=within, failed=never)]
        if lows:
            one = tuple(lows) if len(lows) == 1 else ()
            pieces.insert(0, LoopPiece(first=first, end=low, opening=outside, failed=one))
        if highs:
            one = tuple(highs) if len(highs) == 1 else ()
            pieces.append(LoopPiece(first=high, end=end, opening=outside, failed=one))
        return lines, pieces


def _clamped(which: str, bounds: Sequence[str], least: str, most: str) -> str:
    """Write the largest (or least) of bounds, not outside of a range."""
    if not bounds:
        return least if which == "max" else most
    found = bounds[0]
    for one in bounds[1:]:
        found = f"whole_{which}({found}, {one})"
    return f"whole_min(whole_max({found}, (int64_t){least}), (int64_t){most})"
