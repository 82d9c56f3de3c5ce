"""Ranks in one file: every event once, a process each, on one clock, links whole."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest
from made_rocprof import rocpd

from ratchet.base.errors import FileError, TraceError
from ratchet.trace import merge as merging
from ratchet.trace.answers.report import report
from ratchet.trace.merge import Merged
from ratchet.trace.read import read

merge = partial(merging.merge, notes=False)


def rank_events(at: float) -> list[dict]:
    """One launch with its kernel, the arrow between them, and names of processes and threads."""
    kernel = mt.kernel("gemm", at + 5.125, 20.5, 1)
    return [
        mt.op("aten::mm", at, 12), mt.launch(at + 2, 3, 1), kernel,
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": mt.PROCESS, "tid": mt.MAIN,
         "ts": at + 2},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": kernel["tid"],
         "ts": at + 5.125, "bp": "e"},
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 1, "pid": mt.PROCESS, "tid": mt.MAIN,
         "ts": at + 3},
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0,
         "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0,
         "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0,
         "args": {"name": "stream 7"}},
        mt.allocation(at + 4, 64, 5, 64),
    ]  # fmt: skip


def write_ranks(folder: Path, *starts: float, **about: Any) -> Path:
    folder.mkdir()
    for rank, start in enumerate(starts):
        told = {"distributedInfo": {"rank": rank, "world_size": len(starts)}, **about}
        mt.write(folder / f"r{rank}.json.gz", rank_events(start), **told)
    return folder


def merged_events(out: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(out.read_bytes()) if out.suffix == ".gz" else out.read_bytes()
    whole = json.loads(text, parse_float=Decimal)
    assert [one["rank"] for one in whole["merged"]] == list(range(len(whole["merged"])))
    events: list[dict[str, Any]] = whole["traceEvents"]
    return events


def by_rank(found: Merged) -> dict[int, list[dict[str, Any]]]:
    ranks: dict[int, list[dict[str, Any]]] = {}
    for event in merged_events(found.path):
        ranks.setdefault(event["pid"], []).append(event)
    return ranks


@pytest.mark.parametrize("name", ["all.json.gz", "all.json"])
def test_each_rank_is_a_process_with_all_its_events(tmp_path: Path, name: str) -> None:
    found = merge(write_ranks(tmp_path / "ranks", 100.0, 110.25), tmp_path / name)
    assert found.aligned and [rank.shift for rank in found.ranks] == [0, 0]
    ranks = by_rank(found)
    assert set(ranks) == {0, 1}
    for rank, start in ((0, Decimal(100)), (1, Decimal("110.25"))):
        kept = [event for event in ranks[rank] if event["ph"] != "M"]
        assert Counter(event["ph"] for event in kept) == {"X": 3, "s": 2, "f": 1, "i": 1}
        assert found.ranks[rank].events == 7
        (kernel,) = (event for event in kept if event["name"] == "gemm")
        assert (kernel["ts"], kernel["dur"]) == (start + Decimal("5.125"), Decimal("20.5"))
        assert kernel["args"]["correlation"] == 1
        names = {e["tid"]: e["args"]["name"] for e in ranks[rank] if e["name"] == "thread_name"}
        assert names[kernel["tid"]] == "GPU 0 stream 7"
        assert len({event["tid"] for event in kept}) == len(names) == 2
    titles = [
        e["args"]["name"] for one in ranks.values() for e in one if e["name"] == "process_name"
    ]
    assert titles == ["rank 0", "rank 1"]


def test_arrows_stay_inside_their_rank(tmp_path: Path) -> None:
    events = merged_events(merge(write_ranks(tmp_path / "ranks", 0, 5), tmp_path / "a.json").path)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    assert len(starts) == 4, "two sorts of two ranks"
    for event in (event for event in events if event["ph"] == "f"):
        assert starts[event["id"]]["pid"] == event["pid"]
        assert starts[event["id"]]["cat"] == event["cat"]


def test_clocks_that_do_not_meet_are_moved_to_the_first(tmp_path: Path) -> None:
    found = merge(write_ranks(tmp_path / "ranks", 1_000_000, 500.125), tmp_path / "all.json.gz")
    assert not found.aligned
    assert [rank.shift for rank in found.ranks] == [0, 999_499_875]
    starts = [event["ts"] for event in merged_events(found.path) if event["name"] == "gemm"]
    assert starts == [Decimal("1000005.125")] * 2, "to the nanosecond"


def test_the_zero_of_the_stamps_counts(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "ranks", 50.0, baseTimeNanoseconds=1_000_000)
    mt.write(
        folder / "r1.json", rank_events(0), distributedInfo={"rank": 1},
        baseTimeNanoseconds=1_045_000,
    )  # fmt: skip
    found = merge(folder, tmp_path / "all.json")
    assert found.aligned and [rank.shift for rank in found.ranks] == [0, 45_000]


def test_the_merged_file_is_a_trace_that_says_what_it_is(tmp_path: Path) -> None:
    found = merge(write_ranks(tmp_path / "ranks", 0, 100), tmp_path / "all.json.gz")
    answers = report(read(found.path))
    assert "ranks stand merged here" in "".join(answers.faults)
    assert answers.events == 6
    assert sum(row.count for row in answers.kernels) == 2


def test_rocpd_stands_beside_kineto(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "ranks", 0)
    rocpd(folder / "rank1.db")
    found = merge(folder, tmp_path / "all.json")
    ranks = by_rank(found)
    (kernel,) = (event for event in ranks[1] if event["name"] == "gemm")
    moved = Decimal("5.125")
    assert (kernel["ts"], kernel["dur"], kernel["cat"]) == (moved, 1, "kernel"), "windows apart"
    assert found.ranks[1].events == 5


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "ranks", 0)
    with pytest.raises(TraceError, match="would be taken for a rank"):
        merge(folder, folder / "all.json.gz")
    with pytest.raises(FileError, match="cannot be written"):
        merge(folder, tmp_path / "nowhere" / "all.json.gz")
    second = mt.text(rank_events(3), distributedInfo={"rank": 1})
    (folder / "r1.json").write_text(second[: len(second) // 2])
    (folder / "r2.json").write_text("{}")
    found = merge(folder, tmp_path / "all.json.gz")
    assert (found.ranks[0].events, found.ranks[1].rank) == (7, 1)
    assert 1 <= found.ranks[1].events < 7
    assert any("r2.json" in fault for fault in found.faults)
    assert any("cut off" in fault for fault in found.faults)
    assert merged_events(found.path)
    assert list(tmp_path.glob("*.partial")) == []


def test_what_was_found_stands_beside_the_events(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank, wait in ((0, 30.0), (1, 10.0)):
        said = {"Collective name": "allreduce", "Process Group Name": "dp", "Group size": 2}
        begin = 1000 - wait
        events = [
            mt.step(0, 0, 500), mt.op("aten::mm", 10, 100), mt.launch(11, 2, 1),
            mt.kernel("gemm", 20, 300, 1), mt.step(1, 500, 700), mt.launch(600, 2, 2),
            mt.kernel("ncclDevKernel_AllReduce", begin, wait + 5, 2, 9, **said),
        ]  # fmt: skip
        mt.write(folder / f"r{rank}.json", events, distributedInfo={"rank": rank})
    plain, noted = merge(folder, tmp_path / "a.json"), merging.merge(folder, tmp_path / "b.json")
    assert [one.events for one in noted.ranks] == [one.events for one in plain.ranks]
    added = [one for one in merged_events(noted.path) if one.get("cat") == "ratchet"]
    lanes: dict[int, dict[int, str]] = {0: {}, 1: {}}
    for one in merged_events(noted.path):
        if one["name"] == "thread_name":
            lanes[one["pid"]][one["tid"]] = one["args"]["name"]
    by_lane = Counter((one["pid"], lanes[one["pid"]][one["tid"]]) for one in added)
    assert by_lane[0, "found: steps"] == by_lane[1, "found: steps"] == 2
    assert by_lane[0, "found: critical path"] > 0 and by_lane[0, "found: finding 1"] == 1
    (waited,) = (
        one for one in added if lanes[one["pid"]][one["tid"]] == "found: waiting for ranks"
    )
    assert (waited["pid"], waited["name"]) == (0, "all_reduce waits for rank 1")
    assert (waited["ts"], waited["dur"]) == (Decimal(970), Decimal(20))
    assert waited["args"]["skew_ms"] == Decimal("0.02")
    finding = next(one for one in added if "gain_ms" in one["args"])
    assert finding["args"]["evidence"] and finding["name"].endswith(" ms")
    assert read(noted.path)  # the file is a trace itself
