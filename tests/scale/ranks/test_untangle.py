"""`ratchet debug` on small dumps of known hangs, with logs and stacks beside them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from simulated_ranks import Job

from ratchet.base.errors import RanksError
from ratchet.cli import main
from ratchet.scale.ranks.dumps import read_dumps
from ratchet.scale.ranks.untangle import Untangled, untangle

NCCL, GLOO = "nccl", "gloo"


def call(number: int, named: str, line: int, backend: str = NCCL, **changed: Any) -> dict[str, Any]:
    ends = named.partition(" ")[2]
    frames = [{"name": "step", "filename": "/job/train.py", "line": line}]
    fields = {
        "frames": frames, "pg_id": 0, "process_group": ("0", "default_pg"), "record_id": number - 1,
        "collective_seq_id": 0 if ends else number, "p2p_seq_id": number if ends else 0,
        "profiling_name": f"{backend}:{named}", "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "is_p2p": bool(ends), "retired": True,
        "state": "completed" if backend == NCCL else "scheduled",
        "time_created_ns": 10**18 + number,
    }  # fmt: skip
    return fields | changed


def write(folder: Path, config: dict[str, list[int]], **dumps: list[dict[str, Any]]) -> Path:
    """Write dumps of ranks (`r0=[...]`) that know these groups."""
    for name, entries in dumps.items():
        own = {one: ranks for one, ranks in config.items() if not ranks or int(name[1:]) in ranks}
        document = {
            "version": "2.10", "pg_status": {}, "entries": entries,
            "pg_config": {one: {"name": one, "desc": "", "ranks": str(ranks)}
                          for one, ranks in own.items()},
        }  # fmt: skip
        (folder / f"dump_{name[1:]}").write_bytes(pickle.dumps(document))
    return folder


def read(folder: Path) -> Untangled:
    return untangle(read_dumps([folder]))


PIPES = {"0": [0, 1, 2, 3], "1": [0, 2], "2": [1, 3]}


def pipe(name: str, number: int, named: str) -> dict[str, Any]:
    return call(number, named, 7, process_group=(name, "PIPELINE"), pg_id=1)


def test_ends_of_sends_are_counted_inside_their_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, PIPES, r0=[pipe("1", 1, "send 0->1")], r1=[pipe("2", 1, "send 0->1")])
    assert main(["debug", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "agree" in said and "ranks 2 and 3 left no dump: not looked at" in said


def test_a_receive_without_its_send_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receives = [pipe("1", number, "recv 1<-0") for number in (1, 2)]
    write(tmp_path, PIPES, r0=[pipe("1", 1, "send 0->1")], r2=receives)
    assert main(["debug", str(tmp_path)]) == 1
    assert "rank 0 did not send what rank 2 awaits" in " ".join(capsys.readouterr().out.split())
    (found,) = read(tmp_path).found
    assert found.kind == "p2p" and found.ranks == (0,) and "/job/train.py:7" in found.said


def test_files_that_cannot_be_read_are_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"": [0, 1, 2]}, r0=[call(one, "all_gather", 14, GLOO) for one in (1, 2)])
    for rank in (1, 2):
        (tmp_path / f"dump_{rank}").write_bytes(b"")
    assert main(["debug", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("2 files cannot be read") and "agree" not in said


def test_lines_that_part_before_the_operations_do(tmp_path: Path) -> None:
    lines = (14, 15, 28, 28)
    names = ("all_gather", "all_gather", "all_gather", "all_reduce")
    whole = [call(one + 1, names[one % 4], lines[one % 4], GLOO) for one in range(7)]
    short = [call(one + 1, names[(one + (one > 3)) % 4], lines[(one + (one > 3)) % 4], GLOO)
             for one in range(7)]  # fmt: skip
    write(tmp_path, {"": [0, 1, 2]}, r0=whole, r1=short, r2=whole)
    found = read(tmp_path)
    (first,) = found.found
    assert (first.kind, first.ranks, first.sequence) == ("skipped", (1,), 5)
    assert "/job/train.py:14" in first.said and "/job/train.py:15" in first.said


def test_ranks_that_meet_under_one_name_without_being_one_group(tmp_path: Path) -> None:
    own = {"process_group": ("1", "undefined"), "pg_id": 1}
    passed = [call(1, "barrier", 8, GLOO, **own), call(2, "all_reduce", 9, GLOO, **own)]
    left = [call(1, "barrier", 8, GLOO, retired=False, **own)]
    write(tmp_path, {"": []}, r0=left, r1=passed, r2=passed)
    (found,) = read(tmp_path).found
    assert found.kind == "members" and "rank 0 still waits" in found.said
    assert "train.py:8" in found.said


@pytest.mark.parametrize("has_worked", [False, True])
def test_halves_of_a_split_may_share_a_name_once_they_work(
    has_worked: bool, tmp_path: Path
) -> None:
    own = {"process_group": ("1", "split"), "pg_id": 1}
    stuck = {"state": "scheduled", "retired": False}
    calls = [call(1, "all_reduce", 8, **own, **({} if has_worked else stuck))]
    for rank in range(4):
        half = [0, 3] if rank in (0, 3) else [1, 2]
        write(tmp_path, {"1": half}, **{f"r{rank}": calls})
    kinds = [one.kind for one in read(tmp_path).found]
    assert kinds == ([] if has_worked else ["members"])


def test_a_dump_under_the_name_of_a_rank_that_its_groups_lack_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"0": [0, 1]}, r0=[call(1, "all_reduce", 8)], r1=[call(1, "all_reduce", 8)])
    (tmp_path / "dump_1").rename(tmp_path / "dump_1001")
    (fault,) = read(tmp_path).faults
    assert "rank 1001, which its groups of ranks 0 to 1 lack" in fault


def test_what_is_said_of_many_ranks_alike_is_said_once(tmp_path: Path) -> None:
    job = Job(data=2, tensor=1, pipeline=2)
    for rank in (0, 1):
        del job.ranks[rank].program[3:]
    job.run().write(tmp_path)
    for rank in (0, 1):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"cut")
    first = read(tmp_path).found[0]
    assert first.ranks == (0, 1) and first.said.endswith("waits: their dumps cannot be read")


@pytest.mark.parametrize(("form", "is_told"), [("pickle", True), ("json", False)])
def test_what_comes_otherwise_is_told_if_the_same_always_came(
    form: str, is_told: bool, tmp_path: Path
) -> None:
    job = Job(data=2, tensor=2, pipeline=2, form=form)
    own = job.ranks[3].program
    sums = [place for place, one in enumerate(own) if (one.family, one.line) == ("TP", 11)]
    del own[sums[2] + 1 :]  # in the second step, behind the first of two products
    job.run().write(tmp_path)
    first = read(tmp_path).found[0]
    assert first.ranks == (3,)
    assert ("at /job/train.py:12" in first.said) == is_told
    assert "comes otherwise" not in first.said


def test_gloo_marks_a_call_as_ended_that_a_dead_rank_failed(tmp_path: Path) -> None:
    calls = [call(1, "all_reduce", 8, GLOO), call(2, "broadcast", 9, GLOO)]
    more = [*calls, call(3, "all_reduce", 10, GLOO, retired=False)]
    write(tmp_path, {"": [0, 1, 2]}, r0=calls, r2=more)
    (found,) = read(tmp_path).found
    assert found.ranks == (1,) and "it left no dump" in found.said


def test_what_gloo_does_not_record_is_no_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"": [0, 1, 2]}, r0=[], r1=[], r2=[])
    assert main(["debug", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "gloo records no sends and receives" in said and "agree" not in said


def test_the_status_tells_of_calls_that_a_buffer_lost(tmp_path: Path) -> None:
    job = Job(data=8, tensor=1, pipeline=1)
    rank = job.ranks[3]
    rank.stops_at = job.find(3, "WORLD", 40, step=2)
    document = job.run().document(rank)
    job.write(tmp_path)
    document["entries"] = [one for one in document["entries"][-1:] if one["pg_id"] == 1]
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(document))
    (found,) = read(tmp_path).found
    assert found.ranks == (3,) and "its last one in this group was number 2" in found.said


TORCHRUN = """
Root Cause (first observed failure):
[0]:
  time      : 2026-11-02_10:00:07
  host      : node1
  rank      : 6 (local_rank: 6)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
