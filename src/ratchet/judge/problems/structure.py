"""The structure that an input's values always have, as a problem stores it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """The structure that all draws of one input of a problem's file share."""

    zeros: bool = False
    """Some elements are always zero: a triangle, a diagonal, a band."""
    symmetric: bool = False
    """The last two dimensions form a symmetric matrix."""
    definite: bool = False
    """That matrix is positive definite."""
    codes: bool = False
    """Integers, or few distinct values: masks, labels, signs."""
    sign: int = 0
    """-1: never above zero; 1: always clearly above zero."""
    normalised: int | None = None
    """The dimension, counted from the end, over which the values sum to one (probabilities)."""
    log_normalised: int | None = None
    """The same for the exponentials of the values (logarithms of probabilities)."""

    @property
    def rows_belong_together(self) -> bool:
        """Return whether a matrix would lose its structure with some of its rows."""
        return self.zeros or self.symmetric

    def words(self) -> str:
        """Return the structure in words; empty if there is none."""
        found = {
            "zeros": self.zeros,
            "symmetry": self.symmetric and not self.definite,
            "positive definiteness": self.definite,
            "values": self.codes,
            "sign": self.sign != 0,
            "sums of one": self.normalised is not None,
            "sums of one over the exponentials": self.log_normalised is not None,
        }
        return ", ".join(name for name, there in found.items() if there)
