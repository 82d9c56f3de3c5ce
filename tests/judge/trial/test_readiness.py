"""Whether kernels can be tried on this machine, and what is said where they cannot."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.cli import main
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.sandbox import bubblewrap, isolation, keeper, view
from ratchet.judge.trial.kernel_trial import KernelJudge, check_kernels, why_no_kernels

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
    monkeypatch.chdir(tmp_path)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert main(["write", "squared_relu", "--budget", "60s", "--ledger", ledger]) == 2
    assert capsys.readouterr().err.startswith("ratchet: no kernel can be tried on this machine: ")


def test_so_does_judging_a_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RATCHET_CXX", str(a_compiler(tmp_path, "#!/nowhere/sh\n")))
    monkeypatch.chdir(tmp_path)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert main(["judge", "--suite", "training", "--ledger", ledger]) == 2
    assert capsys.readouterr().err.startswith("ratchet: no kernel can be tried on this machine: ")


def test_a_folder_from_which_nothing_may_run_is_not_a_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/tmp mounted noexec: what a candidate builds there could not be loaded."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert isolation.private_folder(None).parent == tmp_path
    told = os.statvfs

    def no_code_here(folder: os.PathLike[str] | str) -> object:
        if Path(folder) != tmp_path:
            return told(folder)
        return type("Told", (), {"f_flag": os.ST_NOEXEC})()

    monkeypatch.setattr(os, "statvfs", no_code_here)
    made = isolation.private_folder(None)
    made.rmdir()
    assert made.parent in isolation.OPEN_FOLDERS


UNSTARTED = Kernel(name="x", language="cpp", source="extern int x;", entry="answer")


def test_a_worker_that_cannot_start_is_the_machines_fault(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter, or a file of Ratchet's, that cannot be read: no word on the kernel."""
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    monkeypatch.setattr(view, "BOOT", "import no_such_module # {folder} {module}")
    verdict = judge.judge(UNSTARTED, find_problem("squared_relu").at("ci"))
    assert verdict.status == "unmeasured"
    assert "did not start on this machine" in verdict.reason and "to fix it: " in verdict.reason
    assert "no_such_module" in verdict.reason


def test_a_header_that_cannot_be_read_is_the_machines_fault(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolation.mechanism() == "rlimits" or keeper.abi() == 0:
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    files = view.package_files

    def without_header(module: str) -> Iterator[tuple[Path, str]]:
        return (one for one in files(module) if not one[1].endswith(".h"))

    monkeypatch.setattr(view, "package_files", without_header)
    verdict = judge.judge(UNSTARTED, find_problem("squared_relu").at("ci"))
    assert verdict.status == "unmeasured", verdict.reason
    assert "ratchet_abi.h" in verdict.reason and "to fix it: " in verdict.reason
    reason = why_no_kernels()
    assert reason is not None and "ratchet_abi.h" in reason
