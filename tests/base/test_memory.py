"""Free memory: what the machine, its control groups and `ulimit -v` leave."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from ratchet.base.process import memory as room
from ratchet.base.process.memory import MachineMemory, free_bytes, memory


def test_the_memory_that_is_free_is_what_every_control_group_leaves(tmp_path: Path) -> None:
    meminfo, groups, mounted = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "fs"
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n")
    whole = MachineMemory(free=8000 << 10, total=9000 << 10)
    assert memory(meminfo, groups, mounted) == whole
    inner = mounted / "box" / "task"
    inner.mkdir(parents=True)
    groups.write_text("0::/box/task\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5\n")
    assert memory(meminfo, groups, mounted) == whole
    for name, text in (("max", "5000000\n"), ("current", "3000000\n"), ("stat", "anon 1\n")):
        (inner.parent / f"memory.{name}").write_text(text)
    assert memory(meminfo, groups, mounted) == (2_000_000, 5_000_000)
    (inner.parent / "memory.stat").write_text("anon 1\ninactive_file 500000\n")
    assert memory(meminfo, groups, mounted) == (2_500_000, 5_000_000)
    old = mounted / "memory" / "box"
    old.mkdir(parents=True)
    groups.write_text("4:cpu:/box\n3:memory:/box\n")
    (old / "memory.limit_in_bytes").write_text("1000000\n")
    (old / "memory.usage_in_bytes").write_text("900000\n")
    (old / "memory.stat").write_text("total_inactive_file 0\n")
    assert memory(meminfo, groups, mounted) == (100_000, 1_000_000)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")  # version 1's "none"
    assert memory(meminfo, groups, mounted) == whole


def test_an_address_limit_leaves_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "memory", lambda: MachineMemory(free=8 << 30, total=16 << 30))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert free_bytes() == 8 << 30
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, 0))
    assert 0 < free_bytes() < 4 << 30
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 0))
    assert free_bytes() == 0


def test_this_machine_has_memory() -> None:
    free, total = memory()
    assert 0 < free <= total
