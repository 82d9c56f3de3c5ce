"""Seconds of one training step for each layout, part by part.

A product takes the larger of its operations over the sustained rate and its bytes over the memory's
bandwidth; tiles that fill no whole wave, and short inner sizes, lower its rate. Attention, element
by element work, collectives, the pipeline's bubble and the optimizer are added. What can overlap is
exposed only as far as it outlasts what it overlaps with.
T is the tokens of one micro-batch on one rank, H the hidden size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import (
    EXCHANGE_ONCE,
    HOP_S,
    NETWORK_HOP_S,
    PlannedCluster,
    parse_cluster,
)
from ratchet.scale.plan.layout import PRECISIONS, Floats, Integers, Layouts, Stack
from ratchet.scale.plan.memory import (
    FULL,
    FULL_SHARDING,
    OPTIMIZER,
    SELECTIVE,
    parameters_per_rank,
)
from ratchet.scale.plan.shape import Shape

if TYPE_CHECKING:
    from ratchet.train.workloads.fake import StepProduct

NARROW: Final = PRECISIONS.index("fp8")  # From here on, products have 8 bits or fewer
NVFP4: Final = PRECISIONS.index("nvfp4")
BF16_LAYERS: Final = 0.15
"""Share of the layers that NVFP4's recipe leaves in bf16 (arXiv:2509.25149; torchtitan's
nvfp4.md)."""
TILE_ROWS, TILE_COLUMNS = 256, 128
INNER: Final = 256  # Inner size at which filling and draining a tile's pipeline halves the rate
ATTENTION_FORWARD, ATTENTION_BACKWARD = 0.6, 0.45
"""Share of the bf16 product rate that fused attention sustains, forward and backward, with causal
masks: 190 and 150 of 247 to 312 TFLOP/s on an A100 (arXiv:2307.08691, figures 5 and 6)."""
AMPERE_FORWARD, AMPERE_BACKWARD = 0.44, 0.36
"""The same of FlashAttention-2 on an H100, whose new instructions it lacks: 335 and about 280 of
768 TFLOP/s (arXiv:2307.08691, section 4.1; arXiv:2407.08608, figures 5 and 6)."""
LATER: Final = ("H100", "H200", "B", "GB")
"""Beginnings of devices with products that FlashAttention-2 has no instructions for."""
CUDNN_FORWARD, CUDNN_BACKWARD, CUDNN_HALF = 1.0, 0.82, 1200.0
"""The same of cuDNN's on these devices, causal, for long sequences, and the sequence of half the
rate. 4,096 and 8,192 tokens with heads of 128: 591 and 644 forward and 474 and 541 backward on an
H200, 1,408, 1,574, 1,148 and 1,332 on a GB200, 1,703, 1,856, 1,248 and 1,435 on a GB300
(NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training/results @3929da2)."""
LATENT_BACKWARD: Final = 0.91
"""Its rate backward with keys of 192 beside one with keys of 128: 1,193 and 1,332 on a GB200, 1,291
and 1,435 on a GB300 (the same results, dsv3, 8,192 tokens)."""
FULL_HEAD: Final = 128
"""Head size at which exponentials take as long as products, so that heads of 64 reach two thirds:
0.57 and 0.61 on an H200 (the same results, gpt_oss)."""
ALIGNED: Final = 8
"""Elements of which a head's size must be a multiple for tensor cores to run its products at full
rate (NVIDIA's Matrix Multiplication Background, tensor core requirements)."""
MISALIGNED: Final = 1 / 16  # Share of the rate without tensor cores: 19.5 of 312 TFLOP/s on an A100
UNFUSED: Final = 0.5
"""The same for the two batched products of attention that is not fused; its scores' traffic is
counted apart."""
BACKWARD: Final = 2.0  # Operations of a product's backward pass over those of its forward pass
ATTENTION_BACKWARD_FLOPS: Final = 2.5  # Fused attention's, which computes the scores again
LAUNCH_S: Final = 4e-6  # Least time of a kernel; an assumption
HOST_S: Final = 8e-6  # Time in which a Python program launches one kernel; an assumption
LAYER_LAUNCHES: Final = 60
"""Kernels of a layer with experts that the host launches forward beside those of each expert: its
attention, router and permutations. An assumption."""
COUNTED_LAUNCHES: Final = 12
"""Those of them whose least time is counted with their work. The others only route and count tokens
and are as short as a kernel can be."""
EXPERT_LAUNCHES: Final = 2.0  # Products of an expert, each a kernel of its own
EXPERT_CASTS: Final = 16
"""Kernels that an expert's narrow products need beside them, forward; backward has twice as many.
Set by one row: Qwen3-30B-A3B on 8 B200 with one sequence in a micro-batch."""
OPTIMIZER_TRAFFIC: Final = 30
"""Bytes that AdamW moves for a parameter: weight, gradient and moments read, three written."""
OVERLAPPED: Final = 0.8
"""Share of the compute that collectives of data parallelism can hide behind. An assumption."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Seconds of a step on the slowest rank, by part; each an array over the layouts."""

    compute: Floats
    recompute: Floats
    tensor: Floats  # Exposed collectives of tensor parallelism
    context: Floats
    experts: Floats
    bubble: Floats
    pipeline: Floats
    data: Floats  # Exposed collectives of data parallelism
    optimizer: Floats

    @property
    def total(self) -> Floats:
        model = self.compute + self.recompute + self.tensor + self.context + self.experts
        return model + self.bubble + self.pipeline + self.data + self.optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Seconds of one layer and one micro-batch on one rank."""

    forward: Floats
    backward: Floats
    attention: Floats  # The attention's part of `forward`
    products: Floats  # The products' part of `forward`


def times(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, micro_batches: Floats, stack: Stack
) -> Times:
    """Return the times of each layout; `micro_batches` counts those of a step on one replica."""
    tokens = layouts.micro_batch * shape.sequence / layouts.cp
    layer = _layer(shape, cluster, layouts, tokens, stack)
    head = _head(shape, cluster, layouts, tokens, stack)
    per_stage = np.ceil(shape.layers / layouts.pp)
    # Layers that the last stage lacks: of two, the first one lacks the other (`chunk_layers`), but
    # for a model that predicts a second token, which has two output layers in the last stage.
    fewer = per_stage * layouts.pp - shape.layers
    fewer = np.where((fewer == 2) & (shape.predicted == 1), 1.0, fewer)
    sent = stack.element_bytes / 2  # the formulas below are of bf16
    tensor = sent * _tensor(shape, cluster, layouts, tokens) * (1 - stack.overlap_tensor)
    context = _context(shape, cluster, layouts, sent * tokens, layer)
    experts = sent * _experts(shape, cluster, layouts, tokens, stack)
    again = _recomputed(layouts, layer, stack.flash)
    full = (layouts.checkpointing == FULL).astype(float)
    # Where the last stage has fewer layers, the output layer takes their place.
    head = np.maximum(head - fewer * (layer.forward + layer.backward + again), 0.0)
    compute = per_stage * (layer.forward + layer.backward) + head
    recompute = per_stage * again
    exchanged = per_stage * tensor * (1 + 0.5 * full)
    around = per_stage * context * (1 + 0.5 * full)
    routed = experts * (shape.moe_layers / shape.layers) * per_stage * (1 + 0.5 * full)
    stage = compute + recompute + exchanged + around + routed
    mean_stage = stage - head * (1 - 1 / layouts.pp)
    bubble = (layouts.pp - 1) / layouts.vpp * mean_stage
    data = _data(shape, cluster, layouts, micro_batches, stage, stack)
    return Times(
        compute=micro_batches * compute
        + _accumulated(shape, cluster, layouts, micro_batches, stack),
        recompute=micro_batches * recompute,
        tensor=micro_batches * exchanged,
        context=micro_batches * around,
        experts=micro_batches * routed,
        bubble=bubble,
        pipeline=sent * _pipeline(shape, cluster, layouts, tokens, micro_batches, stack),
        data=data,
        optimizer=_optimizer(shape, cluster, layouts),
    )


def product_s(
    cluster: PlannedCluster,
    rows: Floats,
    columns: Floats,
    inner: Floats,
    precision: Integers | int = 0,
) -> Floats:
    """Return the seconds of a product [rows, inner] x [inner, columns]; 0 is bf16."""
    flops = 2.0 * rows * columns * inner
    share = product_share(cluster, rows, columns, inner)
    traffic = 2.0 * (rows * inner + inner * columns + rows * columns)
    busy = flops / (_rates(cluster)[precision] * share)
    return np.asarray(np.maximum(busy, traffic / cluster.memory.per_s) + LAUNCH_S)


def products_s(device: str, products: Sequence[StepProduct]) -> float | None:
    """Return the seconds of a step's bf16 products on a device; None if it cannot be planned."""
    with contextlib.suppress(PlanError):
        cluster = parse_cluster(f"{device.lower().replace(' ', '-')}:1")
        sizes = np.array([[one.rows, one.columns, one.inner, one.count] for one in products])
        rows, columns, inner, count = sizes.reshape(-1, 4).T.astype(float)
        return float(np.sum(count * product_s(cluster, rows, columns, inner)))
    return None


def _rates(cluster: PlannedCluster) -> Floats:
    """Return the rates of products in the order of `PRECISIONS`; bf16's where there is none."""
    bf16 = cluster.products["bf16"].per_s
    rates = [cluster.products[one].per_s if one in cluster.products else bf16 for one in PRECISIONS]
    rates[NVFP4] = 1 / ((1 - BF16_LAYERS) / rates[NVFP4] + BF16_LAYERS / bf16)
    return np.array(rates)


def grouped_s(
    cluster: PlannedCluster,
    experts: Floats,
    rows: Floats,
    columns: Floats,
    inner: Floats,
    precision: Integers | int = 0,
    result_bytes: float = 2.0,
) -> Floats:
    """Return the seconds of as many products [rows, inner] x [inner, columns] in one launch.

    Their tiles share the units; as groups differ in size, half a tile of each one's rows is idle.
    One expert is a product like any other. `result_bytes` are moved for an element of the result.
    """
    tiles = experts * np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS)
    share = _filled(cluster, tiles, inner) * np.array(cluster.grouped)[precision]
    flops = 2.0 * experts * (rows + TILE_ROWS / 2) * columns * inner
    traffic = 2.0 * (rows * inner + inner * columns) + result_bytes * rows * columns
    traffic = experts * traffic
    busy = flops / (_rates(cluster)[precision] * share)
    grouped = np.maximum(busy, traffic / cluster.memory.per_s) + LAUNCH_S
    alone = product_s(cluster, rows, columns, inner, precision)
    return np.where(experts == 1, alone, grouped)


