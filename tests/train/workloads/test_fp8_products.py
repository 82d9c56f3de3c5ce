"""Linear layers in fp8: what they compute, in both families of formats, and what they leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ratchet.base.errors import WorkloadError
from ratchet.train.recipe.module_calls import memory_slots
from ratchet.train.recipe.slots import filled
from ratchet.train.workloads import fp8_products
from ratchet.train.workloads.checkpointing import replaced_in
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fp8_products import (
    FNUZ,
    MULTIPLIES,
    OCP,
    Formats,
    apply_products,
    formats_for,
    multiply,
    rounded,
    turned,
)
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import TrainingStep

COARSE = 0.12
"""Error in norm of a gradient through two layers in fp8; e5m2 keeps two bits."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Linear(64, 256))
    return nn.Sequential(*layers)


def gradients(of: nn.Module, x: Tensor) -> list[Tensor]:
    of.zero_grad()
    torch.autograd.backward(of(x).square().mean())
    return [one.grad.clone() for one in of.parameters() if one.grad is not None]


def off(new: Tensor, old: Tensor) -> float:
    wide = old.detach().double()
    return float((new.detach().double() - wide).norm() / wide.norm())


@pytest.fixture(params=[OCP, FNUZ], ids=["ocp", "fnuz"])
def formats(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Formats:
    """torch's CPU multiplies only some pairs of FNUZ: those are widened to OCP's product."""
    found: Formats = request.param
    scaled = torch._scaled_mm

    def exact(left: Tensor, right: Tensor, **named: Any) -> Tensor:
        wide = (left.float() * named["scale_a"]) @ (right.float() * named["scale_b"])
        return wide.to(named["out_dtype"])

    if found is FNUZ:
        monkeypatch.setattr(torch, "_scaled_mm", exact)
        monkeypatch.setattr(fp8_products, "formats_for", lambda target: FNUZ)
    assert scaled is not None
    return found


@pytest.mark.parametrize("dtype", [*OCP, *FNUZ])
def test_a_matrix_is_rounded_by_its_largest_magnitude(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    matrix = 1e-6 * torch.randn(32, 48)
    values, scale = rounded(matrix, dtype)
    assert values.dtype == dtype and values.is_contiguous()
    assert float(values.float().abs().max()) == torch.finfo(dtype).max
    bits = 3 if "e4m3" in str(dtype) else 2
    assert off(values.float() * scale, matrix) < 2.0 ** -(bits + 1)
    empty, scale = rounded(torch.zeros(16, 16), dtype)
    assert not empty.float().any() and float(scale) > 0


def test_products_are_those_of_the_rounded_values(formats: Formats) -> None:
    torch.manual_seed(2)
    left, right = rounded(torch.randn(32, 64), formats[0]), rounded(torch.randn(48, 64), formats[0])
    exact = (left[0].double() * left[1]) @ (right[0].double() * right[1]).t()
    assert off(multiply(left, right, torch.float32), exact) < 1e-6
    assert off(multiply(left, turned(turned(right)), torch.bfloat16), exact) < 4e-3


def test_gradients_are_those_of_the_layers_but_for_rounding(formats: Formats) -> None:
    own, x = model(), torch.randn(32, 64)
    exact = gradients(own, x)
    apply_products(own, "fp8")
    assert len(replaced_in(own, MULTIPLIES)) == 2, "the head multiplies as before"
    errors = [off(new, old) for new, old in zip(gradients(own, x), exact, strict=True)]
    assert max(errors) < COARSE
    assert min(errors) > 1e-3, "nothing was rounded"
    apply_products(own, "own")
    assert [off(new, old) for new, old in zip(gradients(own, x), exact, strict=True)] == [0.0] * 6


# dynamo instantiates every autograd.Function that it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_layers_multiply_as_eager_ones_do() -> None:
    own, x = model(), torch.randn(32, 64)
    exact = gradients(own, x)
    apply_products(own, "fp8")
    eager = gradients(own, x)
    compiled = torch.compile(own, backend="aot_eager")
    for new, old, plain in zip(gradients(compiled, x), eager, exact, strict=True):
        assert off(new, old) < 1e-3 < off(new, plain)


def test_the_dtype_is_that_of_autocast() -> None:
    own, x = model(), torch.randn(16, 64)
    apply_products(own, "fp8")
    with torch.autocast("cpu", torch.bfloat16):
        assert own[0](x).dtype == torch.bfloat16
    assert own[0](x).dtype == torch.float32


def test_what_does_not_fit_the_instruction_multiplies_as_before() -> None:
    own = model()
    x = torch.randn(24, 64)
    before = own[0](x)
    apply_products(own, "fp8")
    assert torch.equal(own[0](x), before), "24 rows are no multiple of 16"
    with torch.no_grad():
        whole = torch.randn(32, 64)
        assert torch.equal(own[0](whole), nn.functional.linear(whole, own[0].weight, own[0].bias))
    odd = nn.Sequential(nn.Linear(10, 16), nn.Linear(16, 40))
    with pytest.raises(WorkloadError, match="use products own"):
        apply_products(odd, "fp8")


def test_gfx942_has_formats_of_its_own() -> None:
    assert formats_for("gfx942") == FNUZ
    assert {formats_for(one) for one in ("sm_90", "gfx950", "gfx1201", "")} == {OCP}


def test_a_script_s_model_multiplies_in_fp8_within_its_step_only() -> None:
    own, x = model(), torch.randn(32, 64)
    exact = own[0](x)
    with filled(memory_slots(own, StepConfig(products="fp8"))):
        assert off(own[0](x), exact) > 1e-3
    assert torch.equal(own[0](x), exact) and not replaced_in(own, MULTIPLIES)


@pytest.mark.parametrize("precision", ["bf16_autocast", "bf16_master"])
def test_a_workload_learns_in_fp8(precision: str) -> None:
    found = {}
    for products in ("own", "fp8"):
        config = StepConfig(precision=precision, products=products)  # type: ignore[arg-type]
        workload = load("llama-tiny", batch_size=1, sequence=16)
        step = TrainingStep(workload, config)
        found[products] = [float(step(workload.batch(0))) for _ in range(4)]
    assert replaced_in(workload.model, MULTIPLIES)
    assert found["fp8"] == pytest.approx(found["own"], rel=0.02) and found["fp8"] != found["own"]
    assert found["fp8"][-1] < found["fp8"][0]
