"""Other changes that would fit when no choice of checkpointing does.

For a step with B sequences a batch whose smallest peak is `states + gradients + varying`:

    a batch of b:          states + gradients + varying b / B
    N sharding ranks:      (states + all gradients) / N + one whole block + varying

`states` are parameters and optimizer state, `varying` is what is alive beside states and gradients
at the peak. Sharding is that of FSDP2: parameters, gradients and optimizer state are split, and
one block's weights and gradients are whole at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.train.memory.measured import MeasuredStep

MOST_RANKS: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedies:
    """The smallest changes that would fit, by the formulas above; None if a kind never does."""

    batch_size: int | None
    ranks: int | None

    def __str__(self) -> str:
        found = []
        if self.batch_size:
            found.append(f"a batch of {self.batch_size}")
        if self.ranks:
            found.append(f"sharding over {self.ranks} ranks")
        return ", ".join(found) or "a smaller model or a larger device alone"


def remedies(least: MeasuredStep, budget_bytes: int, *, samples: int, block_bytes: int) -> Remedies:
    """Return what would fit, from the measured step with the smallest peak."""
    parts, peak = least.parts, least.peak_bytes
    varying = max(peak - parts.states - parts.gradients, 0)
    everything = parts.states + parts.parameters  # a gradient for each parameter
    batch = _batch(budget_bytes - parts.states - parts.gradients, varying, samples)
    return Remedies(
        batch_size=batch,
        ranks=_ranks(budget_bytes - varying - 2 * block_bytes, everything),
    )


def _batch(room_bytes: int, varying: int, samples: int) -> int | None:
    fitting = samples * room_bytes // max(varying, 1)
    return min(fitting, samples - 1) if fitting >= 1 and samples > 1 else None


def _ranks(room_bytes: int, everything: int) -> int | None:
    if room_bytes <= 0:
        return None
    needed = max(2, math.ceil(everything / room_bytes))
    return needed if needed <= MOST_RANKS else None
