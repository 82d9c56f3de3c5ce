"""`ratchet::attention` as a torch op: registration, autograd, compile, checkpointing, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gemm_variants import built
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.attention import attention

ENTRIES = ("attention_forward", "attention_backward")


@pytest.fixture(params=["composite", "kernel"])
def served_by(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    registry.deactivate()
    if request.param == "kernel":
        try:
            cpp.find_compiler()
        except KernelError as error:
            pytest.skip(str(error))
        for kernel in LIBRARY["attention"].kernels("portable"):
            registry.activate(kernel, built(kernel, compiled))
    yield request.param
    registry.deactivate()


def draw(
    dtype: torch.dtype = torch.float32, groups: int = 2, requires_grad: bool = True
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 9, 4, 16), (2, 9, groups, 16), (2, 9, groups, 16))
    return [
        torch.randn(shape, generator=generator).to(dtype).transpose(1, 2)
        .detach().requires_grad_(requires_grad)
        for shape in shapes
    ]  # fmt: skip


def torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25, enable_gqa=True)


def ratchet_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True, scale=0.25)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.thorough)], ids=str
)
def test_passes_opcheck(served_by: str, dtype: torch.dtype) -> None:
    torch.library.opcheck(torch.ops.ratchet.attention, (*draw(dtype), True, 0.25))


def test_backward_passes_opcheck(served_by: str) -> None:
    q, k, v = draw(requires_grad=False)
    o, lse = torch.ops.ratchet.attention(q, k, v, True, 0.25)
    arguments = (torch.randn(o.shape), q, k, v, o, lse, True, 0.25)
    torch.library.opcheck(torch.ops.ratchet.attention_backward, arguments)


def test_equals_torch(served_by: str) -> None:
    mine, theirs = draw(), draw()
    for inputs, function in ((mine, ratchet_attention), (theirs, torch_attention)):
        output = function(*inputs)
        (output.square().sum() + output.sum()).backward()
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_gradcheck_in_float64() -> None:
    registry.deactivate()
    inputs = [t[:1, :, :2, :3].detach().requires_grad_() for t in draw(torch.float64)]
    assert torch.autograd.gradcheck(ratchet_attention, inputs)


def test_output_reshapes_without_a_copy(served_by: str) -> None:
    o = ratchet_attention(*draw())
    flat = o.transpose(1, 2).reshape(2, 9, 64)
    assert flat.data_ptr() == o.data_ptr()
    assert flat.is_contiguous()


def test_fallbacks_are_counted(served_by: str) -> None:
    registry.fallbacks.clear()
    inputs = draw()
    ratchet_attention(*inputs).sum().backward()
    counted = 0 if served_by == "kernel" else 1
    assert [registry.fallbacks[entry] for entry in ENTRIES] == [counted, counted]
    ratchet_attention(*draw(torch.float16)).sum().backward()
    assert [registry.fallbacks[entry] for entry in ENTRIES] == [counted + 1, counted + 1]


def test_compiles_as_one_graph(served_by: str) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ratchet_attention(q * 2, k, v).transpose(1, 2).reshape(2, 9, 64).sin().sum()

    eager, compiled = draw(), draw()
    step(*eager).backward()
    torch.compile(step, fullgraph=True, backend="aot_eager")(*compiled).backward()
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
def test_compiles_with_inductor() -> None:
    registry.deactivate()

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ratchet_attention(q * 2, k, v).transpose(1, 2).reshape(2, 9, 64).sin().sum()

    eager, compiled = draw(torch.bfloat16), draw(torch.bfloat16)
    step(*eager).backward()
    torch.compile(step, fullgraph=True)(*compiled).backward()
    for one, other in zip(eager, compiled, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=2e-2)


def test_under_checkpointing(served_by: str) -> None:
    plain, kept = draw(), draw()
    ratchet_attention(*plain).square().sum().backward()
    checkpoint(ratchet_attention, *kept, use_reentrant=False).square().sum().backward()
    for one, other in zip(plain, kept, strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_mixed_dtypes_follow_the_query(served_by: str) -> None:
    q, k, v = draw()
    half = k.detach().bfloat16().requires_grad_()
    output = ratchet_attention(q, half, v)
    output.sum().backward()
    assert output.dtype == torch.float32
    assert half.grad is not None and half.grad.dtype == torch.bfloat16


def test_autocast_computes_in_its_dtype(served_by: str) -> None:
    q, k, v = draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine, theirs = ratchet_attention(q, k, v), torch_attention(q, k, v)
    assert mine.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
    mine.float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.float32


def test_shapes_that_do_not_fit_are_one_line() -> None:
    q, k, v = draw(groups=3, requires_grad=False)
    with pytest.raises(KernelError, match="do not match") as caught:
        ratchet_attention(q, k, v)
    assert "\n" not in str(caught.value)
