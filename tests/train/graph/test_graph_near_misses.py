"""Call sites that look like a pattern's and are not: declined, with the reason, and unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Maker = Callable[[nn.ParameterDict], Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def heads(x: Tensor) -> Tensor:
    return x.view(2, 4, 2, 8).transpose(1, 2)


def attend(p: Any, **options: Any) -> Tensor:
    x = p["x"]
    return F.scaled_dot_product_attention(heads(x), heads(x * 2), heads(x * 3), **options).sum()


def classes(p: Any) -> Tensor:
    return F.linear(p["x"].view(8, 16), p["head"])


def targets() -> Tensor:
    return torch.arange(8) % 5


def rotate(x: Tensor, *, wrong: bool = False, whole: bool = True) -> Tensor:
    first, second = x[..., :4], x[..., 4:]
    if not whole:
        first, second = x[..., 0::2], x[..., 1::2]
    return torch.cat((second, -first) if wrong else (-second, first), dim=-1)


def swapped(x: Tensor) -> Tensor:
    return torch.cat((-x[..., :4], x[..., 4:]), dim=-1)


def turned(p: Any, rotation: Callable[[Tensor], Tensor]) -> Tensor:
    x = heads(p["x"])
    angle = torch.outer(torch.arange(4.0), torch.arange(8.0))
    return (x * angle.cos() + rotation(x) * angle.sin()).square().sum()


def softcapped(p: Any) -> Tensor:
    return F.cross_entropy(torch.tanh(classes(p)) * 30, targets())


def logits_twice(p: Any) -> Tensor:
    logits = classes(p)
    return F.cross_entropy(logits, targets()) + logits.square().mean()


def sliced_classes(p: Any) -> Tensor:
    return F.cross_entropy(classes(p)[:, :3], targets() % 3)


def activation_twice(p: Any) -> Tensor:
    gate = F.silu(p["x"])
    return (gate * p["y"] + gate).sum()


def normalised_twice(p: Any) -> Tensor:
    x = p["x"]
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (x * scale * p["weight"] + scale).square().sum()


def other_scaled(p: Any) -> Tensor:
    x, y = p["x"], p["y"]
    return (p["weight"] * (y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))).sum()


def written_later(p: Any) -> Tensor:
    y = rms(p["x"], p["weight"])
    y.add_(1)
    return y.square().sum()


def summand_written_later(p: Any) -> Tensor:
    x = p["x"] * 2
    y = rms(x + p["y"], p["weight"])
    x.add_(1)
    return (y + x).sum()


def cast_before_a_write(p: Any) -> Tensor:
    """A norm of the values from before the write, read through a cast."""
    x = (p["x"] * 2).bfloat16()
    wide = x.float()
    x.add_(1)
    return F.rms_norm(wide, (16,), p["weight"], 1e-6).square().sum() + x.float().sum()


def written_before(p: Any) -> Tensor:
    x = p["x"] * 2
    x += p["y"]
    return rms(F.dropout(x, 0.1, False).float(), p["weight"]).square().sum()


def filled(p: Any) -> Tensor:
    """Keys in two parts that are written into one tensor."""
    x = heads(p["x"])
    keys = x.new_zeros(x.shape)
    keys[..., :4] = x[..., 4:]
    keys[..., 4:] = x[..., :4] * 2
    return F.scaled_dot_product_attention(x, keys, x * 3).square().sum()


def soft_targets(p: Any) -> Tensor:
    return F.cross_entropy(classes(p), torch.full((8, 5), 0.2))


def lower_triangle(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def window(length: int) -> Tensor:
    return lower_triangle(length) & ~lower_triangle(length).tril(-2)


def mapped(length: int) -> Tensor:
    """A mask as transformers makes those of unusual models."""
    places = torch.arange(length)
    return torch.vmap(torch.vmap(lambda query, key: key <= query, (None, 0)), (0, None))(
        places, places
    )


NEAR_MISSES: dict[str, tuple[str, str, Maker]] = {
    "dropout": ("attention", "dropout 0.5", lambda p: attend(p, dropout_p=0.5)),
    "learned mask": ("attention", "not known", lambda p: attend(p, attn_mask=p["mask"])),
    "mask by vmap": ("attention", "not known", lambda p: attend(p, attn_mask=mapped(4))),
    "window mask": ("attention", "neither causal", lambda p: attend(p, attn_mask=window(4))),
    "two uses of logits": ("linear_cross_entropy", "2 users", logits_twice),
    "soft cap": ("linear_cross_entropy", "not from a linear layer", softcapped),
    "some classes": ("linear_cross_entropy", "some of the classes", sliced_classes),
    "soft targets": ("linear_cross_entropy", "not int64", soft_targets),
    "class weights": (
        "linear_cross_entropy",
        "class weights",
        lambda p: F.cross_entropy(classes(p), targets(), weight=torch.ones(5)),
    ),
    "no reduction": (
        "linear_cross_entropy",
        "reduction 'none'",
        lambda p: F.cross_entropy(classes(p), targets(), reduction="none").sum(),
    ),
    "wrong half": ("rope", "not cat", lambda p: turned(p, lambda x: rotate(x, wrong=True))),
    "swapped halves": ("rope", "other way round", lambda p: turned(p, swapped)),
    "interleaved": ("rope", "not cat", lambda p: turned(p, lambda x: rotate(x, whole=False))),
    "two activations": ("gated_activation", "another user", activation_twice),
    "broadcast gate": (
        "gated_activation",
        "differ",
        lambda p: (F.silu(p["x"]) * p["weight"]).sum(),
    ),
    "root used twice": ("rms_norm", "not multiplied|something other", normalised_twice),
    "other tensor scaled": ("rms_norm", "not the tensor", other_scaled),
    "written in place": ("rms_norm", "written in place", written_later),
    "written after a cast": ("rms_norm", "written in place", cast_before_a_write),
    "no weight": ("rms_norm", "no weight", lambda p: F.rms_norm(p["x"], (16,)).square().sum()),
    "two dimensions": (
        "layer_norm",
        "not over the last",
        lambda p: F.layer_norm(p["x"], (4, 16), torch.ones(4, 16)).square().sum(),
    ),
    "layer norm without weight": (
        "layer_norm",
        "no weight",
        lambda p: F.layer_norm(p["x"], (16,)).square().sum(),
    ),
}


def parameters() -> nn.ParameterDict:
    return nn.ParameterDict(
        {
            "x": torch.randn(2, 4, 16),
            "y": torch.randn(2, 4, 16),
            "weight": torch.randn(16),
            "head": torch.randn(5, 16),
            "mask": torch.randn(4, 4),
        }
    )


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_declined(
    case: str, compile_loss: Any, plain_loss: Any, assert_same: Any
) -> None:
    pattern, reason, make = NEAR_MISSES[case]
    model = parameters()
    compiled = compile_loss(model, lambda: make(model))
    assert compiled.report.installed.keys() <= {"linear"}, "a product alone may be the kernel's"
    ((declined, why),) = compiled.report.declined
    assert declined == pattern
    assert any(part in why for part in reason.split("|")), why
    assert {*compiled.called} <= {"linear"}
    if case != "dropout":
        assert_same(compiled, plain_loss(model, lambda: make(model)))


def test_a_summand_that_is_written_stays_outside_the_norm(
    compile_loss: Any, plain_loss: Any, assert_same: Any
) -> None:
    model = parameters()
    compiled = compile_loss(model, lambda: summand_written_later(model))
    assert compiled.called == ["rms_norm"]
    assert_same(compiled, plain_loss(model, lambda: summand_written_later(model)))


HITS: dict[str, tuple[str, Maker]] = {
    "written before": ("rms_norm", written_before),
    "keys written in parts": ("attention", filled),
    "causal mask": ("attention", lambda p: attend(p, attn_mask=lower_triangle(4))),
    "open mask": ("attention", lambda p: attend(p, attn_mask=torch.ones(4, 4).bool())),
    "additive mask": (
        "attention",
        lambda p: attend(
            p, attn_mask=torch.zeros(4, 4).masked_fill(~lower_triangle(4), -torch.inf)
        ),
    ),
    "shifted": (
        "linear_cross_entropy",
        lambda p: F.cross_entropy(
            F.linear(p["x"], p["head"])[..., :-1, :].reshape(-1, 5), targets()[:6]
        ),
    ),
    "classes second": (
        "linear_cross_entropy",
        lambda p: F.cross_entropy(
            F.linear(p["x"], p["head"]).transpose(1, 2), targets().view(2, 4), label_smoothing=0.1
        ),
    ),
    "sum": (
        "linear_cross_entropy",
        lambda p: F.cross_entropy(classes(p), targets(), ignore_index=2, reduction="sum") / 6,
    ),
    "sum of nothing": (
        "linear_cross_entropy",
        lambda p: (
            F.cross_entropy(classes(p), targets() * 0 + 2, ignore_index=2, reduction="sum")
            + p["x"].sum() * 0
        ),
    ),
    "rms by hand": ("rms_norm", lambda p: rms(p["x"] + p["y"], p["weight"]).square().sum()),
    "geglu": ("gated_activation", lambda p: (p["y"] * F.gelu(p["x"], approximate="tanh")).sum()),
    "rope": ("rope", lambda p: turned(p, rotate)),
}


@pytest.mark.parametrize("case", HITS)
def test_other_forms_are_taken(
    case: str, compile_loss: Any, plain_loss: Any, assert_same: Any
) -> None:
    pattern, make = HITS[case]
    model = parameters()
    compiled = compile_loss(model, lambda: make(model))
    assert compiled.report.installed == {pattern: 1}
    assert compiled.report.declined == []
    if case != "sum of nothing":
        assert_same(compiled, plain_loss(model, lambda: make(model)))
    else:
        assert float(compiled.loss) == 0.0
