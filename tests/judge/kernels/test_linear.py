"""ratchet::linear: three products against float64 for every variant, edge, dtype and stride."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gemm_variants
import pytest
import torch
from torch import Tensor

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.library import LIBRARY, linear
from ratchet.judge.problems.suites.shipped import WorkloadShapes

pytestmark = pytest.mark.compiler

SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (8, 32, 48),
    (33, 65, 50),
    (100, 31, 97),
    (70, 2100, 40),
    (200, 129, 300),
]
DTYPES = [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32,) * 2]


@pytest.fixture(params=map(gemm_variants.variant_of, gemm_variants.ISAS))
def variant(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    gemm_variants.require(request.param)
    with gemm_variants.activated(linear.LINEAR.kernels(request.param), compiled):
        yield request.param


@pytest.fixture
def best(compiled: Path) -> Iterator[None]:
    with gemm_variants.activated(linear.LINEAR.kernels("portable"), compiled):
        yield


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: Tensor, exact: Tensor, ulps: float = 1.0) -> None:
    """Rounding of the inputs and of the output, in norm; element-wise at the output's scale."""
    error = (got.double() - exact).abs()
    scale = exact.square().mean().sqrt()
    assert error.max() <= 2**-7 * ulps * (exact.abs().max() + scale), got.dtype
    assert error.norm() <= 2**-7 * ulps * exact.norm() + 1e-30


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    leaves = [leaf.detach().requires_grad_() for leaf in (x, weight, bias) if leaf is not None]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = torch.ops.ratchet.linear(leaves[0], leaves[1], leaves[2] if bias is not None else None)
    plain = {leaf.dtype for leaf in leaves} == {torch.float32}
    grad = drawn((*y.shape,), y.dtype, 9)
    y.backward(grad)
    exact = torch.nn.functional.linear(*wide)
    exact.backward(grad.double())
    assert y.dtype == (torch.float32 if plain else torch.bfloat16)
    ulps = 2**-10 if plain else 1.0
    close(y.detach(), exact.detach(), ulps)
    for leaf, reference in zip(leaves, wide, strict=True):
        assert leaf.grad is not None and reference.grad is not None
        assert leaf.grad.dtype == leaf.dtype
        close(leaf.grad, reference.grad, ulps)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids=["bf16", "mixed", "fp32"])
def test_three_products(
    variant: str, size: tuple[int, int, int], dtypes: tuple[torch.dtype, ...]
) -> None:
    rows, inner, outer = size
    x, weight = drawn((rows, inner), dtypes[0], 1), drawn((outer, inner), dtypes[1], 2)
    check(x, weight, drawn((outer,), dtypes[1], 3) if rows % 2 else None)
    declines = dtypes[0] == torch.float32 and variant in ("amx", "avx512_bf16")
    assert {*registry.fallbacks} == ({*linear.ENTRIES["linear"]} if declines else set())


def test_strides(variant: str) -> None:
    x, weight = drawn((45, 40), torch.bfloat16, 1), drawn((64, 40), torch.float32, 2)
    transposed = x.t().contiguous().t()
    gaps = torch.zeros(45, 56, dtype=torch.bfloat16)[:, 8:48].copy_(x)
    every_second = torch.zeros(45, 80, dtype=torch.bfloat16)[:, ::2].copy_(x)
    plain = torch.ops.ratchet.linear(x, weight, None)
    for view in (transposed, gaps, every_second):
        assert torch.equal(torch.ops.ratchet.linear(view, weight, None), plain)
    check(x[:1].expand(45, 40), weight.t().contiguous().t(), None)
    assert not registry.fallbacks


def test_rows_of_fp32_at_any_stride(variant: str) -> None:
    """Rows that a kernel may read where they lie: with gaps, 4 KB apart, repeated, and columns."""
    weight, bias = drawn((50, 40), torch.float32, 2), drawn((50,), torch.float32, 3)
    for width in (43, 1024):
        x = drawn((45, width), torch.float32, 1)[:, 3:43]
        check(x, weight, bias)
        check(x.contiguous().t().contiguous().t(), weight, None)
        check(x[:1].expand(45, 40), weight, bias)


