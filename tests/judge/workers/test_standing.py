"""Tensors that stay from call to call are what their names say, for a kernel that looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ratchet.judge.problems.model_state import StatefulCall
from ratchet.judge.sandbox.shared_memory import Handing
from ratchet.judge.workers.candidate.standing import Standing


@dataclass
class Seen:
    """What a kernel can see of its input, and its values."""

    object: int
    address: int
    version: int
    storage: int
    wants: bool
    values: Tensor
    tensor: Tensor


def called(how: Handing, inputs: Sequence[Tensor], in_place: Sequence[int] = ()) -> list[Seen]:
    seen = []

    def entry(x: Tensor, scalars: object) -> tuple[Tensor]:
        storage = x.untyped_storage().data_ptr()
        facts = (id(x), x.data_ptr(), x._version, storage, x.requires_grad)
        seen.append(Seen(*facts, x.detach().clone(), x))
        return (2 * x,)

    standing = Standing()
    with torch.no_grad():
        for call, own in enumerate(inputs):
            (found,) = standing.call(entry, how, call, [own], in_place, ())
            assert torch.equal(found, 2 * own) and not found.requires_grad
    assert not standing.rejected
    return seen


@pytest.mark.parametrize(
    "how", [one for one in Handing if one not in (Handing.OWN, Handing.OTHER_MODE)]
)
@pytest.mark.parametrize("kind", ["dense", "transposed", "broadcast", "scalar", "empty"])
def test_each_call_has_its_values(how: Handing, kind: str) -> None:
    shape = {"scalar": (), "empty": (0, 3)}.get(kind, (3, 5))
    inputs = [torch.randn(shape) for _ in range(5)]
    if kind == "transposed":
        inputs = [one.t() for one in inputs]
    if kind == "broadcast":
        inputs = [one[:, :1].expand(3, 5) for one in inputs]
    for one, own in zip(called(how, inputs), inputs, strict=True):
        assert torch.equal(one.values, own) and one.tensor.stride() == own.stride()


def test_what_stays_and_what_changes() -> None:
    inputs = [torch.randn(3, 5) for _ in range(4)]

    def told(how: Handing, what: str) -> list[Any]:
        return [getattr(one, what) for one in called(how, inputs)]

    for how in (Handing.UNTOLD, Handing.REFILLED):
        assert len({*told(how, "object")}) == len({*told(how, "address")}) == 1
    assert len({*told(Handing.UNTOLD, "version")}) == 1
    assert len({*told(Handing.REFILLED, "version")}) == 4
    first, second, third, fourth = told(Handing.IN_TURN, "object")
    assert first == third != second == fourth
    assert len({*told(Handing.SWAPPED, "object")}) == 1
    assert told(Handing.SWAPPED, "address") == [one.data_ptr() for one in inputs]
    assert len({*told(Handing.PART, "storage")}) == 1
    assert len({*told(Handing.PART, "address")}) == 2
    assert told(Handing.GRADIENT, "wants") == [True] * 4


def test_whole_numbers_and_what_is_changed_in_place_want_no_gradient() -> None:
    assert not any(one.wants for one in called(Handing.GRADIENT, [torch.arange(6)] * 2))
    assert not any(one.wants for one in called(Handing.GRADIENT, [torch.ones(6)] * 2, [0]))


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append((self.training, self.weight.requires_grad))
        return x * self.weight if self.training else x + self.weight


def test_a_model_is_called_in_both_modes_and_with_weights_that_want_gradients() -> None:
    model = Both()
    entry = StatefulCall(model, ["weight"], [None])
    standing, given = Standing(), [torch.full((3,), 2.0), torch.full((3,), 5.0)]
    with torch.no_grad():
        for how, wanted in ((Handing.OTHER_MODE, 7.0), (Handing.GRADIENT, 10.0)):
            (found,) = standing.call(entry, how, 0, given, (), ())
            assert found.tolist() == [wanted] * 3
    assert model.modes == [(False, False), (True, True)] and not standing.rejected
    assert model.training and not model.weight.requires_grad
