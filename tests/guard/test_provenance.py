"""Each side of `watch`, `bisect` and `compare` runs the code of its own commit, and proves it.

No clock decides: the program prints a number that its package holds, and a build writes into the
environment what pip would write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands_guard import mistake
from noisy_repository import git

from ratchet.base.errors import GuardError
from ratchet.cli import main
from ratchet.guard.checkouts import Checkout
from ratchet.guard.checkouts.provenance import check_imports

FAST, SLOW = 1000, 2500
BENCH = "import {name}\nprint('steps:', {name}.WORK)\n"
FINDER = """\
import importlib.util, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "mycode":
            return importlib.util.spec_from_file_location(
                name, {folder!r} + "/mycode/__init__.py",
                submodule_search_locations=[{folder!r} + "/mycode"])
sys.meta_path.{put}Finder)
"""
APPENDED, PUT_FIRST = "append(", "insert(0, "  # As setuptools does, and meson-python
BUILD = """\
import os, shutil, sys, sysconfig
kind, where = sys.argv[1:3]
into = sys.argv[3] if len(sys.argv) > 3 else sysconfig.get_path("purelib")
source = os.path.abspath(where)
if kind == "path":
    with open(os.path.join(into, "__editable__.mycode-1.0.pth"), "w") as file:
        file.write(source)
elif kind == "copy":
    shutil.copytree(source + "/mycode", into + "/mycode", dirs_exist_ok=True)
    os.makedirs(into + "/mycode-1.0.dist-info", exist_ok=True)
    with open(into + "/mycode-1.0.dist-info/RECORD", "w") as file:
        file.write("mycode/__init__.py,,")
else:
    with open(os.path.join(into, "_mycode_editable.py"), "w") as file:
        file.write(open("finder.txt").read().format(folder=source, put=kind))
    with open(os.path.join(into, "_mycode_editable.pth"), "w") as file:
        file.write("import _mycode_editable")
"""
PROJECT = '[project]\nname = "MyCode"\nversion = "1.0"\n'


class Layout:
    """A repository of two commits, the second with the slower package, and its user's Python."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder, self.place = folder / "repository", place
        self.python = folder / "user" / "bin" / "python"
        words = [sys.executable, "-m", "venv", "--without-pip", str(folder / "user")]
        subprocess.run(words, check=True)
        (self.packages,) = (folder / "user").glob("lib/*/site-packages")
        package = self.folder / place / "mycode"
        package.mkdir(parents=True)
        for name, text in (
            ("bench.py", BENCH.format(name="mycode")), ("build.py", BUILD),
            ("finder.txt", FINDER), ("pyproject.toml", PROJECT),
        ):  # fmt: skip
            (self.folder / name).write_text(text)
        (package / "__main__.py").write_text("from mycode import WORK\nprint('steps:', WORK)\n")
        git(self.folder, "init", "--quiet", "-b", "main")
        for work in (FAST, SLOW):
            (package / "__init__.py").write_text(f"WORK = {work}\n")
            git(self.folder, "add", "-A")
            git(self.folder, "commit", "--quiet", "-m", f"work {work}")

    def install(self, kind: str) -> None:
        """Install the package from the user's checkout into the user's environment."""
        words = [str(self.python), "build.py", kind, self.place]
        subprocess.run(words, check=True, cwd=self.folder)

    def suite(self, command: str, build: str = "") -> None:
        (self.folder / "ratchet-watch.toml").write_text(
            f"build = '{build}'\npairs = 3\nfail_if_slower = '10%'\n"
            f"[[benchmark]]\nname = 'f'\ncommand = '{command}'\nmetric = 'steps: (.*)'\n"
        )


