"""A snapshot's file is played backwards to its peak, and nothing in it is executed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import PlanError
from ratchet.train.memory.snapshots import read_snapshot

MODEL = [
    {"filename": "/home/me/train.py", "line": 7, "name": "forward"},
    {"filename": "/site-packages/torch/nn/modules/linear.py", "line": 1, "name": "forward"},
]
UPDATE = [
    {"filename": "/site-packages/torch/optim/adamw.py", "line": 2, "name": "step"},
    {"filename": "/home/me/train.py", "line": 9, "name": "main"},
]


def event(action: str, address: int, size: int, frames: Any = ()) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": list(frames), "stream": 0}


def snapshot(path: Path, **changes: Any) -> Path:
    """A device with 100 bytes of state at the end, and 700 bytes at its peak."""
    blocks = [
        {"size": 100, "address": 10, "state": "active_allocated", "frames": UPDATE},
        {"size": 900, "address": 110, "state": "inactive", "frames": []},
    ]
    segment = {"address": 10, "total_size": 1000, "device": 0, "blocks": blocks}
    events = [
        event("alloc", 10, 100, UPDATE),
        event("alloc", 200, 400, MODEL),
        event("alloc", 600, 200, MODEL),
        event("oom", 0, 5000),
        event("free_requested", 600, 200),
        event("free_completed", 600, 200),
        event("free_requested", 200, 400),
        event("alloc", 200, 50, MODEL),
        event("free_requested", 200, 50),
    ]
    document = {"segments": [segment], "device_traces": [events], **changes}
    path.write_bytes(pickle.dumps(document))
    return path


def test_the_peak_is_found_with_its_categories_and_stacks(tmp_path: Path) -> None:
    found = read_snapshot(snapshot(tmp_path / "s.pickle"))
    assert (found.device, found.peak_bytes, found.reserved_bytes) == (0, 700, 1000)
    assert found.by_category == {"activations": 600, "optimizer": 100}
    assert found.failed_bytes == 5000
    first = found.largest[0]
    assert (first.size_bytes, first.count) == (600, 2)
    assert first.stack == ("/home/me/train.py:7 forward",)


def test_without_history_the_end_is_the_peak(tmp_path: Path) -> None:
    found = read_snapshot(snapshot(tmp_path / "s.pickle", device_traces=[[]]))
    assert found.peak_bytes == 100
    assert found.failed_bytes is None


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps({"segments": 3}),
     pickle.dumps({"segments": [], "device_traces": []}), pickle.dumps(Evil())],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused_in_one_line(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="_record_memory_history") as caught:
        read_snapshot(path)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.pickle"):
        read_snapshot(tmp_path / "none.pickle")
