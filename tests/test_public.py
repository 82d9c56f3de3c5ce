"""The public names work as the docs use them, whatever was imported before."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ratchet
from ratchet.base.show.model import ResultReport
from ratchet.cli import main
from ratchet.scale import optimize as api
from ratchet.train.turn.dry_run import dry_run
from ratchet.train.turn.settings import make_settings
from ratchet.train.turn.show import render_page
from ratchet.train.workloads.load import load
from ratchet.train.workloads.user import as_spec

IMPORT_EVERYTHING = """
import importlib, pkgutil, ratchet
# What runs when imported: a command, and the hook of a recorded process.
SKIPPED = (".__main__", ".sitecustomize")
for found in pkgutil.walk_packages(ratchet.__path__, "ratchet."):
    if not found.name.endswith(SKIPPED) and ".library.triton" not in found.name:
        importlib.import_module(found.name)
"""
CALL_EVERYTHING = """
from pathlib import Path
import torch
import ratchet

def mistake(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except ratchet.RatchetError as error:
        return str(error)
    raise AssertionError(f"{call} raised nothing")

def step():
    return torch.zeros(())

for _ in range(2):  # an access must not change what the next one gives
    spec = ratchet.TensorSpec(shape=(4, 16), dtype="float32")
    case = ratchet.Case(name="rows", inputs=(spec,), timed=True)
    problem = ratchet.Problem(
        name="p", reference="def reference(x, scalars):\\n    return (x,)\\n", cases=(case,)
    )
    ratchet.Kernel(name="k", language="cpp", source="", entry="p")
    ratchet.Tolerance()
    ratchet.Settings(workload="llama-tiny")
    assert ratchet.Outcome.__name__ == "Outcome" and ratchet.Verdict.__name__ == "Verdict"
    workload = ratchet.Workload(
        name="w", model=torch.nn.Linear(4, 1), loss=step, batch=step, optimizer=ratchet.AdamWSpec()
    )
    assert callable(ratchet.gradient_of)
    assert "missing.json" in mistake(ratchet.apply, workload, "missing.json")
    assert "missing.json" in mistake(
        ratchet.compile, step, workload.model, torch.optim.SGD(workload.model.parameters()),
        recipe="missing.json",
    )
    assert "missing.json" in mistake(ratchet.Recipe.load, "missing.json")
    assert "missing.json" in mistake(ratchet.trainer_callback, recipe="missing.json")
    assert "import lightning" in mistake(ratchet.lightning_callback, recipe="missing.json")
    assert "not a duration" in mistake(ratchet.optimize, "llama-tiny", budget="soon")
    assert "missing.cpp" in mistake(ratchet.judge, "missing.cpp", "squared_relu")
    assert "missing.json" in mistake(ratchet.trace.read, "missing.json")
    for function in (ratchet.trace.report, ratchet.trace.diff, ratchet.trace.record):
        assert callable(function)
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_what_the_docs_call_once_everything_is_imported() -> None:
    run(IMPORT_EVERYTHING + CALL_EVERYTHING)


FIRST = (
    "import ratchet.train.turn.settings",
    "import ratchet; ratchet.compile, ratchet.apply, ratchet.Settings",
    "from ratchet import *",
    "from ratchet import optimize, judge, trace",
    "import ratchet.trace.answers.report, ratchet.judge.api",
)
IN_A_FORK_EACH = """
import os, sys, torch  # imported once, for all of them
for first in {first!r}:
    if os.fork() == 0:
        exec(first)
        import ratchet
        called = (ratchet.optimize, ratchet.judge, ratchet.trace.read, ratchet.trace.report)
        os._exit(0 if all(map(callable, called)) else 1)
    assert os.wait()[1] == 0, first
"""


def test_the_names_are_the_same_whatever_is_imported_first() -> None:
    run(IN_A_FORK_EACH.format(first=FIRST))


def test_a_callable_module_has_the_signature_of_its_function() -> None:
    assert list(inspect.signature(ratchet.optimize).parameters)[:2] == ["workload", "budget"]
    assert list(inspect.signature(ratchet.trace.read).parameters) == ["path"]
    from ratchet.trace.read import read

    assert inspect.isfunction(read)


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A turn that finds nothing: the settings that it was given, then what was written."""
    seen: list[Any] = []
    outcome = SimpleNamespace(result="result", recipe="recipe")
    monkeypatch.setattr(api, "run_turn", lambda settings, _: seen.append(settings) or outcome)
    monkeypatch.setattr(api, "write", lambda *given: seen.append(given))
    return seen


def test_optimize_takes_a_name_and_writes_what_the_command_writes(turn: list[Any]) -> None:
    outcome = ratchet.optimize("llama-tiny", budget=90, out="there", batch_size=3, device="cpu")
    settings, written = turn
    assert (settings.workload, settings.title) == ("llama-tiny", "llama-tiny")
    assert (settings.budget_s, settings.out) == (90.0, Path("there"))
    assert settings.options == {"device": "cpu", "batch_size": 3, "seed": 0}
    assert written == (outcome.result, outcome.recipe, render_page)


def test_optimize_takes_an_object_and_the_function_that_makes_it(turn: list[Any]) -> None:
    ratchet.optimize(load("llama-tiny"))
    ratchet.optimize(make_workload)
    saved, _, made, _ = turn
    assert (saved.title, saved.command) == (
        "llama-tiny",
        "ratchet.optimize(workload, device='cpu')",
    )
    assert saved.options["device"] == "cpu"
    assert not Path(saved.workload).exists()
    assert made.workload == f"{__file__}:make_workload"


def test_the_command_is_the_library_call(
    turn: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ratchet.train.turn.show.optimize_report", lambda _: ResultReport())
    nothing = ratchet.Outcome(result={}, recipe=None, samples=())  # type: ignore[arg-type]
    monkeypatch.setattr(
        api,
        "run_turn",
        lambda settings, _: turn.append(settings) or nothing,
    )
    assert main(["optimize", "llama-tiny", "--budget", "2m", "--device", "cpu"]) == 0
    ratchet.optimize("llama-tiny", budget="2m", device="cpu")
    assert replace(turn[0], gone_s=0.0) == turn[2]


def make_workload() -> ratchet.Workload:
    model = torch.nn.Conv2d(3, 4, 3)
    return ratchet.Workload(name="pictures/1", model=model, loss=loss, batch=batch)


def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean() + 0.1 * float(np.random.default_rng().random())


def batch(index: int) -> torch.Tensor:
    return torch.full((8, 3, 16, 16), index + 1.0)


@pytest.mark.slow
def test_an_object_is_built_in_the_processes_of_a_turn(tmp_path: Path) -> None:
    with as_spec(make_workload()) as spec:
        ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
        settings = make_settings(spec, budget="60s", out=tmp_path, device="cpu", ledger=ledger)
        found = dry_run(settings).workload
    assert (found.name, found.unit, found.tokens_per_batch) == ("pictures/1", "samples", 8)
    assert "two runs with the same seed and batch" in found.warnings[0]
