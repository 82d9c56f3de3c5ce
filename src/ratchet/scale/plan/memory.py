"""Bytes on the fullest rank of each layout: states, activations and what passes through.

Sources: Korthikanti et al. 2022, arXiv:2205.05198 (activations of a layer, section 4; of a
pipeline's first stage, appendix C); Rajbhandari et al. 2019, arXiv:1910.02054 (sharded states).
T is the tokens of one micro-batch on one rank, H the hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ratchet.scale.plan.layout import CHECKPOINTINGS, PRECISIONS, SHARDINGS, Floats, Layouts, Stack
from ratchet.scale.plan.shape import Shape

OPTIMIZER, FULL_SHARDING = SHARDINGS.index("optimizer"), SHARDINGS.index("full")
SELECTIVE, FULL = CHECKPOINTINGS.index("selective"), CHECKPOINTINGS.index("full")
GRADIENT_BYTES: Final = 4
"""Gradients add up in fp32, in Megatron-LM's main gradients and FSDP2's reduction alike."""
ADAM_BYTES: Final = 12  # An fp32 master weight and AdamW's two fp32 moments
GATHERED_LAYERS: Final = 2
"""Layers whose whole weights FSDP holds at a time: the one that runs and the one prefetched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on the fullest rank, by part; each an array over the layouts."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    gathered: Floats
    logits: Floats

    @property
    def total(self) -> Floats:
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.gathered + self.logits


