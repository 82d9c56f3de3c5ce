"""Gradients and losses: honest arithmetic passes, planted errors fail."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from ratchet.base.errors import JudgeError
from ratchet.judge.steps.numerics import GradientCheck, GradientFile, judge_gradients, judge_losses

Gradients = dict[str, Tensor]


def attention(q: Tensor, k: Tensor, v: Tensor, *, by_hand: bool) -> Tensor:
    """Causal attention by torch's fused kernel, or written out: other roundings, same maths."""
    if not by_hand:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return scores.masked_fill(mask, -math.inf).softmax(-1).to(v.dtype) @ v


class Block(nn.Module):
    """Pre-norm attention and a gated MLP, small enough for a test."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, False
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = attention(q, k, v, by_hand=self.by_hand)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 128)
        self.blocks = nn.Sequential(*(Block(128, 4) for _ in range(3)))
        self.head = nn.Linear(128, 512, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def gradients(model: Model, tokens: Tensor, *, how: str) -> Gradients:
    """First-step gradients in fp32, fp64, bf16 autocast (two ways) or pure bf16."""
    dtypes = {"fp64": torch.float64, "bf16": torch.bfloat16}
    own = copy.deepcopy(model).to(dtypes.get(how, torch.float32))
    parts = tokens.chunk(2) if how == "autocast_other" else (tokens,)
    for block in own.blocks:
        block.by_hand = how == "autocast_other"
    for part in parts:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how.startswith("autocast")):
            logits = own(part[:, :-1]).flatten(0, 1)
            wide = logits if how == "fp64" else logits.float()
            loss = nn.functional.cross_entropy(wide, part[:, 1:].flatten())
        (loss / len(parts)).backward()
    return {name: p.grad.detach().clone() for name, p in own.named_parameters()}


@pytest.fixture(scope="module")
def real() -> dict[str, Gradients]:
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices: two threads on a busy machine wait for each other
    model, tokens = Model(), torch.randint(0, 512, (4, 129))
    ways = ("fp32", "fp64", "autocast", "autocast_other", "bf16")
    made = {how: gradients(model, tokens, how=how) for how in ways}
    torch.set_num_threads(threads)
    return made


def judged(
    folder: Path, reference: Gradients, baseline: Gradients, new: Gradients
) -> GradientCheck:
    paths = [folder / f"{role}.safetensors" for role in ("reference", "baseline", "candidate")]
    for path, tensors in zip(paths, (reference, baseline, new), strict=True):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return judge_gradients(*paths)


def planted(tensors: Gradients, name: str, factor: float) -> Gradients:
    changed = dict(tensors)
    changed[name] = tensors[name] * factor
    return changed


def weights(tensors: Gradients) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.dim() == 2]


def test_fp32_against_fp64_and_itself_passes(tmp_path: Path, real: dict[str, Gradients]) -> None:
    fp32, fp64 = real["fp32"], {name: t.float() for name, t in real["fp64"].items()}
    check = judged(tmp_path, fp32, fp32, fp64)
    assert check.passed, check.detail
    assert judged(tmp_path, real["fp64"], fp32, fp32).passed


def test_one_percent_in_any_layer_fails_in_fp32(tmp_path: Path, real: dict[str, Gradients]) -> None:
    fp32 = real["fp32"]
    for name in weights(fp32):
        check = judged(tmp_path, fp32, fp32, planted(fp32, name, 1.01))
        assert not check.passed
        assert check.worst_parameter == name


def test_one_percent_of_noise_in_one_layer_fails_in_fp32(
    tmp_path: Path, real: dict[str, Gradients]
) -> None:
    fp32 = real["fp32"]
    noise = torch.randn_like(fp32["head.weight"])
    noise *= 0.01 * fp32["head.weight"].norm() / noise.norm()
    changed = {**fp32, "head.weight": fp32["head.weight"] + noise}
    assert not judged(tmp_path, fp32, fp32, changed).passed


@pytest.mark.parametrize("candidate", ["autocast", "autocast_other", "fp32"])
def test_honest_autocast_passes_however_it_is_computed(
    tmp_path: Path, real: dict[str, Gradients], candidate: str
) -> None:
    check = judged(tmp_path, real["fp32"], real["autocast"], real[candidate])
    assert check.passed, check.detail
    assert judged(tmp_path, real["fp32"], real["autocast_other"], real["autocast"]).passed


def test_norms_computed_in_bf16_are_less_than_autocast_promises(
    tmp_path: Path, real: dict[str, Gradients]
) -> None:
    check = judged(tmp_path, real["fp32"], real["autocast"], real["bf16"])
    assert not check.passed
    assert "norm" in check.worst_parameter


@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_one_percent_of_scale_in_any_layer_fails_in_bf16_where_its_norm_alone_would_pass(
    tmp_path: Path, real: dict[str, Gradients], factor: float
) -> None:
    hidden_in_the_norm = 0
    for name in weights(real["autocast_other"]):
        changed = planted(real["autocast_other"], name, factor)
        check = judged(tmp_path, real["fp32"], real["autocast"], changed)
        assert not check.passed, (name, check.detail)
        assert check.worst_parameter == name
        found = next(entry for entry in check.parameters if entry.name == name)
        hidden_in_the_norm += found.error <= found.allowed_error
    assert hidden_in_the_norm > 0, "the scale check is of no use if the norm finds them all"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    error=st.floats(0.004, 0.015),
    planted_scale=st.sampled_from([0.99, 1.01]),
)
def test_independent_rounding_noise_never_hides_one_percent_of_scale(
    tmp_path_factory: pytest.TempPathFactory, seed: int, error: float, planted_scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    folder = tmp_path_factory.mktemp("noise")

    def noisy(tensors: Gradients) -> Gradients:
        return {
            name: t
            + error * t.norm() / t.numel() ** 0.5 * torch.randn(t.shape, generator=generator)
            for name, t in tensors.items()
        }

    exact = {
        f"layer{index}": torch.randn(64, 64, generator=generator) * 10 ** (-index)
        for index in range(4)
    }
    baseline = noisy(exact)
    assert judged(folder, exact, baseline, noisy(exact)).passed
    wrong = planted(noisy(exact), "layer2", planted_scale)
    assert not judged(folder, exact, baseline, wrong).passed


def test_a_gradient_that_is_rounding_only_is_no_reason_to_fail(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    noise = [1e-9 * torch.randn(64) for _ in range(2)]
    first, second = ({"weight": weight, "key.bias": part} for part in noise)
    assert judged(tmp_path, first, first, second).passed
    grown = {"weight": weight, "key.bias": 1e-2 * torch.randn(64)}
    assert not judged(tmp_path, first, first, grown).passed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: {k: v for k, v in g.items() if k != "b"}, "b is missing"),
        (lambda g: {**g, "c": g["b"].clone()}, "c is not in the reference"),
        (lambda g: {**g, "b": g["b"].reshape(2, 8)}, "has shape [2, 8], not [16]"),
        (lambda g: {**g, "b": g["b"] * math.nan}, "b is not finite"),
        (lambda g: {**g, "b": g["b"] * math.inf}, "b is not finite"),
        (lambda g: {**g, "b": g["b"] * 0}, "b: error 1.00e+00"),
        (lambda g: {**g, "a": g["b"], "b": g["a"]}, "error"),
    ],
)
def test_a_parameter_that_is_not_the_same_fails(tmp_path: Path, change: object, words: str) -> None:
    right = {"a": torch.arange(1.0, 17.0), "b": torch.linspace(-1.0, 3.0, 16)}
    check = judged(tmp_path, right, right, change(right))  # type: ignore[operator]
    assert not check.passed
    assert words in check.detail
    assert check.worst_ratio > 1


def test_a_baseline_that_is_not_finite_or_lacks_a_parameter_is_no_verdict(tmp_path: Path) -> None:
    right = {"a": torch.ones(4)}
    with pytest.raises(JudgeError, match="not finite"):
        judged(tmp_path, right, {"a": torch.full((4,), math.nan)}, right)
    with pytest.raises(JudgeError, match="is missing"):
        judged(tmp_path, right, {"z": torch.ones(4)}, right)


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"\xff" * 64, b"\x02" + b"\x00" * 7 + b"[]"])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(JudgeError, match=r"damaged\.safetensors: cannot be read"):
        GradientFile(path)
    with pytest.raises(JudgeError, match="cannot be read"):
        GradientFile(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_dtype_is_read_as_it_is(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.randn(33, 5).to(dtype)
    save_file({"x": values}, tmp_path / "x.safetensors")
    read = GradientFile(tmp_path / "x.safetensors").read("x")
    assert torch.equal(torch.from_numpy(read), values.double().flatten())


def curve(final: float, steps: int = 200) -> list[float]:
    return [final + 4.0 * math.exp(-step / 30) for step in range(steps)]


def test_losses_of_the_same_training_pass() -> None:
    baseline = [curve(5.00), curve(5.03), curve(4.98)]
    check = judge_losses(baseline, [curve(5.01), curve(5.02), curve(4.985)])
    assert check.passed and check.values == pytest.approx((5.01, 5.02, 4.985), abs=0.01)
    assert check.low < 4.98 and check.high > 5.03


@pytest.mark.parametrize("final", [5.2, 4.7])
def test_a_final_loss_outside_the_seed_interval_fails_on_either_side(final: float) -> None:
    baseline = [curve(5.00), curve(5.03), curve(4.98)]
    check = judge_losses(baseline, [curve(5.0), curve(final), curve(5.0)])
    assert not check.passed
    assert "1 outside" in check.detail


def memorised(final: float) -> list[float]:
    return [final + 4.7 * math.exp(-step / 30) for step in range(300)]


def test_copies_that_memorised_their_batches_may_differ_in_what_is_left() -> None:
    baseline = [memorised(0.007), memorised(0.010), memorised(0.016)]
    assert judge_losses(baseline, [memorised(0.031), memorised(0.007), memorised(0.006)]).passed
    assert not judge_losses(baseline, [memorised(0.1), memorised(0.007), memorised(0.006)]).passed
    # 6 % of the first loss is left: the seeds' own range counts.
    baseline = [memorised(0.28), memorised(0.283), memorised(0.286)]
    assert not judge_losses(baseline, [memorised(0.31), memorised(0.283), memorised(0.28)]).passed


def test_a_loss_that_is_not_finite_or_too_short_fails() -> None:
    baseline = [curve(5.00), curve(5.03), curve(4.98)]
    once_nan = curve(5.0)
    once_nan[3] = math.nan
    assert not judge_losses(baseline, [once_nan, curve(5.0), curve(5.0)]).passed
    assert not judge_losses(baseline, [curve(5.0)] * 2).passed
    assert not judge_losses(baseline, [curve(5.0)[:100]] * 3).passed
    assert not judge_losses(baseline, []).passed
    with pytest.raises(JudgeError, match="not finite"):
        judge_losses([[math.nan]] * 3, baseline)
    with pytest.raises(JudgeError, match="at least two"):
        judge_losses(baseline[:1], baseline)


def moved_tokens(reference: Tensor, seed: int) -> Tensor:
    """Return a router's gradient in which a few tokens took another expert: parts of rank one."""
    left, sizes, right = torch.linalg.svd(reference, full_matrices=False)
    chance = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, sizes.shape, generator=chance) * 2.0 - 1
    return reference + 0.12 * (left * (signs * sizes)) @ right


def test_tokens_that_change_experts_may_move_the_scale_of_a_router(tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    router = torch.randn(8, 96, generator=chance)
    plain = {f"weight{place}": torch.randn(64, 64, generator=chance) for place in range(12)}

    def gradients_of(seed: int) -> Gradients:
        own = torch.Generator().manual_seed(seed)
        rounded = {
            name: one + 0.01 * torch.randn(one.shape, generator=own) for name, one in plain.items()
        }
        return {**rounded, "router": moved_tokens(router, seed)}

    reference = {**plain, "router": router}
    checks = [
        judged(tmp_path, reference, gradients_of(2 * n), gradients_of(2 * n + 1)) for n in range(40)
    ]
    assert sum(one.passed for one in checks) >= 36
    grown = {**gradients_of(1), "router": 1.2 * router}
    found = judged(tmp_path, reference, gradients_of(0), grown)
    [one] = [one for one in found.parameters if one.name == "router"]
    assert not found.passed
    assert one.error < one.allowed_error and one.scale_ratio > 1
    for name in plain:
        off = gradients_of(1)
        off[name] = 1.01 * off[name]
        found = judged(tmp_path, reference, gradients_of(0), off)
        assert not found.passed and found.worst_parameter == name
