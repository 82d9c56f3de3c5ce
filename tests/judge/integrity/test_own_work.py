"""Whose code does the work: places in memory, what speaks against a kernel, and honest ones."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge_problems as given
import numpy as np
import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.api import as_problem
from ratchet.judge.integrity import call_order, own_work
from ratchet.judge.integrity.call_order import ThreadSample
from ratchet.judge.integrity.census import judge_census, read_census
from ratchet.judge.integrity.own_work import CodePlace, CodePlaces, read_mappings
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.shared_memory import BatchLayout, Slot
from ratchet.judge.terms import Terms
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import CandidateFault, Evidence

PACKAGES = Path(np.__file__).parents[1]
DYNLOAD = f"{sysconfig.get_path('stdlib')}/lib-dynload"


@pytest.fixture(scope="module")
def judge(judge: KernelJudge) -> KernelJudge:
    """The session's judge; skips where nothing can be compiled."""
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    return judge


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds: these tests ask for answers, not for speed."""
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 4)


def address_of(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def place(address: int, places: CodePlaces) -> CodePlace:
    """Where an address of this process lies."""
    return places.place(os.getpid(), address, read_mappings(os.getpid()))


def test_the_owners_of_the_code_of_this_process() -> None:
    ufunc = next(one for one in read_mappings(os.getpid()) if "_multiarray_umath" in one.path)
    made = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    held = (ctypes.c_char * 1).from_buffer(made)
    with CodePlaces(None) as places:
        assert place(address_of(ctypes.CDLL(None).qsort), places).owner == "run-time"
        assert place(address_of(ctypes.pythonapi.Py_IncRef), places).owner == "worker"
        assert place(ufunc.start, places) == CodePlace(owner="library", name=Path(ufunc.path).name)
        assert place(ctypes.addressof(held), places).owner == "made"
    with CodePlaces(None, interpreter=("numpy",)) as places:
        assert place(ufunc.start, places).owner == "worker"
    del held
    made.close()


def test_the_name_of_a_file_is_not_enough() -> None:
    mappings = read_mappings(os.getpid())
    libc = next(one for one in mappings if Path(one.path).name.startswith("libc."))
    other = next(one for one in mappings if "_multiarray_umath" in one.path)
    borrowed = replace(other, path=libc.path)
    with CodePlaces(None) as places:
        found = places.place(os.getpid(), other.start + 4096, [borrowed])
    assert found.owner == "made"
    assert "not the file's" in found.name


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0", "run-time"),
        ("/lib/x86_64-linux-gnu/libmvec.so.1", "run-time"),
        ("/usr/lib64/libstdc++.so.6.0.33", "run-time"),
        ("/tmp/libm.so.6", "library"),
        ("/usr/lib/x86_64-linux-gnu/libmkl.so", "library"),
        ("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", "allowed"),
        ("/x/site-packages/torch/lib/libgomp.so.1", "library"),
        (f"{PACKAGES}/numpy.libs/libscipy_openblas64_-32a4b2a6.so", "allowed"),
        ("/tmp/site-packages/libopenblas.so.0", "library"),
        ("/usr/lib/x86_64-linux-gnu/libdnnl.so.3", "library"),
        (f"{DYNLOAD}/_json.cpython-311-x86_64-linux-gnu.so", "worker"),
        (f"{DYNLOAD}/array.abi3.so", "worker"),
        (f"{DYNLOAD}/audioop.cpython-311-x86_64-linux-gnu.so", "library"),
        (f"{DYNLOAD}/zlib.cpython-311-x86_64-linux-gnu.so", "library"),
        ("/tmp/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", "library"),
    ],
)
def test_the_owner_of_a_file(path: str, owner: str) -> None:
    with CodePlaces(None, allowed=("matmul",)) as places:
        assert places._owner(path) == owner


OWN = CodePlace(owner="own", name="its own code")
BLAS = CodePlace(owner="library", name="libblas.so.3")
GLUE = CodePlace(owner="worker", name="python3")


def watched(
    monkeypatch: pytest.MonkeyPatch,
    moments: list[list[CodePlace]],
    *,
    language: Language = "cpp",
    mixed: bool = False,
) -> own_work.Watch:
    """A watch that saw these threads, each moment the first look at a batch."""
    monkeypatch.setattr(own_work, "read_mappings", lambda pid: [None])
    places = CodePlaces(None)
    watch = own_work.Watch(places, language, mixed=mixed)
    watch._worker = 1
    for threads in moments:
        left = iter(threads)
        monkeypatch.setattr(places, "place", lambda *_, left=left: next(left))
        stands = [ThreadSample(pid=1, thread=1 + n, address=0) for n in range(len(threads))]
        watch._note(stands, first=True)
    return watch


def concluded(watch: own_work.Watch) -> tuple[str, str, list[Evidence]]:
    """The status, if it was decided; why, or why nothing is known; and the evidence."""
    evidence = [watch.evidence()]
    try:
        return "", watch.conclude(), evidence
    except CandidateFault as fault:
        return fault.decided.status, fault.decided.reason, evidence


@pytest.mark.parametrize(
    ("moments", "status"),
    [
        ([[OWN]] * 16, ""),
        ([[OWN]] * 5 + [[GLUE]] * 35, ""),
        ([[OWN]] * 5 + [[GLUE]] * 5, "unseen"),
        ([[OWN]] * 8 + [[BLAS]], "cheating"),
        ([[OWN]] * 19 + [[BLAS]], ""),
        ([[OWN]] * 90 + [[BLAS]] * 2, "cheating"),
        ([[OWN, OWN, BLAS, OWN]] * 3 + [[OWN]] * 6, "cheating"),
        ([[BLAS]] * 2, "cheating"),
        ([[OWN]] * 18 + [[OWN, GLUE]] * 2, "cheating"),
        ([], "unseen"),
    ],
)
def test_what_was_seen_decides(
    monkeypatch: pytest.MonkeyPatch, moments: list[list[CodePlace]], status: str
) -> None:
    found, reason, evidence = concluded(watched(monkeypatch, moments))
    assert found == ("" if status == "unseen" else status)
    assert bool(reason) == bool(status)
    passed = {"": True, "unseen": None}.get(status, False)
    assert [(one.check, one.passed) for one in evidence] == [("own work", passed)]


def test_too_few_moments_of_which_some_speak_against_it_are_a_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watched(monkeypatch, [[OWN]] * 9 + [[BLAS]], language="torch")
    status, reason, _ = concluded(watch)
    assert status == "unmeasured" and "runs too shortly" in reason


@pytest.mark.parametrize(
    ("moments", "batch_s", "calls", "status"),
    [
        ([[OWN]] * 6 + [[GLUE]] * 34, 0.0005, 1, ""),
        ([[OWN]] * 6 + [[GLUE]] * 34, 0.001, 64, ""),
        ([[OWN]] * 36 + [[GLUE]] * 4, 0.1, 1, ""),
        ([[OWN]] * 33 + [[GLUE]] * 7, 0.1, 1, ""),
        ([[OWN]] * 33 + [[GLUE, OWN]] * 9, 0.1, 1, ""),
        ([[OWN]] * 20 + [[GLUE]] * 20, 0.004, 1, "cheating"),
        ([[OWN]] * 20 + [[GLUE, OWN]] * 20, 0.004, 1, "cheating"),
        ([[GLUE]] * 40, 0.002, 64, "cheating"),
    ],
)
def test_python_around_a_kernel_is_there_to_call_it(
    monkeypatch: pytest.MonkeyPatch,
    moments: list[list[CodePlace]],
    batch_s: float,
    calls: int,
    status: str,
) -> None:
    watch = watched(monkeypatch, moments)
    watch._note_batch(batch_s * watch.interpreted / watch.looked, calls)
    found, reason, _ = concluded(watch)
    assert found == status
    assert not status or "the Python around it worked" in reason


@pytest.mark.parametrize(("works_s", "is_seen"), [(0.0, False), (0.02, True)])
def test_python_that_waits_for_a_core_does_not_work(
    works_s: float, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object, **__: object) -> None:
        watch.looked = watch.active = watch.interpreted = 40
        until = time.thread_time() + works_s
        while time.thread_time() < until:
            pass

    with CodePlaces(None) as places:
        watch = own_work.Watch(places, "cpp")
        monkeypatch.setattr(own_work, "watch", look)
        family: Any = SimpleNamespace(worker=os.getpid())
        time.sleep(0.001)  # a running thread's time is read as it was at the last tick
        watch.looks(family, 10.0, 1)(lambda: False)
    assert watch.failed is is_seen


TORCH = CodePlace(owner="library", name="libtorch_cpu.so")


def test_where_a_library_is_allowed_nobody_is_convicted_for_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = [[TORCH]] * 12 + [[GLUE]] * 12
    status, reason, _ = concluded(watched(monkeypatch, moments, language="torch"))
    assert status == "cheating" and "runs elsewhere" in reason
    status, reason, _ = concluded(watched(monkeypatch, moments, language="torch", mixed=True))
    assert status == "unmeasured" and "write it in cpp, or in Triton" in reason
    glue = concluded(watched(monkeypatch, [[GLUE]] * 24, language="torch", mixed=True))
    assert glue[0] == ""
    asked_for = own_work.watch_for(CodePlaces(None), asked(libraries=("matmul",)), PYTHON)
    assert asked_for is not None


def test_a_kernel_in_python_is_looked_at_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [[OWN]] * own_work.ENOUGH
    assert watched(monkeypatch, moments).plenty
    watch = watched(monkeypatch, moments, language="torch")
    assert watch.enough and not watch.plenty
    assert watched(monkeypatch, [[OWN]] * own_work.PLENTY, language="torch").plenty


PYTHON = Kernel(name="k", language="torch", source="", entry="silu")
SLOTS = [Slot(region, 0, 0, [64, 64], [64, 1]) for region in (0, 2)]
LAYOUT = BatchLayout(calls=[SLOTS], input_count=1)
TRITON = """
@triton.jit
def first(x): pass

