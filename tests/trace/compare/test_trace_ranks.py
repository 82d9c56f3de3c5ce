"""Several ranks: wire time, waiting and the straggler."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest

from ratchet.base.errors import TraceError
from ratchet.base.show.page import render_page
from ratchet.trace.answers.report import report
from ratchet.trace.export import ranks_tables
from ratchet.trace.ranks import Run, across, paired, read_ranks
from ratchet.trace.show import trace_report
from ratchet.trace.show.words import across_words


def rank(folder: Path, number: int, reduce: float, compute: float) -> None:
    events = [mt.kernel("gemm", 0, compute, 1)]
    for i in range(2):
        said = {"Collective name": "allreduce", "Process Group Name": "dp", "Group size": 3}
        events.append(mt.kernel("ncclDevKernel_AllReduce", 50 + 50 * i, reduce, 2 + i, 9, **said))
    mt.write(folder / f"trace_{number}.json.gz", events, distributedInfo={"rank": number})


def test_the_late_rank_is_the_straggler(tmp_path: Path) -> None:
    for number, reduce, compute in ((0, 20, 10), (1, 6, 24), (2, 18, 14)):
        rank(tmp_path, number, reduce, compute)
    found = read_ranks(tmp_path)
    assert [report.rank for report in found.reports] == [0, 1, 2]
    assert (found.wire, found.straggler, found.unmatched) == (12_000, 1, 0)
    assert found.waiting == {0: 28_000, 1: 0, 2: 24_000}
    assert found.skew == pytest.approx(14 / 16)
    assert [c.late for c in found.collectives] == [1, 1]
    assert {(c.skew, c.end_skew) for c in found.collectives} == {(0, 14_000)}


def test_a_collective_that_a_rank_lacks_is_counted_and_left_out(tmp_path: Path) -> None:
    rank(tmp_path, 0, 5, 5)
    mt.write(tmp_path / "trace_1.json", [mt.kernel("gemm", 0, 5)], distributedInfo={"rank": 1})
    found = read_ranks(tmp_path)
    assert (found.unmatched, found.collectives, found.straggler) == (2, (), None)


def test_two_files_of_one_rank_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no traces"):
        read_ranks(tmp_path)
    rank(tmp_path, 0, 5, 5)
    mt.write(tmp_path / "other.json", [mt.kernel("gemm", 0, 5)], distributedInfo={"rank": 0})
    with pytest.raises(TraceError, match="are both of rank 0"):
        read_ranks(tmp_path)


def collectives(folder: Path, number: int, runs: list[tuple[float, float]], **said: Any) -> None:
    """A rank's trace with an all-reduce for each (start, end) in microseconds."""
    about = {"Collective name": "allreduce", "Process Group Name": "dp", "Group size": 2, **said}
    events = [
        mt.kernel("ncclDevKernel_AllReduce", start, end - start, 1 + i, 9, **about)
        for i, (start, end) in enumerate(runs)
    ]
    mt.write(folder / f"trace_{number}.json", events, distributedInfo={"rank": number})


EARLY = [(100.0 * i, 100.0 * i + 60) for i in range(10)]
LATE = [(100.0 * i + 50, 100.0 * i + 60) for i in range(10)]


def test_a_rank_whose_trace_lacks_the_first_collectives(tmp_path: Path) -> None:
    """Counted from the front, each would be held against another three later."""
    collectives(tmp_path, 0, EARLY)
    collectives(tmp_path, 1, LATE[3:])
    found = read_ranks(tmp_path)
    assert (len(found.collectives), found.unmatched) == (7, 3)
    assert (found.wire, found.waiting, found.straggler) == (70_000, {0: 350_000, 1: 0}, 1)
    assert [one.index for one in found.collectives] == list(range(7))


def test_recordings_that_overlap_in_part(tmp_path: Path) -> None:
    """Both hold seven; a neighbour's last microsecond is not enough to be paired with it."""
    collectives(tmp_path, 0, EARLY[:7])
    collectives(tmp_path, 1, [(start - 91, end) for start, end in LATE[3:]])
    found = read_ranks(tmp_path)
    assert (len(found.collectives), found.unmatched) == (4, 3)
    assert found.waiting == {0: 0, 1: 164_000}
    alone = {0: [Run(start=0, end=60, size_bytes=0)], 1: [Run(start=59, end=160, size_bytes=0)]}
    assert paired(alone) == []


def test_ranks_on_busy_cores_need_only_overlap() -> None:
    """A rank that waits for a core goes on long after the other ended."""
    runs = {
        0: [Run(start=1800, end=3250, size_bytes=8), Run(start=4150, end=8880, size_bytes=8)],
        1: [Run(start=0, end=2080, size_bytes=8), Run(start=3130, end=4425, size_bytes=8)],
    }
    assert paired(runs) == []
    together = paired(runs, on_host=True)
    assert [[one[rank].start for rank in (0, 1)] for one in together] == [[1800, 0], [4150, 3130]]


def test_runs_at_different_times_are_refused(tmp_path: Path) -> None:
    collectives(tmp_path, 0, EARLY)
    collectives(tmp_path, 1, [(start + 5000, end + 5000) for start, end in LATE])
    found = read_ranks(tmp_path)
    assert (found.collectives, found.unmatched, found.straggler) == ((), 10, None)
    assert found.waiting == {0: 0, 1: 0}
    assert any(
        "10 collectives are not counted" in line and "clocks" in line
        for line in across_words(found)
    )


