"""Faults of emulated machine code in the words of a verdict: a race, an access out of bounds."""

from __future__ import annotations

import re

_FAULT = re.compile(
    r"the kernel (?:raised|cannot be loaded): (?:\w+: )?in the kernel (?P<kernel>\S+) at "
    r"[^\s:]+:(?P<line>\d+)(?: \(\w+\))?: (?P<what>a race in LDS|an access of )"
)
_BEYOND = re.compile(r"an access of \d+ bytes (?:ends|lies|at \d+ is outside)")


def is_fault(reason: str) -> bool:
    """Return whether a reason tells of a race, or of an access out of bounds."""
    return wrong_words(reason) is not None


def wrong_words(reason: str) -> str | None:
    """Return the reason of a `wrong` verdict for such a fault of machine code; None for others."""
    found = _FAULT.search(reason)
    if found is None:
        return None
    is_race = found["what"].startswith("a race")
    if not is_race and not _BEYOND.match(reason, found.start("what")):
        return None
    what = "race in LDS" if is_race else "out of bounds"
    head = f"{what} at line {found['line']} of {found['kernel']}: {found['what']}"
    return reason[: found.start()] + head + reason[found.end() :]
