"""Generated Triton kernels: right in Triton's interpreter, compiled for GPUs that are not here."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from answers import assert_right
from test_generated_kernels import BATCHES, random_problem

from ratchet.amd.profile import inspect_kernel
from ratchet.amd.targets import interpreted
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.write.author import Schedule
from ratchet.write.form import UnsupportedOp
from ratchet.write.generator import space_for
from ratchet.write.generator.schedule import TILE_OPTIONS

pytest.importorskip("triton")
GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_90")


def drawn(problem: Problem, seed: int | None) -> Kernel:
    """Return a kernel of a problem: the first, or that of a schedule drawn at random."""
    space = space_for(problem, device="cuda")
    first = space.first()[0]
    return space.kernel(first if seed is None else space.draw(random.Random(seed)))


def in_interpreter(kernel: Kernel) -> Kernel:
    """Return the kernel for the judge's sandbox, without the profile that a verdict brings."""
    return interpreted(kernel)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs_are_right(judge: KernelJudge, batch: int) -> None:
    problem = replace(random_problem(batch), task="any").untimed()
    kernel = drawn(problem, batch)
    assert_right(judge.judge(in_interpreter(kernel), problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("softmax", None),
        ("layer_norm_backward", 1),
        ("linear_swiglu_backward", 2),
        ("route_top_k_backward", 3),
        ("embedding_with_positions_backward", 4),
        ("quantise_groups", None),
    ],
)
def test_a_kernel_of_the_suite_is_right(judge: KernelJudge, name: str, seed: int | None) -> None:
    problem = replace(find_problem(name).at("ci"), task="any").untimed()
    assert_right(judge.judge(in_interpreter(drawn(problem, seed)), problem))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "linear_swiglu"])
def test_a_kernel_compiles_for_every_gpu(name: str) -> None:
    problem = find_problem(name).at("ci")
    found = inspect_kernel(drawn(problem, None), problem, GPUS, time_limit_s=400)["targets"]
    assert {
        gpu: (one["error"], bool(one["kernels"])) for gpu, one in found.items()
    } == dict.fromkeys(GPUS, (None, True))


def test_a_long_row_is_read_block_by_block() -> None:
    source = drawn(find_problem("softmax").at("ci"), None).source
    short, long = source.split("def nest_0_0_long(")
    assert "range(0, width, BLOCK)" in long and "range(0, width, BLOCK)" not in short


def test_a_products_epilogue_and_prologue_are_in_its_kernel() -> None:
    problem = find_problem("linear_swiglu").at("ci")
    space = space_for(problem, device="cuda")
    default = dict(space.first()[0])
    fused = space.kernel(space.first()[0]).source
    kept = space.kernel(schedule(default | {"prologue": "kept"})).source
    assert "tl.dot(" in fused and "input_precision='ieee'" in fused
    assert fused.count("@triton.jit\ndef nest_") < kept.count("@triton.jit\ndef ") - 1


def test_the_schedule_is_in_the_source() -> None:
    space = space_for(find_problem("softmax").at("ci"), device="cuda")
    default = dict(space.first()[0])
    source = space.kernel(schedule(default | {"num_warps": "8", "waves_per_eu": "2"})).source
    assert '"num_warps": 8' in source and 'options["waves_per_eu"] = 2' in source
    for name, value in space.draw(random.Random(3)):
        assert value in TILE_OPTIONS[name]


def test_only_choices_that_matter_are_in_a_space() -> None:
    rows = dict(space_for(find_problem("softmax").at("ci"), device="cuda").first()[0])
    assert "row" in rows and "product" not in rows and "turn" not in rows


def test_what_has_no_triton_is_named() -> None:
    matrix = TensorSpec(shape=(8, 8), dtype="float64")
    problem = Problem(
        name="squared",
        reference=f"{__name__}:squared",
        cases=(Case(name="seen", inputs=(matrix,), timed=True),),
    )
    with pytest.raises(UnsupportedOp, match="matmul"):
        space_for(problem, device="cuda")


def squared(x, scalars):  # type: ignore[no-untyped-def]
    """Return a matrix times itself."""
    return (x @ x,)


def schedule(choices: dict[str, str]) -> Schedule:
    """Return choices as a schedule."""
    return tuple(sorted(choices.items()))
