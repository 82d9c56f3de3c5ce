"""A few rounds of the kill loop; `benchmarks/train/kill_loop.py --times 200` makes the figure."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "train"))

from kill_loop import Loop

KILLS = 3 if os.environ.get("RATCHET_TEST") == "all" else 1
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("command", ["judge", "optimize"])
def test_a_kill_loses_no_row_that_was_reported(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RATCHET_STARTED_BY", raising=False)
    loop = Loop(tmp_path, random.Random())
    loop.lasts_s[command] = 15.0  # of which the kills draw their moments
    tally = loop.run(KILLS, (command,))
    assert tally.faults == []
    assert (tally.rows_lost, tally.left_processes) == (0, 0)
    assert tally.kills + tally.ends == KILLS
