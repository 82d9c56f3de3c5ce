"""The levers of communication between ranks, in trial order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from ratchet.base.errors import RecipeError
from ratchet.scale.parallel.rank import RankArm, RankStep
from ratchet.train.workloads.parallel import ParallelLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLever:
    """One change in how ranks communicate: a field of `ParallelTuning`, or of the arm itself."""

    name: str
    summary: str
    expected: str
    source: str
    field: str
    value: object
    applies: Callable[[ParallelLayout], str | None]
    """Return None if the lever applies to a layout, otherwise the reason why not."""
    gpus: bool = False
    """True if it needs symmetric memory, which only GPUs have."""
    changes_arithmetic: bool = False
    default: bool = True
    """False if it is tried only when it is named, as it costs time."""

    def set(self, arm: RankArm) -> RankArm:
        """Return the arm with this lever pulled."""
        if self.field in RankArm.__struct_fields__:
            return msgspec.structs.replace(arm, **{self.field: self.value})
        tuning = msgspec.structs.replace(arm.tuning, **{self.field: self.value})
        return msgspec.structs.replace(arm, tuning=tuning)


def _ddp(layout: ParallelLayout) -> str | None:
    return None if layout.is_ddp and layout.dp > 1 else f"{layout} is not plain DDP"


def _fsdp(layout: ParallelLayout) -> str | None:
    if layout.pp > 1:
        return "stages of a pipeline keep their weights gathered"
    sharded = layout.fsdp * layout.cp > 1
    return None if sharded else f"{layout} shards no weights over data-parallel ranks"


def _accumulates(layout: ParallelLayout) -> str | None:
    if layout.pp > 1 or layout.micro == 1:
        return f"{layout} accumulates no gradients: add micro=2 or more"
    return None if layout.data > 1 else "no ranks exchange gradients"


def _exchanges(layout: ParallelLayout) -> str | None:
    return None if layout.data * layout.cp > 1 else "no ranks exchange gradients"


def _splits_products(layout: ParallelLayout) -> str | None:
    if layout.pp > 1:
        return "torch.compile does not take the schedule of a pipeline"
    return None if layout.tp > 1 else f"{layout} splits no products: add tp=2 or more"


LEVERS: Final = (
    RankLever(
        name="no-sync",
        summary="gradients are exchanged once a step, not once a micro-batch",
        expected="a step of N micro-batches sends 1/N of the gradients",
        source="PyTorch documentation, DistributedDataParallel.no_sync; "
        "FSDPModule.set_requires_gradient_sync",
        field="no_sync",
        value=True,
        applies=_accumulates,
    ),
    RankLever(
        name="bf16-reduction",
        summary="gradients travel as bf16",
        expected="half the bytes of each reduction of fp32 gradients",
        source="PyTorch documentation, DDP communication hooks; MixedPrecisionPolicy.reduce_dtype",
        field="reduction",
        value="bf16",
        applies=_exchanges,
        changes_arithmetic=True,
    ),
    RankLever(
        name="powersgd",
        summary="gradients of matrices travel as products of factors of rank 2, with feedback",
        expected="a hundredth of the bytes; more arithmetic on each rank",
        source="Vogels et al. 2019 (arXiv:1905.13727)",
        field="reduction",
        value="powersgd",
        applies=_ddp,
        changes_arithmetic=True,
    ),
    RankLever(
        name="keep-gathered",
        summary="weights stay gathered between the forward and the backward pass",
        expected="a third less communication, for the memory of all weights (ZeRO-2)",
        source="PyTorch documentation, fully_shard(reshard_after_forward=)",
        field="reshard_after_forward",
        value=False,
        applies=_fsdp,
    ),
    RankLever(
        name="prefetch",
        summary="weights of the next two blocks are gathered while one computes",
        expected="gathers begin earlier where the CPU runs behind",
        source="PyTorch documentation, FSDPModule.set_modules_to_forward_prefetch",
        field="prefetch",
        value=2,
        applies=_fsdp,
    ),
    RankLever(
        name="small-buckets",
        summary="DDP's buckets hold 5 MiB, not 25",
        expected="the first reduction begins earlier, and the last one is shorter",
        source="Li et al. 2020 (arXiv:2006.15704), section 5.2",
        field="bucket_cap_mb",
        value=5,
        applies=_ddp,
    ),
    RankLever(
        name="large-buckets",
        summary="DDP's buckets hold 100 MiB, not 25",
        expected="fewer reductions, where each has a high fixed cost",
        source="Li et al. 2020 (arXiv:2006.15704), section 5.2",
        field="bucket_cap_mb",
        value=100,
        applies=_ddp,
    ),
    RankLever(
        name="async-tp",
        summary="compiled products are cut into parts that overlap with the collectives by them",
        expected="hides most of tensor parallelism's collectives, as its ranks wait for each",
        source="Jangda et al. 2021 (arXiv:2105.05720); torch._inductor.config._micro_pipeline_tp",
        field="async_tp",
        value=True,
        applies=_splits_products,
        gpus=True,
    ),
    RankLever(
        name="activation-checkpointing",
        summary="matrix products saved, everything else recomputed during backward",
        expected="a fraction of the activation memory for a few percent of time",
        source="Chen et al. 2016 (sublinear memory cost); Korthikanti et al. 2022 (selective)",
        field="checkpointing",
        value="selective",
        applies=lambda layout: None,
        default=False,
    ),
)


ONE_PROCESS: Final = "one-process"
"""Name of the lever that sets the recipe of a rank's step alone."""