def test_each_trace_counts_from_its_own_base(tmp_path: Path) -> None:
    """Kineto's stamps count from a base time that differs from one process to another."""
    collectives(tmp_path, 0, EARLY)
    collectives(tmp_path, 1, LATE)
    moved = json.loads((tmp_path / "trace_1.json").read_text())
    for event in moved["traceEvents"]:
        event["ts"] -= 7000
    for number, base in ((0, 10**18), (1, 10**18 + 7_000_000)):
        path = tmp_path / f"trace_{number}.json"
        whole = moved if number else json.loads(path.read_text())
        path.write_text(json.dumps(whole | {"baseTimeNanoseconds": base}))
    found = read_ranks(tmp_path)
    assert (len(found.collectives), found.straggler) == (10, 1)


def test_messages_of_different_sizes_are_not_one_collective(tmp_path: Path) -> None:
    for number, elements in ((0, 64), (1, 128)):
        said = {"dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements}
        collectives(tmp_path, number, EARLY, **said)
    assert read_ranks(tmp_path).unmatched == 10


def test_the_recorded_rank_beside_a_late_one(tmp_path: Path) -> None:
    """A recorded rank against itself, of which 20 µs of each collective's start are taken away."""
    trace = mt.recorded("a100-nccl-metadata-rank0of2")
    early = report(trace)
    late = replace(
        early,
        collectives=tuple(
            replace(row, start=row.start + 20_000, duration=row.duration - 20_000)
            for row in early.collectives[3:]
            if row.duration > 50_000
        ),
    )
    found = across({0: early, 1: late})
    assert len(found.collectives) == len(late.collectives) > 10
    assert found.straggler == 1
    assert found.waiting == {0: 20_000 * len(late.collectives), 1: 0}


def host_rank(folder: Path, number: int, events: list[dict[str, Any]]) -> None:
    events = [mt.op("aten::mm", 0, 40), *events, mt.op("aten::mm", 960, 40)]
    mt.write(folder / f"trace_{number}.json", events, distributedInfo={"rank": number})


def host_reduce(start: float, end: float) -> list[dict[str, Any]]:
    """An all-reduce of gloo: the op that issues it, its run on another thread, and the wait."""
    return [
        mt.op("c10d::allreduce_", start - 5, 4),
        mt.span("user_annotation", "gloo:all_reduce", start, end - start, tid=77),
        mt.op("_c10d_functional::wait_tensor", start + 1, end - start - 1),
    ]


def test_what_issues_a_host_s_collective_or_awaits_it_is_none(tmp_path: Path) -> None:
    host_rank(tmp_path, 0, host_reduce(100, 200) + host_reduce(400, 500))
    host_rank(tmp_path, 1, host_reduce(160, 200) + host_reduce(480, 500))
    found = read_ranks(tmp_path)
    assert (len(found.collectives), found.unmatched, found.straggler) == (2, 0, 1)
    assert found.waiting == {0: 140_000, 1: 0}
    assert [row.operation for row in found.reports[0].collectives] == ["all_reduce"] * 2
    # The ops still are communication, whose time nothing hides.
    assert found.reports[0].identity.exposed_communication == 2 * (4_000 + 100_000)


def test_a_trace_without_a_backend_s_runs_keeps_its_ops(tmp_path: Path) -> None:
    host_rank(tmp_path, 0, [mt.op("c10d::allreduce_", 100, 50)])
    (row,) = read_ranks(tmp_path).reports[0].collectives
    assert (row.operation, row.duration) == ("all_reduce", 50_000)


def test_a_host_s_send_belongs_to_its_receive(tmp_path: Path) -> None:
    def run(name: str, start: float, end: float) -> list[dict[str, Any]]:
        return [mt.span("user_annotation", name, start, end - start, tid=77)]

    host_rank(tmp_path, 0, run("gloo:send", 100, 110) + run("gloo:recv", 300, 420))
    host_rank(tmp_path, 1, run("gloo:recv", 60, 112) + run("gloo:send", 410, 420))
    found = read_ranks(tmp_path)
    assert (len(found.collectives), found.unmatched) == (2, 0)
    assert found.waiting == {0: 110_000, 1: 42_000}


def test_ranks_that_wait_for_each_other_alike_have_no_straggler(tmp_path: Path) -> None:
    first, second = host_reduce(100, 200), host_reduce(400, 500)
    host_rank(tmp_path, 0, first + host_reduce(450, 500))
    host_rank(tmp_path, 1, host_reduce(145, 200) + second)
    found = read_ranks(tmp_path)  # waits of 45 and 50 us in a window of 1,000
    assert found.straggler is None and sum(found.waiting.values()) == 95_000
    assert "No rank is a straggler" in " ".join(across_words(found))
    alike = replace(found, waiting={0: 0, 1: 0}, skew=0)
    assert "on the wire, and no waiting." in " ".join(across_words(alike))
    assert across_words(alike)[-1] == "Compute is the same over the ranks."


def test_each_collective_has_its_skew_over_the_ranks(tmp_path: Path) -> None:
    about = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}
    collectives(tmp_path, 0, EARLY, **about)
    collectives(tmp_path, 1, LATE, **about)
    found = read_ranks(tmp_path)
    first = found.collectives[0]
    assert (first.skew, first.end_skew, first.wire) == (50_000, 0, 10_000)
    assert first.arrived == {0: 0, 1: 50_000}
    assert (first.size_bytes, first.bus_bandwidth) == (4000, pytest.approx(4000 / 10e-6))
    (table,) = (one for one in ranks_tables(found) if one.name == "shared_collectives")
    assert {"arrived", "waiting", "skew"} <= set(table.columns)
    assert [row["arrived"] for row in table.rows[:2]] == [0, 50_000]
    page = render_page(trace_report(found))
    assert "Collectives over the ranks" in page and "end skew, ms" in page