def test_leading_dimensions(variant: str) -> None:
    x, weight = drawn((2, 3, 4, 24), torch.bfloat16, 1), drawn((16, 24), torch.float32, 2)
    y = torch.ops.ratchet.linear(x, weight, None)
    assert y.shape == (2, 3, 4, 16)
    assert torch.equal(y.view(24, 16), torch.ops.ratchet.linear(x.view(24, 24), weight, None))
    check(x, weight, drawn((16,), torch.float32, 3))


def test_sums_are_kept_in_fp32(variant: str) -> None:
    """Many equal terms: a bf16 partial sum would stop growing at 256."""
    depth = 9000
    x = torch.ones(2, depth, dtype=torch.bfloat16)
    y = torch.ops.ratchet.linear(x, torch.ones(3, depth), None)
    assert torch.equal(y, torch.full((2, 3), float(depth)).bfloat16())


def test_specials_pass_through(variant: str) -> None:
    x, weight = drawn((9, 20), torch.bfloat16, 1), drawn((11, 20), torch.bfloat16, 2)
    x[2, 3], x[4, 5] = float("nan"), float("inf")
    y = torch.ops.ratchet.linear(x, weight, None)
    assert y[2].isnan().all() and y[4].isinf().all()
    others = torch.tensor([0, 1, 3, 5, 6, 7, 8])
    assert y[others].isfinite().all()


def test_the_result_does_not_depend_on_threads(variant: str) -> None:
    x, weight = drawn((300, 70), torch.bfloat16, 1), drawn((200, 70), torch.bfloat16, 2)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(torch.ops.ratchet.linear(x, weight, None))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(each, found[0]) for each in found)


def test_empty_inputs_fall_back(best: None) -> None:
    x, weight = torch.zeros(0, 8).bfloat16(), torch.zeros(4, 8)
    assert torch.ops.ratchet.linear(x, weight, None).shape == (0, 4)
    assert registry.fallbacks["linear_forward"] == 1


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_opcheck(best: None, with_bias: bool) -> None:
    x = drawn((6, 10), torch.bfloat16, 1).requires_grad_()
    weight = drawn((7, 10), torch.float32, 2).requires_grad_()
    bias = drawn((7,), torch.float32, 3).requires_grad_() if with_bias else None
    torch.library.opcheck(torch.ops.ratchet.linear, (x, weight, bias), atol=1e-2, rtol=1e-2)


def test_compiled_equals_eager(best: None) -> None:
    x = drawn((2, 6, 10), torch.float32, 1).requires_grad_()
    weight = drawn((7, 10), torch.float32, 2).requires_grad_()
    bias = drawn((7,), torch.float32, 3).requires_grad_()

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.ratchet.linear(x.bfloat16(), weight, bias).float().square().sum()

    expected = torch.autograd.grad(loss(x, weight, bias), (x, weight, bias))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, weight, bias), (x, weight, bias))
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-2, rtol=1e-2)


def test_without_a_kernel_the_composite_serves() -> None:
    registry.deactivate()
    check(
        drawn((9, 8), torch.bfloat16, 1),
        drawn((5, 8), torch.float32, 2),
        drawn((5,), torch.float32, 3),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_problems_are_answered(best: None, dtype: str) -> None:
    shapes = WorkloadShapes(batch=1, sequence=24, hidden=32, intermediate=48, dtype=dtype)
    for problem in LIBRARY["linear"].problems(shapes):
        reference = problem.load_reference()
        for case in problem.cases:
            inputs = problem.build_inputs(case, 0)
            own = reference(*inputs, case.scalars)
            oracle = reference(*(each.double() for each in inputs), case.scalars)
            outputs = [torch.full_like(each, float("nan")) for each in own]
            tensors = [linear.as_matrix(each) if each.dim() == 2 else each for each in inputs]
            assert registry.call(problem.name, tensors, case.scalars, outputs), case.name
            for answer in problem.tolerance.check_all(outputs, own, oracle):
                assert answer.passed, (problem.name, case.name, answer.detail)