"""


ATTEMPT = "E1129 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 27218) of binary: python\n"


def test_a_restart_of_torchrun_is_told_and_blames_no_rank_of_the_next_attempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [call(number, "all_reduce", 8) for number in (1, 2)]
    write(tmp_path, {"0": [0, 1]}, r0=calls, r1=calls)
    (tmp_path / "job.log").write_text(ATTEMPT)
    assert main(["debug", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "local rank 1 ended (exit code -9) and that torchrun started all ranks again" in said
    # What ended the last attempt has such a line too, and a summary.
    (tmp_path / "job.log").write_text(ATTEMPT.replace("rank: 1", "rank: 6") + TORCHRUN)
    found = read(tmp_path)
    assert found.found[0].ranks == (6,) and not any("again" in one for one in found.unseen)


def test_gloo_that_aborts_on_unequal_sizes_is_explained(tmp_path: Path) -> None:
    log = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 9000 vs 8000. Received\n"
    (tmp_path / "job.log").write_text(log + TORCHRUN.replace("-9", "-6").replace(": 6 (", ": 0 ("))
    calls = [call(1, "all_reduce", 8, GLOO)]
    write(tmp_path, {"": [0, 1]}, r0=calls, r1=calls)
    (first, *_) = read(tmp_path).found
    assert "another rank sent 9000 bytes where it expected 8000" in first.said
    empty = tmp_path / "empty"
    empty.mkdir()
    write(empty, {"0": [0, 1]}, r0=[], r1=[])
    (tmp_path / "job.log").rename(empty / "job.log")
    with pytest.raises(RanksError, match=r"without a call.*job\.log says that rank 0 ended"):
        read(empty)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.log", TORCHRUN, "job.log: exit code -9"),
        ("slurm-17.out", "srun: error: node1: task 6: Killed\nslurmstepd: error: x\n", "Killed"),
        (
            "err.txt",
            "[rank2]: torch.distributed.DistBackendError: NCCL timed out\n"
            "[rank6]: ValueError: no sample 17\n",
            "ValueError: no sample 17",
        ),
    ],
)
def test_a_log_tells_which_rank_ended(name: str, text: str, said: str, tmp_path: Path) -> None:
    job = Job()
    job.ranks[6].stops_at = job.find(6, "DP", 30)
    job.ranks[6].dump = job.ranks[11].dump = "none"
    job.run().write(tmp_path)
    (tmp_path / name).write_text(text)
    first = read(tmp_path).found[0]
    assert first.ranks == (6,) and said in first.said


def test_a_rank_that_ended_with_nobody_waiting_is_told(tmp_path: Path) -> None:
    Job(data=8, tensor=1, pipeline=1).run().write(tmp_path)
    (tmp_path / "job.log").write_text(TORCHRUN)
    (found,) = read(tmp_path).found
    assert (found.kind, found.ranks) == ("ended", (6,))


PY_SPY = """Process 71: python train.py
Python v3.11.7

