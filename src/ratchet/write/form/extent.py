"""Whole-number expressions: sizes of tensors and indices into them, in a canonical form.

An `Extent` is a polynomial with whole coefficients over atoms: the sizes that a kernel reads at its
call, loop variables, and quotients, remainders, minima and maxima of other extents. Two extents
that mean the same polynomial are equal. Its text is C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Relation = Literal["/", "%", "min", "max"]


@dataclass(frozen=True)
class Name:
    """A size (at least 1) or, with a bound, a loop variable from 0 to below the bound."""

    name: str
    bound: Extent | None = None

    @property
    def text(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pair:
    """A quotient, a remainder, a minimum or a maximum of two extents."""

    relation: Relation
    left: Extent
    right: Extent

    @cached_property
    def text(self) -> str:
        if self.relation in ("min", "max"):
            return f"whole_{self.relation}({self.left.text}, {self.right.text})"
        size = self.right.constant or 0
        if size > 1 and size & (size - 1) == 0:  # one vector instruction each
            by = f">> {size.bit_length() - 1}" if self.relation == "/" else f"& {size - 1}"
            return f"({self.left.text} {by})"
        return f"({self.left.text} {self.relation} {self.right.text})"


Atom = Name | Pair
Product = tuple[Atom, ...]


@dataclass(frozen=True)
class Extent:
    """A polynomial: products of atoms with whole coefficients, sorted."""

    terms: tuple[tuple[Product, int], ...]

    @cached_property
    def text(self) -> str:
        return self.written(lambda pair: pair.text)

    def written(self, pair: Callable[[Pair], str]) -> str:
        """Return it in a language in which `pair` writes a quotient and the like."""
        if not self.terms:
            return "0"
        parts = []
        for product, factor in self.terms:
            names = [atom.name if isinstance(atom, Name) else pair(atom) for atom in product]
            if factor != 1 or not names:
                names.insert(0, str(factor))
            parts.append(" * ".join(names))
        joined = " + ".join(parts)
        return joined if joined.isalnum() or joined.isidentifier() else f"({joined})"

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    @property
    def constant(self) -> int | None:
        if not self.terms:
            return 0
        product, factor = self.terms[0]
        return factor if len(self.terms) == 1 and not product else None

    @cached_property
    def names(self) -> frozenset[str]:
        found: set[str] = set()
        for product, _ in self.terms:
            for atom in product:
                if isinstance(atom, Name):
                    found.add(atom.name)
                else:
                    found |= atom.left.names | atom.right.names
        return frozenset(found)

    @property
    def parts(self) -> list[Extent]:
        """Return the terms that it is the sum of."""
        return [Extent((term,)) for term in self.terms]

    def __add__(self, other: Extent | int) -> Extent:
        return _sum([*self.terms, *whole(other).terms])

    def __sub__(self, other: Extent | int) -> Extent:
        return self + whole(other) * -1

    def __mul__(self, other: Extent | int) -> Extent:
        right = whole(other)
        return _sum(
            (tuple(sorted((*a, *b), key=lambda atom: atom.text)), x * y)
            for a, x in self.terms
            for b, y in right.terms
        )

    def __floordiv__(self, other: Extent | int) -> Extent:
        right = whole(other)
        exact = _exact(self, right)
        if exact is not None:
            return exact
        quotient, rest = _split(self, right)
        if not rest.terms or _within(rest, right):
            return quotient
        if rest.constant is not None and right.constant is not None:
            return quotient + rest.constant // right.constant
        if not quotient.terms and len(rest.terms) == 1 and rest.terms[0][1] == 1:
            product = rest.terms[0][0]
            if len(product) == 1 and isinstance(product[0], Pair) and product[0].relation == "/":
                return product[0].left // (product[0].right * right)
        return quotient + _atom(Pair("/", rest, right))

    def __mod__(self, other: Extent | int) -> Extent:
        right = whole(other)
        if _exact(self, right) is not None:
            return ZERO
        _, rest = _split(self, right)
        if not rest.terms or _within(rest, right):
            return rest
        if rest.constant is not None and right.constant is not None:
            return whole(rest.constant % right.constant)
        if at_least(rest * -1, 1):  # what is missing to the next multiple; C's % would be negative
            return rest + right + right * ((rest * -1 - 1) // right)
        return _atom(Pair("%", rest, right))

    def replace(self, names: Mapping[str, Extent]) -> Extent:
        """Return it with names replaced, simplified again."""
        if not (self.names & names.keys()):
            return self
        return self.rebuilt(lambda name: names.get(name.name, _atom(name)))

    def rebuilt(self, change: Callable[[Name], Extent]) -> Extent:
        total = ZERO
        for product, factor in self.terms:
            part = whole(factor)
            for atom in product:
                part = part * _rebuilt(atom, change)
            total = total + part
        return total

    def factor_of(self, name: str) -> Extent | None:
        """Return c if it is c * name + (rest without name); None if it is not linear in name."""
        found: list[tuple[Product, int]] = []
        for product, factor in self.terms:
            inside = [atom for atom in product if name in _atom(atom).names]
            if not inside:
                continue
            if len(inside) != 1 or not isinstance(inside[0], Name):
                return None
            rest = list(product)
            rest.remove(inside[0])
            found.append((tuple(rest), factor))
        return _sum(found)


def whole(value: Extent | int) -> Extent:
    if isinstance(value, Extent):
        return value
    return Extent((((), value),)) if value else ZERO


def named(name: str, bound: Extent | None = None) -> Extent:
    """Return a size's or a loop variable's name as an extent."""
    return _atom(Name(name, bound))


def name_of(variable: Extent) -> str:
    return next(iter(variable.names))


def bound_of(variable: Extent) -> Extent:
    bound = getattr(variable.terms[0][0][0], "bound", None)
    assert isinstance(bound, Extent)
    return bound


def smaller(left: Extent, right: Extent) -> Extent:
    return _chosen("min", left, right)


def larger(left: Extent, right: Extent) -> Extent:
    return _chosen("max", left, right)


def product_of(extents: Iterable[Extent]) -> Extent:
    """Return the product; 1 for none."""
    total = ONE
    for extent in extents:
        total = total * extent
    return total


def sum_of(extents: Iterable[Extent]) -> Extent:
    total = ZERO
    for extent in extents:
        total = total + extent
    return total


def flattened(places: Iterable[Extent], sizes: Iterable[Extent]) -> Extent:
    """Return the position of an element, counted row by row."""
    position = ZERO
    for place, size in zip(places, sizes, strict=True):
        match place.terms:
            case (((Pair("%", number, of),), 1),) if of == size and number // size == position:
                position = number  # (e / n) * n + e % n is e
            case _:
                position = position * size + place
    return position


def unflattened(position: Extent, sizes: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the index of the element at a position, counted row by row."""
    places: list[Extent] = []
    for index, size in enumerate(reversed(sizes)):
        last = index == len(sizes) - 1
        places.append(position if last else position % size)
        position = position if last else position // size
    return tuple(reversed(places))


