"""What every reference takes last. No torch."""

from collections.abc import Sequence

Scalars = Sequence[float]
