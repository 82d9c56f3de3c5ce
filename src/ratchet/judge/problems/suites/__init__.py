"""The shipped suites of problems. Importing this package does not import torch."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from ratchet.base.errors import KernelError
from ratchet.base.process.channel import Message
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import shipped

_TRAINING: Final = {
    "normalisation": """
        l2_normalise+ weight_norm+ group_norm+ batch_norm+ instance_norm+ qk_norm+
    """,
    "activations": """
        gelu+ gelu_tanh+ silu+ squared_relu+ mish+ softplus+ hard_swish+ elu+ glu+ reglu+
        bias_gelu+ bias_dropout_residual+ swiglu_packed+
    """,
    "losses": """
        softmax+ log_softmax+ masked_softmax+ capped_softmax+ preference+ clipped_policy+
        cross_entropy+ smoothed_cross_entropy+ cross_entropy_z_loss+ kl_distillation+
        binary_cross_entropy+ huber+ mean_squared_error+ softmax_bf16+ log_softmax_bf16+
        masked_softmax_bf16+ capped_softmax_bf16+ cross_entropy_bf16+
        smoothed_cross_entropy_bf16+ cross_entropy_z_loss_bf16+ kl_distillation_bf16+
    """,
    "attention": """
        attention_full+ attention_causal+ attention_alibi+ attention_window+ attention_packed+
        attention_capped+ attention_grouped+ attention_full_bf16+ attention_causal_bf16+
        attention_alibi_bf16+ attention_window_bf16+ attention_packed_bf16+
        attention_capped_bf16+ attention_grouped_bf16+ rope_half+ rope_interleaved+
    """,
    "tables": """
        embedding embedding_gradient embedding_with_positions+ embedding_bag+ route_top_k+
        expert_counts permute_tokens+ combine_experts+ balance_loss+
    """,
    "convolution": """
        causal_depthwise+ conv_bias_relu+ conv_scale_silu+ pointwise_residual+
        causal_depthwise_bf16+ conv_bias_relu_bf16+ conv_scale_silu_bf16+
        pointwise_residual_bf16+
    """,
    "updates": """
        adam_w lion sgd_momentum row_factored_second_moment adam_8_bit clip_by_norm
        moving_average accumulate unscale newton_schulz
    """,
    "movement": """
        cumulative_log_sum+ linear_scan+ mean_and_variance+ log_sum_exp+ cumulative_sum+
        transpose cast_transpose transpose_heads discounted_returns+ segment_sum+ row_sum
        column_sum arg_max
    """,
    "quantisation": """
        quantise_rows quantise_groups dequantise_rows+ dequantise_groups fake_quantise+
        quantise_fp8 quantise_fp8_gradient quantise_fp8_blocks dequantise_fp8
        dequantise_fp8_blocks dequantise_fp8_weight
    """,
    "products": """
        linear_gelu+ linear_swiglu+ norm_linear+ linear_low_rank+ linear_residual+
        grouped_linear+ input_gradient weight_gradient linear_gelu_bf16+ linear_swiglu_bf16+
        norm_linear_bf16+ linear_low_rank_bf16+ linear_residual_bf16+ grouped_linear_bf16+
        input_gradient_bf16 weight_gradient_bf16
    """,
}
"""Names by family; `name+` stands for the problem and that of its gradient, `name_backward`."""
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "shipped": tuple(entry for own in shipped.entries().values() for entry in own),
    **{
        family: tuple(re.sub(r"(\w+)\+", r"\1 \1_backward", text).split())
        for family, text in _TRAINING.items()
    },
}
"""Problems of the suite `training` by family. The library's own kernels answer `shipped`."""


@cache
def _family(name: str) -> tuple[Problem, ...]:
    from ratchet.judge.problems.suites import (
        activations,
        attention,
        losses,
        movement,
        products,
        quantisation,
        updates,
    )

    made: dict[str, Callable[[], tuple[Problem, ...]]] = {
        "normalisation": activations.normalisation_problems,
        "activations": activations.activation_problems,
        "losses": losses.problems,
        "attention": attention.problems,
        "tables": movement.table_problems,
        "convolution": products.convolution_problems,
        "updates": updates.problems,
        "movement": movement.movement_problems,
        "quantisation": quantisation.problems,
        "products": products.product_problems,
        "shipped": shipped.problems,
    }
    return made[name]()


@cache
def _training() -> tuple[Problem, ...]:
    return tuple(problem for family in NAMES for problem in _family(family))


SUITES: Final[Mapping[str, Callable[[], tuple[Problem, ...]]]] = {"training": _training}
"""Every suite by name."""


def check_suite(name: str) -> None:
    """Raise a KernelError for an unknown suite, with the known ones. Imports no torch."""
    if name not in SUITES:
        raise KernelError(f"unknown suite {name!r}: use one of {', '.join(SUITES)}")


def load_suite(name: str) -> tuple[Problem, ...]:
    """Return the problems of a suite; a KernelError lists the known suites for any other name."""
    check_suite(name)
    return SUITES[name]()


def answer(request: Message) -> Message:
    """Return the problem of a `name`, in a process that holds torch (`file_keeper.answer`)."""
    return {"problem": find_problem(request["name"]).as_json()}


def family_of(name: str) -> str:
    """Return a problem's family; a KernelError with the nearest names if unknown. No torch."""
    known = {problem: family for family, problems in NAMES.items() for problem in problems}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    hint = f"near it are {', '.join(near)}" if near else "ratchet judge --list shows them"
    raise KernelError(f"problem {name!r} is in no suite: {hint}")


def find_problem(name: str) -> Problem:
    """Return a problem of any suite; a KernelError with the nearest names if it is unknown."""
    return next(one for one in _family(family_of(name)) if one.name == name)


def names_like(pattern: str) -> list[str]:
    """Return problem names that match a shell pattern or contain a word; a KernelError for none."""
    known = [name for problems in NAMES.values() for name in problems]
    asked = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    found = fnmatch.filter(known, asked)
    if not found:
        raise KernelError(
            f"no problem's name matches {pattern!r}: ratchet judge --list prints all {len(known)}"
        )
    return found
