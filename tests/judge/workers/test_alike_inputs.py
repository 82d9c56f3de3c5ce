"""Inputs that repeat an earlier call's but for a few elements keep what a kernel may rely on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ratchet.judge.problems.problem import Case, TensorSpec
from ratchet.judge.workers import alike as alike_inputs
from ratchet.judge.workers.alike import KINDS, Change, alike, in_turn, movable


def spec(distribution: str = "normal", dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=(6, 6), dtype=dtype, distribution=distribution, low=0, high=9)


def of(*specs: TensorSpec) -> Case:
    return Case(name="one", inputs=specs)


def changed(base: list[Tensor], other: list[Tensor], seed: int = 0) -> list[Tensor]:
    rng = random.Random(seed)
    found = alike(base, other, range(len(base)), rng, lambda _: True)
    assert found is not None
    return found


def test_few_elements_change_and_keep_their_places() -> None:
    base, other = torch.rand(8, 9).t(), 2 + torch.rand(8, 9).t()
    for seed in range(20):
        (found,) = changed([base], [other], seed)
        assert found.stride() == base.stride()
        moved = found != base
        assert 1 <= int(moved.sum()) <= base.shape[-1]
        assert set(found[moved].tolist()) <= {*other[moved].tolist(), *base.flatten().tolist()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_each_kind_of_change_changes_few_values(
    kind: Change, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike_inputs, "TRIED_S", math.inf)  # all tries, on a busy machine too
    drawn = torch.Generator().manual_seed(7)
    least, most = (0, 2) if dtype is torch.bool else (-1, 9)
    base, other = [torch.randint(least, most, (6, 6), generator=drawn).to(dtype) for _ in range(2)]
    for seed in range(20):
        found = alike([base], [other], [0], random.Random(seed), lambda _: True, kind)
        assert found is not None
        assert 1 <= int((found[0].double() != base.double()).sum()) <= 6
        assert float(found[0].double().max()) <= max(base.double().max(), other.double().max())


def test_a_whole_number_changes_in_its_high_bits_alone() -> None:
    (nudge,) = {kind for kind in KINDS if kind.__name__ == "_nudge"}
    base, other = torch.tensor([12345]), torch.tensor([1 << 30])
    kept = set()
    for seed in range(40):
        found = alike([base], [other], [0], random.Random(seed), lambda _: True, nudge)
        assert found is not None and 12345 < int(found[0]) <= 1 << 30
        kept.add(int(found[0]) & 0xFFFF)
    assert 12345 in kept and len(kept) > 8


def test_kinds_of_changes_come_in_turn() -> None:
    turns = in_turn(random.Random(0))
    for _ in range(3):
        assert sorted(next(turns).__name__ for _ in KINDS) == sorted(one.__name__ for one in KINDS)


def test_zeros_that_every_draw_has_stay_zero() -> None:
    base, other = torch.randn(9, 9).tril(), torch.randn(9, 9).tril()
    for seed in range(20):
        (found,) = changed([base], [other], seed)
        assert torch.equal(found, found.tril())


def test_equal_tensors_change_together() -> None:
    tied, other = torch.randn(6, 6), torch.randn(6, 6)
    one, two = changed([tied, tied.clone()], [other, other.clone()])
    assert torch.equal(one, two) and not torch.equal(one, tied)


def test_inputs_whose_elements_belong_together_stay() -> None:
    def draws(make: str) -> Sequence[Tensor]:
        drawn = torch.randn(6, 6)
        return {
            "plain": [drawn],
            "symmetric": [drawn + drawn.t()],
            "probabilities": [drawn.softmax(-1)],
            "labels": [torch.randint(9, (6, 6)).float()],
        }[make]

    for make in ("symmetric", "probabilities", "labels"):
        assert movable(of(spec()), draws(make), draws(make), {}) == [], make
    assert movable(of(spec()), draws("plain"), draws("plain"), {}) == [0]


def test_integers_move_only_if_each_is_drawn_alone() -> None:
    one, two = torch.arange(36).view(6, 6), torch.arange(1, 37).view(6, 6)
    assert movable(of(spec("integers", "int64")), [one], [two], {}) == [0]
    assert movable(of(spec("from_file", "int64")), [one], [two], {}) == []


def test_what_no_answer_shows_is_not_made() -> None:
    base, other = [torch.randn(6, 6)], [torch.randn(6, 6)]
    assert alike(base, other, [0], random.Random(0), lambda _: False) is None
    assert alike(base, base, [0], random.Random(0), lambda _: True) is None
