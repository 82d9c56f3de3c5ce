"""The levers of a step on many ranks: how they communicate, and how each of them runs its step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from ratchet.base.errors import RatchetError, RecipeError
from ratchet.train.levers import Lever, Situation, check_lever
from ratchet.train.levers.table import CHECKPOINTING
from ratchet.train.recipe import Candidate
from ratchet.train.workloads.parallel import ParallelLayout


def layout_of(situation: Situation) -> ParallelLayout:
    """Return the ranks of a situation that has some."""
    assert situation.layout is not None, "a lever of ranks was asked about one process"
    return situation.layout


def _ddp(situation: Situation) -> str | None:
    layout = layout_of(situation)
    return None if layout.is_ddp and layout.dp > 1 else f"{layout} is not plain DDP"


def _factors(situation: Situation) -> str | None:
    # A bucket's second reduction starts when its first ends, in another order on every rank. NCCL
    # keeps the order of a stream; gloo takes one bucket's message for another's and aborts.
    gloo = "gloo aborts ranks that start the reductions of several buckets in another order"
    return _ddp(situation) or (gloo if situation.device_kind != "cuda" else None)


def _fsdp(situation: Situation) -> str | None:
    layout = layout_of(situation)
    if layout.pp > 1:
        return "stages of a pipeline keep their weights gathered"
    sharded = layout.fsdp * layout.cp > 1
    return None if sharded else f"{layout} shards no weights over data-parallel ranks"


def _accumulates(situation: Situation) -> str | None:
    layout = layout_of(situation)
    if layout.pp > 1 or layout.micro == 1:
        return f"{layout} accumulates no gradients: add micro=2 or more"
    return None if layout.data > 1 else "no ranks exchange gradients"


def _exchanges(situation: Situation) -> str | None:
    layout = layout_of(situation)
    return None if layout.data * layout.cp > 1 else "no ranks exchange gradients"


def _overlaps_products(situation: Situation) -> str | None:
    layout = layout_of(situation)
    if layout.pp > 1:
        return "torch.compile does not take the schedule of a pipeline"
    if layout.tp == 1:
        return f"{layout} splits no products: add tp=2 or more"
    if situation.device_kind != "cuda":
        return "it needs symmetric memory between GPUs, and gloo on CPUs has none"
    return None


LEVERS: Final = (
    Lever(
        name="no-sync",
        summary="gradients are exchanged once a step, not once a micro-batch",
        expected="a step of N micro-batches sends 1/N of the gradients",
        source="PyTorch documentation, DistributedDataParallel.no_sync; "
        "FSDPModule.set_requires_gradient_sync",
        ranks=True,
        field="no_sync",
        value=True,
        applies=_accumulates,
    ),
    Lever(
        name="bf16-reduction",
        summary="gradients travel as bf16",
        expected="half the bytes of each reduction of fp32 gradients",
        source="PyTorch documentation, DDP communication hooks; MixedPrecisionPolicy.reduce_dtype",
        ranks=True,
        field="reduction",
        value="bf16",
        applies=_exchanges,
        changes_arithmetic=True,
    ),
    Lever(
        name="powersgd",
        summary="gradients of matrices travel as products of factors of rank 2, with feedback",
        expected="a hundredth of the bytes; more arithmetic on each rank",
        source="Vogels et al. 2019 (arXiv:1905.13727)",
        ranks=True,
        field="reduction",
        value="powersgd",
        applies=_factors,
        changes_arithmetic=True,
    ),
    Lever(
        name="keep-gathered",
        summary="weights stay gathered between the forward and the backward pass",
        expected="a third less communication, for the memory of all weights (ZeRO-2)",
        source="PyTorch documentation, fully_shard(reshard_after_forward=)",
        ranks=True,
        field="reshard_after_forward",
        value=False,
        applies=_fsdp,
    ),
    Lever(
        name="prefetch",
        summary="weights of the next two blocks are gathered while one computes",
        expected="gathers begin earlier where the CPU runs behind",
        source="PyTorch documentation, FSDPModule.set_modules_to_forward_prefetch",
        ranks=True,
        field="prefetch",
        value=2,
        applies=_fsdp,
    ),
    Lever(
        name="small-buckets",
        summary="DDP's buckets hold 5 MiB, not 25",
        expected="the first reduction begins earlier, and the last one is shorter",
        source="Li et al. 2020 (arXiv:2006.15704), section 5.2",
        ranks=True,
        field="bucket_cap_mb",
        value=5,
        applies=_ddp,
    ),
    Lever(
        name="large-buckets",
        summary="DDP's buckets hold 100 MiB, not 25",
        expected="fewer reductions, where each has a high fixed cost",
        source="Li et al. 2020 (arXiv:2006.15704), section 5.2",
        ranks=True,
        field="bucket_cap_mb",
        value=100,
        applies=_ddp,
    ),
    Lever(
        name="async-tp",
        summary="compiled products are cut into parts that overlap with the collectives by them",
        expected="hides most of tensor parallelism's collectives, as its ranks wait for each",
        source="Jangda et al. 2021 (arXiv:2105.05720); torch._inductor.config._micro_pipeline_tp",
        ranks=True,
        field="async_tp",
        value=True,
        applies=_overlaps_products,
    ),
    # What it costs in time is known of no rank, so it is tried wherever it is named.
    replace(CHECKPOINTING, applies=lambda situation: None),
)
ONE_PROCESS: Final = Lever(
    name="one-process",
    summary="each rank runs its step by the recipe of a turn of one process",
    expected="what the recipe wins on one rank, less what communication hides",
    source="ratchet optimize, without --parallel",
    ranks=True,
    field="step",
    value=None,
)
"""Sets the whole config and the kernels of a rank's step, which a turn of one process finds."""


