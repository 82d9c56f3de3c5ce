"""The bound of a reference's own compiled kernels beside a candidate's."""

from __future__ import annotations

import importlib.util
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from ratchet.amd import targets
from ratchet.amd.emulator import reference_worker
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.reference_worker import check_version
from ratchet.amd.targets import CompiledReferences, ReferenceWork, said
from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process import Clock
from ratchet.judge.kernels.library import kernels_for
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import EmulatedBound, EmulatedCase

TOLD = {
    "triton_made_up": {
        "launches": 2,
        "programs": 8,
        "waves": 8,
        "by_mnemonic": {"v_add_f32_e32": 100},
        "lanes": 6400,
        "bytes": 64,
        "touched_bytes": 53 * 10**6,
        "lines_64": 1,
        "lds_bytes": 0,
        "lds_conflicts": 0,
        "by_place": {},
    }
}
"""10 us of memory at the 5.3 TB/s of an MI300X."""
PROBLEM = find_problem("rope_forward").at("ci")


def emulated(*names: str) -> list[EmulatedCase]:
    bound = EmulatedBound(
        device="MI300X", time_s=4e-6, memory_s=4e-6, matrix_s=0, vector_s=0, lds_s=0
    )
    return [EmulatedCase(case=name, target="gfx942", kernels=[], bounds=[bound]) for name in names]


NAMES = [one.name for one in PROBLEM.cases]


class Compiler:
    """Stands in for the process: answers with `works`, and then fails if it is to."""

    def __init__(self, works: Sequence[ReferenceWork], fails: bool = False) -> None:
        self.works, self.fails, self.asked = works, fails, 0

    def __call__(self, cases: Any, *_: Any) -> Iterator[tuple[EmulatedCase, ReferenceWork]]:
        self.asked += len(cases)
        yield from zip(cases, self.works, strict=False)
        if self.fails:
            raise JudgeError("died during 'case'")


def test_the_ratio_is_that_of_the_two_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler([TOLD])
    monkeypatch.setattr(targets, "_works", compiler)
    kept = CompiledReferences()
    cases = emulated(NAMES[0])
    for _ in range(2):  # the second time from memory
        (found,) = kept.compared(cases, PROBLEM, Clock.of(60.0))
    assert compiler.asked == 1
    bound = found.reference_bounds[0]
    assert bound.device == "MI300X" and bound.time_s == pytest.approx(1e-5)
    assert found.estimated_speedup == pytest.approx(2.5)
    (line,) = said([found])
    assert line.check.startswith("estimated_speedup, ") and line.passed is None
    assert line.detail.startswith("2.5 of lower bounds, not timed: at least 4 us, and 10 us")


def test_a_reference_that_cannot_be_compiled_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "Inductor leaves aten.mm.default to a library, whose code is not here"
    monkeypatch.setattr(targets, "_works", Compiler([why] * 2))
    cases = CompiledReferences().compared(emulated(*NAMES[:2]), PROBLEM, Clock.of(60.0))
    assert [one.estimated_speedup for one in cases] == [None, None]
    (line,) = said(cases)
    assert line.detail == f"no estimate: {why}"


def test_a_compiler_that_dies_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler([TOLD], fails=True)
    monkeypatch.setattr(targets, "_works", compiler)
    kept = CompiledReferences()
    first, second = kept.compared(emulated(*NAMES[:2]), PROBLEM, Clock.of(60.0))
    assert first.estimated_speedup and second.estimated_speedup is None
    assert "died during" in second.no_estimate
    kept.compared(emulated(*NAMES[:2]), PROBLEM, Clock.of(60.0))
    assert compiler.asked == 3  # what failed is asked again


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0+cpu", "3.0", "unknown"])
def test_a_torch_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(KernelError, match=r"is not known: .* torch 2\.11 to 2\.13"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu"])
def test_a_torch_that_is_known_is_taken(version: str) -> None:
    check_version(version)


def lowered() -> bool:
    """Whether Inductor writes a program for each of two references; it changes this process."""
    reference_worker.pretend("gfx942", 304)
    reference_worker.CountingDriver("gfx942", compiled_machine("gfx942")).install()
    image = torch.randn(1, 2, 4, 4)
    references: tuple[Callable[..., Any], ...] = (
        lambda x, _: (x.roll(1, 2),),  # x[i] in a decomposition
        lambda x, _: (torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),),
    )
    return all("triton_poi" in reference_worker.written(one, [image], ()) for one in references)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_decompositions_that_index_or_interpolate_are_lowered() -> None:
    """A torch for CPUs can enter no GPU's device, and keeps what only autograd takes apart."""
    child = os.fork()  # it has imported torch, and ends with what it changed
    if not child:
        code = 1
        try:
            warnings.simplefilter("ignore")
            code = 0 if lowered() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or (why_no_kernels() is not None),
    reason="triton is not installed, or a candidate's uid may not read this Python",
)
@pytest.mark.parametrize(
    ("entry", "compiles"), [("rms_norm_forward", True), ("attention_forward", False)]
)
def test_a_verdict_says_how_the_bounds_compare(entry: str, compiles: bool) -> None:
    kernel, problem = kernels_for("gpu")[entry], find_problem(entry).at("ci")
    with KernelJudge(threads=1) as court:
        verdict = court.judge(kernel, problem, target="gfx942", compared=True, time_limit_s=300.0)
    assert verdict.status == "correct", verdict.reason
    assert verdict.speedup.vs_reference is None and verdict.speedup.vs_compile is None
    for case in verdict.emulated:
        if compiles:
            assert case.estimated_speedup and 0.1 < case.estimated_speedup < 10, case.no_estimate
            assert all(one.name.startswith("triton_") for one in case.reference)
        else:
            assert case.estimated_speedup is None and "to a library" in case.no_estimate
