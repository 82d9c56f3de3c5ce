"""What a machine keeps free while a candidate runs: of its memory, and of disks it may fill."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.base.process import families
from ratchet.judge.sandbox import isolation
from ratchet.judge.sandbox.isolation import Headroom

TOTAL, BLOCK = 1 << 30, 4096
KEPT = int(isolation.KEPT_SHARE * TOTAL)


class Disks:
    """The free bytes of each folder's disk, as `statvfs` tells them."""

    def __init__(self, **free: int) -> None:
        self.free = {Path(f"/{name}"): size for name, size in free.items()}

    def statvfs(self, folder: Path) -> SimpleNamespace:
        """More is free to root than to others: that is not to be used."""
        return SimpleNamespace(
            f_bavail=self.free[folder] // BLOCK,
            f_bfree=TOTAL // BLOCK,
            f_frsize=BLOCK,
            f_blocks=TOTAL // BLOCK,
        )


def told(room: Headroom) -> str:
    found = room.shortage()
    assert found is not None and not found.of_others
    return found.words


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    made = Disks(scratch=TOTAL // 2, tmp=TOTAL // 2)
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


@pytest.mark.parametrize("folder", [Path("/scratch"), Path("/tmp")])
def test_a_disk_that_is_filled_is_a_shortage(disks: Disks, folder: Path) -> None:
    room = Headroom([Path("/scratch"), Path("/tmp")])
    assert room.shortage() is None
    disks.free[folder] = KEPT + BLOCK
    assert room.shortage() is None
    disks.free[folder] = KEPT - BLOCK
    assert told(room) == f"the disk had {(KEPT - BLOCK) >> 20} MiB left while it ran"
    disks.free[folder] = 0
    assert told(room) == "the disk had 0 MiB left while it ran"


def test_a_disk_that_was_nearly_full_may_be_used_by_half(disks: Disks) -> None:
    disks.free[Path("/tmp")] = 40 * BLOCK
    room = Headroom([Path("/tmp")])
    disks.free[Path("/tmp")] = 20 * BLOCK
    assert room.shortage() is None
    disks.free[Path("/tmp")] = 19 * BLOCK
    assert room.shortage() is not None


def test_a_disk_that_nobody_named_is_nobodys_shortage(disks: Disks) -> None:
    room = Headroom([Path("/scratch")])
    disks.free[Path("/tmp")] = 0
    assert room.shortage() is None


def test_memory_comes_first(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [TOTAL]
    monkeypatch.setattr(isolation, "memory", lambda: (free[0], TOTAL))
    room = Headroom([Path("/tmp")])
    free[0] = KEPT - 1
    disks.free[Path("/tmp")] = 0
    assert told(room) == f"the machine had {KEPT >> 20} MiB of memory left while it ran"


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_memory_that_others_took_is_not_the_kernel_s(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [TOTAL]
    monkeypatch.setattr(isolation, "memory", lambda: (free[0], TOTAL))
    monkeypatch.setattr(families, "resident_bytes", lambda _: int(share * TOTAL))
    room = Headroom()
    room.watch(os.getpid())
    monkeypatch.setattr(families, "family", lambda root: {root: None})
    free[0] = 0
    found = room.shortage()
    assert found is not None and found.of_others is (share < 0.5)
    assert ("held only" in found.words) is found.of_others


def test_the_disk_of_a_real_folder_is_read(tmp_path: Path) -> None:
    free, total = isolation._disk_bytes(tmp_path)
    assert 0 < free <= total
