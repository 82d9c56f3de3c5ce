"""`ratchet debug` on logs: what NCCL's watchdog and torchrun say, with dumps and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_ranks import Job

from ratchet.cli import main
from ratchet.scale.ranks.dumps import read_dumps
from ratchet.scale.ranks.untangle import Untangled, untangle

SUMMARY = """E1129 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 0 (pid: 9) of binary: python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-02_10:00:07
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 4711)
srun: error: node1: task 0: Exited with exit code 1
"""  # noqa: E501
PLACE = "[E321 02:07:08.408 ProcessGroupNCCL.cpp:607]"


def waited(
    rank: int, number: int = 7, operation: str = "ALLREDUCE", size: int = 8, own: int | None = None
) -> str:
    """Return the watchdog's line, behind the time that a collector of logs puts before it."""
    return (
        f"2026-11-02 10:00 [rank{rank}]:{PLACE} [Rank {rank if own is None else own}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, "
        f"NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600060 milliseconds\n"
    )


def of_group(rank: int, group: str, number: int = 7) -> str:
    return (
        f"[rank{rank}]:{PLACE} [PG ID 0 PG GUID {group} Rank {rank}]  failure detected by watchdog "
        f"at work sequence id: {number} PG status: last enqueued work: 9, last completed work: 6\n"
    )


def read(folder: Path, text: str) -> Untangled:
    (folder / "job.log").write_text(text)
    return untangle(read_dumps([folder]))


def test_a_rank_that_its_own_watchdog_ended_is_not_the_cause(tmp_path: Path) -> None:
    job = Job(data=8, tensor=1, pipeline=1)
    job.ranks[3].stops_at = 1
    job.run().write(tmp_path)
    assert read(tmp_path, waited(0) + SUMMARY).found[0].ranks == (3,)
    assert read(tmp_path, SUMMARY).found[0].ranks == (0,)  # no watchdog: it ended first
    blocked = waited(0).replace("Watchdog caught collective operation timeout:", "Work")
    raised = "[rank0]: torch.distributed.DistBackendError: NCCL timed out\n"
    for log in (
        blocked + SUMMARY, raised + SUMMARY.replace("-6", "1"), SUMMARY.replace("-6", "-15"),
    ):  # fmt: skip
        assert read(tmp_path, log).found[0].ranks == (3,)
    own = raised + "2026 [rank0]: ValueError: no sample\n" + SUMMARY.replace("-6", "1")
    assert read(tmp_path, own).found[0].ranks == (0,)


def test_slurms_tasks_are_nodes_where_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    killed = "srun: error: node1: task 1: Killed\n"
    assert read(tmp_path, killed).found[0].ranks == (1,)
    found = read(tmp_path, "torch.distributed.elastic: x\n" + killed + waited(3))
    assert [one.kind for one in found.found] == ["unfinished"]


def old(rank: int, operation: str = "ALLREDUCE", shape: str = "TensorShape=[8, 4], ") -> str:
    """Return the watchdog's line before torch 1.13: without a number, and earlier without sizes."""
    return (
        f"[E ProcessGroupNCCL.cpp:587] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(OpType={operation}, {shape}Timeout(ms)=1800000) ran for 1807457 milliseconds\n"
    )


def wrapped(text: str, columns: int) -> str:
    """Return a line as a terminal of some columns breaks it."""
    line = text[text.index("[rank") :].rstrip()
    return "\n".join(line[at : at + columns] for at in range(0, len(line), columns)) + "\n"


@pytest.mark.parametrize(
    ("text", "kind", "ranks"),
    [
        (old(0) + old(1) + old(2, operation="BROADCAST"), "operation", (2,)),
        (old(0) + old(1, shape="TensorShape=[8, 5], "), "shape", (0, 1)),
        (old(0, shape="") + old(1, shape=""), "unfinished", (0, 1)),
        *(
            (wrapped(waited(0), columns) + wrapped(waited(1, size=9), columns), "shape", (0, 1))
            for columns in (80, 100, 120)
        ),
        (waited(0) + waited(1) + waited(2, operation="BROADCAST"), "operation", (2,)),
        (waited(0) + waited(1, number=9) + waited(1, number=8), "operation", (0, 1)),
        (waited(0) + waited(1, size=9), "shape", (0, 1)),
        (waited(0, operation="ALLTOALL_BASE") + waited(1, 7, "ALLTOALL_BASE", 9), "unfinished", ()),
        (waited(0, operation="SEND") + waited(1, operation="RECV"), "unfinished", ()),
        (waited(0) + waited(1) + waited(3), "unfinished", ()),
        (waited(0) + waited(1) + waited(3) + of_group(1, "0(default_pg)"), "missing", (2,)),
        (waited(13, own=1) + of_group(13, "119"), "unfinished", (13,)),
    ],
)
def test_time_outs_are_compared(
    text: str, kind: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    (found,) = read(tmp_path, text).found
    assert found.kind == kind and found.ranks == (ranks or found.ranks)


def test_a_log_alone_is_read_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(waited(0) + waited(1))
    assert main(["debug", str(log)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "ranks 0 and 1 timed out in allreduce (number 7" in said and "TORCH_FR_BUFFER" in said
    log.write_text(old(0) + old(1))
    assert main(["debug", str(log)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "timed out in allreduce (TensorShape=[8, 4])" in said
    log.write_text("step 1\nstep 2\n")
    assert main(["debug", str(log)]) == 2
