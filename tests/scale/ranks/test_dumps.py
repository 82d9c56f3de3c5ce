"""Flight-recorder dumps: real ones of gloo ranks, made ones of each fault, and damaged files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import run_forked

from ratchet.base.errors import RanksError
from ratchet.scale.ranks.dumps import read_dump, read_dumps
from ratchet.scale.ranks.untangle import Untangled, untangle

JOB = """
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank, fault = dist.get_rank(), sys.argv[1]
def step():
    dist.all_reduce(torch.ones(8))
    if fault == "branch" and rank == 1:
        dist.broadcast(torch.ones(4), 0)
    elif not (fault == "absent" and rank == 1):
        dist.all_gather_into_tensor(torch.empty(32), torch.ones(16))
try:
    step()
except RuntimeError:
    pass
time.sleep(5 if fault == "absent" and rank == 1 else 0.5)
with open(f"{sys.argv[2]}/dump_{rank}", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
os._exit(0)
"""


def run_job(fault: str, folder: Path) -> Untangled:
    script = folder / "job.py"
    script.write_text(JOB)
    out = folder / "dumps"
    out.mkdir()
    run_forked(2, "torch.distributed", script, fault, str(out), TORCH_FR_BUFFER_SIZE="100")
    return untangle(read_dumps([out]))


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("none", None, ""),
        ("branch", "operation", "rank 1 called broadcast at"),
        ("absent", "missing", "rank 1 did not come to"),
    ],
)
def test_real_ranks(fault: str, kind: str | None, said: str, tmp_path: Path) -> None:
    found = run_job(fault, tmp_path)
    assert found.ranks == (0, 1) and not found.faults
    assert [one.kind for one in found.found] == ([kind] if kind else [])
    for one in found.found:
        assert said in one.said and "job.py" in one.said
        assert any("in step" in line for stack in one.stacks.values() for line in stack)


def entry(sequence: int, operation: str = "all_reduce", **changed: Any) -> dict[str, Any]:
    frames = [
        {"name": "all_reduce", "filename": "/site/torch/distributed/c10d.py", "line": 1},
        {"name": "step", "filename": "/job/train.py", "line": 10 + sequence},
    ]
    return {
        "frames": frames, "process_group": ("0", "default_pg"), "collective_seq_id": sequence,
        "p2p_seq_id": 0, "profiling_name": f"nccl:{operation}", "input_sizes": [[64]],
        "output_sizes": [[64]], "input_dtypes": ["Float"], "state": "completed", "retired": True,
        "time_created_ns": 10**18 + sequence, "is_p2p": False,
    } | changed  # fmt: skip


def dumps(folder: Path, *ranks: list[dict[str, Any]], **changed: Any) -> Untangled:
    """What is found in dumps with these entries, one list a rank."""
    document = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "ranks": str(list(range(len(ranks))))}},
    }
    for rank, entries in enumerate(ranks):
        path = folder / f"trace_{rank}"
        path.write_bytes(pickle.dumps({**document, "entries": entries, **changed}))
    return untangle(read_dumps([folder]))


def test_ranks_that_agree_have_nothing_found(tmp_path: Path) -> None:
    calls = [entry(1), entry(2, "broadcast")]
    assert dumps(tmp_path, calls, calls, calls).found == ()


@pytest.mark.parametrize(
    ("odd", "kind", "said"),
    [
        (
            [entry(1), entry(2, "broadcast")],
            "operation",
            "rank 2 called broadcast at /job/train.py:12",
        ),
        (
            [entry(1), entry(2, input_sizes=[[32]])],
            "shape",
            "rank 2 [32] in all_reduce at",
        ),
        (
            [entry(1), entry(2, input_dtypes=["BFloat16"])],
            "dtype",
            "rank 2 BFloat16 in all_reduce",
        ),
        ([entry(1)], "missing", "its last call was all_reduce (number 1) at /job/train.py:11"),
        ([], "missing", "its dump holds no call"),
        (
            [entry(1), entry(2, state="started", retired=False)],
            "unfinished",
            "did not end on rank 2",
        ),
    ],
)
def test_each_fault_is_named(
    odd: list[dict[str, Any]], kind: str, said: str, tmp_path: Path
) -> None:
    good = [entry(1), entry(2)]
    (found,) = dumps(tmp_path, good, good, odd).found
    assert found.kind == kind and said in found.said
    assert found.remedy


def test_calls_in_opposite_order_are_called_that(tmp_path: Path) -> None:
    one = [entry(1), entry(2, "all_gather"), entry(3, "broadcast")]
    two = [entry(1), entry(2, "broadcast"), entry(3, "all_gather")]
    (found,) = dumps(tmp_path, one, two).found
    assert found.kind == "order" and found.sequence == 2


def test_a_ring_buffer_that_lost_its_start_is_compared_from_what_all_have(tmp_path: Path) -> None:
    calls = [entry(one) for one in range(1, 6)]
    assert dumps(tmp_path, calls[2:], calls, calls[1:]).found == ()


def test_sizes_of_an_all_to_all_may_differ(tmp_path: Path) -> None:
    one, two = ([entry(1, "all_to_all", input_sizes=[[size]])] for size in (3, 5))
    assert dumps(tmp_path, one, two).found == ()


def test_a_send_without_its_receive_is_named(tmp_path: Path) -> None:
    sends = [entry(0, "send 0->1", is_p2p=True, p2p_seq_id=number) for number in (1, 2)]
    receives = [entry(0, "recv 1<-0", is_p2p=True, p2p_seq_id=1)]
    (found,) = dumps(tmp_path, sends, receives).found
    assert found.kind == "p2p" and "2 of these calls" in found.said


def test_a_rank_without_a_dump_is_named(tmp_path: Path) -> None:
    configured = {"0": {"name": "0", "ranks": "[0, 1, 2, 3]"}}
    found = dumps(tmp_path, [entry(1)], [entry(1)], pg_config=configured)
    assert found.missing_dumps == (2, 3)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (pickle.dumps({"entries": [Hostile()]}), "which no dump does"),
        (pickle.dumps({"entries": [entry(1)]})[:-40], "cut short"),
        (pickle.dumps({"entries": [{"a": 1}]}), "damaged"),
        *(
            (
                pickle.dumps(
                    {
                        "rank": 0,
                        "entries": [
                            {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, **one}
                        ],
                    }
                ),
                "damaged",
            )
            for one in (
                {"input_sizes": [[None]]},
                {"output_sizes": [[float("inf")]]},
                {"collective_seq_id": float("inf")},
                {"state": "asleep"},
            )
        ),
        (pickle.dumps([1, 2]), "holds no entries"),
        (b"\x00\x01", "no flight-recorder dump"),
        (b"{not json", "no flight-recorder dump"),
        (b"", "no flight-recorder dump"),
    ],
)
def test_a_file_that_is_no_dump_is_one_line(
    raw: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump_0"
    path.write_bytes(raw)
    with pytest.raises(RanksError, match=said):
        read_dump(path)
    assert not (tmp_path / "harmed").exists()


def test_a_damaged_file_beside_good_ones_is_told(tmp_path: Path) -> None:
    (tmp_path / "trace_9").write_bytes(b"\x80")
    found = dumps(tmp_path, [entry(1)], [entry(1)])
    assert len(found.faults) == 1 and "trace_9" in found.faults[0]


def test_dumps_of_different_runs_are_refused(tmp_path: Path) -> None:
    for rank, version in enumerate(("2.10", "2.9")):
        document = {"version": version, "entries": [entry(1)]}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(document))
    with pytest.raises(RanksError, match="give dumps of one run"):
        read_dumps([tmp_path])


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RanksError, match="holds no flight-recorder dump"):
        read_dumps([tmp_path])