@pytest.fixture
def layout(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Layout:
    made = Layout(tmp_path, getattr(request, "param", "src"))
    monkeypatch.chdir(made.folder)
    monkeypatch.setenv("PATH", str(made.python.parent), prepend=os.pathsep)
    return made


def _watch(capsys: pytest.CaptureFixture[str], base: str = "HEAD~1") -> dict[str, object]:
    code = main(["watch", "--base", base, "--json"])
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    assert code == int(bool(report["red"]))
    return report


def _files(layout: Layout) -> dict[Path, bytes]:
    """Return what is installed in the user's environment."""
    files = [one for one in layout.packages.rglob("*") if one.is_file() and one.suffix != ".pyc"]
    return {one: one.read_bytes() for one in files}


@pytest.mark.parametrize(
    ("layout", "installed", "build", "command"),
    [
        ("src", "path", "", "python bench.py"),  # installed in editable mode, nothing built
        ("src", "path", "python build.py path src", "python bench.py"),
        ("src", "path", "python build.py path src", "python -m mycode"),
        ("src", "path", "python build.py path src", f"{sys.executable} bench.py"),
        (".", APPENDED, f"python build.py \"{APPENDED}\" .", "python -m mycode"),
        ("python", PUT_FIRST, f"python build.py \"{PUT_FIRST}\" python", "python bench.py"),
        ("python", "path", "python build.py path python", "python bench.py"),
        ("python", "copy", "python build.py copy python", "python bench.py"),  # pip install .
        ("src", "copy", "", "python bench.py"),
    ],
    indirect=["layout"],
)  # fmt: skip
def test_each_side_runs_its_own_build(
    layout: Layout, installed: str, build: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout.install(installed)
    layout.suite(command, build)
    before = _files(layout)
    report = _watch(capsys)
    (found,) = report["results"]  # type: ignore[misc]
    assert (found["answer"], found["base"], found["head"]) == ("slower", FAST, SLOW)
    assert report["notes"] == []
    after = _files(layout)
    assert after == before, "the user's environment is as it was"


def test_without_a_change_nothing_is_slower(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    layout.install("path")
    layout.suite("python bench.py", "python build.py path src")
    git(layout.folder, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    (found,) = _watch(capsys)["results"]  # type: ignore[misc]
    assert (found["answer"], found["base"], found["head"]) == ("not slower", SLOW, SLOW)


@pytest.mark.parametrize(
    ("layout", "installed", "build", "command", "said"),
    [
        ("python", "path", "", "python bench.py", "imports mycode from {repository}/python/"),
        ("python", "copy", "", "python bench.py", "imports mycode from {packages}/mycode/"),
        ("src", PUT_FIRST, "", "python bench.py", "imports mycode from {repository}/src/"),
        ("src", "path", "", "python -I bench.py", "python does not tell which files it imports"),
        (
            "python", "path", "python build.py copy python {packages}", "python bench.py",
            "imports mycode from {packages}/mycode/",
        ),
        ("src", "path", "", "python {repository}/hard.py", "imports mycode from {repository}/src/"),
    ],
    indirect=["layout"],
)  # fmt: skip
def test_a_side_that_runs_other_code_is_one_line(
    layout: Layout,
    installed: str,
    build: str,
    command: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {"repository": str(layout.folder), "packages": str(layout.packages)}
    build, command, said = (one.format(**named) for one in (build, command, said))
    path = f"import sys\nsys.path.insert(0, {str(layout.folder / 'src')!r})\n"
    (layout.folder / "hard.py").write_text(path + BENCH.format(name="mycode"))
    layout.install(installed)
    layout.suite(command, build)
    line = mistake(capsys, "watch", "--base", "HEAD~1")
    assert "benchmark 'f': the base" in line and said in line
    words = ["bisect", "HEAD~1", "HEAD", "--build", build, "--metric", "last-number"]
    state = ["--state", str(layout.folder.parent / "state")]
    line = mistake(capsys, *words, *state, "--", *command.split())
    assert "commit " in line and said in line


def test_what_was_not_looked_at_is_said(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    layout.suite('sh -c "echo steps: 3"')
    assert _watch(capsys)["notes"] == [
        f"f: the {side}: no Python told what it imports, so which files it runs was not looked at"
        for side in ("base", "head")
    ]
    layout.suite('python -c "import json; print(\\"steps: 3\\")"')
    (first, _) = _watch(capsys)["notes"]  # type: ignore[misc]
    assert first == "f: the base: it imports nothing of its checkout"


def test_bisect_builds_each_commit_into_its_own_environment(
    layout: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layout.install("path")
    git(layout.folder, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    build = ["--build", "python build.py path src", "--state", str(tmp_path / "state")]
    words = ["bisect", "HEAD~2", "HEAD", *build, "--metric", "last-number", "--json"]
    assert main([*words, "--", "python", "bench.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["suspects"][0]["subject"] == f"work {SLOW}" and found["notes"] == []


def test_compare_sets_each_revision_up_in_its_own_environment(
    layout: Layout, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layout.install("path")
    before = _files(layout)
    words = ["compare", "--rev-a", "HEAD~1", "--setup", "python build.py copy src", "--printed"]
    more = ["--budget", "30s", "--json", "--ledger", str(tmp_path / "ledger.db")]
    assert main([*words, *more, "--", "python", "bench.py"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] == "slower" and found["warnings"] == []
    assert _files(layout) == before


def test_environments_and_repositories_in_a_checkout_are_not_of_it(tmp_path: Path) -> None:
    tree, root = tmp_path / "tree", tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    for mark in ("env/pyvenv.cfg", "conda/conda-meta", "submodule/.git"):
        (tree / mark).parent.mkdir(parents=True)
        (tree / mark).touch()
    checkout = Checkout(title="x", root=root, folder=root, own=(root,), trees=(tree,))

    def checked(file: str) -> str:
        return check_imports([{"a.b": str(tree / file)}], checkout, "A", "python")

    for file in ("env/src/a/b.py", "conda/lib/a/b.py", "submodule/a/b.py", "site-packages/a/b.py"):
        assert checked(file) == "it imports nothing of its checkout"
    with pytest.raises(GuardError, match=r"A imports a\.b from .*/tree/a/b\.py, which is not x"):
        checked("a/b.py")


def test_modules_of_others_are_nobodys_business(
    layout: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    """A namespace that the checkout shares, vendored code, and a script from elsewhere."""
    (layout.folder / "src" / "shared" / "ours").mkdir(parents=True)
    (layout.folder / "src" / "shared" / "ours" / "__init__.py").write_text("")
    vendored = layout.folder / "vendor" / "lent"
    vendored.mkdir(parents=True)
    (vendored / "pyproject.toml").write_text('[project]\nname = "lent"\n')
    git(layout.folder, "add", "-A")
    git(layout.folder, "commit", "--quiet", "-m", "more")
    for name in ("shared", "lent"):
        (layout.packages / name).mkdir()
    (layout.packages / "shared" / "theirs.py").write_text("")
    (layout.packages / "lent" / "__init__.py").write_text("")
    info = layout.packages / "lent-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("lent/__init__.py,,\n")
    script = layout.folder.parent / "elsewhere.py"
    script.write_text("import lent, shared.ours, shared.theirs\n" + BENCH.format(name="mycode"))
    layout.suite(f"python {script}")
    report = _watch(capsys, "HEAD")
    (found,) = report["results"]  # type: ignore[misc]
    assert (found["answer"], found["notes"]) == ("not slower", [])
