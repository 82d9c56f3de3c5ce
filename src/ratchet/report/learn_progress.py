"""Tell of the steps of a stage of learning on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

EVERY_S = 2.0


def told(what: str, steps: int) -> Callable[[Mapping[str, float | str]], bool]:
    """Return what tells of a step on a terminal; it returns whether it was time to.

    `what` is trained: a stage, and the size of its model.
    """
    last = 0.0

    def tell(row: Mapping[str, float | str]) -> bool:
        nonlocal last
        if time.monotonic() - last < EVERY_S:
            return False
        last = time.monotonic()
        if sys.stderr.isatty():
            shown = ", ".join(
                f"{name} {float(row[name]):.3f}"
                for name in ("loss", "reward", "held_out_loss", "forgetting")
                if name in row
            )
            print(
                f"{what}, step {int(float(row['step'])) + 1} of {steps}: {shown}", file=sys.stderr
            )
        return True

    return tell
