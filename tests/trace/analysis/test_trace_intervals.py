"""Interval arithmetic against sets of single nanoseconds, and nesting against a search."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.trace.analysis.intervals import Spans, peak_overlap, union
from ratchet.trace.analysis.links import nest

INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)
WINDOW = st.tuples(st.integers(-5, 80), st.integers(0, 40)).map(lambda p: (p[0], p[0] + p[1]))


def spans(intervals: list[tuple[int, int]]) -> Spans:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])


def ticks(intervals: list[tuple[int, int]]) -> set[int]:
    return {tick for start, end in intervals for tick in range(start, end)}


def held(found: Spans) -> set[int]:
    pairs = list(zip(found.start.tolist(), found.end.tolist(), strict=True))
    assert all(a < b for a, b in pairs)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(pairs)), "merged and in order"
    return ticks(pairs)


@settings(deadline=None)
@given(INTERVALS, INTERVALS)
def test_union_difference_and_intersection(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    assert held(spans(a)) == ticks(a)
    assert spans(a).length == len(ticks(a))
    assert held(spans(a) | spans(b)) == ticks(a) | ticks(b)
    assert held(spans(a) & spans(b)) == ticks(a) & ticks(b)
    assert held(spans(a) - spans(b)) == ticks(a) - ticks(b)


@settings(deadline=None)
@given(INTERVALS, WINDOW)
def test_windows(a: list[tuple[int, int]], window: tuple[int, int]) -> None:
    start, end = window
    inside = {tick for tick in ticks(a) if start <= tick < end}
    assert held(spans(a).within(start, end)) == inside
    assert held(spans(a).gaps(start, end)) == set(range(start, end)) - inside
    covered = spans(a).covered(np.array([start]), np.array([end]))
    assert covered.tolist() == [len(inside)]


def test_peak_overlap_counts_what_is_open_at_once() -> None:
    assert peak_overlap(np.array([0, 5, 5]), np.array([5, 9, 9])) == 2


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(lane, start, duration) of calls that nest properly on each lane."""
    made: list[tuple[int, int, int]] = []

    def fill(lane: int, start: int, end: int, depth: int) -> None:
        at = start
        while at < end and len(made) < 40 and draw(st.booleans()):
            begin = draw(st.integers(at, end))
            stop = draw(st.integers(begin, end))
            made.append((lane, begin, stop - begin))
            if depth < 4:
                fill(lane, begin, stop, depth + 1)
            at = max(stop, begin + 1)

    for lane in range(draw(st.integers(1, 3))):
        fill(lane, 0, 50, 0)
    return sorted(made, key=lambda call: (call[1], -call[2]))


@settings(deadline=None)
@given(calls())
def test_parents_are_the_innermost_calls_around(made: list[tuple[int, int, int]]) -> None:
    lane, start, duration = (np.array([call[i] for call in made], dtype=np.int64) for i in range(3))
    tree = nest(lane.astype(np.int32), start, duration)
    assert sorted(int(i) for level in tree.levels for i in level) == list(range(len(made)))
    for child, parent in enumerate(tree.parent.tolist()):
        around = [
            i
            for i in range(child)
            if lane[i] == lane[child]
            and start[child] < max(start[i] + duration[i], start[i] + (duration[i] == 0))
        ]
        assert parent == (around[-1] if around else -1)
