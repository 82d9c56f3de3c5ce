"""Faults of `benchmarks/scale/rank_faults.py`: experts, lost dumps, and dumps of two runs."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ratchet.base.errors import RanksError
from ratchet.scale.ranks.dumps import read_dumps
from ratchet.scale.ranks.untangle import untangle

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "scale"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rank_faults

    yield rank_faults
    sys.modules.pop("rank_faults")


@pytest.mark.parametrize(
    "name",
    [
        "a dtype of an exchange", "skips an exchange of experts", "waits for its data",
        "exits in a forward pass", "stuck, and a healthy rank's dump is empty",
        "two collectives ahead", "sends to a wrong stage", "makes its groups in another order",
        "half a step of a ring", "a tensor less in a coalesced gather", "saves alone",
        "receives a micro-batch more", "killed, and other dumps are lost",
    ],
)  # fmt: skip
def test_an_injected_fault_is_found_and_no_healthy_rank_accused(
    name: str, faults: ModuleType, tmp_path: Path
) -> None:
    wrong, said = faults.judged(faults.FAULTS[name](random.Random(3)), tmp_path / "dumps")
    assert not wrong, said


def test_a_rank_without_a_dump_is_missed_where_only_it_is(
    faults: ModuleType, tmp_path: Path
) -> None:
    job = faults.NestedJob(data=2, tensor=2, pipeline=4)
    job.ranks[5].dump = "none"
    fault = faults.stopped(job, 5, "DP", faults.BUCKET)
    wrong, said = faults.judged(fault, tmp_path / "dumps")
    assert not wrong, said  # and not the world's reduction, to which others did not come either


def moved(folder: Path, seconds: int) -> None:
    """Date the calls of a folder's dumps back."""
    for path in folder.iterdir():
        document = pickle.loads(path.read_bytes())
        for entry in document["entries"]:
            entry["time_created_ns"] -= seconds * 10**9
        path.write_bytes(pickle.dumps(document, protocol=2))


def test_dumps_of_an_earlier_run_are_told_and_left_out(faults: ModuleType, tmp_path: Path) -> None:
    earlier = faults.NestedJob(data=8, tensor=2, pipeline=1)
    faults.stopped(earlier, 3, "TP", faults.TP).job.run().write(tmp_path)
    moved(tmp_path, 3600)
    fault = faults.stopped(faults.NestedJob(data=4, pipeline=1), 5, "DP", faults.BUCKET)
    wrong, said = faults.judged(fault, tmp_path)
    assert not wrong, said
    found = untangle(read_dumps([tmp_path]))
    assert found.ranks == tuple(range(8)) and len(found.faults) == 8
    assert all("is from an earlier run" in one for one in found.faults)


def test_a_damaged_number_is_one_call_and_not_all_below_it(
    faults: ModuleType, tmp_path: Path
) -> None:
    faults.stopped(faults.NestedJob(data=4, pipeline=1), 5, "DP", faults.BUCKET).job.run().write(
        tmp_path
    )
    path = tmp_path / "nccl_trace_rank_2"
    document = pickle.loads(path.read_bytes())
    document["entries"][-1] |= {"collective_seq_id": 2**60, "input_dtypes": [7]}
    path.write_bytes(pickle.dumps(document))
    found = untangle(read_dumps([tmp_path]))  # once, this went through all numbers up to it
    assert found.ranks == tuple(range(8)) and any(5 in one.ranks for one in found.found)


def test_dumps_of_two_jobs_are_refused(faults: ModuleType, tmp_path: Path) -> None:
    said = faults.two_jobs(tmp_path)
    assert "are both of rank 0: give one run's dumps" in said
    other = tmp_path / "c"
    faults.NestedJob(data=8, pipeline=1).run().write(other)
    faults.NestedJob(data=2, pipeline=1).run().write(other)
    with pytest.raises(RanksError, match=r"of a job of 4 ranks and .* of one of 16: give one run"):
        read_dumps([other])
