"""One piece of advice."""

from __future__ import annotations

from dataclasses import dataclass

WORTH = 0.02
"""Share of the window below which a finding is not worth a reader's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was seen, what it could give, and what tries it."""

    name: str
    evidence: str
    gain: int
    """Upper bound on the window's time that it gives, in ns."""
    levers: tuple[str, ...]
    """Names for `ratchet optimize --try`; empty where no lever does it."""
    remedy: str


def milliseconds(time: int) -> str:
    """Nanoseconds for a sentence."""
    return f"{time / 1e6:,.2f} ms"


def worth(gain: int, window: int) -> bool:
    """Whether a gain is large enough to name."""
    return window > 0 and gain >= WORTH * window
