"""Whether kernels can be tried on this machine, and what is said where they cannot."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.cli import main
from ratchet.judge.trial.readiness import check_kernels, why_no_kernels
from ratchet.kernels.languages import cpp

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    why_no_kernels.cache_clear()
    yield
    why_no_kernels.cache_clear()


def test_kernels_can_be_tried_on_this_machine() -> None:
    """Other tests are skipped where they cannot: this one is not."""
    cpp.find_compiler()
    assert why_no_kernels() is None
    check_kernels()


def a_compiler(folder: Path, text: str) -> Path:
    program = folder / "g++"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return program


@pytest.mark.parametrize("variable", ["RATCHET_CXX"])
def test_a_compiler_that_the_sandbox_cannot_open_is_the_machines_fault(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = a_compiler(tmp_path, "#!/nowhere/sh\n")
    monkeypatch.setenv(variable, str(program))
    reason = why_no_kernels()
    assert reason is not None and "\n" not in reason
    assert reason.startswith("no kernel can be tried on this machine: ")
    assert "to fix it: " in reason


def test_writing_says_so_first_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_CXX", str(a_compiler(tmp_path, "#!/nowhere/sh\n")))
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert main(["write", "squared_relu", "--budget", "60s", "--ledger", ledger]) == 2
    assert capsys.readouterr().err.startswith("ratchet: no kernel can be tried on this machine: ")


def test_so_does_judging_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_CXX", str(a_compiler(tmp_path, "#!/nowhere/sh\n")))
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert main(["judge", "--suite", "training", "--ledger", ledger]) == 2
    assert capsys.readouterr().err.startswith("ratchet: no kernel can be tried on this machine: ")
