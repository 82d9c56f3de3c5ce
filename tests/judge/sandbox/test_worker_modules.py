"""A sandbox holds what its worker imports, and no other file of Ratchet's."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratchet
from ratchet.amd.compile.process import PROFILE_WORKER
from ratchet.amd.profile import inspect_kernel
from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.sandbox import bubblewrap
from ratchet.judge.sandbox.view import (
    CPP_WORKER,
    CPP_ZYGOTE,
    TORCH_WORKER,
    ZYGOTE,
    modules_of,
    package_files,
)
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.verdict import CandidateFault

PACKAGE = Path(ratchet.__file__).parent
SENT_SOURCES = (
    "ratchet.judge.workers.candidate.model_class",
    "ratchet.amd.compile.triton_source",
)
EMULATED = (
    "ratchet.amd.emulator.loading",
    "ratchet.amd.emulator.hip_loading",
    "ratchet.amd.emulator.extensions",
)
"""What the sources import that the judge sends to a worker of Python's."""
ROOTS = {
    CPP_WORKER: (CPP_WORKER,),
    TORCH_WORKER: (TORCH_WORKER, *SENT_SOURCES, *EMULATED),
    ZYGOTE: (ZYGOTE, *SENT_SOURCES, *EMULATED),
    CPP_ZYGOTE: (CPP_ZYGOTE,),
    PROFILE_WORKER: (PROFILE_WORKER, *SENT_SOURCES, *EMULATED),
}
UNCALLED = "ratchet.judge.api"
"""What the package imports when somebody calls `ratchet.judge(...)`: no worker does."""
SECRET = (
    "ratchet.judge.problems.tolerance",
    "ratchet.judge.problems.problem",
    "ratchet.judge.problems.suites.shipped.layers",
    "ratchet.judge.problems.suites",
    "ratchet.judge.integrity.call_order",
    "ratchet.judge.trial.kernel_checks",
    "ratchet.judge.integrity.outputs",
    "ratchet.judge.workers.gate",
    "ratchet.judge.workers.reference",
)
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.program() is None, reason="bubblewrap does not work on this machine"
)
LOOKS_ABOUT = """
import importlib, importlib.util, os, pathlib, sys
found = []
for name in MODULES:
    try:
        module = importlib.import_module(name)
        if getattr(module, "__file__", None):  # a folder of allowed files alone has none
            found.append(name)
    except ImportError:
        pass
allowed = set(ALLOWED)
for folder, folders, files in os.walk("/ratchet-code"):
    inside = [os.path.relpath(os.path.join(folder, one), "/ratchet-code") for one in files]
    found += [one for one in inside if one not in allowed]
if os.path.isdir(INSTALLED):
    found += os.listdir(INSTALLED)
raise ValueError(f"found: {found}")
"""


def modules_of_the_package() -> list[str]:
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.rglob("*.py"))
    names = (path.parent if path.name == "__init__" else path for path in paths)
    return sorted(".".join(path.parts) for path in names)


def path_of(name: str) -> Path:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(name: str) -> Iterator[str]:
    """The modules of Ratchet's that a module imports anywhere, for types alone excepted."""
    tree = ast.parse(path_of(name).read_text())
    unread = [
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for below in ast.walk(node)
    ]
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def closure(roots: tuple[str, ...]) -> set[str]:
    """All that is imported from there on, with the packages above."""
    known = set(modules_of_the_package())
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in known or name in found or name == UNCALLED:
            continue
        found.add(name)
        left += [*imports(name), name.rpartition(".")[0]]
    return found


@pytest.mark.parametrize("worker", ROOTS)
def test_a_sandbox_holds_what_its_worker_imports(worker: str) -> None:
    assert set(modules_of(worker)) == closure(ROOTS[worker])
    assert len(modules_of(worker)) == len(set(modules_of(worker)))


@pytest.mark.parametrize("worker", ROOTS)
def test_nothing_that_tells_what_is_right_is_on_a_list(worker: str) -> None:
    held = modules_of(worker)
    assert set(SECRET) <= set(modules_of_the_package())
    for name in SECRET:
        assert not [one for one in held if one == name or one.startswith(f"{name}.")]
    for path, place in package_files(worker):
        assert path.exists(), path
        assert place.startswith("ratchet/")


def test_a_worker_of_the_emulator_has_the_tables_of_devices() -> None:
    held = files_of("ratchet.amd.emulator.tune_worker")
    tables = ("hardware.csv", "mfma.csv")
    assert {f"ratchet/base/devices/data/{one}" for one in tables} <= set(held)