Thread 72 (idle): "pt_data"
    wait (threading.py:320)
Thread 71 (active): "MainThread"
    load (/job/data.py:31)
    main (/job/train.py:90)
"""
FAULTHANDLER = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f00 (most recent call first):
  File "/job/data.py", line 31 in load
  File "/job/train.py", line 90 in main
"""


@pytest.mark.parametrize("text", [PY_SPY, FAULTHANDLER])
def test_a_stack_beside_the_dumps_says_where_the_rank_is(text: str, tmp_path: Path) -> None:
    job = Job()
    job.ranks[9].stops_at = job.find(9, "TP", 11)
    job.run().write(tmp_path)
    (tmp_path / "stack_9.txt").write_text(text)
    (found,) = read(tmp_path).found
    assert "it is at /job/data.py:31 in load < /job/train.py:90 in main" in found.said
    assert found.stacks[9] == ("/job/data.py:31 in load", "/job/train.py:90 in main")


def test_a_text_that_says_nothing_is_told_if_it_was_named(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    Job(data=8, tensor=1, pipeline=1).run().write(folder)
    notes = folder / "notes.txt"
    notes.write_text("a\nb\n")
    assert not read_dumps([folder]).faults
    assert "notes.txt" in read_dumps([*folder.glob("nccl*"), notes]).faults[0]


def test_ranks_of_a_lost_node_are_named_together(tmp_path: Path) -> None:
    job = Job()
    for rank in range(8, 16):
        job.ranks[rank].stops_at = job.find(rank, "TP", 11)
        job.ranks[rank].dump = "none"
    job.run().write(tmp_path)
    (found,) = read(tmp_path).found
    assert found.ranks == tuple(range(8, 16)) and "may not have" in found.said


def test_what_came_before_an_ended_call_has_ended(tmp_path: Path) -> None:
    stuck = {"state": "scheduled", "retired": False}
    calls = [call(1, "all_reduce", 8, **stuck), call(2, "all_reduce", 9)]
    batch = [call(1, "send 0->1", 8, **stuck), call(2, "coalesced", 8, is_p2p=True, p2p_seq_id=2)]
    other = [call(1, "recv 1<-0", 8, **stuck), call(2, "coalesced", 8, is_p2p=True, p2p_seq_id=2)]
    write(tmp_path, {"0": [0, 1]}, r0=calls + batch, r1=calls + other)
    assert not read(tmp_path).found


def test_a_json_dump_counts_in_words(tmp_path: Path) -> None:
    job = Job(data=8, tensor=1, pipeline=1, form="json")
    job.ranks[2].stops_at = 1
    job.run().write(tmp_path)
    status = json.loads((tmp_path / "nccl_trace_rank_0").read_text())["pg_status"]
    assert status["1"]["last_enqueued_collective"] == "2"
    (found,) = read(tmp_path).found
    assert found.ranks == (2,) and found.sequence == 2


@pytest.mark.parametrize(
    ("data", "tensor", "rank"),
    [(8, 2, 40), pytest.param(64, 8, 700, marks=pytest.mark.thorough)],
)
def test_of_what_many_ranks_wait_for_some_is_shown(
    data: int, tensor: int, rank: int, tmp_path: Path
) -> None:
    job = Job(data=data, tensor=tensor, pipeline=4, steps=1, micro_batches=1)
    job.ranks[rank].stops_at = job.find(rank, "TP", 11, step=0)
    job.run().write(tmp_path)
    (found,) = read(tmp_path).found
    assert found.ranks == (rank,) and len(found.waiting) > len(job.ranks) / 4
    assert len(found.follows) == 13 and found.follows[-1].startswith("and ")
