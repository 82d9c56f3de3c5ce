"""Generated kernels before the judge: problems of the suite, and random programs."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
from answers import assert_right
from random_graphs import (
    convolutions,
    fused_attention,
    fused_attention_backward,
    masks,
    products,
    programs,
    tied_embedding,
    windows,
)

from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.write.generator import space_for

pytestmark = pytest.mark.compiler
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
TOGETHER = 10
"""Programs in one kernel, which is compiled and judged at once."""
FEW_ATTENTIONS = ((False, "float32", 0.0), (True, "bfloat16", 1.0))
"""Of the passes, dtypes and masks of torch's attention, each once."""
BATCHES = 500 // TOGETHER if EVERYTHING else 2


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("layer_norm_backward", 0),
        ("softmax", 1),
        pytest.param("gelu", 2, marks=pytest.mark.thorough),
        ("cross_entropy_backward", 3),
        pytest.param("rms_norm_backward", 4, marks=pytest.mark.thorough),
        ("adamw_step", 5),
    ],
)
def test_a_drawn_kernel_is_right(judge: KernelJudge, name: str, seed: int) -> None:
    problem = find_problem(name).at("ci")
    space = space_for(problem)
    assert_right(judge.judge(space.kernel(space.draw(random.Random(seed))), problem.untimed()))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs_are_right(judge: KernelJudge, batch: int) -> None:
    problem = random_problem(batch)
    space = space_for(problem)
    assert_right(judge.judge(space.kernel(space.draw(random.Random(batch))), problem.untimed()))


