"""`ratchet watch` over layouts of packages: planted slowdowns found, false alarms without a change.

python benchmarks/guard/guard_layouts.py [--layouts editable-src,compiled] [--unchanged] [--pairs 8]

Each case makes a repository and a user's environment in which its package is installed in editable
mode from the user's checkout. Then it watches two commits: the second does more work by a factor of
SLOWDOWNS, or the same with `--unchanged`. The benchmark prints the CPU time of its fastest call of
ten, which other work on the machine moves little. pip builds without isolation, with the setuptools
of this Python, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SLOWDOWNS = (1.15, 1.3, 1.6, 2.5)
"""Times the work of the first commit; the gate allows 5 %."""
PIP = "pip install -q --no-build-isolation --no-deps --disable-pip-version-check"
PYTHON_ROUNDS, C_ROUNDS = 200_000, 10_000_000  # Some 10 ms each
PYTHON = """\
def work():
    total = 0
    for at in range({rounds}):
        total += at
    return total
"""
C = """\
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *work(PyObject *self, PyObject *none) {{
    for (volatile long at = 0; at < {rounds}; at++) {{}}
    Py_RETURN_NONE;
}}
static PyMethodDef methods[] = {{{{"work", work, METH_NOARGS, ""}}, {{0}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "core", "", -1, methods}};
PyMODINIT_FUNC PyInit_core(void) {{ return PyModule_Create(&module); }}
"""
BENCH = """\
import time
from mycode.core import work
times = []
for _ in range(10):
    began = time.process_time()
    work()
    times.append(time.process_time() - began)
print("x", min(times))
"""
PROJECT = """\
from setuptools import Extension, setup
setup(name="mycode", version="1.0", packages=["mycode"], package_dir={{"": "{where}"}},
      ext_modules={extensions})
"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    where: str  # Folder of the package
    build: str
    command: str = "python bench.py"
    compiled: bool = False


LAYOUTS: Mapping[str, Layout] = {
    "plain": Layout(where=".", build=""),
    "editable": Layout(where=".", build=f"{PIP} -e ."),
    "editable-src": Layout(where="src", build=f"{PIP} -e .", command="python -m mycode"),
    "editable-elsewhere": Layout(where="python", build=f"{PIP} -e ."),
    "compiled": Layout(where="src", build=f"{PIP} .", compiled=True),
    "compiled-editable": Layout(where="lib", build=f"{PIP} -e .", compiled=True),
}


def make(folder: Path, layout: Layout, factor: float) -> Path:
    """Make a repository of two commits, and install the second in a new environment."""
    package = folder / "repository" / layout.where / "mycode"
    package.mkdir(parents=True)
    repository = folder / "repository"
    extension = f'[Extension("mycode.core", ["{layout.where}/mycode/core.c"])]'
    project = PROJECT.format(where=layout.where, extensions=extension if layout.compiled else "[]")
    (repository / "setup.py").write_text(project)
    (repository / "bench.py").write_text(BENCH)
    (repository / ".gitignore").write_text("*.egg-info\nbuild\n*.so\n__pycache__\n")
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(BENCH)
    (repository / "ratchet-watch.toml").write_text(
        f'build = "{layout.build}"\nfail_if_slower = "5%"\n[[benchmark]]\nname = "work"\n'
        f'command = "{layout.command}"\nmetric = "last-number"\n'
    )
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(repository)]
    run([*git, "init", "--quiet", "-b", "main"])
    source = package / ("core.c" if layout.compiled else "core.py")
    text, rounds = (C, C_ROUNDS) if layout.compiled else (PYTHON, PYTHON_ROUNDS)
    for title, more in (("fast", 1.0), ("slow", factor)):
        source.write_text(text.format(rounds=int(rounds * more)))
        run([*git, "add", "-A"])
        run([*git, "commit", "--quiet", "--allow-empty", "-m", title])
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "user")])
    (packages,) = (folder / "user").glob("lib/*/site-packages")
    own = sysconfig.get_path("purelib")  # lends pip and setuptools
    (packages / "own.pth").write_text(f"{own}\n")
    (folder / "user" / "bin" / "pip").write_text(
        f'#!/bin/sh\nexec {folder / "user" / "bin" / "python"} -m pip "$@"\n'
    )
    (folder / "user" / "bin" / "pip").chmod(0o755)
    run(["sh", "-c", f"{PIP} -e ."], repository, folder / "user")
    return repository


def run(words: list[str], folder: Path | None = None, environment: Path | None = None) -> None:
    subprocess.run(words, cwd=folder, check=True, env=variables(environment))


def variables(environment: Path | None) -> dict[str, str]:
    found = dict(os.environ)
    if environment is not None:
        found["PATH"] = f"{environment / 'bin'}{os.pathsep}{found['PATH']}"
    return found


def watch(name: str, factor: float, pairs: int) -> dict[str, object]:
    """Watch one case; return its answer and what it should be."""
    with tempfile.TemporaryDirectory() as place:
        repository = make(Path(place), LAYOUTS[name], factor)
        began_s = time.perf_counter()
        words = [sys.executable, "-m", "ratchet.cli", "watch", "--base", "HEAD~1", "--json"]
        done = subprocess.run(
            [*words, "--pairs", str(pairs)], cwd=repository, capture_output=True, text=True,
            env=variables(Path(place) / "user"), check=False,
        )  # fmt: skip
        time_s = time.perf_counter() - began_s
    report = json.loads(done.stdout)
    (found,) = report.get("results") or [{"answer": done.stderr.strip(), "worse": None}]
    right = (found["answer"] == "slower") == (factor > 1)
    return {
        "layout": name, "factor": factor, "answer": found["answer"], "worse": found["worse"],
        "notes": report.get("notes"), "exit_code": done.returncode, "right": right,
        "time_s": round(time_s, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--unchanged", action="store_true", help="the second commit is the same")
    parser.add_argument("--pairs", type=int, default=8)
    asked = parser.parse_args()
    cases = []
    for name in asked.layouts.split(","):
        for factor in (1.0,) * len(SLOWDOWNS) if asked.unchanged else SLOWDOWNS:
            cases.append(watch(name, factor, asked.pairs))
            print(json.dumps(cases[-1]), flush=True)
    right = sum(bool(one["right"]) for one in cases)
    print(json.dumps({"right": right, "of": len(cases)}))


if __name__ == "__main__":
    main()
