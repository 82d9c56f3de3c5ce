"""One piece of advice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """An observation, the most it could give, and the levers that try it."""

    name: str
    evidence: str
    gain: int
    """Upper bound on the time saved in the window, in ns."""
    levers: tuple[str, ...] = ()
    """Names for `ratchet optimize --try`; empty if no lever does it."""
    remedy: str
    always: bool = False
    """True if it is named however little it gives."""


def milliseconds(time: int) -> str:
    """Format nanoseconds for a sentence."""
    return f"{time / 1e6:,.2f} ms"
