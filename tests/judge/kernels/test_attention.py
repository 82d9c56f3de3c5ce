"""The compiled attention against float64: every variant that this CPU runs, and AMX emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gemm_variants
import pytest
import torch
from torch import Tensor

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.sources import Variant
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.judge.problems.suites.shipped.attention import attention_backward, attention_forward

pytestmark = pytest.mark.compiler

ENTRIES = ("attention_forward", "attention_backward")
VARIANTS = {
    "amx_emulated": ("amx", {"amx_emulate": "1"}),
    "avx512_bf16": ("avx512_bf16", {}),
    "avx512": ("avx512", {}),
    "avx2": ("avx2", {"lanes": "8"}),
    "portable_narrow": ("portable", {"lanes": "4"}),
}
NEEDS = {"avx512_bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "fma"}
SLOW = ("amx_emulated", "portable_narrow")
MORE = {"portable_narrow": [pytest.mark.thorough]}
"""test_library_problems runs the portable code at its own width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    batch: int = 1
    heads: int = 2
    groups: int = 2
    queries: int
    keys: int
    features: int = 64
    causal: bool = False


SIZES = (
    Sizes(queries=1, keys=1, features=1),
    Sizes(queries=64, keys=64, causal=True),
    Sizes(queries=65, keys=65, causal=True, features=40),
    Sizes(batch=2, heads=4, queries=130, keys=77, causal=True, features=32),
    Sizes(heads=6, groups=2, queries=50, keys=150, causal=True, features=96),
    Sizes(heads=3, groups=1, queries=5, keys=131, features=128),
    Sizes(heads=1, groups=1, queries=33, keys=49, features=33),
    Sizes(batch=2, heads=3, groups=3, queries=65, keys=65),
    Sizes(heads=1, groups=1, queries=300, keys=300, features=24, causal=True),
)
MORE_SIZES = (
    Sizes(heads=1, groups=1, queries=700, keys=700, causal=True),
    Sizes(heads=1, groups=1, queries=100, keys=300, features=256),
    Sizes(batch=3, heads=4, groups=4, queries=197, keys=197),
    Sizes(batch=2, heads=8, groups=2, queries=256, keys=256, causal=True),
    Sizes(heads=4, groups=2, queries=3, keys=600, features=17, causal=True),
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[*gemm_variants.variant_of(isa).marks, *MORE.get(name, [])])
        for name, (isa, _) in VARIANTS.items()
    ],
)
def variant(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    name: str = request.param
    if name in NEEDS and NEEDS[name] not in gemm_variants.flags():
        pytest.skip(f"this CPU has no {NEEDS[name]}")
    isa, schedule = VARIANTS[name]
    for entry in ENTRIES:
        more = tuple(schedule.items())
        source = Variant(language="cpp", file=entry, entries=(entry,), schedule=more)
        (kernel,) = source.kernels("attention", isa)
        flags = gemm_variants.QUICK if name in SLOW else cpp.FLAGS
        registry.activate(kernel, cpp.compile_kernel(kernel, cache=compiled, flags=flags))
    yield name
    registry.deactivate()


def head_tensor(
    generator: torch.Generator, batch: int, heads: int, rows: int, features: int
) -> Tensor:
    """[B, H, T, D] as a projection leaves it: a view of [B, T, H, D]."""
    return torch.randn(batch, rows, heads, features, generator=generator).transpose(1, 2)


def draw(sizes: Sizes, dtype: torch.dtype, spread: float = 1.0) -> tuple[Tensor, ...]:
    """q, k, v and the gradient of o."""
    generator = torch.Generator().manual_seed(7)
    q_shape = (sizes.batch, sizes.heads, sizes.queries, sizes.features)
    k_shape = (sizes.batch, sizes.groups, sizes.keys, sizes.features)
    q, k, v, grad = (
        head_tensor(generator, *shape) for shape in (q_shape, k_shape, k_shape, q_shape)
    )
    return tuple(t.to(dtype) for t in (q * spread, k, v, grad))


def run(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scalars: tuple[float, float]
) -> tuple[Tensor, ...]:
    """o, lse, dq, dk, dv from the kernels; outputs start as NaN."""
    o, dq, dk, dv = (torch.full_like(t, float("nan")) for t in (q, q, k, v))
    lse = torch.full(q.shape[:3], float("nan"))
    assert registry.call(ENTRIES[0], (q, k, v), scalars, (o, lse))
    assert registry.call(ENTRIES[1], (grad, q, k, v, o, lse), scalars, (dq, dk, dv))
    return o, lse, dq, dk, dv


def expected(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, scalars: tuple[float, float]
) -> tuple[Tensor, ...]:
    """The same in float64, by autograd."""
    inputs = [t.double().requires_grad_() for t in (q, k, v)]
    o, lse = attention_forward(*inputs, scalars)
    grads = torch.autograd.grad(o, inputs, grad.double())
    return o.detach(), lse.detach(), *grads


def error_of(got: Tensor, exact: Tensor) -> float:
    """Error in norm, relative to the exact norm (a gradient that is all zero counts as 1e-2)."""
    scale = max(float(exact.norm()), 1e-2 * exact.numel() ** 0.5)
    return float((got.double() - exact).norm()) / scale


def assert_close(got: tuple[Tensor, ...], exact: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    bound = 6e-3 if dtype == torch.bfloat16 else 2e-6
    for name, mine, theirs in zip(("o", "lse", "dq", "dk", "dv"), got, exact, strict=True):
        assert error_of(mine, theirs) < (2e-6 if name == "lse" else bound), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_agrees_with_float64(variant: str, sizes: Sizes, dtype: torch.dtype) -> None:
    inputs = draw(sizes, dtype)
    scalars = (float(sizes.causal), sizes.features**-0.5)
    assert_close(run(*inputs, scalars), expected(*inputs, scalars), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        *MORE_SIZES[:2],
        *(pytest.param(one, marks=pytest.mark.thorough) for one in MORE_SIZES[2:]),
    ],
    ids=str,
)
def test_larger_sizes(variant: str, sizes: Sizes, dtype: torch.dtype) -> None:
    if variant in SLOW:
        pytest.skip(f"{variant} is too slow for large sizes")
    inputs = draw(sizes, dtype)
    scalars = (float(sizes.causal), sizes.features**-0.5)
    assert_close(run(*inputs, scalars), expected(*inputs, scalars), dtype)


def test_takes_any_strides(variant: str) -> None:
    sizes = Sizes(batch=2, heads=4, groups=2, queries=40, keys=40, causal=True)
    q, k, v, grad = draw(sizes, torch.bfloat16)
    packed = torch.cat([t.transpose(1, 2).flatten(2) for t in (q, k, v)], dim=-1)
    parts = packed.split([q.shape[1] * 64, k.shape[1] * 64, v.shape[1] * 64], dim=-1)
    views = [part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in parts]
    strided = run(*views, grad.contiguous(), (1.0, 0.125))
    plain = run(*(t.contiguous() for t in (q, k, v, grad)), (1.0, 0.125))
    for one, other in zip(strided, plain, strict=True):
        assert torch.equal(one, other)


def test_broadcast_gradient(variant: str) -> None:
    q, k, v, _ = draw(Sizes(queries=20, keys=20), torch.float32)
    grad = torch.ones(64).expand_as(q)
    assert_close(run(q, k, v, grad, (0.0, 0.2)), expected(q, k, v, grad, (0.0, 0.2)), q.dtype)


def test_extreme_logits(variant: str) -> None:
    sizes = Sizes(queries=70, keys=70, causal=True)
    inputs = draw(sizes, torch.float32, spread=100.0)
    got, exact = run(*inputs, (1.0, 1.0)), expected(*inputs, (1.0, 1.0))
    for mine, theirs in zip(got, exact, strict=True):
        assert torch.isfinite(mine).all()
        assert error_of(mine, theirs) < 5e-3  # fp32 logits of 3,000 are 2e-4 apart


def test_masked_keys_do_not_leak(variant: str) -> None:
    """A NaN or an infinity in the future stays there; so does memory beyond the last key."""
    sizes = Sizes(queries=90, keys=90, causal=True)
    q, k, v, grad = draw(sizes, torch.bfloat16)
    before = run(q, k, v, grad, (1.0, 0.125))[0]
    k[:, :, 80:] = float("nan")
    after = run(q, k, v, grad, (1.0, 0.125))[0]
    assert torch.equal(before[:, :, :64], after[:, :, :64])
    assert after[:, :, 80:].isnan().all()


def test_nan_in_query_stays_in_its_row(variant: str) -> None:
    q, k, v, grad = draw(Sizes(queries=40, keys=40), torch.float32)
    q[0, 1, 7, 3] = float("nan")
    o, lse, *_ = run(q, k, v, grad, (0.0, 0.125))
    assert o[0, 1, 7].isnan().all()
    assert lse[0, 1, 7].isnan()
    assert int(o.isnan().sum()) == 64


def test_repeats_bit_for_bit(variant: str) -> None:
    sizes = Sizes(heads=2, groups=1, queries=130, keys=130, causal=True, features=32)
    inputs = draw(sizes, torch.bfloat16)
    first = run(*inputs, (1.0, 0.2))
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, run(*inputs, (1.0, 0.2)), strict=True))


