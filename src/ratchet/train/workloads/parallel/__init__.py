"""A workload on many ranks: its layout, and the settings of their communication."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ratchet.base.errors import RatchetError, WorkloadError

# The words of `--parallel`, such as `fsdp=2,tp=2`.

DEGREES: Final = ("dp", "fsdp", "tp", "pp", "vpp", "cp", "ep")
"""Words that count ranks; `vpp` counts the stages that one of `pp` ranks holds."""
MICRO, SCHEDULE = "micro", "schedule"
Schedule = Literal["1f1b", "interleaved", "zero-bubble"]
SCHEDULES: Final[tuple[Schedule, ...]] = ("1f1b", "interleaved", "zero-bubble")


def parse_degrees(
    text: str, known: Iterable[str] = DEGREES, error: type[RatchetError] = WorkloadError
) -> dict[str, int]:
    """Return the numbers of `fsdp=2,tp=2` by word; `error` for an unknown word or a number below 1.

    Both `--parallel` of a step that runs and that of a plan are read here.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        word, _, number = part.strip().partition("=")
        if word not in known or not (number.isascii() and number.isdigit()):
            raise error(
                f"{part.strip()!r} is no degree of parallelism: write, for example, fsdp=8,tp=2"
            )
        if word in found:
            raise error(f"{text!r} gives {word} twice: give it once")
        if int(number) < 1:
            raise error(f"{word}={number} in {text!r}: give 1 or more")
        found[word] = int(number)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelLayout:
    """The degrees of a step that runs on `world` ranks.

    `dp` alone is DDP, `fsdp` is FSDP2 and both are HSDP: `dp` copies of `fsdp` shards.
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int = 1  # Stages of a pipeline that one rank holds
    cp: int = 1
    ep: int = 1
    """Ranks that share the experts; they are data-parallel ranks, which `dp` and `fsdp` count."""
    micro: int = 1
    """Parts of a rank's batch: micro-batches of a pipeline, else of an accumulated gradient."""
    schedule: Schedule = "1f1b"

    @property
    def data(self) -> int:
        """Return the number of ranks that read different sequences."""
        return self.dp * self.fsdp

    @property
    def world(self) -> int:
        return self.data * self.tp * self.pp * self.cp

    @property
    def is_ddp(self) -> bool:
        """Return True if whole copies of the model are trained side by side, and nothing else."""
        return self.world == self.dp and self.ep == 1

    @property
    def is_data_parallel(self) -> bool:
        """Return True if each rank computes the whole model on its share of the batch."""
        return self.world == self.data and self.ep == 1

    def __str__(self) -> str:
        degrees = {name: getattr(self, name) for name in (*DEGREES, MICRO)}
        told = [f"{name}={value}" for name, value in degrees.items() if value > 1]
        if self.schedule != "1f1b":
            told.append(f"{SCHEDULE}={self.schedule}")
        return ",".join(told) or "dp=1"


def parse_parallel(text: str) -> ParallelLayout:
    """Return the layout that `--parallel` names; WorkloadError in one line if there is none."""
    parts = [part for part in text.split(",") if not part.strip().startswith(f"{SCHEDULE}=")]
    named = [part.partition("=")[2].strip() for part in text.split(",") if part not in parts]
    given = parse_degrees(",".join(parts), (*DEGREES, MICRO)) if parts else {}
    if unknown := [one for one in named if one not in SCHEDULES]:
        raise WorkloadError(f"schedule {unknown[0]!r} is unknown: use {', '.join(SCHEDULES)}")
    pipeline = given.get("pp", 1) > 1
    if (named or given.get("vpp", 1) > 1) and not pipeline:
        raise WorkloadError(f"{text!r} has a schedule but no pipeline: add pp=2 or more")
    schedule: Schedule = "interleaved" if given.get("vpp", 1) > 1 else "1f1b"
    for one in SCHEDULES:
        schedule = one if one in named else schedule
    if schedule != "1f1b":
        given.setdefault("vpp", 2)
    if schedule == "zero-bubble" and given["vpp"] != 2:
        raise WorkloadError(f"{text!r}: a zero-bubble pipeline holds 2 stages a rank; drop vpp")
    if given.get("vpp", 1) > 1 and schedule == "1f1b":
        raise WorkloadError(f"{text!r}: 1f1b holds 1 stage a rank; drop vpp or the schedule")
    if pipeline:
        given.setdefault(MICRO, 2 * given["pp"])
    if "ep" in given and not {"dp", "fsdp"} & set(given):
        given["dp"] = given["ep"]
    layout = ParallelLayout(**given, schedule=schedule)
    if layout.data % layout.ep:
        raise WorkloadError(
            f"{text!r}: {layout.data} data-parallel ranks do not divide into groups of "
            f"ep={layout.ep}; change a degree"
        )
    return layout


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSizes:
    """The sizes of a model and its batch that a layout must divide; 0 if it has no such thing."""

    batch_size: int
    sequence: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    experts: int = 0


