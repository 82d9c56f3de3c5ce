"""Layouts of a model over devices: one layout, and many of them as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ratchet.base.errors import PlanError
from ratchet.train.workloads.parallel import parse_degrees

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Sharding = Literal["none", "optimizer", "full"]
Checkpointing = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp8"]
SHARDINGS: Final[tuple[Sharding, ...]] = ("none", "optimizer", "full")
CHECKPOINTINGS: Final = ("none", "selective", "full")
PRECISIONS: Final = ("bf16", "fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism and what each rank keeps. Degrees count ranks."""

    dp: int = 1
    """Data-parallel replicas; with `full` sharding the ranks of FSDP."""
    tp: int = 1
    """Tensor parallel, with the sequence split between the products (arXiv:2205.05198)."""
    pp: int = 1
    vpp: int = 1
    """Chunks of layers a pipeline stage holds: above 1 the schedule is interleaved."""
    cp: int = 1
    """Context parallel: ring attention over the sequence."""
    ep: int = 1
    """Expert parallel, over data-parallel ranks."""
    micro_batch: int = 1
    """Sequences in one pass of one replica."""
    sharding: Sharding = "none"
    """none: DDP; optimizer: ZeRO-1; full: FSDP2."""
    checkpointing: Checkpointing = "none"
    precision: Precision = "bf16"

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    def words(self) -> str:
        """Return the layout in the words of `--parallel`: dp=8,tp=2."""
        name = "fsdp" if self.sharding == "full" else "dp"
        degrees = {name: self.dp, "tp": self.tp, "pp": self.pp, "vpp": self.vpp, "cp": self.cp}
        degrees["ep"] = self.ep
        told = [f"{key}={value}" for key, value in degrees.items() if value > 1]
        return ",".join(told) or "dp=1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """Many layouts as columns of equal length; choices are places in their tuples."""

    dp: Integers
    tp: Integers
    pp: Integers
    vpp: Integers
    cp: Integers
    ep: Integers
    micro_batch: Integers
    sharding: Integers
    checkpointing: Integers
    precision: Integers

    def __len__(self) -> int:
        return len(self.dp)

    def row(self, place: int) -> Layout:
        values = {one.name: int(getattr(self, one.name)[place]) for one in fields(self)}
        return Layout(
            **{name: values[name] for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch")},
            sharding=SHARDINGS[values["sharding"]],
            checkpointing=CHECKPOINTINGS[values["checkpointing"]],
            precision=PRECISIONS[values["precision"]],
        )

    def take(self, chosen: NDArray[np.bool_] | Integers) -> Layouts:
        """Return those that `chosen` marks or numbers."""
        return Layouts(**{one.name: getattr(self, one.name)[chosen] for one in fields(self)})


def columns(layouts: Iterable[Layout]) -> Layouts:
    rows = [
        (
            one.dp, one.tp, one.pp, one.vpp, one.cp, one.ep, one.micro_batch,
            SHARDINGS.index(one.sharding), CHECKPOINTINGS.index(one.checkpointing),
            PRECISIONS.index(one.precision),
        )
        for one in layouts
    ]  # fmt: skip
    table = np.array(rows, dtype=np.int64).reshape(-1, len(fields(Layouts)))
    return Layouts(**{one.name: table[:, at] for at, one in enumerate(fields(Layouts))})


def join(parts: Iterable[Layouts]) -> Layouts:
    """Return several tables as one."""
    held = list(parts)
    return Layouts(
        **{
            one.name: np.concatenate([getattr(part, one.name) for part in held])
            for one in fields(Layouts)
        }
    )


def parse_layout(text: str, world: int) -> Layout:
    """Return the layout of `fsdp=2,tp=2`; what is left of `world` ranks becomes data-parallel.

    Raises PlanError for an unknown word, a degree below 1, or a product that does not divide.
    """
    degrees = parse_degrees(text, error=PlanError)
    if "dp" in degrees and "fsdp" in degrees:
        raise PlanError(f"{text!r} has both dp and fsdp: give one of them")
    full = "fsdp" in degrees
    given = degrees.pop("fsdp", None) or degrees.pop("dp", None)
    rest = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("cp", 1)
    if world % rest or (given and given * rest != world):
        raise PlanError(
            f"{text!r} takes {rest * (given or 1)} ranks, which do not make the {world} of the "
            "cluster: change a degree"
        )
    return Layout(
        dp=world // rest,
        sharding="full" if full else "optimizer",
        tp=degrees.get("tp", 1),
        pp=degrees.get("pp", 1),
        vpp=degrees.get("vpp", 1),
        cp=degrees.get("cp", 1),
        ep=degrees.get("ep", 1),
    )
