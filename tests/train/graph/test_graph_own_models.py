"""Every pattern on the built-in families: how often it is installed, and the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ratchet.train.workloads import bert, gpt2, llama, moe, vit

FAMILIES = {"llama": llama, "gpt2": gpt2, "bert": bert, "moe": moe, "vit": vit}
INSTALLED = {
    "llama": {
        "linear_cross_entropy": 1,
        "attention": 2,
        "rope": 4,
        "gated_activation": 2,
        "rms_norm": 5,
    },
    "moe": {
        "linear_cross_entropy": 1,
        "attention": 2,
        "rope": 4,
        "gated_activation": 2,
        "rms_norm": 5,
    },
    "gpt2": {"linear_cross_entropy": 1, "attention": 2, "layer_norm": 5},
    "bert": {"linear_cross_entropy": 1, "attention": 2, "layer_norm": 6},
    "vit": {"linear_cross_entropy": 1, "attention": 2, "layer_norm": 5},
}
LINEAR_LAYERS = {"llama": 14, "moe": 10, "gpt2": 8, "bert": 13, "vit": 8}
"""The last one belongs to linear_cross_entropy."""


def tiny(name: str) -> tuple[nn.Module, Any]:
    """A tiny model of the family and its loss on one random batch."""
    family = FAMILIES[name].FAMILY
    size = family.sizes["tiny"]
    model = family.build_model(size).train()
    batch = _images() if name == "vit" else _tokens(size)
    return model, lambda: family.loss(model, batch)


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4,))


def _tokens(size: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, size.vocabulary, (2, size.sequence))
    return tokens, tokens.roll(-1, 1)


KEPT: dict[tuple[str, bool], Any] = {}


@pytest.fixture
def with_every_kernel(compile_loss: Any) -> Any:
    """(name, autocast) -> the compiled loss, its model and the loss; each is compiled once."""

    def run(name: str, *, autocast: bool = False) -> Any:
        if (name, autocast) not in KEPT:
            model, loss = tiny(name)
            KEPT[name, autocast] = compile_loss(model, loss, autocast=autocast), model, loss
        return KEPT[name, autocast]

    return run


@pytest.mark.parametrize("name", FAMILIES)
def test_fp32_installs_every_pattern(
    name: str, with_every_kernel: Any, plain_loss: Any, assert_same: Any
) -> None:
    compiled, model, loss = with_every_kernel(name)
    assert compiled.report.installed == INSTALLED[name] | {"linear": LINEAR_LAYERS[name]}
    assert compiled.report.declined == []
    assert_same(compiled, plain_loss(model, loss))


@pytest.mark.parametrize("name", FAMILIES)
def test_autocast_installs_every_pattern(
    name: str, with_every_kernel: Any, plain_loss: Any, assert_same: Any
) -> None:
    compiled, model, loss = with_every_kernel(name, autocast=True)
    assert compiled.report.installed == INSTALLED[name] | {"linear": LINEAR_LAYERS[name]}
    assert compiled.report.declined == []
    assert_same(compiled, plain_loss(model, loss, autocast=True), autocast=True)


def test_residual_sums_join_the_norms(compile_loss: Any) -> None:
    model, loss = tiny("llama")
    called = compile_loss(model, loss, kernels=["rms_norm"]).called
    assert called.count("rms_norm") == 1  # the first has no sum in front
    assert called.count("add_rms_norm") == 4


def test_norms_round_once_for_bf16_linear_layers(with_every_kernel: Any) -> None:
    sites = with_every_kernel("llama", autocast=True)[0].report.sites
    norms = [site for site in sites if site.pattern == "rms_norm"]
    assert {site.scalars["out_dtype"] for site in norms} == {"bfloat16"}
    assert {site.dtypes["weight"] for site in norms} == {"fp32"}


def test_grouped_heads_reach_attention_unrepeated(with_every_kernel: Any) -> None:
    sites = with_every_kernel("llama")[0].report.sites
    site = next(one for one in sites if one.pattern == "attention")
    assert (site.shapes["q"][1], site.shapes["k"][1]) == (4, 2)
    assert site.scalars["causal"] is True


def test_layers_that_share_an_input_share_its_cast(compile_loss: Any) -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    model = nn.ModuleList([first, second])
    x = torch.randn(2, 3, 8)
    casts = []

    def loss() -> torch.Tensor:
        y = x * 1.5
        return (first(y) + second(y)).float().square().mean()

    compiled = compile_loss(model, loss, autocast=True, kernels=["linear"])
    casts = [s for s in compiled.report.sites if s.dtypes["x"] == "bf16"]
    assert len(casts) == compiled.report.installed["linear"] == 2


@pytest.mark.parametrize("kernel", ["linear_cross_entropy", "attention", "rope", "rms_norm"])
def test_one_kernel_alone(
    kernel: str, compile_loss: Any, plain_loss: Any, assert_same: Any
) -> None:
    model, loss = tiny("llama")
    compiled = compile_loss(model, loss, autocast=True, kernels=[kernel])
    assert compiled.report.installed == {kernel: INSTALLED["llama"][kernel]}
    assert_same(compiled, plain_loss(model, loss, autocast=True), autocast=True)


def test_bf16_weights(compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    from ratchet.train.workloads.lowered import LoweredWeights

    model, loss = tiny("llama")
    with LoweredWeights("cpu"):
        compiled = compile_loss(model, loss, autocast=True)
        plain = plain_loss(model, loss, autocast=True)
    assert compiled.report.installed == INSTALLED["llama"] | {"linear": 14}
    assert {gradient.dtype for gradient in compiled.gradients.values()} == {torch.float32}
    assert_same(compiled, plain, autocast=True)


def test_recomputed_blocks(compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    from ratchet.train.workloads.checkpointing import apply_checkpointing

    model, loss = tiny("llama")
    apply_checkpointing(model, "blocks:1")
    compiled = compile_loss(model, loss)
    assert compiled.report.installed["attention"] == 2
    assert compiled.report.installed["rms_norm"] == 5
    assert_same(compiled, plain_loss(model, loss))
