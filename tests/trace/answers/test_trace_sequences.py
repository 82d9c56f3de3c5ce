"""Runs of kernels: equal stretches, under an op, on a stream, between products."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import made_traces as mt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.trace.analysis import Analysis, analyse
from ratchet.trace.analysis.intervals import groups
from ratchet.trace.answers.sequences import (
    LEAST,
    SequenceRow,
    Stretches,
    apart,
    sequences,
    under_op,
)

NORM = ("pow", "mean", "rsqrt", "mul")


def layers(count: int) -> list[dict]:
    """Blocks with a norm of four kernels around a product, launched by ops of two levels."""
    events, at, number = [], 0.0, 0
    for layer in range(count):
        events.append(mt.module(f"Block_{layer}", at, 95))
        for kernels, op in ((NORM, "norm"), (("gemm_bf16",), "aten::mm")):
            events += [mt.op(op, at + 1, 40), mt.op(f"{op}_inner", at + 2, 38)]
            for i, name in enumerate(kernels):
                number += 1
                events += [mt.launch(at + 3 + 5 * i, 2, number),
                           mt.kernel(name, at + 10 + 8 * i, 6 + i, number)]  # fmt: skip
            at += 50
    return events


def found_in(events: list[dict], folder: Path) -> tuple[Analysis, tuple[SequenceRow, ...]]:
    found = analyse(mt.made(folder, events))
    return found, sequences(found.trace, found.links, found.communication)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(entries=st.lists(st.integers(0, 3), min_size=1, max_size=40), data=st.data())
def test_stretches_are_equal_where_their_entries_are(
    entries: list[int], data: st.DataObject
) -> None:
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, len(entries) - 1), st.integers(1, 40)).map(
                lambda one: (one[0], min(one[0] + one[1], len(entries)))
            ),
            min_size=1,
            max_size=30,
        )
    )
    begin, end = np.array(spans, dtype=np.int64).T
    number = Stretches(np.array(entries)).same(begin, end).tolist()
    texts = [tuple(entries[a:b]) for a, b in spans]
    pairs = set(zip(number, texts, strict=True))
    assert len(pairs) == len(set(number)) == len(set(texts))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(begin=st.lists(st.integers(0, 60), unique=True).map(sorted), length=st.integers(1, 6))
def test_what_is_kept_does_not_overlap_and_nothing_more_would_fit(
    begin: list[int], length: int
) -> None:
    kept = apart(np.array(begin, dtype=np.int64), length).tolist()
    assert all(b - a >= length for a, b in itertools.pairwise(kept))
    assert all(any(abs(one - other) < length for other in kept) for one in begin)


def test_groups_are_by_number() -> None:
    assert [own.tolist() for own in groups(np.array([5, 2, 5, 2, 9]))] == [[1, 3], [0, 2], [4]]
    assert groups(np.zeros(0, dtype=np.int64)) == []


def test_the_kernels_of_an_op_are_those_of_all_below_it(tmp_path: Path) -> None:
    found, rows = found_in(layers(3), tmp_path)
    (row,) = (row for row in rows if row.under == "op")
    assert (row.name, row.kernels, row.count) == ("norm_inner", NORM, 3), "the innermost of two"
    assert (row.length, row.time, row.longest) == (4, 3 * 30_000, 3 * 9000)
    assert row.cpu == 3 * 38_000
    (asked,) = under_op(found.trace, found.links, "norm")
    assert (asked.kernels, asked.count, asked.cpu) == (NORM, 3, 3 * 40_000)
    assert under_op(found.trace, found.links, "aten::mm") == ()
    (short,) = under_op(found.trace, found.links, "aten::mm", shortest=1)
    assert (short.kernels, short.count) == (("gemm_bf16",), 3)
    assert under_op(found.trace, found.links, "no such op") == ()


def test_an_op_inside_itself_is_counted_once(tmp_path: Path) -> None:
    events = [mt.op("aten::to", 0, 50), mt.op("aten::to", 1, 40), mt.launch(5, 1, 1),
              mt.launch(8, 1, 2), mt.kernel("a", 10, 2, 1), mt.kernel("b", 13, 2, 2)]  # fmt: skip
    found = analyse(mt.made(tmp_path, events))
    (row,) = under_op(found.trace, found.links, "aten::to", shortest=2)
    assert (row.count, row.cpu) == (1, 50_000)


def test_what_runs_between_products_could_be_one_kernel(tmp_path: Path) -> None:
    _, rows = found_in(layers(3), tmp_path)
    (row,) = (row for row in rows if row.under == "between products")
    assert (row.kernels, row.count, row.name) == (NORM, 3, "Block_0")
    gaps = 3 * (2 + 1 + 0) * 1000
    assert (row.gaps, row.could_win) == (gaps, 3 * 30_000 - 3 * 9000 + gaps)


def test_copies_and_collectives_end_a_run(tmp_path: Path) -> None:
    names = ["a", "b", "ncclDevKernel_AllReduce", "a", "b", "copy", "a", "b"]
    events = [
        mt.copy(10 * i, 8) if n == "copy" else mt.kernel(n, 10 * i, 8) for i, n in enumerate(names)
    ]
    for event in events:
        event["args"]["stream"] = 7
    _, rows = found_in(events, tmp_path)
    for under in ("stream", "between products"):
        (row,) = (row for row in rows if row.under == under)
        assert (row.kernels, row.count) == (("a", "b"), 3), under


def test_triton_kernels_are_fused_already(tmp_path: Path) -> None:
    events = [mt.kernel(f"triton_poi_fused_{i}", 10 * i, 8) for i in range(4)]
    assert [row for row in found_in(events, tmp_path)[1] if row.under == "between products"] == []


@settings(max_examples=15, deadline=None, derandomize=True)
@given(names=st.lists(st.sampled_from("abcd"), min_size=2, max_size=60))
def test_runs_of_a_stream_are_there_and_share_no_kernel(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    events = [mt.kernel(name, 10 * i, 1 + i % 7) for i, name in enumerate(names)]
    _, rows = found_in(events, tmp_path_factory.mktemp("runs"))
    rows = tuple(row for row in rows if row.under == "stream")
    have = Counter(names)
    used: Counter[str] = Counter()
    for row in rows:
        text, run = "".join(names), "".join(row.kernels)
        assert LEAST <= row.count <= text.count(run[:1])
        assert text.count(run) >= row.count or len(set(run)) < len(run)
        for name in row.kernels:
            used[name] += row.count
    assert all(used[name] <= have[name] for name in used)
    assert sum(row.time for row in rows) <= sum(1 + i % 7 for i in range(len(names))) * 1000
    pairs = Counter(itertools.pairwise(names))
    if any(a != b and count >= LEAST for (a, b), count in pairs.items()):
        assert rows, "a pair is seen twice"


def test_ops_are_the_runs_of_a_trace_without_a_device(tmp_path: Path) -> None:
    names = ["aten::mm", "aten::mul", "aten::view", "aten::add", "aten::mm"] * 2
    events = [mt.module("Norm_0", 0, 500)]
    events += [mt.op(name, 1 + 10 * i, 8) for i, name in enumerate(names)]
    _, rows = found_in(events, tmp_path)
    (row,) = (row for row in rows if row.under == "between products")
    assert (row.kernels, row.count, row.time) == (("aten::mul", "aten::add"), 2, 32_000)
    assert (row.name, row.op, row.gaps) == ("Norm_0", "aten::mul", 0)


def test_the_sequences_of_a_real_trace() -> None:
    """Each layer's norm is one run of nine kernels, whatever the device."""
    for name in ("h100-qwen1.5-0.5b", "mi300x-qwen1.5-0.5b"):
        found = analyse(mt.recorded(name))
        rows = sequences(found.trace, found.links, found.communication)
        norm = next(r for r in rows if r.under == "between products" and "RMSNorm" in r.name)
        assert (norm.length, norm.count) == (9, 48)
        busy = int(found.trace.duration[found.trace.rows(3, 4, 5)].sum())
        assert sum(row.time for row in rows if row.under == "stream") <= busy


def test_the_sequences_under_an_op_are_those_that_others_find() -> None:
    """HolisticTraceAnalysis 0.5.0 finds the same ten, in four of the five steps: it drops one."""
    found = analyse(mt.recorded("v100-ddp-rank1of2-2020-collectives"))
    rows = under_op(found.trace, found.links, "aten::addmm", shortest=2)
    in_four_steps = [172, 168, 76, 72, 32, 20, 16, 16, 12, 4]
    assert [row.count for row in rows] == [count * 5 // 4 for count in in_four_steps]
