"""What the values of an input are always like, as a problem keeps it; no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """What every draw of an input that a problem's file makes has in common."""

    zeros: bool = False
    """Some places are always zero: a triangle, a diagonal, a band."""
    symmetric: bool = False
    """Its last two dimensions are a symmetric matrix."""
    definite: bool = False
    """And that is positive definite."""
    codes: bool = False
    """Whole numbers, or few values: masks, labels, signs."""
    sign: int = 0
    """-1: never above zero; 1: always above it, and away from it."""
    normalised: int | None = None
    """The dimension, counted from the end, over which it sums to one: probabilities."""
    log_normalised: int | None = None
    """The same for its exponential: logarithms of probabilities."""

    @property
    def rows_belong_together(self) -> bool:
        """Whether a matrix with some of its rows would be another kind of matrix."""
        return self.zeros or self.symmetric

    def words(self) -> str:
        """What there is, for people; empty where there is nothing."""
        found = {
            "zeros": self.zeros,
            "symmetry": self.symmetric and not self.definite,
            "positive definiteness": self.definite,
            "values": self.codes,
            "sign": self.sign != 0,
            "sums of one": self.normalised is not None,
            "sums of one of the exponential": self.log_normalised is not None,
        }
        return ", ".join(name for name, there in found.items() if there)