def product_share(cluster: PlannedCluster, rows: Floats, columns: Floats, inner: Floats) -> Floats:
    """Return the share of the sustained rate that a product's sizes leave it."""
    tiles = np.ceil(rows / TILE_ROWS) * np.ceil(columns / TILE_COLUMNS)
    return _filled(cluster, tiles, inner)


def _filled(cluster: PlannedCluster, tiles: Floats, inner: Floats) -> Floats:
    # On average, half of the last wave of tiles is idle.
    share = tiles / (tiles + cluster.units / 2) * inner / (inner + INNER)
    if cluster.by_inner:
        sizes, measured = zip(*cluster.by_inner, strict=True)
        share = share * np.interp(np.log2(inner), np.log2(sizes), measured)
    return np.asarray(share)


def _layer(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> Layer:
    tp = layouts.tp.astype(float)
    kind = layouts.precision
    hidden = np.full_like(tp, shape.hidden)
    products = np.zeros_like(tp)
    for columns, inner, split in shape.projections:
        width = columns / (tp if split == "columns" else np.ones_like(tp))
        deep = inner / (tp if split == "inner" else np.ones_like(tp))
        products = products + product_s(cluster, tokens, width, deep, kind)
    moe = shape.moe_layers / shape.layers
    wide = shape.products - 1.0

    def mlp(rows: Floats, width: Floats) -> Floats:
        up = product_s(cluster, rows, wide * width, hidden, kind)
        return np.asarray(up + product_s(cluster, rows, hidden, width, kind))

    if shape.intermediate:
        products = products + (1 - moe) * mlp(tokens, shape.intermediate / tp)
    if shape.experts and shape.shared_intermediate:
        products = products + moe * mlp(tokens, shape.shared_intermediate / tp)
    attention_f, attention_b = attention_s(shape, cluster, layouts, tokens, stack)
    moved = _moved_s(shape, cluster, layouts, tokens, stack)
    routed_f, routed_b, launched = _routed(shape, cluster, layouts, tokens, stack)
    small = moe * (LAYER_LAUNCHES - COUNTED_LAUNCHES) * LAUNCH_S
    forward = products + moe * routed_f + attention_f + moved + small
    backward = _backward(shape) * products + moe * routed_b + attention_b + 1.5 * moved + 2 * small
    # What the host cannot launch in time, the device waits for.
    return Layer(
        forward=np.maximum(forward, moe * launched),
        backward=np.maximum(backward, moe * BACKWARD * launched),
        attention=attention_f,
        products=products + moe * routed_f,
    )


def _backward(shape: Shape) -> float:
    return BACKWARD / 2 if shape.frozen else BACKWARD


def _routed(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> tuple[Floats, Floats, Floats]:
    """Return the routed experts' seconds forward and backward, and those of a layer's launches.

    Backward, the weights' gradients have the tokens of an expert as inner size.
    """
    if not shape.experts:
        return np.zeros_like(tokens), np.zeros_like(tokens), np.zeros_like(tokens)
    kind = layouts.precision
    # A rank holds experts / ep of them, and each gets its share of ep ranks' tokens, or more.
    own = np.maximum(shape.experts / layouts.ep, 1.0)
    rows = tokens * shape.experts_per_token * layouts.ep / shape.experts
    rows = rows * np.where(layouts.ep > 1, shape.imbalance, 1.0)
    hidden = np.full_like(tokens, shape.hidden)
    width = np.full_like(tokens, shape.expert_intermediate) / layouts.tp
    up = (shape.products - 1.0) * width
    forward = grouped_s(cluster, own, rows, up, hidden, kind)
    forward = forward + grouped_s(cluster, own, rows, hidden, width, kind)
    inputs = grouped_s(cluster, own, rows, hidden, up, kind)
    inputs = inputs + grouped_s(cluster, own, rows, width, hidden, kind)
    moved = stack.gradient_traffic
    weights = grouped_s(cluster, own, hidden, up, rows, kind, moved)
    weights = weights + grouped_s(cluster, own, width, hidden, rows, kind, moved)
    casts = np.where(kind >= NARROW, EXPERT_CASTS, 0)
    launched = (LAYER_LAUNCHES + own * (EXPERT_LAUNCHES + casts)) * HOST_S
    backward = inputs if shape.frozen else inputs + weights
    return forward, np.asarray(backward), np.asarray(launched)


def attention_s(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> tuple[Floats, Floats]:
    """Return attention's seconds forward and backward: 4 T s H operations, half if causal."""
    whole = 4.0 * tokens * shape.attended * shape.attention_inner / layouts.tp
    rate = cluster.products["bf16"].per_s
    if stack.flash:
        forward_share, back_share = ATTENTION_FORWARD, ATTENTION_BACKWARD
        if cluster.device.startswith(LATER) and stack.ampere_attention:
            forward_share, back_share = AMPERE_FORWARD, AMPERE_BACKWARD
        elif cluster.device.startswith(LATER):
            head = min(shape.head_dim, FULL_HEAD)
            factor = 2 * head / (head + FULL_HEAD) * shape.sequence / (shape.sequence + CUDNN_HALF)
            forward_share, back_share = factor * CUDNN_FORWARD, factor * CUDNN_BACKWARD
            back_share *= LATENT_BACKWARD if shape.latent_rank else 1.0
        forward = whole / 2 / (rate * forward_share) + LAUNCH_S
        back = whole / 2 * ATTENTION_BACKWARD_FLOPS / (rate * back_share) + LAUNCH_S
        return forward, back
    scores = tokens * shape.sequence * shape.heads / layouts.tp
    # The scores are written, read by the masked softmax, written, dropped out and read again.
    traffic = scores * 11.0 / cluster.memory.per_s
    share = MISALIGNED if shape.head_dim % ALIGNED else UNFUSED
    forward = whole / (rate * share) + traffic
    return forward, BACKWARD * whole / (rate * share) + 1.5 * traffic


def _moved_s(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> Floats:
    """Return the seconds of what a layer does element by element, forward."""
    inner = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    # Two norms read and write, two residual sums read twice and write.
    along = 2.0 * 2 * (2 + 3) * shape.hidden
    rotated = 2.0 * 2 * inner if shape.gated else 0.0
    moe = shape.moe_layers / shape.layers
    width = (1 - moe) * shape.intermediate + shape.shared_intermediate
    width += moe * shape.experts_per_token * shape.expert_intermediate
    activated = 2.0 * shape.products * width
    # Tokens are copied before and behind the experts; with an all-to-all also before it, by rank.
    passes = 4 if stack.sends_once else 8
    copied = moe * shape.experts_per_token * 2.0 * passes * shape.hidden
    # What enters a narrow product is cast first, the weights too.
    entering = 2 * shape.hidden + inner + width + moe * shape.experts_per_token * shape.hidden
    narrow = layouts.precision >= NARROW
    cast = np.where(narrow, stack.cast_bytes * entering, 0.0)
    weights = np.asarray(shape.attention_parameters + (1 - moe) * shape.dense_parameters)
    weights = weights + moe * (shape.expert_parameters / layouts.ep + shape.shared_parameters)
    cast_weights = np.where(narrow, stack.cast_bytes * weights / layouts.tp, 0.0)
    split = layouts.tp if stack.sequence_parallel else np.ones_like(layouts.tp)
    total = along / split + (rotated + activated + cast + copied) / layouts.tp
    moved = tokens * total + cast_weights
    return np.asarray(moved / cluster.memory.per_s + 6 * LAUNCH_S)


def _head(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> Floats:
    """Return the seconds of the output layer and its loss, forward and backward."""
    columns = shape.vocabulary / layouts.tp
    one = product_s(cluster, tokens, columns, np.full_like(tokens, shape.hidden))
    traffic = tokens * columns * stack.logit_traffic / cluster.memory.per_s
    return np.asarray(shape.predicted * ((1 + _backward(shape)) * one + traffic))


def _recomputed(layouts: Layouts, layer: Layer, flash: bool) -> Floats:
    """Return the seconds of what checkpointing runs again for one layer."""
    # By op, every second product runs again, and all that is element by element.
    by_op = layer.forward - layer.attention - layer.products / 2 if flash else layer.attention
    return np.select(
        [layouts.checkpointing == FULL, layouts.checkpointing == SELECTIVE],
        [layer.forward, by_op],
        default=0.0,
    )


def link_s(cluster: PlannedCluster, moved_bytes: Floats, ranks: Floats, stride: Floats) -> Floats:
    """Return the seconds in which each of `ranks` sends `moved_bytes` around their group.

    Ranks of a group lie `stride` apart. In a full mesh a group of g devices uses g - 1 of the
    links; over a switch it has them all. Between nodes each device has its own network card, and a
    group sends over those of its devices in the node.
    """
    inside = np.clip(cluster.local / stride, 1.0, ranks)
    mesh = np.minimum((inside - 1) / 7.0, 1.0) if cluster.mesh else 1.0
    fabric = cluster.fabric.per_s * np.maximum(mesh, 1e-9) * cluster.collective
    outside = cluster.network.per_s * inside * cluster.collective
    within = ranks * stride <= cluster.local
    rate = np.where(within, fabric, np.minimum(outside, np.where(inside > 1, fabric, outside)))
    hop = np.where(within, HOP_S, NETWORK_HOP_S)
    # Collectives of many ranks run as trees: the hops grow with the logarithm.
    hops = np.minimum(ranks - 1, 2 * np.log2(np.maximum(ranks, 2.0)))
    return np.where(ranks > 1, moved_bytes / rate + hops * hop, 0.0)


def _tensor(shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats) -> Floats:
    """Return a layer's collectives: four gathers or scatters of T H forward, four backward."""
    ranks = layouts.tp.astype(float)
    one = 2.0 * tokens * shape.hidden * (ranks - 1) / ranks
    return np.asarray(8.0 * link_s(cluster, one, ranks, np.ones_like(ranks)))


def _context(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, layer: Layer
) -> Floats:
    """Return what ring attention exposes: keys and values go round while attention runs."""
    ranks = layouts.cp.astype(float)
    keys = 2.0 * 2 * shape.kv_heads * shape.head_dim / layouts.tp
    one = link_s(cluster, tokens * keys * (ranks - 1), ranks, layouts.tp.astype(float))
    # Backward sends keys, values and their gradients.
    hidden = layer.attention * (1 + ATTENTION_BACKWARD_FLOPS)
    return np.maximum(3.0 * one - hidden, 0.1 * one)


def _experts(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, stack: Stack
) -> Floats:
    """Return an expert layer's exchanges: out and back, forward and backward.

    In an all-to-all, each device sends its own tokens through its own network card. A token goes
    to each of its k experts: to k (n - 1) / n other nodes' ranks of n nodes. Sent once, it crosses
    to the n (1 - (1 - 1 / n)^k) nodes that its experts lie on (arXiv:2412.19437, section 3.2.2),
    of which a router may allow fewer, and is copied to their ranks inside the node.
    """
    if not shape.experts:
        return np.zeros_like(tokens)
    ranks, stride = layouts.ep.astype(float), (layouts.tp * layouts.cp).astype(float)
    inside = np.clip(cluster.local / stride, 1.0, ranks)
    nodes, chosen = ranks / inside, float(shape.experts_per_token)
    to_ranks, to_nodes = np.full_like(ranks, chosen), np.full_like(ranks, chosen)
    if stack.sends_once:
        to_ranks = ranks * (1 - (1 - 1 / ranks) ** chosen)
        to_nodes = nodes * (1 - (1 - 1 / nodes) ** chosen)
        to_nodes = np.minimum(to_nodes, shape.most_nodes or np.inf)
    one = 2.0 * tokens * shape.hidden * shape.imbalance / layouts.tp
    mesh = np.minimum((inside - 1) / 7.0, 1.0) if cluster.mesh else 1.0
    reached = EXCHANGE_ONCE if stack.sends_once else cluster.exchange
    fabric = cluster.fabric.per_s * np.maximum(mesh, 1e-9) * reached
    within = one * to_ranks * (inside - 1) / (inside if stack.sends_once else ranks) / fabric
    across = one * to_nodes * (nodes - 1) / nodes / (cluster.network.per_s * cluster.collective)
    hop = np.where(nodes > 1, NETWORK_HOP_S, HOP_S) * np.log2(np.maximum(ranks, 2.0))
    return np.where(ranks > 1, 4.0 * (np.maximum(within, across) + hop), 0.0)


def _pipeline(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, tokens: Floats, micro_batches: Floats,
    stack: Stack,
) -> Floats:  # fmt: skip
    """Return the exposed sends between stages; steady ones overlap, those of the fill do not."""
    stride = (layouts.tp * layouts.cp * layouts.dp).astype(float)
    moved = 2.0 * tokens * shape.hidden / (layouts.tp if stack.splits_sends else 1)
    one = moved / cluster.network.per_s + NETWORK_HOP_S
    inside = moved / (cluster.fabric.per_s / (7.0 if cluster.mesh else 1.0)) + HOP_S
    one = np.where(stride * layouts.pp <= cluster.local, inside, one)
    sends = 2.0 * (layouts.pp - 1) + stack.exposed_sends * 2.0 * micro_batches * layouts.vpp
    return np.where(layouts.pp > 1, sends * one, 0.0)


def _data(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, micro_batches: Floats, stage: Floats,
    stack: Stack,
) -> Floats:  # fmt: skip
    """Return what data parallelism exposes.

    DDP reduces fp32 gradients once a step, behind the last backward pass. ZeRO-1 scatters them and
    gathers bf16 weights. FSDP gathers the weights twice and scatters fp32 gradients in every
    micro-batch, behind the layers before.
    """
    dense, routed, edge = parameters_per_rank(shape, layouts)
    ranks = (layouts.dp * layouts.cp).astype(float)
    stride = layouts.tp.astype(float)
    expert_ranks = np.maximum(ranks / layouts.ep, 1.0)
    per_parameter = np.select(
        [layouts.sharding == FULL_SHARDING, layouts.sharding == OPTIMIZER],
        [stack.reduced_bytes + 2 * stack.element_bytes, stack.reduced_bytes + stack.element_bytes],
        2 * stack.reduced_bytes,
    )
    if shape.frozen:  # nothing is reduced, and FSDP gathers weights alone
        full = layouts.sharding == FULL_SHARDING
        per_parameter = np.where(full, 2 * stack.element_bytes, 0.0)

    def sent(parameters: Floats, group: Floats, apart: Floats) -> Floats:
        moved = parameters * per_parameter * (group - 1) / group
        return link_s(cluster, moved, group, apart)

    one = sent(dense + edge, ranks, stride)
    if shape.experts:
        one = one + sent(routed, expert_ranks, stride * layouts.ep)
    # In a pipeline, FSDP gathers a stage once a step.
    each = (layouts.sharding == FULL_SHARDING) & (layouts.pp == 1)
    repeats = np.where(each, micro_batches, 1.0)
    hiding = OVERLAPPED * np.where(each, micro_batches * stage, stage * 2 / 3)
    hiding = hiding if stack.overlaps_data else np.zeros_like(one)
    first = one / np.maximum(shape.layers / layouts.pp, 1.0)  # what nothing runs beside
    return np.where(ranks > 1, np.maximum(repeats * one - hiding, first), 0.0)


def _accumulated(
    shape: Shape, cluster: PlannedCluster, layouts: Layouts, micro_batches: Floats, stack: Stack
) -> Floats:
    """Return the seconds in which micro-batches' gradients are added outside of the products."""
    held = np.sum(parameters_per_rank(shape, layouts), axis=0)
    moved = (micro_batches - 1) * held * stack.accumulated_bytes
    return np.asarray(moved / cluster.memory.per_s)


def _optimizer(shape: Shape, cluster: PlannedCluster, layouts: Layouts) -> Floats:
    if shape.frozen:
        return np.zeros(len(layouts))
    dense, routed, edge = parameters_per_rank(shape, layouts)
    ranks = np.where(layouts.sharding > 0, layouts.dp * layouts.cp, 1).astype(float)
    expert_ranks = np.maximum(ranks / layouts.ep, 1.0)
    held = (dense + edge) / ranks + routed / expert_ranks
    return np.asarray(held * OPTIMIZER_TRAFFIC / cluster.memory.per_s)
