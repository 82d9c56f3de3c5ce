"""Library calls that need several rooms: `ratchet.optimize`, which the command also calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ratchet.base.errors import RatchetError
from ratchet.base.files import write_whole
from ratchet.train.turn.compose import write
from ratchet.train.turn.loop import Outcome
from ratchet.train.turn.loop import optimize as run_turn
from ratchet.train.turn.settings import Settings, make_settings
from ratchet.train.turn.show import render_page
from ratchet.train.turn.state import Listener
from ratchet.train.workloads.parallel import ParallelLayout, parse_parallel
from ratchet.train.workloads.user import as_spec, importing
from ratchet.train.workloads.workload import Workload

if TYPE_CHECKING:
    from ratchet.scale.parallel.turn import ParallelTurn


@overload
def optimize(
    workload: Workload | Callable[[], Workload] | str, *, parallel: None = None, **options: Any
) -> Outcome: ...


@overload
def optimize(
    workload: Workload | Callable[[], Workload] | str, *, parallel: str, **options: Any
) -> ParallelTurn: ...


def optimize(  # type: ignore[misc]  # the overloads tell what is returned, not the options
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
    parallel: str | None = None,
) -> Outcome | ParallelTurn:
    """Make a training step faster: measure it, try changes, prove them, write a recipe.

    `workload` is a Workload, the function that makes one, or text: a built-in name, `hf:NAME` or
    `file.py:function`. The step runs in new processes. So everything that a Workload object refers
    to must be defined at the top level of a module, and a script must call this under
    `if __name__ == "__main__":`.

    `budget` is a duration (`"30m"`, or seconds). The folder `out` receives recipe.json, result.json
    and report.html. `device` is `cpu`, `cuda` or `auto`; the default is the Workload's own, else
    `auto`. `listener` is called with the name and the details of each event.

    With `parallel`, such as `"fsdp=2"`, the step runs on so many ranks of this machine, the slowest
    rank decides, and the result is a `ParallelTurn`.

    Raises a RatchetError of one line for any mistake that you can fix.
    """
    if (file := importing()) is not None:
        raise RatchetError(
            f"{file} calls ratchet.optimize when it is imported, and every process that runs the "
            'step imports it: put the call under `if __name__ == "__main__":`'
        )
    layout = None if parallel is None else parse_parallel(parallel)
    own = workload.device.split(":")[0] if isinstance(workload, Workload) else "auto"
    with as_spec(workload) as spec:
        settings = make_settings(
            spec,
            budget=budget,
            out=out,
            keep_precision=keep_precision,
            try_lever=try_lever if layout is None else None,
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
        hear = listener or (lambda event, details: None)
        if layout is not None:
            return run_parallel(replace(settings, try_lever=try_lever), layout, hear)
        return run(settings, hear)


def run(settings: Settings, listener: Listener) -> Outcome:
    """Run one turn and write its three files, for `optimize` and for the command."""
    outcome = run_turn(settings, listener)
    write(outcome.result, outcome.recipe, render_page)
    return outcome


def run_parallel(settings: Settings, layout: ParallelLayout, listener: Listener) -> ParallelTurn:
    """Run one turn on many ranks and write its three files, for `optimize` and for the command."""
    # They import torch.distributed, which a turn of one process does without.
    from ratchet.scale.parallel.show import render_parallel_turn
    from ratchet.scale.parallel.turn import optimize_parallel

    found = optimize_parallel(settings, layout, listener)
    write_whole(Path(found.report), render_parallel_turn(found).encode())
    return found