def memory(shape: Shape, layouts: Layouts, micro_batches: Floats, stack: Stack) -> Memory:
    """Return the memory of each layout; `micro_batches` counts those of a step on one replica."""
    dense, routed, edge = parameters_per_rank(shape, layouts)
    data = (layouts.dp * layouts.cp).astype(float)
    expert_data = np.maximum(data / layouts.ep, 1.0)
    full = layouts.sharding == FULL_SHARDING
    zero1 = layouts.sharding == OPTIMIZER
    element = stack.element_bytes
    adam = ADAM_BYTES - (4.0 if element == 4 else 0.0)

    def of(parameters: Floats, ranks: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the bytes of weights, gradients and optimizer for some parameters."""
        shard = np.where(full, ranks, 1.0)
        if shape.frozen:
            return element * parameters / shard, np.zeros_like(shard), np.zeros_like(shard)
        weights = np.where(full, 4.0, element) * parameters / shard
        gradients = GRADIENT_BYTES * parameters / shard
        moments = np.where(full, 8.0, adam) * parameters
        return weights, gradients, moments / np.where(full | zero1, ranks, 1.0)

    own, experts = of(dense + edge, data), of(routed, expert_data)
    layer = (dense + routed) / np.maximum(shape.layers / layouts.pp, 1.0)
    # Gathered layers, and the fp32 gradient of one layer before it is reduced.
    gradient = 0 if shape.frozen else GRADIENT_BYTES
    passing = layer * (GATHERED_LAYERS * element + gradient) + edge * element
    # In a pipeline, FSDP keeps a stage's weights and gradients whole until the step ends.
    whole = (dense + routed + edge) * (element + gradient)
    passing = np.where(layouts.pp > 1, whole, passing)
    tokens = layouts.micro_batch * shape.sequence / layouts.cp
    activations = _activations(shape, layouts, micro_batches, tokens, stack) * element / 2
    logits = tokens * shape.vocabulary * stack.logit_bytes / layouts.tp
    # The last stage has the logits, and activations of one micro-batch only.
    first = activations * (1 - 1 / np.minimum(layouts.pp, np.maximum(micro_batches, 1.0)))
    return Memory(
        weights=own[0] + experts[0],
        gradients=own[1] + experts[1],
        optimizer=own[2] + experts[2],
        activations=activations,
        gathered=np.where(full & (data > 1), passing, 0.0),
        logits=np.maximum(logits - first, 0.0),
    )


def parameters_per_rank(shape: Shape, layouts: Layouts) -> tuple[Floats, Floats, Floats]:
    """Return each rank's parameters: of the layers, of the routed experts, of the edges.

    The edges are the embedding and the output layer; with a pipeline, the first stage has one of
    them. Nothing is divided by the data-parallel ranks yet.
    """
    per_stage = np.ceil(shape.layers / layouts.pp)
    share = per_stage / shape.layers
    dense_mlp = (shape.layers - shape.moe_layers) * shape.dense_parameters
    common = shape.layers * shape.attention_parameters + dense_mlp
    common += shape.moe_layers * shape.shared_parameters
    routed = shape.moe_layers * shape.expert_parameters
    one_edge = shape.vocabulary * shape.hidden
    edges = np.where(layouts.pp > 1, one_edge, shape.embedding_parameters)
    return (
        common * share / layouts.tp,
        routed * share / (layouts.tp * layouts.ep),
        edges / layouts.tp,
    )


def layer_bytes_per_token(shape: Shape, *, flash: bool = True) -> tuple[float, float]:
    """Return the bytes a layer keeps of one token: (split by tensor parallel, repeated without
    sequence parallel).

    A GPT layer with its attention scores kept has 34 H + 5 a s, of which 10 H are repeated
    (arXiv:2205.05198, equation 1 and 2). A gated layer is counted the same way, tensor by tensor.
    """
    hidden, inner = shape.hidden, shape.heads * shape.head_dim
    if not shape.gated and not shape.experts:
        scores = 0 if flash else 5 * shape.heads * shape.sequence
        # Without kept scores, the attention's dropout mask is not kept either.
        return 24.0 * hidden + scores, 10.0 * hidden
    keys = shape.kv_heads * shape.head_dim
    attention = 2 * (inner + 2 * keys) + 2 * inner
    scores = 0 if flash else 5 * shape.heads * shape.sequence
    moe = shape.moe_layers / shape.layers
    routed = shape.experts_per_token * (6 * shape.expert_intermediate + 4 * hidden)
    mlp = (1 - moe) * 6 * shape.intermediate + moe * (6 * shape.shared_intermediate + routed)
    # Two residual values and two norms' outputs.
    return attention + scores + mlp, 8.0 * hidden


def _kept_by_op(shape: Shape) -> float:
    """Return the bytes of a token that checkpointing by op keeps beside the block's input.

    torchtitan's policy, which is the usual one: the attention's output, and every second product's.
    """
    inner, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    moe = shape.moe_layers / shape.layers
    wide = (shape.products - 1) * ((1 - moe) * shape.intermediate + moe * shape.shared_intermediate)
    routed = (
        moe
        * shape.experts_per_token
        * ((shape.products - 1) * shape.expert_intermediate + 3 * shape.hidden)
    )
    return 2.0 * inner + (inner + 2 * keys + 2 * shape.hidden + wide + routed)


def _entering(shape: Shape) -> float:
    """Return the elements of a token that enter a layer's last product."""
    moe = shape.moe_layers / shape.layers
    routed = shape.shared_intermediate + shape.experts_per_token * shape.expert_intermediate
    return (1 - moe) * shape.intermediate + moe * routed


def _activations(
    shape: Shape, layouts: Layouts, micro_batches: Floats, tokens: Floats, stack: Stack
) -> Floats:
    one, two = layer_bytes_per_token(shape, flash=stack.flash)
    split, repeated = np.full(len(layouts), one), np.full(len(layouts), two)
    input_bytes = 2.0 * shape.hidden
    along = layouts.tp if stack.sequence_parallel else np.ones_like(layouts.tp)
    scores = 0.0 if stack.flash else 5.0 * shape.heads * shape.sequence
    if stack.keeps_fp8:  # an MLP's product and two norms' outputs take one byte instead of two
        saved_split, saved_repeated = _entering(shape), 2.0 * shape.hidden
        narrow = layouts.precision >= PRECISIONS.index("fp8")
        split = split - np.where(narrow, saved_split, 0.0)
        repeated = repeated - np.where(narrow, saved_repeated, 0.0)
    everything = split / layouts.tp + repeated / along
    if stack.flash:
        by_op = _kept_by_op(shape) / layouts.tp + input_bytes / along
    else:  # Korthikanti's selective recomputation: all but the attention's scores
        by_op = (split - scores) / layouts.tp + repeated / along
    whole = input_bytes / along
    kept = np.select(
        [layouts.checkpointing == FULL, layouts.checkpointing == SELECTIVE],
        [whole, by_op],
        default=everything,
    )
    # Micro-batches that the first stage holds, in layers: L (1 + (p - 1) / (p v)) interleaved.
    stages = layouts.pp.astype(float)
    interleaved = np.where(layouts.vpp > 1, 1 + (stages - 1) / (stages * layouts.vpp), 1.0)
    held = np.ceil(shape.layers / stages) * np.minimum(stages, micro_batches) * interleaved
    # While one block recomputes, its whole activations are there.
    working = np.where(layouts.checkpointing == FULL, everything - whole, 0.0)
    working = np.where(layouts.checkpointing == SELECTIVE, everything - by_op, working)
    return np.asarray(tokens * (held * kept + np.maximum(working, 0.0)))
