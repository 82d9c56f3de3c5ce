"""Preflight: real gloo ranks, what stands out, and a rank that dies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from forked_ranks import run_forked

from ratchet.scale.ranks.preflight import Preflight, RankCheck, _pairs, outliers, preflight

ONE = RankCheck(
    rank=0, host="a", device="cpu", gemm_flops_per_s=1e11, copy_bytes_per_s=1e10,
    ring_bytes_per_s=1e9, all_to_all_bytes_per_s=1e9, clock_skew_s=0.0,
    versions={"torch": "2.13.0"},
)  # fmt: skip
RANKS = [replace(ONE, rank=rank, host="ab"[rank % 2]) for rank in range(4)]


def test_a_process_alone_checks_its_device() -> None:
    found = preflight("cpu")
    assert isinstance(found, Preflight)
    (own,) = found.ranks
    assert own.gemm_flops_per_s > 0 and own.copy_bytes_per_s > 0
    assert own.ring_bytes_per_s == 0 and found.outliers == ()


def test_ranks_that_are_alike_have_no_outliers() -> None:
    assert outliers(RANKS, {"0-1": 1e9, "1-2": 1e9, "2-3": 0.95e9}) == []


def test_what_stands_out_is_named() -> None:
    slow = [*RANKS[:3], replace(RANKS[3], gemm_flops_per_s=5e10, clock_skew_s=-0.2,
                                versions={"torch": "2.12.0"})]  # fmt: skip
    said = outliers(slow, {"0-1": 1e9, "1-2": 1e9, "2-3": 2e8})
    assert said[0] == "rank 3 on b: matrix products at 50% of the ranks' median"
    assert said[1] == "ranks 2 and 3: their link at 20% of the fastest"
    assert said[2] == "rank 3 on b: its clock is -0.200 s off rank 0's"
    assert said[3] == "torch differs between ranks: 2.13.0 on 0, 1, 2; 2.12.0 on 3"


@pytest.mark.parametrize("world", [3, 4, 8])
def test_a_rank_behind_a_slow_link_is_named_and_no_other(world: int) -> None:
    ranks = [replace(ONE, rank=rank) for rank in range(world)]
    pairs = {f"{a}-{b}": 2e8 if world - 1 in (a, b) else 1e9 for a, b in _pairs(world)}
    said = outliers(ranks, pairs)
    assert [one.partition(":")[0] for one in said] == [f"rank {world - 1} on a"]
    assert "no link above 20% of" in said[0]


JOB = """
import os, sys
from ratchet.base.errors import RanksError
import ratchet.scale.ranks.preflight as room
from ratchet.scale.ranks.preflight import preflight
room.GEMM_SIZE, room.COPY_BYTES = {"cpu": 128}, {"cpu": 1 << 20}
room.MESSAGE_BYTES = {"cpu": 1 << 16}
if sys.argv[1] == "dies" and os.environ["RANK"] == "1":
    os._exit(9)
try:
    found = preflight("cpu", time_limit_s=2 if sys.argv[1] == "dies" else 20)
except RanksError as error:
    print("SAID", error, flush=True)
    os._exit(2)
if found:
    print("PAIRS", sorted(found.pairs), len(found.ranks),
          all(one.ring_bytes_per_s > 0 and one.all_to_all_bytes_per_s > 0 for one in found.ranks),
          max(abs(one.clock_skew_s) for one in found.ranks) < 1, flush=True)
"""


def run_ranks(fault: str, folder: Path) -> str:
    script = folder / "job.py"
    script.write_text(JOB)
    return run_forked(2, "ratchet.scale.ranks.preflight", script, fault).stdout


def test_two_ranks_measure_their_links(tmp_path: Path) -> None:
    assert "PAIRS ['0-1'] 2 True True" in run_ranks("none", tmp_path)


def test_a_rank_that_never_comes_is_named_within_the_limit(tmp_path: Path) -> None:
    said = run_ranks("dies", tmp_path)
    assert "SAID rank 1 of 2 never came within 2 s" in said
