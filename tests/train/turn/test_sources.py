"""The files behind a workload, found from their text: none is ever run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.train.turn.settings import Settings, project_files, source_hash

RUN = "raise SystemExit('this module was run')\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n{RUN}")
    return folder / "train.py"


def names(file: Path, below: Path) -> list[str]:
    return [path.relative_to(below.resolve()).as_posix() for path in project_files(file)]


PROJECTS = {
    "a module beside it": ({"train.py": "import model", "model.py": ""}, ["model.py"]),
    "a module of a module": (
        {"train.py": "import model", "model.py": "from layers import Block", "layers.py": ""},
        ["layers.py", "model.py"],
    ),
    "a cycle": (
        {"train.py": "import a", "a.py": "import b", "b.py": "import a, train"},
        ["a.py", "b.py"],
    ),
    "a package with relative imports": (
        {
            "train.py": "from pkg.models import llama",
            "pkg/__init__.py": "",
            "pkg/models/__init__.py": "from ..common import x",
            "pkg/models/llama.py": "from .attention import f",
            "pkg/models/attention.py": "from ... import beyond",
            "pkg/common.py": "",
            "pkg/unused.py": "",
        },
        [
            "pkg/__init__.py",
            "pkg/common.py",
            "pkg/models/__init__.py",
            "pkg/models/attention.py",
            "pkg/models/llama.py",
        ],
    ),
    "a namespace package": (
        {"train.py": "import space.inner.deep", "space/inner/deep.py": "from . import near"}
        | {"space/inner/near.py": ""},
        ["space/inner/deep.py", "space/inner/near.py"],
    ),
    "an import inside a function": (
        {"train.py": "def f():\n    from model import g", "model.py": ""},
        ["model.py"],
    ),
    "import_module": (
        {"train.py": "import importlib\nimportlib.import_module('pkg.model')"}
        | {"pkg/__init__.py": "__import__('other')", "pkg/model.py": "", "other.py": ""},
        ["other.py", "pkg/__init__.py", "pkg/model.py"],
    ),
    "a star": (
        {"train.py": "from pkg import *", "pkg/__init__.py": "", "pkg/a.py": ""},
        ["pkg/__init__.py", "pkg/a.py"],
    ),
    "no syntax": ({"train.py": "import model", "model.py": "def ("}, ["model.py"]),
    "what is not there": ({"train.py": "import gone, gone.further, os, torch, ratchet"}, []),
    "a module that hides an installed one": (
        {"train.py": "import numpy", "numpy.py": ""},
        ["numpy.py"],
    ),
    "a package before a module": (
        {"train.py": "import m", "m.py": "", "m/__init__.py": ""},
        ["m/__init__.py"],
    ),
}


@pytest.mark.parametrize("files, found", PROJECTS.values(), ids=PROJECTS)
def test_the_files_that_a_workload_imports(
    tmp_path: Path, files: dict[str, str], found: list[str]
) -> None:
    before = set(sys.modules)
    assert names(write(tmp_path, files), tmp_path) == sorted([*found, "train.py"])
    assert not {"model", "pkg", "a"} & (set(sys.modules) - before)


def test_a_script_in_a_folder_of_its_own_imports_from_the_project_s_root(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "", "lib/model.py": "", "src/core/__init__.py": ""})
    script = tmp_path / "scripts" / "train.py"
    write(tmp_path, {"scripts/train.py": "import lib.model, core"})
    found = names(script, tmp_path)
    assert found == ["lib/model.py", "scripts/train.py", "src/core/__init__.py"]


def test_what_the_python_path_names_is_the_project_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"elsewhere/own_lib_of_mine/__init__.py": ""})
    script = write(tmp_path / "here", {"train.py": "import own_lib_of_mine"})
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert "elsewhere/own_lib_of_mine/__init__.py" in names(script, tmp_path)


def test_installed_packages_are_not_the_project_s(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "", ".venv/lib/site-packages/dep.py": ""})
    script = write(tmp_path, {"train.py": "import torch, yaml, pytest, dep"})
    assert names(script, tmp_path) == ["train.py"]


def test_an_edit_anywhere_changes_the_hash_and_the_key(tmp_path: Path) -> None:
    script = write(tmp_path, {"train.py": "import model", "model.py": "import part"})
    write(tmp_path, {"part.py": "a = 1", "unrelated.py": "a = 1"})
    settings = Settings(workload=f"{script}:make_workload")
    before, key = source_hash(script), settings.key()
    write(tmp_path, {"unrelated.py": "a = 2"})
    assert (source_hash(script), settings.key()) == (before, key)
    write(tmp_path, {"part.py": "a = 2"})
    assert source_hash(script) != before
    assert settings.key() != key


def test_a_moved_import_changes_the_hash(tmp_path: Path) -> None:
    """A new file that hides another, though no file changed."""
    script = write(tmp_path, {"train.py": "import m", "m.py": "a = 1"})
    before = source_hash(script)
    write(tmp_path, {"m/__init__.py": "a = 1"})
    assert source_hash(script) != before
