"""A sample of a call's workgroups, at the call's own sizes, in the sandbox."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

from ratchet.amd.profile.sampled import Sampler
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import why_no_kernels

HALVED = """
import torch
import triton
import triton.language as tl

@triton.jit
def halved_kernel(table, size, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    one = tl.load(table + tl.program_id(0)).to(tl.pointer_type(TYPE))
    tl.store(one + at, tl.load(one + at, at < size) / 2, at < size)

def halved(x, scalars):
    rows = [row.clone() for row in x]  # each in memory of its own
    table = torch.tensor([row.data_ptr() for row in rows]).to(x.device)
    halved_kernel[(len(rows),)](table, x.shape[1], TYPE=tl.float32, BLOCK=64)
    return (torch.stack(rows),)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(why_no_kernels() is not None, reason="no kernel can be tried on this machine")
def test_a_kernel_may_reach_its_tensors_by_a_table_of_addresses() -> None:
    case = Case(name="timed", timed=True, inputs=(TensorSpec(shape=(5000, 50), dtype="float32"),))
    problem = Problem(name="halved", reference=f"{__name__}:none", cases=(case,))
    kernel = Kernel(name="halved", language="triton", source=HALVED, entry="halved")
    with contextlib.closing(Sampler("gfx942", Clock.of(60))) as sampler:
        found = sampler.call(kernel, problem, case)
        past = sampler.call(
            Kernel(
                name="past",
                language="triton",
                source=HALVED.replace("at < size", "at < size + 1"),
                entry="halved",
            ),
            problem,
            case,
        )
    assert found.dropped == "" and found.predicted is not None and found.predicted.time_s > 0
    assert 0 < found.emulated_workgroups < found.workgroups == 5000
    assert "past the end of a tensor" in past.dropped


ADDED = """
def added(a, b, scalars):
    total = torch.zeros(a.shape[1], b.shape[1], device=a.device)
    out = torch.empty_like(total, dtype=b.dtype)
    _multiply(a.t(), b, total, out, False, True)
    return (out,)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(why_no_kernels() is not None, reason="no kernel can be tried on this machine")
def test_the_heads_gradient_has_no_race_at_the_size_of_a_step() -> None:
    specs = [TensorSpec(shape=(256, size), dtype="bfloat16") for size in (32000, 512)]
    case = Case(name="timed", timed=True, inputs=tuple(specs))
    problem = Problem(name="added", reference=f"{__name__}:none", cases=(case,))
    own = LIBRARY["linear_cross_entropy"].kernels("gfx942")[0].source
    kernel = Kernel(name="added", language="triton", source=own + ADDED, entry="added")
    with contextlib.closing(Sampler("gfx942", Clock.of(60))) as sampler:
        found = sampler.call(kernel, problem, case)
    assert found.dropped == "" and found.predicted is not None
