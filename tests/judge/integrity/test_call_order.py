"""Whether the calls of a batch come one after another, as far as their outputs tell."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.integrity.call_order import CallOrder, _progress
from ratchet.judge.sandbox.shared_memory import BatchLayout, Slot

CALLS, FLOATS = 6, 64


def layout() -> BatchLayout:
    code = DTYPE_CODES["float32"]
    slots = [Slot(2, 4 * FLOATS * call, code, [FLOATS], [1]) for call in range(CALLS)]
    return BatchLayout(calls=[[slot] for slot in slots])


@pytest.fixture
def memory() -> Any:
    descriptor = os.memfd_create("outputs")
    os.pwrite(descriptor, b"\xff" * 4 * FLOATS * CALLS, 0)
    yield descriptor
    os.close(descriptor)


def write(memory: int, call: int, first: int, last: int) -> None:
    os.pwrite(memory, b"\1" * 4 * (last - first), 4 * (FLOATS * call + first))


class Standing:
    """A family that has written more each time it is stopped."""

    def __init__(self, memory: int, moments: list[list[tuple[int, int, int]]]) -> None:
        self.memory = memory
        self.left = [*moments]

    def hold(self, do: Callable[[], None]) -> None:
        for one in self.left.pop(0):
            write(self.memory, *one)
        do()


def looked_at(memory: int, moments: list[list[tuple[int, int, int]]]) -> CallOrder:
    """The writes before each look; all is written after the last."""
    order = CallOrder(layout(), (0, 0, memory))
    family = Standing(memory, moments)
    order.looks(family, 0.0)(lambda: not family.left)  # type: ignore[arg-type]
    for call in range(CALLS):
        write(memory, call, 0, FLOATS)
    return order


def test_one_after_another_is_in_order(memory: int) -> None:
    order = looked_at(memory, [[(0, 0, 40)], [(0, 40, 64), (1, 0, 64)], [(2, 0, 1)]])
    assert order.conclude() == ""
    assert order.looked == 3


def test_two_at_a_time_are_not(memory: int) -> None:
    order = looked_at(memory, [[(0, 0, 64)], [(1, 0, 40), (3, 0, 64)], []])
    assert "3 calls of 6" in order.conclude()  # 1 and 2 are open before 3


def test_a_moment_before_the_first_call_tells_nothing(memory: int) -> None:
    order = looked_at(memory, [[], [], [(0, 0, 64)]])
    assert order.conclude() == ""
    assert order.looked == 1


def test_it_stops_looking_when_the_batch_is_over(memory: int) -> None:
    order = CallOrder(layout(), (0, 0, memory))
    family = Standing(memory, [[(0, 0, 1)]])
    order.looks(family, 0.0)(lambda: True)  # type: ignore[arg-type]
    assert family.left
    assert order.conclude() == ""


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 8))
def test_calls_that_end_as_they_began_tell_nothing(same: list[bool], done: int) -> None:
    first = [[b"a"] for _ in same]
    last = [[b"a" if one else b"b"] for one in same]
    seen = [last[call] if call < done else first[call] for call in range(len(same))]
    begun, unfinished = _progress(first, seen, last)
    assert begun == [call for call, one in enumerate(same) if not one and call < done]
    assert unfinished == [call for call, one in enumerate(same) if not one and call >= done]
