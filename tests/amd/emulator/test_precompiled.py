"""HIP's precompiled headers: commands that want the same ones at once make them once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from ratchet.amd.compile.hip_compiler import SIDES
from ratchet.amd.emulator import hip_build
from ratchet.base import scratch


def test_two_at_once_precompile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_found_none, asked_for, made = Barrier(2), list[Path](), list[Path]()
    locked = scratch.locked

    def waiting(folder: Path) -> object:
        asked_for.append(folder)
        both_found_none.wait(timeout=60)
        return locked(folder)

    def precompile(folder: Path, *_: object, **__: object) -> None:
        made.append(folder)
        for side in SIDES:
            (folder / f"{side}.pch").touch()

    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path))
    monkeypatch.setattr(hip_build, "toolchain", lambda _: "key")
    monkeypatch.setattr(hip_build, "precompile", precompile)
    monkeypatch.setattr(scratch, "locked", waiting)
    with ThreadPoolExecutor(max_workers=2) as pool:
        asked = [pool.submit(hip_build.precompiled, "gfx942", with_torch=False) for _ in range(2)]
        folders = [one.result() for one in asked]
    assert folders[0] == folders[1] == made[0] and len(made) == 1
    assert len(asked_for) == 2
