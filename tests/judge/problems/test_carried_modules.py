"""A reference as a candidate brings along what it imports of Ratchet's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel, with_modules
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.suites import load_suite
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.judge.sandbox.view import TORCH_WORKER, package_files

EVERY_SOURCE = """
import json, os, sys
import torch
for source, entry in json.load(open(sys.argv[1])):
    child = os.fork()  # modules and operators are made once in a process
    if not child:
        namespace = {"__name__": "candidate"}
        exec(compile(source, "kernel.py", "exec"), namespace)
        import ratchet
        assert callable(namespace[entry]) and ratchet.__file__.startswith(sys.argv[2])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print("loaded", flush=True)
"""
SHAPES = WorkloadShapes(
    batch=1, sequence=4, hidden=8, intermediate=8, heads=2, kv_heads=1, head_dim=4, vocabulary=8
)


def references() -> list[Kernel]:
    """Every reference that ships, as `--candidate eager` has it."""
    shipped = [one for library in LIBRARY.values() for one in library.problems(SHAPES)]
    return [built_in_kernel(one, "eager") for one in (*shipped, *load_suite("training"))]


def test_every_reference_loads_beside_the_files_of_a_sandbox_alone(tmp_path: Path) -> None:
    for path, place in package_files(TORCH_WORKER):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / place)
    kernels = {one.hash: one for one in references()}
    sources = tmp_path / "sources.json"
    sources.write_text(json.dumps([[one.source, one.entry] for one in kernels.values()]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", EVERY_SOURCE, str(sources), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loaded") == len(kernels) > 100


def test_a_source_that_needs_nothing_is_as_it_was() -> None:
    source = "import torch\n\n\ndef answer(x, s):\n    return (x,)\n"
    assert with_modules(source) == source


def test_a_docstring_and_future_imports_stay_in_front() -> None:
    before, after = (
        '"""What."""\nfrom __future__ import annotations\n',
        "from ratchet import Case\n",
    )
    made = with_modules(before + after)
    assert made.startswith(before) and made.endswith(after)
    assert "ratchet.judge.problems.case" in made
    compile(made, "kernel.py", "exec")