def check_rank_lever(name: str | None) -> None:
    """Raise a RatchetError unless a lever of ranks or of one process has this name."""
    known = [*(one.name for one in LEVERS), ONE_PROCESS.name]
    if name is None or name in known:
        return
    try:
        check_lever(name)
    except RatchetError:
        raise RatchetError(
            f"unknown lever {name!r}: with --parallel use {', '.join(known)}, or a lever of one "
            "process, such as compile"
        ) from None


def why_no_process(layout: ParallelLayout, *, only: str | None = None) -> str | None:
    """Return why the levers of one process are not tried on a layout; None if they are."""
    if only in {one.name for one in LEVERS}:
        return f"--try names {only} alone"
    if layout.is_data_parallel:
        return None
    return f"{layout} splits the model itself: kernels and torch.compile are tried with dp and fsdp"


def find_rank_levers(
    situation: Situation, *, only: str | None = None, keep_precision: bool = False
) -> tuple[tuple[Lever, ...], dict[str, str]]:
    """Return the levers of communication to try, and why not the others, by name.

    Raises RecipeError if `only` names a lever of one process that the layout cannot try.
    """
    names = {None, *(one.name for one in LEVERS)}
    if only not in names and (why := why_no_process(layout_of(situation), only=only)):
        raise RecipeError(f"--try {only} cannot run: {why}")

    def why_not(lever: Lever) -> str | None:
        if only is not None and lever.name != only:
            return f"--try names {only} alone"
        if only is None and not (lever.default or lever.ranks):
            return f"it may cost time: --try {lever.name}"
        if keep_precision and lever.changes_arithmetic:
            return "it changes the arithmetic, which --keep-precision forbids"
        return lever.applies(situation)

    reasons = {one.name: why_not(one) for one in LEVERS}
    chosen = tuple(one for one in LEVERS if reasons[one.name] is None)
    return chosen, {name: why for name, why in reasons.items() if why is not None}


def combined(
    levers: Iterable[Lever],
    written: Candidate,
    situation: Situation,
    own: Candidate | None = None,
) -> Candidate:
    """Return the step with all of these levers pulled; of one field, the first counts.

    `own` is what `ONE_PROCESS` stands for, and comes before the others.
    """
    first = {one.field: one for one in reversed(list(levers))}
    found = own if own is not None and ONE_PROCESS.field in first else written
    config, tuning = found.config, found.tuning
    for lever in first.values():
        if lever.field == ONE_PROCESS.field:
            continue
        if lever.ranks:
            tuning = lever.tune(tuning)
        else:
            config = lever.set(config, situation)
    if tuning.async_tp and config.compile_mode is None:  # inductor does it
        config = msgspec.structs.replace(config, compile_mode="default")
    return replace(found, config=config, tuning=tuning)
