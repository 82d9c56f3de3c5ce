"""The loop variables of a nest: their order, and which of them are split, merged or in squares."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form.extent import (
    ONE,
    ZERO,
    Extent,
    bound_of,
    divisors_of,
    name_of,
    named,
)
from ratchet.write.generator.fusion import LoopNest
from ratchet.write.generator.schedule import Choices


class NestAxes:
    """Arranges a nest's loops by what the addresses in it do."""

    def __init__(self, nest: LoopNest, choices: Choices, lead: int) -> None:
        self.nest, self.choices = nest, choices
        self.merged: dict[str, Extent] = {}
        self.variables: list[tuple[Extent, bool]] = []
        """Loop variables in order, with whether they are inner."""
        roles = set(nest.members.values())
        self.rowwise = bool(roles & {"row fold", "column fold", "scan", "row"})
        inner = nest.inner if self.rowwise and nest.inner is not None else None
        if inner is None:
            inner = frozenset([len(nest.sizes) - 1]) if nest.sizes else frozenset()
        self.inner = inner
        for flag in (False, True):
            for place in range(len(nest.sizes)):
                if (place in inner) == flag:
                    self.variables.append((nest.index(place), flag))
        self.lead = [one for one, _ in self.variables[:lead]]
        del self.variables[:lead]
        self.lanes = (
            self.rowwise
            and len(nest.sizes) - 1 not in inner
            and roles <= {"row fold", "row", "element"}
        )
        """The last axis is no part of a row: neighbouring rows are reduced side by side."""
        if self.lanes:
            lane, _ = next(
                one for one in self.variables if one[0] == nest.index(len(nest.sizes) - 1)
            )
            self.variables.remove((lane, False))
            self.variables.append((lane, True))
        self.partner: Extent | None = None
        """The axis that shares squares with the last one, where an address steps along it."""
        self.is_group = False  # The partner is the next axis: short rows are taken together

    def merge(self, addresses: Sequence[Extent], others: Sequence[Extent]) -> None:
        """Split loop variables at their divisors, then merge those that step alike."""
        place = 0
        while not self.rowwise and place < len(self.variables):
            change = self._split(place, addresses, others)
            addresses = [address.replace(change) for address in addresses]
            others = [other.replace(change) for other in others]
            place += not change
        place = 0
        while place + 1 < len(self.variables):
            (one, inner), (two, second) = self.variables[place], self.variables[place + 1]
            lane = self.lanes and place + 2 == len(self.variables)
            if inner == second and not lane and self._mergeable(one, two, addresses, others):
                size = bound_of(two)
                joint = named(f"{name_of(one)}{name_of(two)}", bound_of(one) * size)
                change = {name_of(one): joint // size, name_of(two): joint % size}
                self.merged = {
                    name: value.replace(change) for name, value in self.merged.items()
                } | change
                addresses = [address.replace(change) for address in addresses]
                others = [other.replace(change) for other in others]
                self.variables[place : place + 2] = [(joint, inner)]
            else:
                place += 1
        if not self.rowwise and len(self.variables) > 1:
            names = [name_of(one) for one, _ in self.variables]
            place_of_partner = turned_axis(addresses, names) if self.choices.tile else None
            if place_of_partner is not None:
                self.partner, _ = self.variables.pop(place_of_partner)
                self.variables.insert(-1, (self.partner, True))
            if self.partner is None and not self.choices.stream:
                self.partner, self.is_group = self.variables[-2][0], True
                self.variables[-2] = (self.partner, True)

    def _split(
        self, place: int, addresses: Sequence[Extent], others: Sequence[Extent]
    ) -> dict[str, Extent]:
        """Make two variables of one, at the largest of its divisors; return what it is now."""
        variable, inner = self.variables[place]
        size, name = bound_of(variable), name_of(variable)
        found = divisors_of([*addresses, *others], name)
        exact = [one for one in found if one != ONE and size // one * one == size != one]
        if not exact:
            return {}
        by = max(exact, key=lambda one: (one.constant is None, one.constant or 0, one.text))
        outer, rest = named(f"{name}q", size // by), named(f"{name}r", by)
        change = {name: outer * by + rest}
        self.merged = {key: value.replace(change) for key, value in self.merged.items()} | change
        self.variables[place : place + 1] = [(outer, inner and self.rowwise), (rest, inner)]
        return change

    def like(self, other: NestAxes) -> None:
        self.merged, self.variables = other.merged, other.variables
        self.partner, self.is_group = other.partner, other.is_group

    @staticmethod
    def _mergeable(
        one: Extent, two: Extent, addresses: Sequence[Extent], others: Sequence[Extent]
    ) -> bool:
        first, second, size = name_of(one), name_of(two), bound_of(two)
        if any({first, second} & other.names for other in others):
            return False
        for address in addresses:
            coarse, fine = address.factor_of(first), address.factor_of(second)
            if coarse is None or fine is None or coarse != fine * size:
                return False
        return True

    @property
    def block(self) -> int:
        """Return how many elements along the last axis one thread takes at a time."""
        squares = self.partner is not None and not self.is_group
        return self.choices.tile if squares else self.choices.block

    @property
    def side(self) -> str:
        """Return how many steps along the partner one thread takes at a time."""
        return "side" if self.is_group else str(self.choices.tile)


def turned_axis(addresses: Sequence[Extent], names: Sequence[str]) -> int | None:
    """Return the axis along which neighbours lie in memory where they do not along the last."""
    for address in addresses:
        if names and address.factor_of(names[-1]) not in (None, ZERO, ONE):
            for place, name in enumerate(names[:-1]):
                if address.factor_of(name) == ONE:
                    return place
    return None