def test_an_installation_from_before_a_pull_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.judge.sandbox.view.entry_points", lambda group: [])
    with pytest.raises(JudgeError, match="install it again"):
        list(package_files(CPP_WORKER))


def refusal(kernel: Kernel, zygote: CandidateZygote | None = None) -> str:
    """What a sandboxed process says of a source that raises when it is loaded."""
    process = CandidateProcess(
        kernel, threads=1, memory_bytes=8 << 30, clock=Clock.of(120), zygote=zygote
    )
    try:
        with pytest.raises(CandidateFault) as refused:
            process.load(kernel, None)
    finally:
        process.close()
    return str(refused.value)


def files_of(worker: str) -> list[str]:
    held = list(package_files(worker))
    below = [(one, f"{to}/{one.relative_to(path)}") for path, to in held for one in path.rglob("*")]
    return [place for path, place in [*held, *below] if path.is_file()]


def looks_about(worker: str, language: Language = "torch") -> Kernel:
    """A source that raises with what it finds of Ratchet's beside the worker's own files."""
    others = [name for name in modules_of_the_package() if name not in modules_of(worker)]
    assert set(SECRET) <= set(others)
    source = (
        LOOKS_ABOUT.replace("MODULES", repr(others))
        .replace("ALLOWED", repr(files_of(worker)))
        .replace("INSTALLED", repr(str(PACKAGE)))
    )
    return Kernel(name="looks", language=language, source=source, entry="answer")


@needs_bubblewrap
@pytest.mark.parametrize("language", ["torch", "triton"])
def test_a_candidate_in_python_finds_none_of_the_others(language: Language) -> None:
    assert refusal(looks_about(TORCH_WORKER, language)).endswith("found: []")


@needs_bubblewrap
def test_nor_does_one_that_is_forked() -> None:
    with contextlib.closing(CandidateZygote(threads=1)) as zygote:
        assert refusal(looks_about(ZYGOTE), zygote).endswith("found: []")


@needs_bubblewrap
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_kernel_whose_static_profile_is_taken_finds_none_of_the_others() -> None:
    kernel = looks_about(PROFILE_WORKER, "triton")
    found = inspect_kernel(kernel, find_problem("squared_relu").at("ci"), ["gfx942"])
    assert found["targets"]["gfx942"]["error"] == "the entry raised ValueError: found: []"


@needs_bubblewrap
def test_a_compiled_candidate_finds_none_of_the_others() -> None:
    """As its compiler: what it could include, it could read."""
    allowed = [place for _, place in package_files(CPP_WORKER)]
    for module in SECRET:
        place = str(path_of(module).relative_to(PACKAGE.parent))
        assert place not in allowed
        for path in (f"{bubblewrap.CODE_FOLDER}/{place}", str(path_of(module))):
            assert compiled(f'#include "{path}"\n').count("No such file")
    held = path_of("ratchet.judge.abi").relative_to(PACKAGE.parent)
    assert "No such file" not in compiled(f'#include "{bubblewrap.CODE_FOLDER}/{held}"\n')


def compiled(source: str) -> str:
    """What the sandboxed compiler says of a source that is none."""
    kernel = Kernel(name="reads", language="cpp", source=source, entry="answer")
    process = CandidateProcess(kernel, threads=1, memory_bytes=8 << 30, clock=Clock.of(120))
    try:
        process.start_compiling(kernel)
        with pytest.raises(CandidateFault) as refused:
            process.library()
    finally:
        process.close()
    return str(refused.value)


@needs_bubblewrap
def test_what_is_installed_in_a_folder_that_a_sandbox_sees_is_hidden(tmp_path: Path) -> None:
    """In a process whose Ratchet lies in site-packages, as with most users."""
    tmp_path.chmod(0o755)
    site, link = tmp_path / "lib" / "site-packages", tmp_path / "other" / "site-packages"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, site / "ratchet", ignore=unwanted)
    link.parent.mkdir()
    link.symlink_to(site)
    folders = [str(one / "ratchet") for one in (site, link)]
    source = f"import os\nraise ValueError(str([os.listdir(one) for one in {folders!r}]))"
    program = (
        "import test_worker_modules as here\n"
        "from ratchet.judge.kernels.kernel import Kernel\n"
        "assert here.PACKAGE.parent.name == 'site-packages', here.PACKAGE\n"
        f"source = {source!r}\n"
        "print(here.refusal(Kernel(name='x', language='torch', source=source, entry='answer')))\n"
    )
    for first, second in ((site, link), (link, site)):
        path = os.pathsep.join(map(str, (first, second, Path(__file__).parent)))
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.strip().endswith("ValueError: [[], []]"), (done.stdout, done.stderr)
