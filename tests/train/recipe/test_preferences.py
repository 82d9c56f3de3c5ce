"""Losses that compare a policy with itself or a reference have one arithmetic under a bf16 recipe.

Their margins are differences of log-probabilities that nearly cancel. If one pass is in bf16 and
the other in fp32, they are mostly that difference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import own_recipes
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ratchet
from ratchet.train.recipe import signature_of
from ratchet.train.workloads.config import StepConfig

PAIRS, LENGTH, WORDS, WIDTH = 4, 24, 128, 64
STEPS = 8


class Lora(nn.Module):
    """An adapter on a layer, which `enabled` turns off."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base, self.enabled = base, True
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out + 2 * self.up(self.down(x)) if self.enabled else out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.words(x))))
        return out


@dataclass
class Trained:
    """A policy, and the context within which its reference is."""

    model: nn.Module
    reference: Callable[[], AbstractContextManager[nn.Module]]
    lr: float = 2e-3


def policy() -> Policy:
    torch.manual_seed(0)
    model = Policy()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(1.5)  # far from uniform, so that bf16 shows
    return model


def itself() -> Trained:
    """The policy of the moment, as PPO's and GRPO's old log-probabilities are."""
    model = policy()
    return Trained(model, lambda: nullcontext(model), lr=1e-4)


def two_modules() -> Trained:
    model = policy()
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    return Trained(model, lambda: nullcontext(frozen), lr=1e-4)


def own_adapters() -> Trained:
    model = policy().requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.qkv, block.wide = Lora(block.qkv), Lora(block.wide)  # type: ignore[assignment]
    adapters = [one for one in model.modules() if isinstance(one, Lora)]

    @contextmanager
    def without() -> Iterator[nn.Module]:
        for one in adapters:
            one.enabled = False
        yield model
        for one in adapters:
            one.enabled = True

    return Trained(model, without)


def peft_adapters() -> Trained:
    peft = pytest.importorskip("peft", reason="peft turns adapters off in its own way")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["qkv", "wide"])
    model: Any = peft.get_peft_model(policy(), config)

    @contextmanager
    def without() -> Iterator[nn.Module]:
        with model.disable_adapter():
            yield model

    return Trained(model, without)


def logp(model: nn.Module, x: Tensor) -> Tensor:
    words: Tensor = model(x).float().log_softmax(-1)[:, :-1]
    return words.gather(2, x[:, 1:, None])[..., 0].sum(-1)


def margins(
    make: Callable[[], Trained], *, autocast: bool = False, recipe: str = "", form: str = "step"
) -> Tensor:
    """Train for STEPS, and return each step's margins, STEPS x PAIRS."""
    made = make()
    model, found = made.model.train(), []
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=made.lr)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with torch.no_grad(), made.reference() as reference:
                before = logp(reference, x)
            change = logp(model, x) - before
        margin = 0.1 * (change[:PAIRS] - change[PAIRS:])
        loss = -F.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(margin.detach().clone())
        return loss.detach()

    run: Any = step
    if recipe:
        config = StepConfig(precision=recipe, optimizer="fused")
        own = own_recipes.recipe(config, model=signature_of(model), changes_arithmetic=True)
        if form == "step":
            run = ratchet.compile(step, model, optimizer, recipe=own)
        else:
            ratchet.compile(model, optimizer=optimizer, recipe=own)
    for index in range(STEPS):
        draw = torch.Generator().manual_seed(index % 2)
        run(torch.randint(WORDS, (2 * PAIRS, LENGTH), generator=draw))
    return torch.stack(found)


def apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).square().mean().sqrt())


ALONE = [itself, own_adapters, peft_adapters]
"""Whose reference is the trained model, so that a model installed alone runs both passes."""


@cache
def as_written(make: Callable[[], Trained], *, autocast: bool) -> Tensor:
    return margins(make, autocast=autocast)


@pytest.mark.parametrize(
    ("make", "form"),
    [*((one, "step") for one in (*ALONE, two_modules)), *((one, "model") for one in ALONE)],
)
def test_margins_are_those_of_autocast_over_both_passes(
    make: Callable[[], Trained], form: str
) -> None:
    exact = as_written(make, autocast=False)
    noise = apart(as_written(make, autocast=True), exact)
    for precision in ("bf16_autocast", "bf16_master"):
        found = margins(make, recipe=precision, form=form)
        assert not found[0].any(), "before the first update the policy is its reference"
        # Weights in bf16 round once more: 2.2 times the noise on a CPU without bf16.
        assert apart(found, exact) <= 3 * noise


def test_a_reference_of_its_own_is_another_arithmetic_for_a_model_installed_alone() -> None:
    """The limit, which the recipe's first call tells; autocast in the script ends it."""
    assert margins(two_modules, recipe="bf16_autocast", form="model")[0].abs().max() > 1e-3
    ends = margins(two_modules, recipe="bf16_autocast", form="model", autocast=True)
    assert not ends[0].any()
