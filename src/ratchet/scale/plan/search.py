"""All layouts of a model on a cluster, what each costs, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import GIB, RESERVED_BYTES, PlannedCluster, node_devices
from ratchet.scale.plan.layout import (
    CHECKPOINTINGS,
    CHOICES,
    SHARDINGS,
    Floats,
    Layout,
    Layouts,
    Stack,
    columns,
    join,
)
from ratchet.scale.plan.memory import Memory, memory
from ratchet.scale.plan.shape import Shape
from ratchet.scale.plan.time import Times, times

BATCH_TOKENS: Final = 4_194_304
"""Tokens of a step if nothing is asked: those of Llama 3 70B's first phase (arXiv:2407.21783)."""
MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32)
CHUNKS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12)
LARGEST: Final = 1 << 20
"""Devices in the largest cluster that is tried for a model that fits nowhere."""
TIME_PARTS: Final = tuple(one.name for one in fields(Times))
MEMORY_PARTS: Final = tuple(one.name for one in fields(Memory))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanQuestion:
    """A task to plan: a model on a cluster, with a batch and a stack."""

    shape: Shape
    cluster: PlannedCluster
    stack: Stack
    batch: int  # Sequences of one step, over all replicas
    precisions: tuple[str, ...] = ("bf16",)
    micro_batches: tuple[int, ...] = MICRO_BATCHES  # Sequences of a micro-batch that are tried
    checkpointings: tuple[str, ...] = CHECKPOINTINGS
    shardings: tuple[str, ...] = SHARDINGS


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    layout: Layout
    micro_batches: int
    step_s: float
    memory_bytes: float  # On the fullest rank, without what the driver reserves
    tokens_per_s: float
    mfu: float  # Model operations (6 N + 12 L H s a token) over bf16's paper peak
    time_s: dict[str, float]
    memory_by_part: dict[str, float]

    @property
    def binds(self) -> str:
        """Return the part that costs most beside the computation itself."""
        rest = {name: value for name, value in self.time_s.items() if name != "compute"}
        name = max(rest, key=lambda one: rest[one])
        return name if rest[name] > 0.05 * self.step_s else "compute"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The answer to `plan`: how many layouts there were, and the best."""

    asked: PlanQuestion
    counted: int
    fitting: int
    front: tuple[LayoutPlan, ...]
    """Layouts that no other beats in both time and memory, fastest first; the one that needs
    least if none of those asked for fits."""
    every: Evaluated  # All layouts, those that do not fit too

    @property
    def best(self) -> LayoutPlan:
        return self.front[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """Layouts with their times and memory, column by column."""

    layouts: Layouts
    micro_batches: Floats
    times: Times
    memory: Memory

    def plan(self, asked: PlanQuestion, place: int) -> LayoutPlan:
        step_s = float(self.times.total[place])
        tokens = asked.batch * asked.shape.sequence
        cluster = asked.cluster
        flops = asked.shape.flops_per_token * tokens
        return LayoutPlan(
            layout=self.layouts.row(place),
            micro_batches=int(self.micro_batches[place]),
            step_s=step_s,
            memory_bytes=float(self.memory.total[place]),
            tokens_per_s=tokens / step_s,
            mfu=flops / step_s / (cluster.peak["bf16"] * cluster.world),
            time_s={name: float(getattr(self.times, name)[place]) for name in TIME_PARTS},
            memory_by_part={
                name: float(getattr(self.memory, name)[place]) for name in MEMORY_PARTS
            },
        )


def make_asked(
    shape: Shape, cluster: PlannedCluster, stack: Stack, *, batch: int | None = None,
    precisions: tuple[str, ...] = ("bf16",), micro_batch: int | None = None,
    checkpointing: str | None = None, sharding: str | None = None,
) -> PlanQuestion:  # fmt: skip
    """Return what is planned; the batch defaults to about four million tokens.

    Without a micro-batch, a checkpointing or a sharding all are tried. Raises PlanError for a
    precision that the device lacks, and for an unknown checkpointing or sharding.
    """
    for name, word in (("checkpointing", checkpointing), ("sharding", sharding)):
        if word is not None and word not in CHOICES[name]:
            raise PlanError(f"{name} {word!r} is unknown: use one of {', '.join(CHOICES[name])}")
    precisions = tuple(dict.fromkeys(precisions))
    lacking = [one for one in precisions if one not in cluster.products]
    if lacking or not precisions:
        raise PlanError(
            f"{cluster.device} has no {(*lacking, '')[0] or 'nameless'} products: use "
            f"{', '.join(cluster.products)}"
        )
    if batch is None:
        wanted = max(cluster.world, BATCH_TOKENS // shape.sequence)
        # A power of two times the odd part of the devices divides among most layouts' replicas.
        odd = cluster.world // (cluster.world & -cluster.world)
        batch = odd * 2 ** (-(-wanted // odd) - 1).bit_length()
    return PlanQuestion(
        shape=shape, cluster=cluster, stack=stack, batch=batch, precisions=precisions,
        micro_batches=MICRO_BATCHES if micro_batch is None else (micro_batch,),
        checkpointings=CHECKPOINTINGS if checkpointing is None else (checkpointing,),
        shardings=SHARDINGS if sharding is None else (sharding,),
    )  # fmt: skip


def layouts_of(asked: PlanQuestion) -> Layouts:
    """Return every layout that divides the cluster, the model and the batch.

    Raises PlanError if there is none.
    """
    parts = list(_parts(asked))
    if not parts:
        raise PlanError(
            f"no layout divides {asked.cluster.world} devices, {asked.shape.layers} layers, "
            f"{asked.shape.heads} heads and a batch of {asked.batch} in micro-batches of "
            f"{' or '.join(map(str, asked.micro_batches))}: change one of them"
        )
    return join(parts)


def _parts(asked: PlanQuestion) -> Iterator[Layouts]:
    """Yield, for each set of degrees, all choices of micro-batch, chunks and what is kept."""
    shape, cluster = asked.shape, asked.cluster
    for tp in _divisors(shape.heads, cluster.local):
        for pp in _stages(shape, cluster.world // tp) if not cluster.world % tp else ():
            most = max(1, min(cluster.world // (tp * pp), shape.sequence // 1024))
            for cp in (2**one for one in range(most.bit_length())):
                if cluster.world % (tp * pp * cp) or not _splits(shape, cp):
                    continue
                dp = cluster.world // (tp * pp * cp)
                if asked.batch % dp:
                    continue
                experts = _divisors(shape.experts, dp) if shape.experts else [1]
                for ep in (one for one in experts if dp % one == 0):
                    degrees = Layout(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep)
                    if len(found := _choices(asked, degrees)):
                        yield found


def _splits(shape: Shape, cp: int) -> bool:
    """Return whether a sequence makes two equal parts for each context parallel rank."""
    return cp == 1 or not shape.sequence % (2 * cp)


def _stages(shape: Shape, ranks: int) -> list[int]:
    """Return the counts of stages among some ranks of which the last one has layers, if fewer."""
    counts = _divisors(ranks, shape.layers)
    return [pp for pp in counts if -(-shape.layers // pp) * (pp - 1) < shape.layers]


def _choices(asked: PlanQuestion, degrees: Layout) -> Layouts:
    """Return all choices of micro-batch, chunks, sharding and what is kept with some degrees."""
    pp, own = degrees.pp, asked.batch // degrees.dp
    micro = [one for one in asked.micro_batches if one <= own and own % one == 0]
    chunks = [one for one in CHUNKS if one == 1 or _interleaves(asked.shape.layers, pp, one)]
    # A data-parallel group of one rank shards nothing.
    shared = degrees.dp * degrees.cp > 1
    sharding = [SHARDINGS.index(one) for one in asked.shardings] if shared else [0]
    found = _with_choices(asked, degrees, micro, vpp=chunks, sharding=sharding)
    # An interleaved schedule takes whole rounds of micro-batches.
    return found.take((found.vpp == 1) | (own // found.micro_batch % pp == 0))


def chunk_layers(layers: int, pp: int, vpp: int) -> list[int]:
    """Return the layers of each chunk of an interleaved pipeline, in the order of a forward pass.

    If stages do not divide the layers, the last one has fewer. If two layers lack, as in 126 on 16
    stages, the embedding takes the place of one and the output layer that of the other. A stage's
    chunks differ by one at most.
    """
    most = -(-layers // pp)
    lacks = most * pp - layers
    first = 1 if lacks == 2 else 0
    own = [most - first, *[most] * (pp - 2), most - lacks + first]
    return [
        one // vpp + (chunk >= vpp - one % vpp if stage == 0 else chunk < one % vpp)
        for chunk in range(vpp)
        for stage, one in enumerate(own)
    ]


def _interleaves(layers: int, pp: int, vpp: int) -> bool:
    """Return whether each chunk has a layer, or holds the embedding or the output layer."""
    return pp > 1 and all(chunk_layers(layers, pp, vpp)[1:-1])


def _with_choices(
    asked: PlanQuestion, layout: Layout, micro_batches: Sequence[int], **choices: list[int]
) -> Layouts:
    """Return a layout with each of the choices, and each checkpointing and precision asked for."""
    choices = {
        "micro_batch": list(micro_batches),
        **choices,
        "checkpointing": [CHOICES["checkpointing"].index(one) for one in asked.checkpointings],
        "precision": [CHOICES["precision"].index(one) for one in asked.precisions],
    }
    grid = [one.ravel().astype(np.int64) for one in np.meshgrid(*choices.values(), indexing="ij")]
    same = columns([layout]).take(np.zeros(len(grid[0]), dtype=np.int64))
    return replace(same, **dict(zip(choices, grid, strict=True)))


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]


def evaluate(asked: PlanQuestion, layouts: Layouts) -> Evaluated:
    """Return the times and the memory of some layouts."""
    micro_batches = asked.batch / (layouts.dp * layouts.micro_batch)
    return Evaluated(
        layouts=layouts,
        micro_batches=micro_batches,
        times=times(asked.shape, asked.cluster, layouts, micro_batches, asked.stack),
        memory=memory(asked.shape, layouts, micro_batches, asked.stack),
    )


def room_bytes(cluster: PlannedCluster) -> float:
    """Return the memory of a device that a step may fill."""
    return cluster.memory_bytes - RESERVED_BYTES


def front(step_s: Floats, memory_bytes: Floats) -> NDArray[np.int64]:
    """Return the places that nothing beats in both time and memory, fastest first."""
    order = np.lexsort((memory_bytes, step_s))
    least = np.minimum.accumulate(memory_bytes[order])
    earlier = np.concatenate(([np.inf], least[:-1]))
    return order[memory_bytes[order] < earlier]


def plan(asked: PlanQuestion) -> Planned:
    """Evaluate every layout and return those on the front that fit the devices' memory.

    Raises PlanError if none fits, with the smallest cluster of the same nodes on which one does.
    """
    every = evaluate(asked, layouts_of(asked))
    fits = _fitting(asked, every)
    if not len(fits):
        raise PlanError(_fits_nowhere(asked, float(every.memory.total.min())))
    chosen = fits[front(every.times.total[fits], every.memory.total[fits])]
    return _planned(asked, every, fits, chosen)


def _fitting(asked: PlanQuestion, every: Evaluated) -> NDArray[np.int64]:
    return np.flatnonzero(every.memory.total <= room_bytes(asked.cluster))


def _planned(
    asked: PlanQuestion, every: Evaluated, fits: NDArray[np.int64], chosen: NDArray[np.int64]
) -> Planned:
    plans = tuple(every.plan(asked, int(place)) for place in chosen)
    counted = len(every.layouts)
    return Planned(asked=asked, counted=counted, fitting=len(fits), front=plans, every=every)


def plan_degrees(asked: PlanQuestion, layout: Layout) -> Planned:
    """Return the fastest plan with a layout's degrees that fits, or the smallest if none does.

    The micro-batch, the checkpointing and the precision are those of the question. Raises PlanError
    if the degrees do not divide the batch or the model.
    """
    _check(asked, replace(layout, micro_batch=_micro_batches(asked, layout)[0]))
    every = evaluate(asked, _with_choices(asked, layout, _micro_batches(asked, layout)))
    fits = _fitting(asked, every)
    total = every.memory.total
    best = fits[np.argmin(every.times.total[fits])] if len(fits) else np.argmin(total)
    return _planned(asked, every, fits, np.array([best]))


def _micro_batches(asked: PlanQuestion, layout: Layout) -> list[int]:
    """Return the micro-batches that a layout's degrees allow; the first one asked if none."""
    fitting = [one for one in asked.micro_batches if _runs(asked, layout, one)]
    return fitting or [asked.micro_batches[0]]