@triton.jit
def second(x): pass
"""


def asked(**more: Any) -> Problem:
    timed = given.case("timed", 64, 64, timed=True)
    return replace(given.problem("silu", timed), task="own", **more)


@pytest.mark.parametrize(
    ("ops", "launches", "libraries", "words"),
    [
        ({"aten::empty": [1, 0]}, {"first": [1, 16, 4096]}, (), ""),
        ({"aten::sum": [1, 64], "aten::view": [9, 9999]}, {"first": [1, 1, 4096]}, (), ""),
        ({"aten::contiguous": [1, 4096]}, {"first": [1, 16, 4096]}, (), ""),
        ({"aten::mm": [1, 4096]}, {"first": [1, 16, 4096]}, ("matmul",), ""),
        ({"aten::mm": [1, 4096]}, {"first": [1, 16, 4096]}, (), "aten::mm 50 %"),
        ({"Tensor.numpy": [1, 4096]}, {"first": [1, 16, 4096]}, (), "Tensor.numpy"),
        ({}, {}, (), "never launched first, second"),
        ({}, {"first": [1, 0, 0]}, (), "launched nothing"),
        ({}, {"first": [1, 1, 16]}, (), "wrote 16 elements where the outputs have 4096"),
    ],
)
def test_the_operations_decide(
    ops: dict[str, list[int]],
    launches: dict[str, list[int]],
    libraries: tuple[str, ...],
    words: str,
) -> None:
    census = read_census(LAYOUT, {"ops": ops, "launches": launches})
    kernel = Kernel(name="k", language="triton", source=TRITON, entry="silu")
    evidence, why = judge_census(asked(libraries=libraries), kernel, [census])
    if words:
        assert re.search(words, why) and evidence[-1].passed is False
    else:
        assert not why and all(one.passed for one in evidence)


@pytest.mark.parametrize(
    "told",
    [None, 3, {}, {"ops": {"a": [1, -1]}, "launches": {}}, {"ops": {"a": 1}, "launches": {}}],
)
def test_a_census_that_is_none_is_no_answer(told: Any) -> None:
    with pytest.raises(CandidateFault, match="nonsense"):
        read_census(LAYOUT, told)


HONEST = r"""
#include <algorithm>
#include <vector>
ENTRY {
    const int64_t n = rows(t) * t->size[t->ndim - 1];
    std::vector<float> held(n);
    memcpy(held.data(), t[0].data, 4 * n);
    float* out = (float*)t[1].data;
    const float k = (float)s[0];
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) out[i] = k * held[i] / (1 + expf(-held[i]));
    return 0;
}
"""
LARGER = replace(
    given.problem("silu", given.case("timed", 1024, 1024, timed=True)),
    task="own",
)


@pytest.mark.compiler
def test_the_run_time_of_its_language_is_its_own(judge: KernelJudge) -> None:
    verdict = judge.judge(given.cpp(HONEST), LARGER)
    assert_right(verdict)
    (seen,) = [one for one in verdict.evidence if one.check == "own work"]
    assert seen.passed
    assert "its own code" in seen.detail


@pytest.mark.compiler
def test_a_machine_that_lets_nobody_look_proves_nothing(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(pid: int) -> Iterator[ThreadSample]:
        raise PermissionError

    monkeypatch.setattr(call_order, "_running", denied)
    verdict = judge.judge(given.cpp(HONEST), LARGER)
    assert verdict.status == "unmeasured", verdict.reason
    assert "CAP_SYS_PTRACE" in verdict.reason
    assert verdict.speedup.vs_reference is None


def test_what_is_asked_for_stands_above_what_the_problem_says() -> None:
    assert as_problem(LARGER).task == "own"
    assert as_problem(LARGER, Terms(task="any")).task == "any"
    assert own_work.LIBRARIES.keys() == {"matmul"}
