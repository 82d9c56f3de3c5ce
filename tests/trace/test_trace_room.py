"""The room as a whole: what it exports, what it brings in, which levers it names."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ratchet.trace
from ratchet.trace import advice
from ratchet.train.levers import all_levers

grimp = pytest.importorskip("grimp", reason="grimp is not installed")
ROOM = Path(ratchet.trace.__file__).parent


def test_the_names_are_sorted_and_there() -> None:
    assert list(ratchet.trace.__all__) == sorted(ratchet.trace.__all__)
    for name in ratchet.trace.__all__:
        assert getattr(ratchet.trace, name) is not None


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count too."""
    graph = grimp.build_graph("ratchet", cache_dir=None)
    own = {name for name in graph.modules if name.startswith("ratchet.trace")}
    imports = {name: graph.find_modules_directly_imported_by(name) & own for name in own}
    TopologicalSorter(imports).prepare()  # CycleError names a circle


def test_reading_a_trace_does_not_bring_torch_in() -> None:
    code = "import sys, ratchet.trace, ratchet.trace.read; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_lever_that_advice_names_exists() -> None:
    named: set[str] = set()
    text = (ROOM / "advice.py").read_text()
    for found in re.findall(r"levers=\((.*?)\),\n", text, re.DOTALL):
        named |= set(re.findall(r'"([\w:-]+)"', found))
    assert "compile" in named
    assert named <= set(all_levers())


def test_every_lever_that_fuses_exists() -> None:
    kernels = {lever for _, lever in advice.KERNEL_LEVERS}
    assert {"kernel:rms_norm", "kernel:rope"} <= kernels
    assert kernels | {*advice.COMPILE, *advice.OPTIMIZER_LEVERS} <= set(all_levers())
