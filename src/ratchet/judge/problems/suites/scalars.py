"""The type of every reference's last argument. Imports no torch."""

from collections.abc import Sequence

Scalars = Sequence[float]
