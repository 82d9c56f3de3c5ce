"""Library calls that need several rooms: `ratchet.optimize`, which the command also calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ratchet.base.errors import RatchetError
from ratchet.base.files import write_whole
from ratchet.base.show import page as show
from ratchet.train.turn.compose import write
from ratchet.train.turn.loop import Outcome
from ratchet.train.turn.loop import optimize as run_turn
from ratchet.train.turn.settings import Settings, make_settings
from ratchet.train.turn.show import render_page
from ratchet.train.turn.state import Listener
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


def optimize(
    workload: Workload | Callable[[], Workload] | str,
    *,
    listener: Listener = lambda event, details: None,
    **options: Any,
) -> Outcome | ParallelTurn:
    """Make a training step faster: measure it, try changes, prove them, write a recipe.

    `workload` is a Workload, the function that makes one, or text: a built-in name, `hf:NAME` or
    `file.py:function`. The step runs in new processes. So everything that a Workload object refers
    to must be defined at the top level of a module, and a script must call this under
    `if __name__ == "__main__":`.

    The options are those of the command `ratchet optimize`. `budget` is a duration (`"30m"`, or
    seconds). The folder `out` receives recipe.json, result.json and report.html. `device` is `cpu`,
    `cuda` or `auto`; the default is the Workload's own, else `auto`. `listener` is called with the
    name and the details of each event.

    With `parallel`, such as `"fsdp=2"`, the step runs on so many ranks of this machine, the slowest
    rank decides, and the result is a `ParallelTurn`.

    Raises a RatchetError of one line for any mistake that you can fix.
    """
    if (file := importing()) is not None:
        raise RatchetError(
            f"{file} calls ratchet.optimize when it is imported, and every process that runs the "
            'step imports it: put the call under `if __name__ == "__main__":`'
        )
    if options.get("device") is None and isinstance(workload, Workload):
        options["device"] = workload.device
    with as_spec(workload) as spec:
        return run(make_settings(spec, **options), listener)


# What help() and editors show: the options are spelled out once, in `make_settings`.
_OPTIONS = [
    one
    for one in inspect.signature(make_settings).parameters.values()
    if one.name not in ("workload", "gone_s")
]
_SHOWN = inspect.signature(optimize).parameters
optimize.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_SHOWN["workload"], *_OPTIONS, _SHOWN["listener"]]
)


def run(settings: Settings, listener: Listener) -> Outcome | ParallelTurn:
    """Run one turn and write its three files, for `optimize` and for the command."""
    if settings.layout is None:
        outcome = run_turn(settings, listener)
        write(outcome.result, outcome.recipe, render_page)
        return outcome
    # They import torch.distributed, which a turn of one process does without.
    from ratchet.scale.parallel.show import parallel_turn_report
    from ratchet.scale.parallel.turn import optimize_parallel

    found = optimize_parallel(settings, listener)
    write_whole(Path(found.report), show.render_page(parallel_turn_report(found)).encode())
    return found
