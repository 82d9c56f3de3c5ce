"""Variants of a reference: each is named by its words, and a wrong answer of no variant is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.judge.workers.variants import explanation

Function = Callable[[Tensor], Tensor]
X = torch.randn(4, 6, 8, 8, generator=torch.Generator().manual_seed(1))
W, B = torch.linspace(0.5, 2, 6), torch.linspace(-1, 1, 6)


def named(reference: Function, answer: Function, x: Tensor = X) -> str:
    got = answer(x)

    def is_right(found: Sequence[Sequence[Tensor]]) -> bool:
        return all(torch.allclose(got.double(), one[0].double(), atol=1e-5) for one in found)

    return explanation(lambda given: [reference(given[0])], ([x], [x.double()]), is_right)


def group_norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 3, W.to(x.dtype), B.to(x.dtype), eps=0.1)


def by_hand(x: Tensor, correction: int, inside: float, outside: float) -> Tensor:
    rows = x.reshape(4, 3, -1)
    scale = (rows.var(2, correction=correction, keepdim=True) + inside).sqrt() + outside
    made = ((rows - rows.mean(2, keepdim=True)) / scale).reshape(x.shape)
    return made * W.view(-1, 1, 1) + B.view(-1, 1, 1)


def batch_norm(training: bool) -> Function:
    mean, var = torch.full((6,), 0.5), torch.full((6,), 2.0)
    return lambda x: F.batch_norm(
        x, mean.to(x.dtype, copy=True), var.to(x.dtype, copy=True), training=training
    )


@pytest.mark.parametrize(
    ("words", "reference", "answer"),
    [
        ("tanh GELU", F.gelu, lambda x: F.gelu(x, approximate="tanh")),
        ("exact GELU", lambda x: F.gelu(x, approximate="tanh"), F.gelu),
        ("1.702", F.gelu, lambda x: x * torch.sigmoid(1.702 * x)),
        ("divided by n", lambda x: x.var(1), lambda x: x.var(1, unbiased=False)),
        ("divided by n", lambda x: torch.std(x, 1, False), lambda x: x.std(1)),
        ("divided by n - 1", group_norm, lambda x: by_hand(x, 1, 0.1, 0)),
        ("outside", group_norm, lambda x: by_hand(x, 0, 0, 0.1)),
        ("without its epsilon", group_norm, lambda x: by_hand(x, 0, 0, 0)),
        ("running statistics", batch_norm(True), batch_norm(False)),
        ("running statistics", batch_norm(False), batch_norm(True)),
        ("'sum'", lambda x: F.mse_loss(x, x + x), lambda x: x.square().sum()),
        ("sum in place", lambda x: x.mean(1), lambda x: x.sum(1)),
        ("mean in place", lambda x: torch.sum(x, dim=1), lambda x: x.mean(1)),
        ("another dimension", lambda x: F.softmax(x, dim=1), lambda x: x.softmax(-1)),
        ("a causal mask", lambda x: F.scaled_dot_product_attention(x, x, x),
         lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        ("no scale", lambda x: F.scaled_dot_product_attention(x, x, x),
         lambda x: F.scaled_dot_product_attention(x, x, x, scale=1.0)),
        ("no bias", lambda x: F.linear(x, torch.ones(6, 8).to(x.dtype), B.to(x.dtype)),
         lambda x: F.linear(x, torch.ones(6, 8).to(x.dtype))),
    ],
)  # fmt: skip
def test_a_variant_is_named(words: str, reference: Function, answer: Function) -> None:
    assert words in named(reference, answer)


def test_what_is_no_variant_is_not_named() -> None:
    assert named(lambda x: F.gelu(group_norm(x)), lambda x: F.gelu(group_norm(x)) + 0.01) == ""
    assert named(lambda x: x + 1, lambda x: x) == ""
