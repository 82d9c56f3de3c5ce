"""The Triton library answers its problems: as emulated machine code here, on a GPU where one is."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.base.errors import RatchetError
from ratchet.judge.court.suite import kernel_of, kernelbench_suite
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.kernels.library import LIBRARY, kernels_for
from ratchet.judge.kernels.library.sources import ANY_GPU, Variant
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.terms import Terms
from ratchet.judge.trial import arms
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels

HERE = Path(__file__).parent
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
KERNELS = kernels_for(ANY_GPU)
OTHERS = {
    "tiles of": "linear_cross_entropy",
    "chunks of": "linear_cross_entropy",
    "no token of": "linear_cross_entropy",
    "no rows of": "norms",
}
"""Checks of the worker beside the problems' cases, with their source."""
Checks = Callable[[str], list[dict[str, Any]]]
JUDGED = ("add_rms_norm_forward", "adamw_step")
"""Taken before the judge in every run: outputs of two kinds, and tensors changed in place."""

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no C++ compiler for the emulator"
)
no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is here: the judge interprets nothing"
)


def variant_of(entry: str) -> Variant:
    """The library's source in Triton that holds an entry."""
    sources = [one for library in LIBRARY.values() for one in library.variants]
    return next(one for one in sources if one.language == "triton" and entry in one.entries)


def source_of(entry: str) -> str:
    return variant_of(entry).file


@pytest.fixture(params=TARGETS if EVERYTHING else ("gfx942",))
def checks(
    request: pytest.FixtureRequest, made_once: Callable[[str, Callable[[], Any]], Any]
) -> Checks:
    """Finds what the worker says of one source on a target: of a few cases of each problem, or all.

    Each source is run once for all processes of a run, and in its own worker: all of them together
    take longer than a test may where the machine is busy.
    """

    def of_source(name: str) -> list[dict[str, Any]]:
        made = f"library triton {request.param} {name}"
        found: list[dict[str, Any]] = made_once(made, lambda: run_worker(request.param, name))
        return found

    return of_source


def run_worker(target: str, name: str) -> list[dict[str, Any]]:
    run = subprocess.run(
        [
            sys.executable,
            str(HERE / "library_triton_worker.py"),
            "all" if EVERYTHING else "few",
            target,
            name,
        ],
        capture_output=True,
        text=True,
        timeout=550,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_every_shipped_op_but_the_plain_product_has_a_triton_kernel() -> None:
    shipped = {kernel.entry for name in LIBRARY for kernel in LIBRARY[name].kernels("portable")}
    products = {kernel.entry for kernel in LIBRARY["linear"].kernels("portable")}
    assert set(KERNELS) == shipped - products


def test_what_an_op_asks_for_on_cores_alone_is_not_judged_for_a_gpus_step() -> None:
    """On a GPU the rows' kernel would never be called: its verdict takes half a minute."""
    library = LIBRARY["linear_cross_entropy"]
    rows = "cross_entropy_rows"
    for target, asked in (("portable", True), ("gfx942", False), ("sm_90", False)):
        assert (rows in {one.entry for one in library.kernels(target)}) == asked
    assert rows in KERNELS


@pytest.mark.parametrize("entry", KERNELS)
def test_a_file_is_a_triton_kernel_of_its_problem(entry: str) -> None:
    path = variant_of(entry).path
    loaded = load_kernel(path, entry=find_problem(entry).name)
    assert (loaded.language, loaded.entry) == ("triton", entry)
    assert loaded.hash == KERNELS[entry].hash


def test_the_library_in_triton_answers_a_suite() -> None:
    problem = find_problem("rope_forward").at("ci")
    assert kernel_of("library-triton", "rope_forward", problem) == (
        problem,
        KERNELS["rope_forward"],
    )
    assert kernel_of("library-triton", "silu", problem) == (problem, None)
    with pytest.raises(RatchetError, match="the library has no kernels for KernelBench"):
        kernelbench_suite(HERE, Terms(), level=1, candidate="library-triton")


@needs_triton
@needs_compiler
@pytest.mark.parametrize("entry", KERNELS)
def test_an_entry_is_right_in_the_emulator(entry: str, checks: Checks) -> None:
    found = checks(source_of(entry))
    own = [one for one in found if one["check"].removeprefix("fp32 ").startswith(f"{entry}: ")]
    assert len(own) >= 2
    assert [one for one in own if not one["passed"]] == []


@needs_triton
@needs_compiler
@pytest.mark.parametrize("part", OTHERS)
def test_inner_parts_and_edges_are_right_in_the_emulator(part: str, checks: Checks) -> None:
    own = [one for one in checks(OTHERS[part]) if one["check"].startswith(part)]
    assert own
    assert [one for one in own if not one["passed"]] == []


@needs_triton
@needs_sandbox
@no_gpu
@pytest.mark.slow
@pytest.mark.parametrize("entry", KERNELS)
def test_the_judge_calls_it_correct(
    entry: str, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not EVERYTHING and entry not in JUDGED:
        pytest.skip("thorough: RATCHET_TEST=all judges every entry")
    # On a busy machine a look finds the candidate waiting for a core, and more are needed.
    monkeypatch.setattr(arms, "PATIENCE_S", 100.0)
    verdict = judge.judge(KERNELS[entry], find_problem(entry), time_limit_s=250.0)
    assert verdict.status == "correct", verdict.reason
    assert all(one.passed for one in verdict.evidence)
    assert verdict.speedup.vs_reference is None


@needs_triton
@pytest.mark.gpu(
    twin="judge/kernels/test_library_triton.py::test_an_entry_is_right_in_the_emulator"
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("entry", KERNELS)
def test_an_entry_is_right_on_a_gpu(entry: str, tmp_path: Path) -> None:
    from ratchet.amd.compile.triton_source import load_source

    call = load_source(KERNELS[entry].source, entry, tmp_path / f"{entry}.py")
    problem = find_problem(entry)
    for case in (*problem.at("ci").cases, *problem.at("cpu").cases[:1]):
        inputs = problem.build_inputs(case, 3)
        wide = [one.double() if one.dtype.is_floating_point else one for one in inputs]
        reference = problem.load_reference()
        own = reference(*[one.clone() for one in inputs], case.scalars)
        oracle = reference(*wide, case.scalars)
        got = [one.cpu() for one in call(*[one.cuda() for one in inputs], case.scalars)]
        for check in problem.check_outputs(case, inputs, got, own, oracle):
            assert check.passed, (case.name, check.detail)
