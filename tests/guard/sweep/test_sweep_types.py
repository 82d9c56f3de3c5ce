from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from ratchet.base.errors import GuardError
from ratchet.cli import main
from ratchet.guard import sweep as model_types
from ratchet.guard.sweep import (
    LEAST_SHARE,
    REPRODUCTIONS,
    ROWS,
    ArmRun,
    SweepRequest,
    SweepSettings,
    TypeRow,
    sweep,
    trial,
)
from ratchet.train.workloads.hf_config import trained_types

SAMPLE = "qwen3"
"""A decoder that takes every kernel; all types train in the long tier."""


@pytest.fixture
def tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of this process tries a type: the program would import torch and transformers anew."""
    real = trial.try_type

    def on_one_thread(*arguments: Any, **named: Any) -> TypeRow:
        torch.set_num_threads(1)  # a fork has none of its parent's
        warnings.simplefilter("default")
        return real(*arguments, **named)

    def tried(types: list[str], settings: SweepSettings, versions: str) -> Iterator[TypeRow]:
        request = SweepRequest(
            types=tuple(types), device=settings.device, budget_s=None, limit_s=settings.limit_s,
            memory_bytes=model_types.MEMORY_BYTES, quick=settings.quick, versions=versions,
        )  # fmt: skip
        return (trial.in_a_fork(name, request) for name in [*types])

    monkeypatch.setattr(trial, "try_type", on_one_thread)
    monkeypatch.setattr(model_types, "_tried", tried)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.usefixtures("tried_here")
def test_a_type_trains_to_the_losses_as_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "hf", "--quick", "--types", SAMPLE, "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["type"]: row for row in document["rows"]}
    assert set(rows) == set(SAMPLE.split(","))
    assert {row["status"] for row in rows.values()} <= {"works", "falls back"}, rows
    assert rows["qwen3"]["status"] == "works"
    assert set(rows["qwen3"]["installed"]) >= {"attention", "rms_norm", "linear_cross_entropy"}
    for row in rows.values():
        assert row["runs"]["kernels"]["gradient_error"] < 1e-3
        assert len(row["runs"]["bf16"]["losses"]) == 3
    assert "| `qwen3` | CausalLM | works | 0 |" in (tmp_path / "table.md").read_text()


MADE_UP_PROGRAM = """
import json, sys

first, *others = json.loads(sys.argv[1])["types"]
print(json.dumps({"type": first, "status": "works", "why": str(len(others))}), flush=True)
sys.exit("no memory" if others else 0)
"""


def test_a_program_that_ends_too_early_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_up_sweep.py").write_text(MADE_UP_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(model_types, "PROGRAM", "made_up_sweep")
    types = ("bert", "gpt2", "llama")
    found = sweep(SweepSettings(out=tmp_path / "out", types=types), lambda *_: None)
    rows = sorted(((row.status, row.why) for row in found.rows), key=str)
    said = "the sweep's program ended with 1 at this type: no memory"
    assert rows == [("fails", said), ("works", "0"), ("works", "2")]


@pytest.mark.timeout(6 * 3600)
def test_every_type_trains(tmp_path: Path) -> None:
    words = ["sweep", "hf", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words], capture_output=True, text=True
    )
    document = json.loads(done.stdout)
    assert document["share"] >= LEAST_SHARE, done.stdout
    assert sum(document["counts"].values()) == len(trained_types())


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types that a sweep tries; each works at once."""
    names: list[str] = []

    def try_all(types: list[str], settings: SweepSettings, versions: str) -> list[TypeRow]:
        names.extend(types)
        return [TypeRow(type=name, status="works", versions=versions) for name in types]

    monkeypatch.setattr(model_types, "_tried", try_all)
    return names


def test_a_sweep_continues_where_it_ended(tmp_path: Path, tried: list[str]) -> None:
    first = sweep(SweepSettings(out=tmp_path, sample=5), lambda *_: None)
    assert len(tried) == len(first.rows) == 5
    with (tmp_path / ROWS).open("ab") as file:
        file.write(b'{"type": "bert", "sta')  # killed while it wrote
    tried.clear()
    again = sweep(SweepSettings(out=tmp_path, sample=5), lambda *_: None)
    assert (tried, again.rows) == ([], first.rows)
    sweep(SweepSettings(out=tmp_path, types=(first.rows[0].type,)), lambda *_: None)
    assert tried == [first.rows[0].type]


def test_rows_of_other_versions_do_not_count(tmp_path: Path, tried: list[str]) -> None:
    old = TypeRow(type="bert", status="works", versions="torch 1.0")
    (tmp_path / ROWS).write_bytes(msgspec.json.encode(old) + b"\n")
    found = sweep(SweepSettings(out=tmp_path, types=("bert",)), lambda *_: None)
    assert (tried, found.rows[0].versions != "torch 1.0") == (["bert"], True)


def test_a_sample_is_a_part_of_all_types(tmp_path: Path, tried: list[str]) -> None:
    few = sweep(SweepSettings(out=tmp_path / "a", sample=4), lambda *_: None)
    more = sweep(SweepSettings(out=tmp_path / "b", sample=9), lambda *_: None)
    assert {row.type for row in few.rows} < {row.type for row in more.rows} < set(trained_types())


def test_a_type_that_differs_gets_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"written": ArmRun(losses=(1.0,)), "bf16": ArmRun(losses=(2.0,))}
    row = TypeRow(type="bert", status="differs", why="bf16: loss 1", arm="bf16", runs=runs)
    monkeypatch.setattr(model_types, "_tried", lambda *_: [row])
    found = sweep(SweepSettings(out=tmp_path, types=("bert",)), lambda *_: None)
    assert not found.passed
    folder = tmp_path / REPRODUCTIONS / "bert"
    script = (folder / "reproduce.py").read_text()
    compile(script, "reproduce.py", "exec")
    assert "for arm in ('written', 'bf16')" in script.replace('"', "'")
    assert "losses as written: [1.0]" in (folder / "issue.md").read_text()


def test_an_unknown_type_or_library_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GuardError, match="did you mean bert"):
        sweep(SweepSettings(out=tmp_path, types=("berd",)), lambda *_: None)
    assert main(["sweep", "timm"]) == 2
    assert "'timm' is no library that can be swept" in capsys.readouterr().err
