"""Durations, and what makes two calls the same turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.base.errors import RatchetError
from ratchet.train.turn.settings import Settings, parse_budget_s


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
