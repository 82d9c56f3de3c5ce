"""Several ranks: wire time, waiting and the straggler."""

from __future__ import annotations

from pathlib import Path

import made_traces as mt
import pytest

from ratchet.errors import TraceError
from ratchet.trace.ranks import read_ranks


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


def test_a_collective_that_a_rank_lacks_is_counted_and_left_out(tmp_path: Path) -> None:
    rank(tmp_path, 0, 5, 5)
    mt.write(tmp_path / "trace_1.json", [mt.kernel("gemm", 0, 5)], distributedInfo={"rank": 1})
    found = read_ranks(tmp_path)
    assert (found.unmatched, found.collectives, found.straggler) == (2, (), None)


def test_two_files_of_one_rank_and_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace"):
        read_ranks(tmp_path)
    rank(tmp_path, 0, 5, 5)
    mt.write(tmp_path / "other.json", [mt.kernel("gemm", 0, 5)], distributedInfo={"rank": 0})
    with pytest.raises(TraceError, match="both say rank 0"):
        read_ranks(tmp_path)
