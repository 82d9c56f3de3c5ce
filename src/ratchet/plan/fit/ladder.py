"""Levers beside checkpointing, in the order in which a budget asks for them, cheapest first."""

from __future__ import annotations

import msgspec

from ratchet.optimize.levers import Lever, operators, system
from ratchet.optimize.levers import find_lever as lever_of
from ratchet.plan.fit.arm import StepShape
from ratchet.workloads.config import StepConfig

Rung = tuple[Lever, ...]


def ladder(shape: StepShape, config: StepConfig) -> list[Rung]:
    """Return the rungs, each with all levers that are pulled on it; the first has none.

    The fused update holds no temporary tensors. Chunked logits are never whole. An update in the
    backward pass holds one gradient at a time; micro-batches, which add gradients up, take its
    place. A lever that does not apply to the step is left out.
    """
    found: list[Rung] = [()]
    if not shape.own_step and not shape.why_not_fused and config.optimizer == "as_written":
        found.append((operators.FUSED_OPTIMIZER,))
    if shape.has_head:
        found.append((*found[-1], system.CHUNKED_LOGITS))
    last = found[-1]
    if not shape.why_not_in_backward:
        found.append((*last, system.UPDATE_IN_BACKWARD))
    parts = 2
    while not shape.own_step and shape.samples % parts == 0:
        found.append((*last, lever_of(f"{system.MICRO_BATCHES_NAME}{parts}")))
        parts *= 2
    return found


def with_levers(config: StepConfig, rung: Rung) -> StepConfig:
    """Return the config with the rung's levers pulled."""
    return msgspec.structs.replace(config, **{lever.field: lever.value for lever in rung})
