"""Durations, and what makes two calls the same turn."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import ratchet
from ratchet.base.errors import RatchetError
from ratchet.cli import main
from ratchet.cli.app import StepOptions
from ratchet.cli.optimize import optimize
from ratchet.train.turn.settings import Settings, make_settings, parse_budget_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), (" 2m ", 120)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_budget_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3m", "3 days", "nan", "10s", "0"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(RatchetError, match="budget"):
        parse_budget_s(text)


def test_the_key_follows_what_the_answer_depends_on() -> None:
    base = Settings(workload="llama-8m")
    assert base.key() == Settings(workload="llama-8m", budget_s=60, out=Path("x")).key()
    assert base.key() != Settings(workload="llama-60m").key()
    assert base.key() != Settings(workload="llama-8m", keep_precision=True).key()
    assert base.key() != Settings(workload="llama-8m", options={"batch_size": 3}).key()


def test_an_edited_script_is_another_workload(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    settings = Settings(workload=f"{script}:make_workload")
    before = settings.key()
    script.write_text("a = 2\n")
    assert settings.key() != before


CALLS: dict[str, dict[str, Any]] = {
    "by default": {},
    "of one process": {
        "budget": "90s",
        "keep_precision": True,
        "try_lever": "compile",
        "launches": 5,
        "until_proven": True,
        "batch_size": 4,
        "sequence": 32,
        "precision": "bf16_autocast",
        "seed": 7,
        "out": "a folder",
        "device": "cpu",
    },
    "on ranks": {"parallel": "dp=2,micro=2", "try_lever": "no-sync"},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_the_reported_command_repeats_the_turn(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make_settings("llama-tiny", **options)
    again: list[Settings] = []

    def run(settings: Settings, listener: object) -> object:
        again.append(settings)
        raise typer.Exit(0)

    monkeypatch.setattr("ratchet.scale.optimize.run", run)
    program, *words = shlex.split(asked.command)
    assert program == "ratchet" and main(words) == 0
    assert len(again) == 1 and again[0].key() == asked.key()
    for name in ("budget_s", "launches", "seed", "out", "layout", "try_lever"):
        assert getattr(again[0], name) == getattr(asked, name)


def test_the_command_and_the_call_have_the_same_options() -> None:
    own = {"context", "workload", "dry", "target", "as_json"}
    of_command = inspect.signature(optimize).parameters.keys() - own - {"step"}
    of_command |= inspect.signature(StepOptions).parameters.keys()
    of_call = inspect.signature(ratchet.optimize).parameters.keys() - {"workload", "listener"}
    assert (
        of_command
        == of_call
        == inspect.signature(make_settings).parameters.keys()
        - {
            "workload",
            "gone_s",
        }
    )
