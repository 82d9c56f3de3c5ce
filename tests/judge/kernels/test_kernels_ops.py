"""The ops as torch sees them: opcheck, compile, checkpointing, dtypes, layouts, no elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gemm_variants import built
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ratchet.base.devices.probe import best_isa
from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.library import LIBRARY, register_ops
from ratchet.judge.problems.suites.shipped import layers

pytestmark = pytest.mark.compiler
register_ops()
OPS = torch.ops.ratchet
BF16, FP32 = torch.bfloat16, torch.float32
NAMES = ("rms_norm", "layer_norm", "gated_activation", "rope")
EPS = 1e-5


@pytest.fixture(params=["composite", "kernel"], autouse=True)
def computed_by(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    if request.param == "kernel":
        for name in NAMES:
            for kernel in LIBRARY[name].kernels(best_isa()):
                registry.activate(kernel, built(kernel, compiled))
    registry.fallbacks.clear()
    yield request.param
    registry.deactivate()


def draw(*shape: int, dtype: torch.dtype = FP32, grad: bool = True) -> Tensor:
    seed = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=seed).to(dtype).requires_grad_(grad)


def calls(dtype: torch.dtype, weight: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Arguments of each op; strided, transposed and ragged among them."""
    x, h = draw(3, 5, 24, dtype=dtype), draw(5, 3, 24, dtype=weight).transpose(0, 1)
    w, b = draw(24, dtype=weight), draw(24, dtype=dtype)
    heads = draw(2, 7, 3, 10, dtype=dtype).transpose(1, 2)
    table = draw(7, 10, dtype=dtype, grad=False)
    return {
        "rms_norm": (x, w, EPS),
        "add_rms_norm": (x, h, w, EPS),
        "layer_norm": (x, w, b, EPS),
        "add_layer_norm": (x, h, w, None, EPS),
        "gated_activation": (x, h, "gelu_tanh"),
        "rope": (heads, table.cos(), table.sin()),
    }


EXPECTED: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, w, e: layers.norm(x, w, None, e, x.dtype, False),
    "add_rms_norm": lambda x, r, w, e: layers.add_rms_norm_forward(x, r, w, (e,)),
    "layer_norm": lambda x, w, b, e: layers.norm(x, w, b, e, x.dtype, True),
    "add_layer_norm": lambda x, r, w, b, e: layers.add_layer_norm_forward(
        x, r, w, x.new_empty(0), (e,)
    ),
    "gated_activation": lambda g, u, k: layers.gated_activation_forward(
        g, u, (float(layers.KINDS.index(k)),)
    )[0],
    "rope": lambda x, c, s: layers.rope_forward(x, c, s, ())[0],
}


def leaves(arguments: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]


def scalar(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """One number that every element of every output moves."""
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.stack([(one.float() * torch.arange(one.shape[-1])).sum() for one in several]).sum()


def assert_close(got: Any, wanted: Any, dtype: torch.dtype) -> None:
    tolerance = {"rtol": 2e-5, "atol": 2e-4} if dtype == FP32 else {"rtol": 4e-2, "atol": 0.3}
    torch.testing.assert_close(got, wanted, **tolerance)


MIXES = [(FP32, FP32), (BF16, FP32), (FP32, BF16), (BF16, BF16)]


@pytest.mark.parametrize("op", EXPECTED)
@pytest.mark.parametrize(("dtype", "weight"), MIXES, ids=str)
def test_outputs_and_gradients_are_autograds(
    op: str, dtype: torch.dtype, weight: torch.dtype, computed_by: str
) -> None:
    arguments = calls(dtype, weight)[op]
    got, wanted = getattr(OPS, op)(*arguments), EXPECTED[op](*arguments)
    low = BF16 if BF16 in (dtype, weight) else FP32
    assert_close(got, wanted, low)
    found = torch.autograd.grad(scalar(got), leaves(arguments))
    expected = torch.autograd.grad(scalar(wanted), leaves(arguments))
    for one, other in zip(found, expected, strict=True):
        scale = float(other.float().abs().max())
        assert_close(one / scale, other / scale, low)
    assert (sum(registry.fallbacks.values()) == 0) == (computed_by == "kernel")


@pytest.mark.parametrize("op", EXPECTED)
def test_opcheck(op: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opcheck's own imports warn
        torch.library.opcheck(getattr(OPS, op).default, calls(FP32, FP32)[op])


@pytest.mark.parametrize("op", EXPECTED)
def test_checkpointed_and_compiled_gradients_are_the_same(op: str) -> None:
    arguments = calls(FP32, FP32)[op]
    wanted = torch.autograd.grad(scalar(getattr(OPS, op)(*arguments)), leaves(arguments))

    def recomputed() -> Tensor:
        return scalar(checkpoint(getattr(OPS, op), *arguments, use_reentrant=False))

    for one, other in zip(
        torch.autograd.grad(recomputed(), leaves(arguments)), wanted, strict=True
    ):
        assert torch.equal(one, other)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *a: scalar(getattr(OPS, op)(*a)), fullgraph=True, backend="aot_eager"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.autograd.grad(compiled(*arguments), leaves(arguments))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "gated_activation"])
