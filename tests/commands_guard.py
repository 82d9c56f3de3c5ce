"""How a mistake in a command is answered."""

from __future__ import annotations

import pytest

from ratchet.cli import main


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail with 2; return its one line."""
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
