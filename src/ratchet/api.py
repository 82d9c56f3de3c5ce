"""Library calls that need several rooms: `ratchet.optimize`, which the command also calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratchet.base.errors import RatchetError
from ratchet.optimize.turn.compose import write
from ratchet.optimize.turn.loop import Outcome
from ratchet.optimize.turn.loop import optimize as run_turn
from ratchet.optimize.turn.settings import Settings, make_settings
from ratchet.optimize.turn.state import Listener
from ratchet.report.optimize import render_page
from ratchet.workloads.saved import as_spec
from ratchet.workloads.user import importing
from ratchet.workloads.workload import Workload


def optimize(
    workload: Workload | Callable[[], Workload] | str,
    *,
    budget: str | float = "30m",
    out: str | Path = "ratchet-out",
    keep_precision: bool = False,
    try_lever: str | None = None,
    resume: bool = False,
    launches: int = 3,
    batch_size: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    text: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    ledger: str | None = None,
    listener: Listener | None = None,
) -> Outcome:
    """Make a training step faster: measure it, try changes, prove them, write a recipe.

    `workload` is a Workload, the function that makes one, or text: a built-in name, `hf:NAME` or
    `file.py:function`. The step runs in new processes. So everything that a Workload object refers
    to must be defined at the top level of a module, and a script must call this under
    `if __name__ == "__main__":`.

    `budget` is a duration (`"30m"`, or seconds). The folder `out` receives recipe.json, result.json
    and report.html. `device` is `cpu`, `cuda` or `auto`; the default is the Workload's own, else
    `auto`. `listener` is called with the name and the details of each event.

    Raises a RatchetError of one line for any mistake that you can fix.
    """
    if (file := importing()) is not None:
        raise RatchetError(
            f"{file} calls ratchet.optimize when it is imported, and every process that runs the "
            'step imports it: put the call under `if __name__ == "__main__":`'
        )
    own = workload.device.split(":")[0] if isinstance(workload, Workload) else "auto"
    with as_spec(workload) as spec:
        settings = make_settings(
            spec,
            budget=budget,
            out=out,
            keep_precision=keep_precision,
            try_lever=try_lever,
            resume=resume,
            launches=launches,
            batch_size=batch_size,
            sequence=sequence,
            precision=precision,
            text=text,
            seed=seed,
            device=device or own,
            ledger=ledger,
        )
        return run(settings, listener or (lambda event, details: None))


def run(settings: Settings, listener: Listener) -> Outcome:
    """Run one turn and write its three files, for `optimize` and for the command."""
    outcome = run_turn(settings, listener)
    write(outcome.result, outcome.recipe, render_page)
    return outcome