def _runs(asked: PlanQuestion, layout: Layout, micro_batch: int) -> bool:
    """Return True if micro-batches fill replicas, and an interleaved pipeline's whole rounds."""
    count, rest = divmod(asked.batch, layout.dp * micro_batch)
    return count > 0 and not rest and (layout.vpp == 1 or count % layout.pp == 0)


def _check(asked: PlanQuestion, layout: Layout) -> None:
    """Raise PlanError if a layout does not divide the cluster, the batch or the model."""
    shape, cluster = asked.shape, asked.cluster
    if layout.world != cluster.world:
        raise PlanError(
            f"{layout.words()} takes {layout.world} ranks, and {cluster.name} has {cluster.world}: "
            "change a degree"
        )
    if asked.batch % (layout.dp * layout.micro_batch):
        raise PlanError(
            f"a batch of {asked.batch} sequences does not divide among {layout.dp} replicas with "
            f"micro-batches of {layout.micro_batch}: change one of them"
        )
    if shape.heads % layout.tp or layout.pp > shape.layers:
        raise PlanError(
            f"{layout.words()} does not divide {shape.name} with {shape.heads} heads and "
            f"{shape.layers} layers: change a degree"
        )
    if layout.vpp > 1 and not _interleaves(shape.layers, layout.pp, layout.vpp):
        raise PlanError(
            f"{layout.words()} does not split {shape.layers} layers into pp x vpp chunks of a "
            "layer or more, with a pp of 2 or more: change a degree"
        )
    if not _runs(asked, layout, layout.micro_batch):
        raise PlanError(
            f"{layout.words()} is interleaved, so each replica needs a multiple of {layout.pp} "
            "micro-batches: change the batch, --micro-batch or a degree"
        )
    if layout.dp % layout.ep:
        raise PlanError(
            f"ep={layout.ep} does not divide the {layout.dp} data-parallel ranks, among which it "
            "spreads experts: change one of them"
        )
    if not _splits(shape, layout.cp):
        raise PlanError(
            f"{layout.words()} does not split a sequence of {shape.sequence} tokens into "
            f"{2 * layout.cp} equal parts: change cp or --sequence"
        )
    if layout.ep > 1 and not shape.experts:
        raise PlanError(f"{shape.name} has no experts to spread: leave ep out")
    if layout.ep > 1 and shape.experts % layout.ep:
        raise PlanError(
            f"ep={layout.ep} does not divide the {shape.experts} experts of {shape.name}: change it"
        )


def _fits_nowhere(asked: PlanQuestion, least_bytes: float) -> str:
    cluster = asked.cluster
    said = (
        f"{asked.shape.name} fits no layout of {cluster.name}: the smallest takes "
        f"{least_bytes / GIB:.1f} GiB of {room_bytes(cluster) / GIB:.1f} GiB a device"
    )
    local, nodes, word = cluster.local, cluster.nodes, cluster.device.lower().split()[0]
    while 2 * local * nodes <= LARGEST:
        if nodes == 1 and 2 * local <= node_devices(cluster):
            local *= 2  # a whole node before a second one
        else:
            nodes *= 2
        larger = replace(
            asked,
            cluster=replace(cluster, local=local, nodes=nodes, name=f"{word}:{local}x{nodes}"),
            batch=max(asked.batch, nodes * local),
        )
        evaluated = evaluate(larger, layouts_of(larger))
        if evaluated.memory.total.min() <= room_bytes(cluster):
            return f"{said}; it fits {larger.cluster.name}: plan for that"
    return f"{said}; no larger cluster of these devices helps: shorten the sequence"
