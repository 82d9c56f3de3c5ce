"""What tests of commands share: where `ratchet judge` can run, and how a mistake is answered."""

from __future__ import annotations

import os
import sys

import pytest

from ratchet.cli import main
from ratchet.errors import CompilerMissing
from ratchet.judge.sandbox import isolation
from ratchet.kernels.languages import cpp


def compiler_is_there() -> bool:
    try:
        return cpp.find_compiler() is not None
    except CompilerMissing:
        return False


needs_judge = pytest.mark.skipif(
    not compiler_is_there()
    or (
        isolation.bubblewrap() is None
        and os.geteuid() == 0
        and not isolation._enterable(sys.base_prefix)
    ),
    reason="no C++ compiler, or no bubblewrap and a Python that no candidate's uid may read",
)


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail; its one line."""
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err
