"""Outputs that are read from another process's memory: where they lie, and what is nonsense."""

from __future__ import annotations

import fcntl
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.integrity import outputs
from ratchet.judge.integrity.outputs import ReturnedOutputs, Unreadable
from ratchet.judge.sandbox.shared_memory import BatchLayout, Slot
from ratchet.judge.workers.candidate.results import ResultForm, as_results, places

needs_own_memory = pytest.mark.skipif(
    not outputs.readable(os.getpid()), reason="this machine hides a process's own memory"
)


class Subclass(Tensor): ...


def form(tensor: Tensor) -> ResultForm:
    return ResultForm(shape=tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)


def layout_of(*tensors: Tensor) -> BatchLayout:
    """One call without inputs, whose outputs are dense."""
    slots, end = [], 0
    for tensor in tensors:
        code = DTYPE_CODES[str(tensor.dtype).removeprefix("torch.")]
        size, stride = list(tensor.shape), list(torch.empty(tensor.shape).stride())
        slots.append(Slot(2, end, code, size, stride))
        end += tensor.numel() * tensor.element_size()
    return BatchLayout(calls=[slots], region_bytes=(0, 0, end))


def delivered(tensor: Tensor) -> Tensor:
    """What reaches the shared memory of a tensor that this process has returned."""
    layout = layout_of(tensor)
    memory = os.memfd_create("outputs")
    try:
        os.ftruncate(memory, max(1, layout.region_bytes[2]))
        outputs = ReturnedOutputs(layout, (memory, memory, memory))
        kept = [as_results((tensor,), [form(tensor)])]
        told = [[[address, list(stride)] for address, stride in one] for one in places(kept)]
        spots = outputs.found(os.getpid(), told)
        assert spots == outputs.spots()
        outputs.deliver(0)
        outputs.close()
        raw = bytearray(os.pread(memory, layout.region_bytes[2], 0))
    finally:
        os.close(memory)
    if not raw:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape)


@needs_own_memory
def test_a_flag_that_a_candidate_sets_on_the_file_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = os.memfd_create

    def with_flag(name: str) -> int:
        memory = made(name)
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK)
        return memory

    monkeypatch.setattr(os, "memfd_create", with_flag)
    for tensor in (torch.arange(12.0), torch.arange(12.0).reshape(3, 4).T):
        assert torch.equal(delivered(tensor), tensor)


@needs_own_memory
@settings(deadline=None)
@given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0)))
def test_every_shape_arrives(values: np.ndarray) -> None:
    tensor = torch.from_numpy(np.ascontiguousarray(values).copy())
    assert torch.equal(delivered(tensor).nan_to_num(), tensor.nan_to_num())


@needs_own_memory
@pytest.mark.parametrize(
    "made",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(3.0).expand(5, 3),
        torch.arange(4000.0)[::7],
        torch.arange(24.0).reshape(2, 3, 4)[:, 1:, ::2],
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.tensor([True, False, True]),
        torch._neg_view(torch.arange(5.0)),
        torch.tensor(3, dtype=torch.int64),
    ],
    ids=["transposed", "broadcast", "gaps", "cut out", "bfloat16", "bool", "lazy sign", "one"],
)
def test_every_kind_of_memory_arrives(made: Tensor) -> None:
    assert torch.equal(delivered(made), made.clone())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (torch.zeros(3), "not a plain tensor (2,)"),
        (torch.zeros(2, dtype=torch.float64), "not a plain tensor (2,)"),
        (torch.zeros(2).as_subclass(Subclass), "not a plain tensor"),
        (torch.zeros(2, device="meta"), "lies on meta"),
        (torch.zeros(2).to_sparse(), "dense tensor"),
        (None, "not a plain tensor"),
    ],
)
def test_what_is_no_plain_tensor_is_refused(made: Any, words: str) -> None:
    with pytest.raises(KernelError, match=words.replace("(", r"\(").replace(")", r"\)")):
        as_results((made,), [form(torch.zeros(2))])
    with pytest.raises(KernelError, match="tuple of 1"):
        as_results(made, [form(torch.zeros(2))])


def test_a_parameter_is_a_tensor() -> None:
    (found,) = as_results((torch.nn.Parameter(torch.ones(2)),), [form(torch.zeros(2))])
    assert type(found) is Tensor and bool(found.all())


@needs_own_memory
@pytest.mark.parametrize(
    "told",
    [None, [], [[]], [[[1]]], [[[True, [1]]]], [[[0.5, [1]]]], [[[8, None]]], [[[8, [-1]]]]],
    ids=str,
)
def test_nonsense_is_not_read(told: Any) -> None:
    outputs = ReturnedOutputs(layout_of(torch.zeros(4)), (0, 0, 0))
    with pytest.raises(Unreadable, match="nonsense"):
        outputs.found(os.getpid(), told)
    outputs.close()


@needs_own_memory
def test_memory_that_is_not_there_is_said_to_be_so() -> None:
    outputs = ReturnedOutputs(layout_of(torch.zeros(4)), (0, 0, 0))
    with pytest.raises(Unreadable, match="no memory where"):
        outputs.found(os.getpid(), [[[4096, [1]]]])
    outputs.close()
    with pytest.raises(Unreadable, match="cannot be read"):
        outputs.found(1 << 22, [[[4096, [1]]]])