def test_no_rows_at_all(op: str) -> None:
    x, w = draw(0, 16), draw(16)
    arguments = {
        "rms_norm": (x, w, EPS),
        "layer_norm": (x, w, w, EPS),
        "gated_activation": (x, x, "silu"),
    }[op]
    y = getattr(OPS, op)(*arguments)
    assert y.shape == (0, 16)
    y.sum().backward()
    assert w.grad is None or not w.grad.any()


@pytest.mark.parametrize("op", ["add_rms_norm", "add_layer_norm"])
@pytest.mark.parametrize("used", [0, 1])
def test_one_output_alone_may_carry_the_gradient(op: str, used: int) -> None:
    arguments = calls(FP32, FP32)[op]
    own = leaves(arguments)
    found = torch.autograd.grad(scalar(getattr(OPS, op)(*arguments)[used]), own, allow_unused=True)
    wanted = torch.autograd.grad(scalar(EXPECTED[op](*arguments)[used]), own, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, FP32)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_the_output_dtype_can_be_chosen(name: str) -> None:
    x, w, _ = calls(BF16, FP32)["rms_norm"]
    assert OPS.rms_norm(x, w, EPS, name).dtype == getattr(torch, name)
    y, h = OPS.add_layer_norm(x, x, w, None, EPS, name)
    assert (y.dtype, h.dtype) == (getattr(torch, name), BF16)


def test_float64_is_declined_and_computed_all_the_same() -> None:
    x, w = draw(4, 8, dtype=torch.float64), draw(8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *a: OPS.rms_norm(*a, EPS), (x, w))
    assert registry.fallbacks["rms_norm_forward"] > 0


def test_nan_and_infinity_pass_through(computed_by: str) -> None:
    special = torch.tensor([float("nan"), float("inf"), 3e38, -3e38, 0.0, 20.0])
    for kind in layers.KINDS:
        got = OPS.gated_activation(special, torch.ones(6), kind)
        assert got[0].isnan(), kind
        # torch's own gelu makes NaN of infinity, and infinity of 3e38, in its vectorised loop.
        if computed_by == "kernel":
            wanted = torch.tensor([float("inf"), 3e38, 0.0, 0.0, 20.0])
            torch.testing.assert_close(got[1:], wanted, msg=kind)
    x = torch.randn(3, 16)
    x[1, 4] = float("nan")
    y = OPS.rms_norm(x.bfloat16(), torch.ones(16), EPS)
    assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()


def test_rope_keeps_the_memory_layout() -> None:
    heads, cos, sin = calls(FP32, FP32)["rope"]
    assert OPS.rope(heads, cos, sin).stride() == heads.stride()
    batched = cos.expand(2, *cos.shape).contiguous()
    assert torch.equal(OPS.rope(heads, batched, sin), OPS.rope(heads, cos, sin))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_norm_s_outputs_are_contiguous_for_any_layout(name: str) -> None:
    x, grad = (draw(5, 3, 24, grad=False).transpose(0, 1) for _ in range(2))
    weight = draw(24, grad=False)
    bias, has_bias = ((None,), (False,)) if name == "layer_norm" else ((), ())
    y = getattr(OPS, name)(x, weight, *bias, EPS)
    dx = getattr(OPS, f"{name}_backward")(grad, x, weight, *has_bias, EPS)[0]
    assert y.is_contiguous() and dx.is_contiguous()


def test_mistakes_are_one_line() -> None:
    x = draw(2, 4)
    with pytest.raises(KernelError, match="unknown activation 'relu'"):
        OPS.gated_activation(x, x, "relu")
    heads, cos, sin = calls(FP32, FP32)["rope"]
    with pytest.raises(KernelError, match="requires a gradient"):
        OPS.rope(heads, cos.clone().requires_grad_(), sin)