@pytest.mark.parametrize(
    ("backward", "dtype", "causal"),
    [
        pytest.param(*one, marks=() if one in FEW_ATTENTIONS else pytest.mark.thorough)
        for one in itertools.product((False, True), ("float32", "bfloat16"), (0.0, 1.0))
    ],
)
def test_torch_s_fused_attention_is_right(
    judge: KernelJudge, backward: bool, dtype: str, causal: float
) -> None:
    sizes = {"seen": (2, 3, 37, 16), "other": (1, 2, 70, 24)}
    reference, tensors = (fused_attention_backward, 5) if backward else (fused_attention, 3)
    problem = Problem(
        name=reference.__name__,
        reference=f"{reference.__module__}:{reference.__name__}",
        cases=tuple(
            Case(
                name=name,
                inputs=(
                    *(TensorSpec(shape=shape, dtype=dtype) for _ in range(tensors)),
                    *(TensorSpec(shape=shape[:-1], dtype="float32") for _ in range(tensors // 5)),
                ),
                scalars=(causal,),
                timed=name == "seen",
                hidden=name != "seen",
            )
            for name, shape in sizes.items()
        ),
    )
    space = space_for(problem)
    assert_right(judge.judge(space.kernel(space.first()[0]), problem.untimed()))


def test_windows_are_right(judge: KernelJudge) -> None:
    problem = Problem(
        name="windows",
        reference=f"{windows.__module__}:{windows.__name__}",
        cases=(_images("seen", 2, 4, 13), replace(_images("other", 3, 2, 9), hidden=True)),
    )
    space = space_for(problem)
    assert_right(judge.judge(space.kernel(space.first()[0]), problem.untimed()))


@pytest.mark.parametrize(
    ("dtype", "factors", "macros"),
    [
        ("float32", "read", ()),
        ("float32", "kept", ()),
        ("bfloat16", "read", ()),
        ("bfloat16", "read", (("amx_emulate", "1"),)),
    ],
)
def test_convolutions_are_right(
    judge: KernelJudge, dtype: str, factors: str, macros: tuple[tuple[str, str], ...]
) -> None:
    sizes = {"seen": (2, 3, 5, 40, 37), "other": (1, 17, 33, 9, 6), "narrow": (3, 2, 1, 5, 70)}
    problem = Problem(
        name="convolutions",
        reference=f"{convolutions.__module__}:{convolutions.__name__}",
        cases=tuple(
            Case(
                name=name,
                inputs=tuple(
                    TensorSpec(shape=shape, dtype=dtype)
                    for shape in (
                        (batch, inner, high, wide),
                        (outer, inner, 3, 2),
                        (batch, outer, high + 2, wide - 1),
                    )
                ),
                timed=name == "seen",
                hidden=name != "seen",
            )
            for name, (batch, inner, outer, high, wide) in sizes.items()
        ),
    )
    space = space_for(problem)
    first = dict(space.first()[0])
    assert first["factors"] == "read"
    kernel = space.kernel(tuple(sorted((first | {"factors": factors}).items())))
    assert ("{r_apart<" in kernel.source or ", r_apart<" in kernel.source) == (factors == "read")
    kernel = replace(kernel, schedule=(*kernel.schedule, *macros))
    assert_right(judge.judge(kernel, problem.untimed()))


def test_gradients_of_tied_embeddings_are_right(judge: KernelJudge) -> None:
    sizes = {"seen": (2, 37, 48, 50), "other": (1, 70, 7, 3)}
    problem = Problem(
        name="tied_embedding",
        reference=f"{tied_embedding.__module__}:{tied_embedding.__name__}",
        cases=tuple(
            Case(
                name=name,
                inputs=(
                    TensorSpec(
                        shape=(batch, length),
                        dtype="int64",
                        distribution="integers",
                        low=-1.0,
                        high=float(words),
                    ),
                    TensorSpec(shape=(batch, length, width), dtype="float32"),
                    TensorSpec(shape=(words, width), dtype="bfloat16"),
                ),
                timed=name == "seen",
                hidden=name != "seen",
            )
            for name, (batch, length, width, words) in sizes.items()
        ),
    )
    space = space_for(problem)
    kernel = space.kernel(space.first()[0])
    assert kernel.source.count("= (float)((0.0f));") == 2  # one of three starts from the head
    assert_right(judge.judge(kernel, problem.untimed()))


def test_masks_are_right(judge: KernelJudge) -> None:
    sizes = {"seen": (2, 37, 41, 16), "longer": (3, 70, 33, 9), "wider": (1, 9, 130, 300)}
    problem = Problem(
        name="masks",
        reference=f"{masks.__module__}:{masks.__name__}",
        cases=tuple(
            Case(
                name=name,
                inputs=tuple(
                    TensorSpec(shape=(batch, count, depth), dtype="float32")
                    for count in (rows, columns)
                ),
                timed=name == "seen",
                hidden=name != "seen",
            )
            for name, (batch, rows, columns, depth) in sizes.items()
        ),
    )
    space = space_for(problem)
    kernel = space.kernel(space.first()[0])
    assert kernel.source.count(", r_bands{") > 3  # else it tests nothing
    assert_right(judge.judge(kernel, problem.untimed()))


@pytest.mark.parametrize("chain", ["yes", "no"])
def test_products_are_right(judge: KernelJudge, chain: str) -> None:
    sizes = {"seen": (2, 37, 41, 16), "longer": (3, 70, 333, 49), "one": (1, 1, 3, 1)}
    problem = Problem(
        name="products",
        reference=f"{products.__module__}:{products.__name__}",
        cases=tuple(
            Case(
                name=name,
                inputs=(
                    TensorSpec(shape=(batch, rows, inner), dtype="float32"),
                    TensorSpec(shape=(batch, inner, columns), dtype="float32"),
                ),
                timed=name == "seen",
                hidden=name != "seen",
            )
            for name, (batch, rows, inner, columns) in sizes.items()
        ),
    )
    space = space_for(problem)
    schedule = tuple(sorted((dict(space.first()[0]) | {"chain": chain}).items()))
    kernel = space.kernel(schedule)
    assert ("#pragma omp for" in kernel.source) == (chain == "yes")
    assert_right(judge.judge(kernel, problem.untimed()))


@pytest.mark.parametrize("name", ["attention_causal_bf16", "attention_grouped_backward"])
def test_attention_in_a_chain_is_right(judge: KernelJudge, name: str) -> None:
    problem = find_problem(name).at("ci")
    space = space_for(problem)
    kernel = space.kernel(space.first()[0])
    assert "#pragma omp for" in kernel.source
    assert_right(judge.judge(kernel, problem.untimed()))


def _images(name: str, batch: int, channels: int, side: int) -> Case:
    shapes = (
        (batch, channels, side, side),
        (channels, channels, 3, 3),
        (batch, channels, (side + 1) // 2, (side + 1) // 2),
    )
    inputs = tuple(TensorSpec(shape=shape, dtype="float32") for shape in shapes)
    return Case(name=name, inputs=inputs, timed=name == "seen")


def random_problem(seed: int) -> Problem:
    """Return TOGETHER programs as one problem; hidden cases have other sizes and layouts."""
    scalars = (float(seed), float(TOGETHER))

    def specs(rows: int, width: int, layout: str) -> tuple[TensorSpec, ...]:
        both = TensorSpec(shape=(rows, width), dtype="float32", layout=layout)
        return (both, both, TensorSpec(shape=(width,), dtype="float32"))

    cases = (
        Case(name="seen", inputs=specs(24, 40, "contiguous"), scalars=scalars, timed=True),
        Case(name="ragged", inputs=specs(13, 29, "contiguous"), scalars=scalars, hidden=True),
        Case(name="gaps", inputs=specs(7, 18, "strided"), scalars=scalars, hidden=True),
        Case(name="turned", inputs=specs(9, 33, "transposed"), scalars=scalars, hidden=True),
    )
    name = f"{programs.__module__}:{programs.__name__}"
    return Problem(name="programs", reference=name, cases=cases)