def at_least(extent: Extent, least: int) -> bool:
    """Return whether an extent is certainly at least `least`, as every size is at least 1."""
    low = _lowest(extent)
    return low is not None and low >= least


def _chosen(relation: Literal["min", "max"], left: Extent, right: Extent) -> Extent:
    difference = right - left
    if at_least(difference, 0):
        return left if relation == "min" else right
    if at_least(difference * -1, 0):
        return right if relation == "min" else left
    return _atom(Pair(relation, left, right))


def _atom(atom: Atom) -> Extent:
    return Extent((((atom,), 1),))


def _sum(terms: Iterable[tuple[Product, int]]) -> Extent:
    found: dict[Product, int] = {}
    for product, factor in terms:
        found[product] = found.get(product, 0) + factor
    while any(_join(found, product, factor) for product, factor in list(found.items())):
        pass
    kept = [(product, factor) for product, factor in found.items() if factor]
    kept.sort(key=lambda one: (-len(one[0]), [atom.text for atom in one[0]]))
    return Extent(tuple(kept))


def _join(found: dict[Product, int], product: Product, factor: int) -> bool:
    """Replace f * c * (e / c) + f * (e % c) by f * e; return whether it was there."""
    if not found.get(product):
        return False
    for place, atom in enumerate(product):
        if not isinstance(atom, Pair) or atom.relation != "%":
            continue
        rest = Extent(((product[:place] + product[place + 1 :], factor),))
        above = rest * atom.right * (atom.left // atom.right)
        if not above.terms or any(found.get(part) != count for part, count in above.terms):
            continue
        for part, _ in above.terms:
            del found[part]
        del found[product]
        for part, count in (rest * atom.left).terms:
            found[part] = found.get(part, 0) + count
        return True
    return False


def divisors_of(extents: Iterable[Extent], name: str) -> set[Extent]:
    """Return what a name alone is divided by, anywhere in extents."""
    found: set[Extent] = set()
    for extent in extents:
        for product, _ in extent.terms:
            for atom in product:
                if isinstance(atom, Pair):
                    if atom.relation in ("/", "%") and _is_name(atom.left, name):
                        found.add(atom.right)
                    found |= divisors_of((atom.left, atom.right), name)
    return found


def _is_name(extent: Extent, name: str) -> bool:
    return extent.names == {name} and extent.factor_of(name) == ONE and len(extent.terms) == 1


def _exact(left: Extent, right: Extent) -> Extent | None:
    """Return left / right if right is a sum that divides left term by term."""
    if len(right.terms) < 2 or len(left.terms) < len(right.terms):
        return None
    quotient, _ = _split(Extent(left.terms[:1]), Extent(right.terms[:1]))
    return quotient if quotient.terms and quotient * right == left else None


def _rebuilt(atom: Atom, change: Callable[[Name], Extent]) -> Extent:
    if isinstance(atom, Name):
        return change(atom)
    left, right = atom.left.rebuilt(change), atom.right.rebuilt(change)
    match atom.relation:
        case "/":
            return left // right
        case "%":
            return left % right
        case "min":
            return smaller(left, right)
        case "max":
            return larger(left, right)


def _split(left: Extent, right: Extent) -> tuple[Extent, Extent]:
    """Return quotient and rest with left = quotient * right + rest, as far as terms show it."""
    if left == right:
        return ONE, ZERO
    if len(right.terms) != 1:
        return ZERO, left
    divisor, factor = right.terms[0]
    quotient: list[tuple[Product, int]] = []
    rest: list[tuple[Product, int]] = []
    for product, count in left.terms:
        remaining: list[Atom] | None = list(product)
        for atom in divisor:
            if remaining is not None and atom in remaining:
                remaining.remove(atom)
            else:
                remaining = None
        if remaining is not None and count % factor == 0:
            quotient.append((tuple(remaining), count // factor))
        else:
            rest.append((product, count))
    return _sum(quotient), _sum(rest)


def _within(extent: Extent, bound: Extent) -> bool:
    low, high = _lowest(extent), _highest(extent)
    if low is None or low < 0 or high is None:
        return False
    return at_least(bound - high, 1)


def _lowest(extent: Extent) -> int | None:
    """Return a lower bound, or None if there is none."""
    total = 0
    for product, factor in extent.terms:
        if factor < 0:
            if not product:
                total += factor
                continue
            return _lowest_of_difference(extent)
        least = 1
        for atom in product:
            low = _least(atom)
            if low is None:
                return None
            least *= low
        total += factor * least
    return total


def _lowest_of_difference(extent: Extent) -> int | None:
    """Bound n - i from below by i <= bound - 1 of its loop variables."""
    highest: list[tuple[Product, int]] = []
    total = ZERO
    changed = False
    for product, factor in extent.terms:
        bounded = (isinstance(atom, Pair) or atom.bound is not None for atom in product)
        if factor < 0 and any(bounded):
            high = _highest(Extent(((product, 1),)))
            if high is None:
                return None
            total = total + high * factor
            changed = True
        else:
            highest.append((product, factor))
    if not changed:
        return None
    rest = total + _sum(highest)
    return None if any(f < 0 and p for p, f in rest.terms) else _lowest(rest)


def _least(atom: Atom) -> int | None:
    if isinstance(atom, Name):
        return 1 if atom.bound is None else 0
    if atom.relation == "%":
        return 0
    left, right = _lowest(atom.left), _lowest(atom.right)
    if atom.relation == "/":
        return 0 if left is not None and left >= 0 else None
    if left is None or right is None:
        return (left if right is None else right) if atom.relation == "max" else None
    return min(left, right) if atom.relation == "min" else max(left, right)


def _highest(extent: Extent) -> Extent | None:
    """Return an upper bound of an extent without negative terms."""
    total = ZERO
    for product, factor in extent.terms:
        if factor < 0 and product:
            return None
        part = whole(factor)
        for atom in product:
            high = _most(atom)
            if high is None:
                return None
            part = part * high
        total = total + part
    return total


def _most(atom: Atom) -> Extent | None:
    if isinstance(atom, Name):
        return _atom(atom) if atom.bound is None else atom.bound - 1
    if atom.relation == "%":
        return atom.right - 1
    if atom.relation == "/":
        high = _highest(atom.left)
        return None if high is None else high // atom.right
    return None


ZERO = Extent(())
ONE = Extent((((), 1),))
