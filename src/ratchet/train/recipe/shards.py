"""The settings of a step that a model on several ranks can take."""

from __future__ import annotations

from typing import Final

import msgspec
from torch import nn

from ratchet.train.graph.steps import CHUNKED
from ratchet.train.workloads.compiling import sharded_in, units_of
from ratchet.train.workloads.config import StepConfig

OF_A_PROCESS: Final = (
    "update_in_backward", "micro_batches", "threads", "affinity", "matmul_precision", "allocator",
    "huge_pages", "preallocate", "matmul_library", "aotriton_experimental",
)  # fmt: skip
"""Settings that the ranks of a machine share, or that the layout sets itself."""


def without_process(config: StepConfig, written: StepConfig) -> StepConfig:
    """Return a config whose settings of the process are those of the step as written."""
    return msgspec.structs.replace(
        config, **{name: getattr(written, name) for name in OF_A_PROCESS}
    )


def on_shards(config: StepConfig, model: nn.Module) -> tuple[StepConfig, list[str]]:
    """Return the config that a script's model can take on its ranks, and what it does without."""
    return by_units(config, whole=units_of(model) == [model]) if sharded_in(model) else (config, [])


def by_units(config: StepConfig, *, whole: bool = False) -> tuple[StepConfig, list[str]]:
    """Return the config of a model that FSDP2 shards, and what it does without.

    `whole` says that one unit is the whole model.
    """
    left: list[str] = []
    if config.logits != "whole":
        left.append("logits stay whole: FSDP2 frees the head's weights before the loss is computed")
        config = msgspec.structs.replace(config, logits="whole")
    if CHUNKED in config.kernels and not whole:
        left.append(
            f"{CHUNKED} is not installed: FSDP2's units are compiled one by one, and the loss is "
            "computed outside of them"
        )
        kept = tuple(one for one in config.kernels if one != CHUNKED)
        config = msgspec.structs.replace(config, kernels=kept)
    return config, left
