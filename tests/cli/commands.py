"""What tests of commands share: where `ratchet judge` can run, and how a mistake is answered."""

from __future__ import annotations

import pytest

from ratchet.base.errors import CompilerMissing
from ratchet.cli import main
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.trial.kernel_trial import why_no_kernels

HEEDING = ("env", "--default-signal=INT,HUP,TERM")
"""Starts a command that heeds signals; what runs the tests may ignore some, and pass that on."""


def compiler_is_there() -> bool:
    try:
        return cpp.find_compiler() is not None
    except CompilerMissing:
        return False


needs_judge = pytest.mark.skipif(
    not compiler_is_there() or why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail; its one line."""
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err
