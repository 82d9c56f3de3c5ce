"""ratchet::linear_cross_entropy by both of its kernels, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gemm_variants
import pytest
import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library import linear_cross_entropy as room
from ratchet.judge.kernels.library.linear_cross_entropy import LINEAR_CROSS_ENTROPY as KERNEL
from ratchet.judge.kernels.library.linear_cross_entropy import release_reused, reused_empty
from ratchet.judge.problems.suites.shipped import WorkloadShapes

pytestmark = pytest.mark.compiler

SIZES = [(1, 4, 9), (3, 5, 7), (70, 33, 1000), (300, 65, 97), (40, 1100, 300)]
DTYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "mixed": (torch.bfloat16, torch.float32),
    "fp32": (torch.float32, torch.float32),
}
VARIANTS = [
    *(gemm_variants.variant_of(isa, room.ENTRY) for isa in gemm_variants.ISAS),
    *(
        gemm_variants.variant_of(isa, room.ROWS_ENTRY)
        for isa in ("portable", "avx2", "avx512", "avx512_bf16")
    ),
]


@pytest.fixture(params=VARIANTS, ids=lambda pair: f"{pair[1]}-{pair[0]}")
def variant(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    isa, entry = request.param
    gemm_variants.require(isa)
    chosen = tuple(kernel for kernel in KERNEL.kernels(isa) if kernel.entry == entry)
    with gemm_variants.activated(chosen, compiled):
        yield entry


@pytest.fixture(params=(room.ENTRY, room.ROWS_ENTRY))
def portable(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    chosen = tuple(k for k in KERNEL.kernels("portable") if k.entry == request.param)
    with gemm_variants.activated(chosen, compiled):
        yield request.param


def drawn(
    size: tuple[int, int, int], dtypes: tuple[torch.dtype, ...], with_bias: bool, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    tokens, hidden, vocabulary = size
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=generator).to(dtypes[0]).requires_grad_()
    weight = torch.randn(vocabulary, hidden, generator=generator) * hidden**-0.5
    bias = torch.randn(vocabulary, generator=generator)
    target = torch.randint(0, vocabulary, (tokens,), generator=generator)
    given = bias.to(dtypes[1]).requires_grad_() if with_bias else None
    return x, weight.to(dtypes[1]).requires_grad_(), given, target


def exact(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore: int, smoothing: float
) -> tuple[Tensor, ...]:
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias) if t is not None]
    logits = torch.nn.functional.linear(*leaves)
    loss = torch.nn.functional.cross_entropy(
        logits, target, ignore_index=ignore, label_smoothing=smoothing
    )
    return loss.detach(), *torch.autograd.grad(loss, leaves)


def gradients(loss: Tensor, *leaves: Tensor | None) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])


def near(got: Tensor, wanted: Tensor, relative: float) -> None:
    scale = wanted.norm() + 1e-6 * wanted.numel() ** 0.5
    assert (got.double() - wanted).norm() <= relative * scale


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtypes", list(DTYPES))
def test_loss_and_gradients(variant: str, size: tuple[int, int, int], dtypes: str) -> None:
    smoothing = 0.1 if size[0] % 3 == 0 else 0.0
    x, weight, bias, target = drawn(size, DTYPES[dtypes], with_bias=size[0] % 2 == 0)
    if size[0] > 2:
        target[::3] = 2
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target, 2, smoothing)
    wanted = exact(x, weight, bias, target, 2, smoothing)
    found = gradients(loss, x, weight, bias)
    relative = 1e-5 if dtypes == "fp32" else 1e-2
    near(loss.detach(), wanted[0], relative)
    for got, true, leaf in zip(
        found, wanted[1:], [t for t in (x, weight, bias) if t is not None], strict=True
    ):
        assert got.dtype == leaf.dtype and got.shape == leaf.shape
        near(got, true, relative)
    isa = dict(registry.active()[variant].schedule)["isa"]
    declines = dtypes == "fp32" and variant == room.ENTRY and isa in ("amx", "avx512_bf16")
    assert bool(registry.fallbacks[variant]) == declines


@pytest.mark.parametrize(("dtypes", "relative"), [("mixed", 1e-2), ("fp32", 1e-5)])
def test_more_than_one_chunk(variant: str, dtypes: str, relative: float) -> None:
    x, weight, bias, target = drawn((1100, 17, 130), DTYPES[dtypes], with_bias=True)
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target)
    wanted = exact(x, weight, bias, target, -100, 0.0)
    near(loss.detach(), wanted[0], relative / 10)
    for got, true in zip(gradients(loss, x, weight, bias), wanted[1:], strict=True):
        near(got, true, relative)


def test_the_loss_alone_is_the_same(variant: str) -> None:
    x, weight, bias, target = drawn((50, 20, 600), DTYPES["bf16"], with_bias=True)
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target, -100, 0.1)
    with torch.no_grad():
        alone = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target, -100, 0.1)
    assert not alone.requires_grad and torch.equal(alone, loss.detach())
    with torch.inference_mode():
        torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target)
    torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target).backward()


def test_everything_ignored(variant: str) -> None:
    x, weight, bias, target = drawn((9, 8, 30), DTYPES["bf16"], with_bias=True)
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, torch.full_like(target, -100))
    assert loss.isnan()
    assert all(not grad.any() for grad in gradients(loss, x, weight, bias))


@pytest.mark.parametrize("label", [-1, 30, 1 << 40])
def test_a_target_out_of_range_is_an_error(variant: str, label: int) -> None:
    x, weight, bias, target = drawn((9, 8, 30), DTYPES["bf16"], with_bias=False)
    target[4] = label
    with pytest.raises((IndexError, RuntimeError), match=r"(?i)target|out of bounds|index"):
        torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target)


def test_specials(variant: str) -> None:
    x, weight, bias, target = drawn((9, 8, 1030), DTYPES["bf16"], with_bias=True)
    assert bias is not None
    with torch.no_grad():
        bias[500:] = float("-inf")  # a padded vocabulary: whole blocks without weight
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target % 500)
    near(loss.detach(), exact(x, weight, bias, target % 500, -100, 0.0)[0], 1e-2)
    assert all(grad.isfinite().all() for grad in gradients(loss, x, weight, bias))
    with torch.no_grad():
        x[3, 3] = float("nan")
    assert torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target % 500).isnan()


def test_large_logits(variant: str) -> None:
    x, weight, _, target = drawn((40, 16, 300), DTYPES["bf16"], with_bias=False)
    with torch.no_grad():
        x *= 64
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, None, target)
    wanted = exact(x, weight, None, target, -100, 0.0)
    near(loss.detach(), wanted[0], 1e-2)
    near(gradients(loss, x)[0], wanted[1], 6e-2 if variant == room.ROWS_ENTRY else 2e-2)


def test_repeats_bit_for_bit(variant: str) -> None:
    x, weight, bias, target = drawn((200, 40, 1500), DTYPES["mixed"], with_bias=True)
    first, second = (
        gradients(torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target), x, weight, bias)
        for _ in range(2)
    )
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_the_gradient_is_scaled(portable: str) -> None:
    x, weight, bias, target = drawn((20, 8, 40), DTYPES["mixed"], with_bias=True)
    plain = gradients(
        torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target), x, weight, bias
    )
    third = gradients(
        torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target) / 3, x, weight, bias
    )
    for one, other in zip(plain, third, strict=True):
        torch.testing.assert_close(one / 3, other, atol=1e-4, rtol=1e-2)


def test_a_second_backward_is_right(portable: str) -> None:
    x, weight, _, target = drawn((20, 8, 40), DTYPES["mixed"], with_bias=False)
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, None, target)
    (first,) = torch.autograd.grad(loss, weight, retain_graph=True)
    kept = first.clone()
    first.mul_(7)
    (second,) = torch.autograd.grad(loss, weight)
    assert torch.equal(second, kept)


def test_strided_inputs(portable: str) -> None:
    x, weight, _, target = drawn((20, 8, 40), DTYPES["mixed"], with_bias=False)
    plain = torch.ops.ratchet.linear_cross_entropy(x, weight, None, target)
    columns = torch.stack((target, target), dim=1)[:, 0]
    other = torch.ops.ratchet.linear_cross_entropy(
        x.detach().t().contiguous().t(), weight.detach().t().contiguous().t(), None, columns
    )
    assert torch.equal(plain.detach(), other)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(KernelError, match="flatten them"):
        torch.ops.ratchet.linear_cross_entropy(
            torch.zeros(2, 3, 4), torch.zeros(5, 4), None, torch.zeros(6, dtype=torch.int64)
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("with_bias", [False, True])
def test_opcheck_linear_cross_entropy(portable: str, with_bias: bool) -> None:
    x, weight, bias, target = drawn((12, 8, 40), DTYPES["mixed"], with_bias=with_bias)
    given = (x, weight, bias, target, -100, 0.1)
    torch.library.opcheck(torch.ops.ratchet.linear_cross_entropy, given, atol=1e-3, rtol=1e-2)
    detached = tuple(t.detach() if isinstance(t, Tensor) else t for t in given)
    torch.library.opcheck(torch.ops.ratchet.linear_cross_entropy_gradients, detached)


def test_compiled_whole_graph(portable: str) -> None:
    x, weight, bias, target = drawn((12, 8, 40), DTYPES["mixed"], with_bias=True)

    def loss(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        return torch.ops.ratchet.linear_cross_entropy(x * 2, weight, bias, target) * 0.5

    expected = loss(x, weight, bias, target)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = compiled(x, weight, bias, target)
    torch.testing.assert_close(found, expected)
    for got, wanted in zip(
        gradients(found, x, weight, bias), gradients(expected, x, weight, bias), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-2)


def test_under_autocast_and_checkpointing(portable: str) -> None:
    x, weight, _, target = drawn((12, 8, 40), DTYPES["fp32"], with_bias=False)

    def loss(x: Tensor) -> Tensor:
        half = x.bfloat16()
        return torch.ops.ratchet.linear_cross_entropy(half, weight, None, target)

    with torch.autocast("cpu", torch.bfloat16):
        plain = loss(x)
        again = torch.utils.checkpoint.checkpoint(loss, x, use_reentrant=False)
    for one, other in zip(gradients(plain, x, weight), gradients(again, x, weight), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtypes", list(DTYPES))
def test_without_a_kernel(dtypes: str) -> None:
    registry.deactivate()
    x, weight, bias, target = drawn((12, 8, 40), DTYPES[dtypes], with_bias=True)
    loss = torch.ops.ratchet.linear_cross_entropy(x, weight, bias, target)
    wanted = exact(x, weight, bias, target, -100, 0.0)
    near(loss.detach(), wanted[0], 1e-2)
    for got, true in zip(gradients(loss, x, weight, bias), wanted[1:], strict=True):
        near(got, true, 2e-2)


def test_problems_are_answered_by_both(compiled: Path) -> None:
    shapes = WorkloadShapes(batch=1, sequence=24, hidden=32, vocabulary=1000)
    isa = "avx512_bf16"
    gemm_variants.require(isa)
    with gemm_variants.activated(KERNEL.kernels(isa), compiled):
        for problem in LIBRARY["linear_cross_entropy"].problems(shapes):
            reference = problem.load_reference()
            for case in problem.cases:
                inputs = problem.build_inputs(case, 0)
                own = reference(*inputs, case.scalars)
                wide = [each.double() if each.is_floating_point() else each for each in inputs]
                oracle = reference(*wide, case.scalars)
                mutable = sum(spec.in_place for spec in case.inputs)
                given = [each.clone() for each in inputs]
                fresh = [torch.full_like(each, float("nan")) for each in own[mutable:]]
                assert registry.call(problem.name, given, case.scalars, fresh), case.name
                for answer in problem.tolerance.check_all([*given[:mutable], *fresh], own, oracle):
                    assert answer.passed, (problem.name, case.name, answer.detail)


def test_reused_memory_is_never_shared() -> None:
    release_reused()
    shape = (1024, 512)
    first = reused_empty(shape, torch.float32)
    address = first.data_ptr()
    assert reused_empty(shape, torch.float32).data_ptr() != address
    release_reused()
    first = reused_empty(shape, torch.float32)
    address, row = first.data_ptr(), first[3]
    del first
    assert reused_empty(shape, torch.float32).data_ptr() != address, "a view is still held"
    del row
    release_reused()
    first = reused_empty(shape, torch.float32)
    address = first.data_ptr()
    del first
    assert reused_empty(shape, torch.float32).data_ptr() == address
    release_reused()
