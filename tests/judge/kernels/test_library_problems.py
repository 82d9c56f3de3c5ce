"""Every shipped kernel answers every case of its own problems, on each ISA that this CPU runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gemm_variants
import pytest
import torch
from torch import Tensor

from ratchet.base.devices.probe import best_isa
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.sources import ISAS
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes

pytestmark = pytest.mark.compiler

RUNNABLE = tuple(reversed(ISAS[ISAS.index(best_isa()) :]))
SMALL = {
    "batch": 2,
    "sequence": 24,
    "hidden": 64,
    "intermediate": 96,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "vocabulary": 130,
    "parameters": ((33, 7), (5,)),
}


@pytest.fixture(autouse=True)
def inactive() -> Iterator[None]:
    yield
    registry.deactivate()


def kernels() -> list[Any]:
    """Every kernel on every ISA; those of an ISA between the first and the best are thorough."""
    return [
        pytest.param(
            name,
            isa,
            kernel,
            marks=[] if isa in (RUNNABLE[0], RUNNABLE[-1]) else pytest.mark.thorough,
        )
        for name, library in LIBRARY.items()
        for isa in RUNNABLE
        for kernel in library.kernels(isa)
    ]


def widened(tensors: list[Tensor]) -> list[Tensor]:
    return [t.double() if t.dtype.is_floating_point else t.clone() for t in tensors]


def answer(kernel: Kernel, case: Case, inputs: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """The kernel's outputs as the reference orders them: in-place tensors, then outputs."""
    own = [tensor.clone() for tensor in inputs]
    changed = [t for t, spec in zip(own, case.inputs, strict=True) if spec.in_place]
    outputs = [
        torch.full_like(t, float("nan")) if t.dtype.is_floating_point else torch.zeros_like(t)
        for t in like[len(changed) :]
    ]
    assert registry.call(kernel.entry, own, case.scalars, outputs) is outputs, case.name
    return [*changed, *outputs]


def check(kernel: Kernel, problem: Problem) -> None:
    reference = problem.load_reference()
    for number, case in enumerate(problem.cases):
        inputs = problem.build_inputs(case, seed=1000 + number)
        like = list(reference(*(tensor.clone() for tensor in inputs), case.scalars))
        if gemm_variants.declines(kernel, [spec.dtype for spec in case.inputs]):
            outputs = [torch.empty_like(t) for t in like]
            assert registry.call(kernel.entry, inputs, case.scalars, outputs) is None
            continue
        oracle = list(reference(*widened(inputs), case.scalars))
        got = answer(kernel, case, inputs, [tensor.contiguous() for tensor in like])
        for place, result in enumerate(problem.tolerance.check_all(got, like, oracle)):
            # One draw's largest reference error is a noisy bound at these small sizes: in bf16
            # four honest kernels pass it by up to 2. The norm is held to the policy.
            assert result.element_ratio < 2.0, (case.name, place, result.detail)
            assert result.norm_ratio <= 1.0, (case.name, place, result.detail)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "isa", "kernel"), kernels(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_kernel_answers_its_problems(
    name: str, isa: str, kernel: Kernel, dtype: str, compiled: Path
) -> None:
    shapes = WorkloadShapes(**SMALL, dtype=dtype)  # type: ignore[arg-type]
    asked = [p for p in LIBRARY[name].problems(shapes) if p.name == kernel.entry]
    if not asked:
        pytest.skip(f"{kernel.entry} has no problem in {dtype}")
    registry.activate(kernel, gemm_variants.built(kernel, compiled))
    for problem in asked:
        check(kernel, problem)


def test_an_entry_is_active_only_after_it_was_activated() -> None:
    assert not registry.is_active("rms_norm_forward")
    x = torch.randn(4, 8)
    before = registry.fallbacks["rms_norm_forward"]
    assert registry.call("rms_norm_forward", (x, x), (), (x,)) is None
    assert registry.fallbacks["rms_norm_forward"] == before + 1


def test_a_damaged_library_is_compiled_again(tmp_path: Path) -> None:
    kernel = LIBRARY["rope"].kernels("portable")[0]
    path = cpp.compile_kernel(kernel, cache=tmp_path)
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole[: len(whole) // 2])
    again = cpp.compile_kernel(kernel, cache=tmp_path)
    assert len(again.read_bytes()) >= len(whole) // 2 + 1


def test_the_hash_covers_source_entry_and_schedule() -> None:
    one = LIBRARY["rope"].kernels("portable")[0]
    changed = [
        Kernel(name="x", language="cpp", source=one.source + "\n", entry=one.entry),
        Kernel(name="x", language="cpp", source=one.source, entry=one.entry + "2"),
        Kernel(
            name="x",
            language="cpp",
            source=one.source,
            entry=one.entry,
            schedule=(("isa", "avx512"),),
        ),
    ]
    assert len({one.hash, *(kernel.hash for kernel in changed)}) == 4
    renamed = Kernel(
        name="other",
        language=one.language,
        source=one.source,
        entry=one.entry,
        schedule=one.schedule,
    )
    assert renamed.hash == one.hash
