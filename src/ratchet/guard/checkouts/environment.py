"""A Python environment in which one checkout's build is installed, on top of the user's own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from ratchet.base.errors import GuardError
from ratchet.guard.command import run_words

INSTALLED = ("site-packages", "dist-packages")
_ASK = """\
import glob, importlib.util, json, sys, sysconfig
paths = sysconfig.get_paths()
standard = [paths["stdlib"], paths["platstdlib"]]
lent = sysconfig.get_config_var("WHEEL_PKG_DIR") or paths["stdlib"] + "/ensurepip/_bundled"
pip = [one + "/pip" for one in sorted(glob.glob(lent + "/pip-*.whl"))[-1:]]
pip = ["-m", "pip"] if importlib.util.find_spec("pip") else pip
print(json.dumps([sys.executable, sys.path, pip, standard]))
"""
_LIMIT_S = 120.0
_LINKS = "zz_ratchet.pth"  # Read after the files of what the build installs: names are sorted


class _Python(msgspec.Struct, frozen=True, array_like=True):
    """An interpreter, as it says itself."""

    executable: str
    path: tuple[str, ...]
    pip: tuple[str, ...]  # The words that run pip: its own, or the wheel that it was shipped with
    standard: tuple[str, ...]  # Folders of the standard library


def make_environment(
    place: Path, python: str, own: Sequence[Path], trees: Collection[Path]
) -> Path:
    """Make a virtual environment in `place`, and return its folder of packages.

    It imports what will be installed in it, then from the folders `own`, then what `python` (the
    first on PATH if empty) can import, but nothing that is installed from `trees`. Its `python` and
    `pip` are its own. GuardError if it cannot be made.
    """
    python = python or shutil.which("python") or shutil.which("python3") or sys.executable
    below = _ask(python)
    shutil.rmtree(place, ignore_errors=True)
    words = [below.executable, "-m", "venv", "--without-pip", str(place)]
    done = run_words(words, Path("/"), _LIMIT_S, {})
    (packages, *_) = [*place.glob("lib/*/site-packages"), None]
    if isinstance(done, str) or packages is None:
        why = done if isinstance(done, str) else f"{place} holds no packages"
        raise GuardError(
            f"{python} cannot make a virtual environment ({why}): install its venv module, or put "
            "another python first on PATH"
        )
    for name in ("pip", "pip3") if below.pip else ():
        script = place / "bin" / name
        words = [str(place / "bin" / "python"), *below.pip]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o755)
    folders = [one for one in below.path if _is_lent(one, below.standard, trees)]
    hooks = [
        f"import site; site.addpackage({str(hook.parent)!r}, {hook.name!r}, None)"
        for folder in folders
        for hook in sorted(Path(folder).glob("*.pth"))
        if Path(folder).name in INSTALLED and _is_hook(hook, trees)
    ]
    (packages / _LINKS).write_text("\n".join([*map(str, own), *folders, *hooks, ""]))
    return packages


def _ask(python: str) -> _Python:
    done = run_words([python, "-E", "-c", _ASK], Path("/"), _LIMIT_S, {})
    if isinstance(done, str):
        raise GuardError(f"{python} {done}: put another python first on PATH")
    try:
        return msgspec.convert(json.loads(done.out), _Python)
    except (ValueError, msgspec.ValidationError) as error:
        raise GuardError(
            f"{python} is no Python ({error}): put another python first on PATH"
        ) from error


def _is_lent(folder: str, standard: Collection[str], trees: Collection[Path]) -> bool:
    """Return whether a folder of the user's path is for every checkout."""
    if not os.path.isdir(folder):
        return False
    if set(INSTALLED) & set(Path(folder).parts):
        return True
    above = [*map(Path, standard), *trees]
    return not any(Path(folder).resolve().is_relative_to(one.resolve()) for one in above)


def _is_hook(file: Path, trees: Collection[Path]) -> bool:
    """Return whether a .pth file runs code, and none that finds the modules of `trees`."""
    text = _text(file)
    code = [line for line in text.splitlines() if line.startswith(("import ", "import\t"))]
    named = {name for line in code for name in re.findall(r"[A-Za-z_]\w*", line)}
    texts = [text, *(_text(file.with_name(f"{name}.py")) for name in named)]
    own = [re.compile(re.escape(str(tree)) + r"(?![\w.-])") for tree in trees]
    return bool(code) and not any(one.search(text) for one in own for text in texts)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