def check_layout(layout: ParallelLayout, sizes: SplitSizes, name: str) -> None:
    """Raise a WorkloadError of one line if a degree does not divide what it splits."""

    def must_divide(what: str, size: int, degree: int, words: str) -> None:
        if degree > 1 and (size < 1 or size % degree):
            raise WorkloadError(
                f"{name} has {size} {what}, which do not divide by {words}: change it"
            )

    rows = layout.data * layout.micro
    must_divide("sequences in a batch", sizes.batch_size, rows, _product(layout))
    must_divide("tokens in a sequence", sizes.sequence, layout.cp, f"cp={layout.cp}")
    must_divide("attention heads", sizes.heads, layout.tp, f"tp={layout.tp}")
    must_divide("key-value heads", sizes.kv_heads, layout.tp, f"tp={layout.tp}")
    must_divide("experts", sizes.experts, layout.ep, f"ep={layout.ep}")
    stages = layout.pp * layout.vpp
    if stages > 1 and sizes.layers < stages:
        raise WorkloadError(
            f"{name} has {sizes.layers} layers for {stages} stages of a pipeline: lower pp or vpp"
        )
    if layout.vpp > 1 and layout.micro % layout.pp:
        raise WorkloadError(
            f"micro={layout.micro} does not divide by pp={layout.pp}, which {layout.schedule} "
            "needs: change it"
        )


def _product(layout: ParallelLayout) -> str:
    degrees: Mapping[str, int] = {"dp": layout.dp, "fsdp": layout.fsdp, MICRO: layout.micro}
    told = [f"{name}={value}" for name, value in degrees.items() if value > 1]
    product = math.prod(degrees.values())
    return " x ".join(told) + (f" ({product})" if len(told) > 1 else "")


# Settings of the communication between ranks, which levers change and recipes store.

Reduction = Literal["as_written", "bf16", "powersgd"]
"""Form in which gradients travel: their own dtype, bf16, or products of rank-2 factors."""


class ParallelTuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of how ranks communicate, stored in recipes; the defaults are PyTorch's own."""

    bucket_cap_mb: Annotated[int, Meta(ge=1)] | None = None
    """Size of DDP's buckets of gradients, in MiB; None is DDP's own, 25."""
    no_sync: bool = False  # Exchange gradients once a step, not once a micro-batch
    reshard_after_forward: bool = True
    """FSDP2 frees gathered weights after the forward pass and gathers them again."""
    prefetch: Annotated[int, Meta(ge=0, le=8)] = 0
    """Blocks whose weights FSDP2 gathers ahead; 0 leaves it to FSDP2, which gathers one."""
    reduction: Reduction = "as_written"
    async_tp: bool = False
    """Compiled graphs cut a product beside a collective of tensor parallelism into parts that
    overlap with it; between GPUs alone."""


class TunedLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a recipe that ranks share."""

    layout: str  # Words of `--parallel`
    tuning: ParallelTuning
