"""Which kernel serves an op: by its entry, its language and the device of the tensors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY, kernels_for, register_ops, why_no_kernel
from ratchet.judge.kernels.library.sources import ANY_GPU, ISAS, language_for
from ratchet.judge.kernels.registry import build_kernel, load_entry
from ratchet.judge.problems.suites import shipped

register_ops()
OPS = torch.ops.ratchet
ENTRY = "rms_norm_forward"
STAND_IN = """
import torch


def rms_norm_forward(x, weight, scalars):
    if x.shape[-1] == 3:
        raise ValueError("no rows of three")
    return (torch.full(x.shape, 7.0, dtype=x.dtype).t().contiguous().t(),)


def adamw_step(*tensors_and_scalars):
    *tensors, scalars = tensors_and_scalars
    tensors[3].fill_(scalars[0])
    return tuple(tensors)
"""


@pytest.fixture(autouse=True)
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path))
    registry.fallbacks.clear()
    yield
    registry.deactivate()


def stand_in(entry: str = ENTRY) -> Kernel:
    """A kernel in Triton's form, in plain torch."""
    return Kernel(name="stand-in", language="triton", source=STAND_IN, entry=entry)


def activate(entry: str = ENTRY, device: str = "cpu") -> None:
    kernel = stand_in(entry)
    registry.activate(kernel, build_kernel(kernel), device=device)


def test_each_kernel_answers_the_problems_of_its_name() -> None:
    answered = {
        name: {entry for one in kernel.variants for entry in one.entries}
        for name, kernel in register_ops().items()
    }
    named = shipped.entries()
    assert answered == {name: set(own) for name, own in named.items()}
    assert [one.name for one in shipped.problems()] == [
        one for own in named.values() for one in own
    ]


def test_a_kernel_in_triton_serves_tensors_on_a_gpu() -> None:
    activate(device="")
    assert registry.is_active(ENTRY, "cuda") and not registry.is_active(ENTRY)
    x = torch.ones(2, 4)
    assert not OPS.rms_norm(x, torch.ones(4), 1e-6).eq(7).any()
    assert registry.fallbacks == {ENTRY: 1}
    registry.deactivate(ENTRY)
    assert registry.active() == {}


def test_its_results_are_the_op_s_in_the_op_s_layout() -> None:
    activate()
    assert registry.active() == {ENTRY: stand_in()}
    y = OPS.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
    assert y.eq(7).all() and y.is_contiguous()
    narrowed = OPS.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6, "bfloat16")
    assert narrowed.eq(7).all() and narrowed.dtype == torch.bfloat16
    assert not registry.fallbacks


def test_it_declines_what_it_would_get_wrong() -> None:
    activate()
    weight = torch.ones(4)
    half = torch.ones(2, 4, dtype=torch.bfloat16)
    widened = OPS.rms_norm(half, weight, 1e-6, "float32")
    double = OPS.rms_norm(torch.ones(2, 4).double(), weight.double(), 1e-6)
    refused = OPS.rms_norm(torch.ones(2, 3), torch.ones(3), 1e-6)
    for y in (widened, double, refused):
        assert not y.eq(7).any()
    assert registry.fallbacks == {ENTRY: 3}


def test_tensors_are_changed_in_place() -> None:
    activate("adamw_step")
    tensors = [torch.zeros(3) for _ in range(4)]
    assert registry.call("adamw_step", (*tensors, torch.empty(0)), (5.0,)) == ()
    assert tensors[3].eq(5).all()


def test_only_what_runs_in_a_step_is_built() -> None:
    kernel = Kernel(name="x", language="torch", source="def f(): ...", entry="f")
    for call in (build_kernel, lambda one: load_entry(one, Path("nowhere"))):
        with pytest.raises(KernelError, match="only kernels in cpp and triton can be activated"):
            call(kernel)
    with pytest.raises(KernelError, match="defines no function 'g'"):
        load_entry(stand_in("g"), build_kernel(stand_in("g")))


def test_a_target_has_one_language() -> None:
    assert {language_for(isa) for isa in ISAS} == {"cpp"}
    assert {language_for(gpu) for gpu in ("gfx942", "gfx90a", "sm_90", ANY_GPU)} == {"triton"}
    with pytest.raises(KernelError, match="unknown target 'mmx'"):
        LIBRARY["rope"].kernels("mmx")
    assert kernels_for("gfx942") == kernels_for(ANY_GPU)
    assert LIBRARY["linear"].kernels("gfx942") == ()
    assert why_no_kernel("linear", "avx2") is why_no_kernel("rope", "sm_90") is None
    wanted = "the library has no linear kernel in triton, which sm_90 needs"
    assert why_no_kernel("linear", "sm_90") == wanted


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(600)
def test_the_ops_call_the_triton_library(tmp_path: Path) -> None:
    """In the interpreter: outputs, layouts and gradients are those of the torch composites."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "interpreted_ops.py")],
        capture_output=True,
        text=True,
        timeout=580,
        env={**os.environ, "TRITON_INTERPRET": "1", "RATCHET_CACHE": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fallbacks"] == {}
    for name, errors in told["errors"].items():
        close = 0.1 if name in ("attention", "linear_cross_entropy") else 1e-4
        assert all(isinstance(one, float) and one < close for one in errors), (name, errors)
