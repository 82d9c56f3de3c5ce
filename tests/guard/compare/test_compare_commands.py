"""Commands as arms: their figures, their metrics, and how they fail."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ratchet.base.errors import GuardError
from ratchet.guard.compare.commands import CommandSide, read_metrics, run_command
from ratchet.guard.compare.request import CompareRequest


def side(command: str, folder: Path) -> CommandSide:
    return CommandSide(title=command, command=command, folder=folder)


def test_a_command_is_timed_whole(tmp_path: Path) -> None:
    ran = run_command(side("sleep 0.05", tmp_path), printed=False, limit_s=60)
    assert ran.time_s >= 0.05 and not ran.out


def test_a_command_s_children_count(tmp_path: Path) -> None:
    busy = "python3 -c 'x = bytearray(200 << 20); sum(range(3000000))'"
    ran = run_command(side(f"({busy})", tmp_path), printed=False, limit_s=60)
    assert ran.cpu_time_s > 0.01
    assert ran.peak_memory_bytes == 0 or ran.peak_memory_bytes > 200 << 20


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("3.5", {"value": 3.5}),
        ("-1e-3", {"value": -1e-3}),
        ("1 2.5", {"value1": 1.0, "value2": 2.5}),
        ("tokens_per_s=12.5 loss: 3", {"tokens_per_s": 12.5, "loss": 3.0}),
        ('{"time_s": 0.5, "name": "x", "ok": true}', {"time_s": 0.5}),
        ("step time: 12 ms", {"time": 12.0}),
    ],
)
def test_metrics_are_read(line: str, found: dict[str, float]) -> None:
    assert read_metrics(line, "x") == found


@pytest.mark.parametrize("line", ["", "done", "{}", "[1, 2]", "took 3 s", '{"a": NaN}'])
def test_what_is_no_metric_is_one_line(line: str) -> None:
    with pytest.raises(GuardError, match="printed"):
        read_metrics(line, "'x'")


@pytest.mark.parametrize(
    ("command", "said", "limit_s"),
    [
        ("echo why >&2; exit 3", "exited with 3: why", 60),
        ("kill -9 $$", "was ended by signal 9", 60),
        ("no-such-program-x", "exited with 127", 60),
        ("sleep 60", "took more than 0.5 s", 0.5),
    ],
)
def test_a_command_that_fails(command: str, said: str, limit_s: float, tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=said):
        run_command(side(command, tmp_path), printed=False, limit_s=limit_s)


def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    run_command(side(f"sleep 600 & echo $! > {mark}", tmp_path), printed=False, limit_s=60)
    pid = int(mark.read_text())
    for _ in range(200):
        if not _runs(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} still runs")


def test_a_command_that_is_late_begins_nothing_more(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match="took more than"):
        run_command(side("sleep 60; touch next", tmp_path), printed=False, limit_s=0.5)
    assert not (tmp_path / "next").exists()


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match="cannot be started in"):
        run_command(side("true", tmp_path / "gone"), printed=False, limit_s=1)
    assert os.path.exists(tmp_path)


def test_a_request_comes_back_from_the_ledger_as_it_was(tmp_path: Path) -> None:
    asked = CompareRequest(
        workloads=("own.py:plain",), modes=("", "compile"), batch_size=4, folder=tmp_path
    )
    kept = json.loads(json.dumps(asked.kept()))
    assert CompareRequest.of(kept) == asked
    with pytest.raises(GuardError, match=r"another version .* `options`"):
        CompareRequest.of({**kept, "options": {}})