def test_any_number_of_threads(variant: str) -> None:
    sizes = Sizes(heads=2, groups=1, queries=200, keys=200, causal=True, features=32)
    inputs = draw(sizes, torch.float32)
    exact = expected(*inputs, (1.0, 0.2))
    threads = torch.get_num_threads()
    try:
        for count in (1, 3, 8):
            torch.set_num_threads(count)
            assert_close(run(*inputs, (1.0, 0.2)), exact, torch.float32)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("entry", ENTRIES)
def test_declines_what_it_does_not_take(variant: str, entry: str) -> None:
    q, k, v, grad = draw(Sizes(queries=8, keys=8), torch.float32)
    o, lse = torch.zeros_like(q), torch.zeros(q.shape[:3])
    outputs = (o, lse) if entry == ENTRIES[0] else (*map(torch.zeros_like, (q, k, v)),)

    def taken(q: Tensor, k: Tensor, v: Tensor, scale: float) -> bool:
        inputs = (q, k, v) if entry == ENTRIES[0] else (grad, q, k, v, o, lse)
        return registry.call(entry, inputs, (0.0, scale), outputs) is not None

    wide = torch.zeros(1, 2, 8, 257)
    assert not taken(q, k, v, 0.0)
    assert not taken(q, k, v, -1.0)
    assert not taken(q, k.bfloat16(), v, 1.0)
    assert not taken(q.half(), k.half(), v.half(), 1.0)
    assert not taken(q, k.mT.contiguous().mT, v, 1.0)
    assert not taken(wide, wide, wide, 1.0)
    assert not taken(q, k[:, :, :0], v[:, :, :0], 1.0)
    assert all(float(output.abs().sum()) == 0.0 for output in outputs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_answers_the_library_problems(variant: str, dtype: str) -> None:
    if variant in SLOW and dtype == "float32":
        pytest.skip(f"{variant} is too slow, and its fp32 code is covered above")
    shapes = WorkloadShapes(batch=1, heads=2, kv_heads=2, sequence=96, dtype=dtype)
    for problem in LIBRARY["attention"].problems(shapes):
        reference = problem.load_reference()
        for case in problem.cases:
            inputs = problem.build_inputs(case, seed=3)
            own = reference(*inputs, case.scalars)
            oracle = reference(*(t.double() for t in inputs), case.scalars)
            got = [torch.full_like(t, float("nan")) for t in own]
            assert registry.call(problem.name, inputs, case.scalars, got), case.name
            for check in problem.tolerance.check_all(got, own, oracle):
                assert check.passed, f"{problem.name} {case.name}: {check.detail}"


def test_reference_backward_is_the_gradient() -> None:
    inputs = [t.double() for t in draw(Sizes(heads=4, groups=2, queries=9, keys=12), torch.float32)]
    o, lse, *grads = expected(*inputs, (1.0, 0.3))
    q, k, v, grad = inputs
    for mine, exact in zip(
        attention_backward(grad, q, k, v, o, lse, (1.0, 0.3)), grads, strict=True
    ):
        torch.testing.assert_close(mine, exact)


def test_one_kernel_for_each_entry() -> None:
    assert len(LIBRARY["attention"].kernels("portable")) == len(ENTRIES)
