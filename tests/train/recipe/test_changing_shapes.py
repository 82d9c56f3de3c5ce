"""A real loop whose batch size changes at every step, with a recipe's kernels installed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from own_recipes import batch, believe, make, recipe, step_of
from torch._dynamo.utils import counters

import ratchet
from ratchet.judge.kernels import registry
from ratchet.train.workloads.compiling import BoundedCompile
from ratchet.train.workloads.config import StepConfig

LIMIT = 6
"""Dynamo's default is 8; fewer graphs take less long to compile."""
SIZES = tuple(range(2, 11)) * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    registry.fallbacks.clear()
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield
    registry.deactivate()
    torch._dynamo.reset()


@pytest.mark.compiler
@pytest.mark.slow
# dynamo's own look at a loss, which it hides itself where a warning is no error
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.timeout(600)
def test_batches_of_other_sizes_train_as_without_the_recipe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: Counter[str] = Counter()
    real = registry.call

    def call(entry: str, *arguments: Any) -> Any:
        called[entry] += 1
        return real(entry, *arguments)

    monkeypatch.setattr(registry, "call", call)
    ledger = str(tmp_path / "ledger.db")
    made = recipe(StepConfig(compile_mode="default", optimizer="kernel", kernels=("rms_norm",)))
    believe(ledger, made.kernels)
    model, optimizer = make()
    plain = step_of(model, optimizer)
    without = [float(plain(batch(index, rows))) for index, rows in enumerate(SIZES)]

    model, optimizer = make()
    step = ratchet.compile(
        step_of(model, optimizer), model, optimizer, recipe=made, ledger=ledger, strict=True
    )
    assert {"rms_norm_forward", "adamw_step"} <= set(registry.active())
    with_recipe = [float(step(batch(index, rows))) for index, rows in enumerate(SIZES)]

    assert with_recipe == pytest.approx(without, abs=1e-3)
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [line for line in warned if "recompile_limit" in line] == []
    (line,) = [line for line in warned if line.startswith("ratchet:")]
    assert "was compiled for 3 shapes" in line
    # The first call runs as written. Three shapes keep their kernels, others run torch's own ops.
    updates = len(SIZES) - 1
    assert called == {"rms_norm_forward": 6, "rms_norm_backward": 6, "adamw_step": updates}
    assert registry.fallbacks == {}


def test_a_compiler_that_fails_later_does_not_end_the_script() -> None:
    compilations = [0]

    def backend(graph: Any, inputs: Any) -> Any:
        compilations[0] += 1
        if compilations[0] == 2:
            raise ImportError("a cached library is too short")
        return graph.forward

    real = torch.compile

    def compiled(function: Any, **options: Any) -> Any:
        return real(function, dynamic=options.get("dynamic"), backend=backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", compiled)
        bounded = BoundedCompile(lambda x: x * 2, {})
    for rows in (3, 4, 3):
        assert torch.equal(bounded(torch.ones(rows)), torch.full((rows,), 2.0))
    assert compilations[0] == 2
    torch._dynamo.reset()