def one_process_lever(step: RankStep, *, changes_arithmetic: bool) -> RankLever:
    """Return the lever that runs each rank's step by a recipe of one process."""
    return RankLever(
        name=ONE_PROCESS,
        summary="each rank runs its step by the recipe of one process",
        expected="what the recipe wins on one rank, less what communication hides",
        source="ratchet optimize, without --parallel",
        field="step",
        value=step,
        applies=why_no_process,
        changes_arithmetic=changes_arithmetic,
    )


def why_no_process(layout: ParallelLayout, *, only: str | None = None) -> str | None:
    """Return why the levers of one process are not tried on a layout; None if they are."""
    if only in {one.name for one in LEVERS}:
        return f"--try names {only} alone"
    if layout.is_data_parallel:
        return None
    return f"{layout} splits the model itself: kernels and torch.compile are tried with dp and fsdp"


def find_rank_levers(
    layout: ParallelLayout,
    *,
    device: str = "cpu",
    only: str | None = None,
    keep_precision: bool = False,
) -> tuple[tuple[RankLever, ...], dict[str, str]]:
    """Return the levers of communication to try on a layout, and why not the others, by name.

    Raises RecipeError if `only` names a lever of one process that the layout cannot try.
    """
    names = {None, *(one.name for one in LEVERS)}
    if only not in names and (why := why_no_process(layout, only=only)):
        raise RecipeError(f"--try {only} cannot run: {why}")
    reasons = {one.name: _why_not(one, layout, only, keep_precision) for one in LEVERS}
    for one in LEVERS:
        if one.gpus and reasons[one.name] is None and not device.startswith("cuda"):
            reasons[one.name] = "it needs symmetric memory between GPUs, and gloo on CPUs has none"
    chosen = tuple(one for one in LEVERS if reasons[one.name] is None)
    return chosen, {name: why for name, why in reasons.items() if why is not None}


def combined(levers: Iterable[RankLever], arm: RankArm) -> RankArm:
    """Return an arm with all of these levers pulled; of one field, the first counts."""
    taken: set[str] = set()
    for one in levers:
        if one.field not in taken:
            arm = one.set(arm)
            taken.add(one.field)
    return arm


def _why_not(
    lever: RankLever, layout: ParallelLayout, only: str | None, keep_precision: bool
) -> str | None:
    if only is not None and lever.name != only:
        return f"--try names {only} alone"
    if only is None and not lever.default:
        return f"it may cost time: --try {lever.name}"
    if keep_precision and lever.changes_arithmetic:
        return "it changes the arithmetic, which --keep-precision forbids"
    return lever.applies(layout)
