from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import FAMILIES, load
from ratchet.train.workloads.moe import MoESize, RoutedExperts, balance_loss
from ratchet.train.workloads.names import known
from ratchet.train.workloads.step import TrainingStep

TINY = ["llama-tiny", "gpt2-tiny", "moe-tiny", "bert-tiny", "vit-tiny"]
CHANCE = {"vit-tiny": math.log(10)}

# Parameters of the published models: Llama 3.2 1B and 3.1 8B (Meta's model cards: 1.24 B, 8.03 B),
# GPT-2 (124.4 M, 354.8 M, 774.0 M, 1557.6 M in the released checkpoints), BERT (109.5 M and 335.2 M
# with the masked-word head), ViT (86.6 M, 304.3 M, 632 M), Mixtral (46.7 B), OLMoE (6.92 B).
PUBLISHED = {
    "llama-1b": 1.2358e9,
    "llama-8b": 8.0303e9,
    "gpt2-124m": 124.44e6,
    "gpt2-355m": 354.82e6,
    "gpt2-774m": 774.03e6,
    "gpt2-1558m": 1557.6e6,
    "bert-base": 109.51e6,
    "bert-large": 335.2e6,
    "vit-b16": 86.57e6,
    "vit-l16": 304.33e6,
    "vit-h14": 632.0e6,
    "moe-8x7b": 46.7e9,
    "moe-1b-7b": 6.92e9,
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train(name: str, steps: int, precision: str = "fp32") -> list[float]:
    workload = load(name)
    step = TrainingStep(workload, StepConfig(precision=precision))
    return [step(workload.batch(index)).item() for index in range(steps)]


@pytest.mark.parametrize("name", TINY)
def test_a_family_starts_at_chance_and_learns(name: str) -> None:
    losses = train(name, 30)
    assert losses[0] == pytest.approx(CHANCE.get(name, math.log(512)), abs=0.15)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.05


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("precision", ["bf16_autocast", "bf16_master"])
def test_a_family_learns_in_bf16(name: str, precision: str) -> None:
    assert train(name, 12, precision) == pytest.approx(train(name, 12), rel=0.02)


@pytest.mark.parametrize("name", TINY)
def test_weights_and_batches_depend_on_the_seed_alone(name: str) -> None:
    first, again, other = load(name, seed=1), load(name, seed=1), load(name, seed=2)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.batch(5)[0], again.batch(5)[0])
    assert not torch.equal(first.batch(5)[0], first.batch(6)[0])
    assert not torch.equal(first.batch(5)[0], other.batch(5)[0])
    weights = zip(first.model.parameters(), other.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights)


def test_loading_leaves_the_random_state_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load("llama-tiny")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_published_size_has_the_published_number_of_parameters(
    name: str, parameters: float
) -> None:
    family, _, size = name.partition("-")
    with torch.device("meta"):
        model = FAMILIES[family].build_model(FAMILIES[family].sizes[size])
    assert count(model) == pytest.approx(parameters, rel=0.005)


def test_llama_60m_is_the_size_of_the_benchmark() -> None:
    size = FAMILIES["llama"].sizes["60m"]
    assert (size.hidden, size.layers, size.heads, size.kv_heads) == (512, 6, 8, 8)
    assert (size.intermediate, size.vocabulary, size.tied) == (2048, 32_000, False)
    assert (size.sequence, size.batch_size) == (512, 2)


def test_every_family_has_a_tiny_size_and_one_of_its_bare_name() -> None:
    for family in FAMILIES.values():
        assert {"tiny", family.alone} <= set(family.sizes)
        assert family.name in known()


@pytest.mark.parametrize("name", TINY)
def test_a_shrunk_copy_is_small_and_its_seed_counts(name: str) -> None:
    shrink = load(name).shrink
    assert shrink is not None
    first, other = shrink(1), shrink(2)
    assert count(first.model) < 1e6
    assert first.name == name
    assert not torch.equal(first.batch(0)[0], other.batch(0)[0])


def test_bert_predicts_masked_words_only() -> None:
    tokens, targets = load("bert-tiny", batch_size=64).batch(0)
    predicted = targets != -100
    assert predicted.float().mean() == pytest.approx(0.16, abs=0.02)
    masked = (tokens == 511) & predicted
    assert masked.sum() / predicted.sum() == pytest.approx(0.8, abs=0.05)
    kept = (tokens == targets) & predicted
    assert kept.sum() / predicted.sum() == pytest.approx(0.1, abs=0.04)
    assert bool((tokens[~predicted] < 511).all())


def routed(capacity_factor: float) -> RoutedExperts:
    torch.manual_seed(0)
    return RoutedExperts(
        MoESize(
            hidden=8,
            layers=1,
            heads=1,
            kv_heads=1,
            intermediate=12,
            vocabulary=300,
            sequence=8,
            batch_size=1,
            experts=4,
            chosen=2,
            capacity_factor=capacity_factor,
        )
    )


def expert(layer: RoutedExperts, number: int, x: torch.Tensor) -> torch.Tensor:
    parts = layer.experts
    hidden = torch.nn.functional.silu(x @ parts.gate[number]) * (x @ parts.up[number])
    return hidden @ parts.down[number]


def test_routing_with_room_for_all_equals_a_loop_over_tokens() -> None:
    layer = routed(capacity_factor=4.0)
    x = torch.randn(2, 8, 8)
    y, _ = layer(x)
    for token, out in zip(x.view(-1, 8), y.view(-1, 8), strict=True):
        weights, chosen = torch.softmax(layer.router(token), -1).topk(2)
        weights = weights / weights.sum()
        expected = sum(
            w * expert(layer, int(e), token) for w, e in zip(weights, chosen, strict=True)
        )
        torch.testing.assert_close(out, expected)


def test_a_full_expert_drops_the_copies_that_come_last() -> None:
    layer = routed(capacity_factor=0.5)  # 4 of the 16 tokens' 32 copies for each expert
    chosen = torch.tensor([[0, 1]] * 16)
    sources, _, kept = layer._assign(chosen, 16)
    assert kept.tolist() == [[True, True]] * 4 + [[False, False]] * 12
    assert sources.view(4, 4).tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [16] * 4, [16] * 4]


def test_first_choices_are_served_before_second_ones() -> None:
    layer = routed(capacity_factor=0.25)  # 2 copies for each expert
    _, _, kept = layer._assign(torch.tensor([[1, 0], [0, 1], [0, 2], [3, 0]] * 4), 16)
    assert kept[:4, 0].tolist() == [True, True, True, True]
    assert not kept[0, 1] and not kept[3, 1]


def test_the_balance_loss_is_one_when_balanced_and_grows_when_not() -> None:
    even = torch.full((4, 4), 0.25)
    assert balance_loss(even, torch.arange(4).view(4, 1)).item() == pytest.approx(1.0)
    skewed = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 4)
    assert balance_loss(skewed, torch.zeros(4, 1, dtype=torch.long)).item() == pytest.approx(4.0)
