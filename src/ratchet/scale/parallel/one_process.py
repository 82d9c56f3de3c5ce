"""The recipe of a rank's step alone, which is one lever of a turn on many ranks.

The turn of one process runs at a rank's share of the batch. Its verdicts on kernels are in the
ledger, where they serve every rank of the same device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.scale.parallel.levers import (
    LEVERS,
    ONE_PROCESS,
    RankLever,
    one_process_lever,
)
from ratchet.scale.parallel.rank import RankStep
from ratchet.train.levers import check_lever
from ratchet.train.recipe.candidate import describe, wanted_libraries
from ratchet.train.recipe.shards import by_units, without_process
from ratchet.train.turn.loop import optimize
from ratchet.train.turn.optimize_result import Change
from ratchet.train.turn.settings import SMALLEST_BUDGET_S, Settings
from ratchet.train.turn.state import Listener
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.names import LoadOptions, check_options
from ratchet.train.workloads.parallel import ParallelLayout

SHARE: Final = 0.5
"""Part of a turn's budget for the turn of one process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """Findings of the turn of one process, for each rank."""

    lever: RankLever | None = None
    reason: str = ""
    """Why there is no lever, or what it does."""
    changes: tuple[Change, ...] = ()


def check_rank_lever(name: str | None) -> None:
    """Raise a RatchetError unless a lever of ranks or of one process has this name."""
    known = [*(one.name for one in LEVERS), ONE_PROCESS]
    if name is None or name in known:
        return
    try:
        check_lever(name)
    except RatchetError:
        raise RatchetError(
            f"unknown lever {name!r}: with --parallel use {', '.join(known)}, or a lever of one "
            "process, such as compile"
        ) from None


def optimize_rank(
    settings: Settings,
    layout: ParallelLayout,
    *,
    written: StepConfig,
    rows: int,
    left_s: float,
    listener: Listener,
) -> OneProcess:
    """Run a turn of one process; `rows` is the size of a batch of all ranks.

    Raises a RatchetError as that turn does.
    """
    if SHARE * left_s < SMALLEST_BUDGET_S:
        return OneProcess(reason="the budget is too small for a turn of one process")
    only = settings.try_lever
    alone = replace(
        settings,
        options=_share(settings, rows // (layout.data * layout.micro)),
        budget_s=SHARE * left_s,
        gone_s=0.0,
        try_lever=None if only == ONE_PROCESS else only,
        resume=False,
        out=settings.out / ONE_PROCESS,
    )
    outcome = optimize(alone, listener)
    changes = tuple(outcome.result.changes)
    left: list[str] = []
    config = without_process(outcome.recipe.config, written)
    if layout.fsdp > 1:
        config, left = by_units(config)
    if config == written:
        return OneProcess(reason="nothing was faster on one rank", changes=changes)
    wanted = wanted_libraries(config)
    kernels = tuple(one for one in outcome.recipe.kernels if one.library in wanted)
    changed = config.precision != written.precision
    step = RankStep(config=config, kernels=kernels)
    return OneProcess(
        lever=one_process_lever(step, changes_arithmetic=changed),
        reason="; ".join([describe(config), *left]),
        changes=changes,
    )


def _share(settings: Settings, rows: int) -> LoadOptions:
    """Return the options of one rank's part of the batch, if the workload takes a batch size."""
    try:
        check_options(settings.workload, batch_size=rows, sequence=None, text=None)
    except RatchetError:
        return settings.options
    return {**settings.options, "batch_size": rows}
