"""A verdict is void once what decided it has changed, and not before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.base import FOLDER
from ratchet.judge import revision as module
from ratchet.judge.revision import revision

Changed = Callable[[str], tuple[bool, bool]]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Change a file of a copy; return whether verdicts here and emulated ones are void then."""
    copy = tmp_path / "ratchet"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "FOLDER", copy)
    now = revision.__wrapped__
    before = now(), now("gfx942")

    def change(path: str) -> tuple[bool, bool]:
        with (copy / path).open("a") as file:
            file.write("\n# another line\n")
        measured, emulated = now(), now("gfx942")
        return measured != before[0], emulated != before[1]

    return change


def test_another_instruction_of_amd_leaves_what_was_proven_here(changed: Changed) -> None:
    assert changed("amd/emulator/operations.py") == (False, True)


@pytest.mark.parametrize(
    "path",
    [
        "base/devices/rates.py",
        "judge/problems/tolerance.py",
        "judge/sandbox/keeper.py",
        "judge/workers/reference.py",
        "judge/kernels/languages/ratchet_abi.h",
    ],
)
def test_what_decides_a_verdict_voids_it(changed: Changed, path: str) -> None:
    assert changed(path) == (True, True)


@pytest.mark.parametrize(
    "path", ["amd/port/patch.py", "judge/kernels/library/rope.py", "train/turn/loop.py"]
)
def test_what_decides_no_verdict_voids_none(changed: Changed, path: str) -> None:
    assert changed(path) == (False, False)
