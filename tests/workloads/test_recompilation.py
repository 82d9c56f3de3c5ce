"""A compiled function whose inputs change shape: few compilations, one warning, right answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from ratchet.workloads.recompilation import BoundedCompile, shapes_of

pytestmark = [
    pytest.mark.compiler,
    # torch's own, when inductor is first imported
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let dynamo trace and nothing generate code; tell which graphs ran, `fixed` or `dynamic`."""
    real, ran = torch.compile, []

    def compile(function: Any, *, dynamic: bool, options: Any = None) -> Any:
        def backend(module: Any, inputs: Any) -> Any:
            def run(*given: Any) -> Any:
                ran.append("dynamic" if dynamic else "fixed")
                return module.forward(*given)

            return run

        return real(function, dynamic=dynamic, backend=backend)

    monkeypatch.setattr(torch, "compile", compile)
    return ran


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_shape_that_changes_at_every_call_is_compiled_a_few_times(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def step(x: Tensor) -> Tensor:
        return (x * 2).sum()

    bounded = BoundedCompile(step, {})
    for size in (*range(1, 25), *range(1, 25)):
        assert float(bounded(torch.ones(size, 2))) == 4 * size
    assert ran == (["fixed"] * 4 + ["dynamic"] * 20) * 2
    (line,) = said(caplog)
    assert "was compiled 4 times for 4 shapes" in line
    assert counters["frames"]["total"] <= torch._dynamo.config.recompile_limit


def test_a_last_smaller_batch_keeps_every_graph_fixed(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def step(x: Tensor) -> Tensor:
        return x.sum()

    bounded = BoundedCompile(step, {})
    for size in (8, 8, 3, 8, 8, 3) * 5:
        bounded(torch.ones(size))
    assert said(caplog) == []
    assert counters["frames"]["total"] == 2


def test_a_number_that_changes_at_every_call_does_not_recompile_for_ever(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def step(x: Tensor, index: int) -> Tensor:
        return x.sum() * index

    bounded = BoundedCompile(step, {})
    for index in range(2, 30):
        assert float(bounded(torch.ones(4), index)) == 4 * index
    (line,) = said(caplog)
    assert "for 1 shapes" in line
    assert ran == ["fixed"] * 4 + ["dynamic"] * 24


def test_an_unused_number_keeps_the_graph(ran: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def step(x: Tensor, index: int) -> Tensor:
        return x.sum()

    bounded = BoundedCompile(step, {})
    for index in range(2, 30):
        bounded(torch.ones(4), index)
    assert said(caplog) == []
    assert set(ran) == {"fixed"}


def test_what_recompiles_with_dynamic_shapes_too_runs_uncompiled(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is no argument and its number of dimensions changes: nothing can be dynamic."""
    held: list[Tensor] = []

    def step() -> Tensor:
        return held[-1].sum()

    bounded = BoundedCompile(step, {})
    for index in range(1, 40):
        held.append(torch.ones((1,) * (index % 13) + (index,)))
        assert float(bounded()) == index
    assert len(said(caplog)) == 2
    assert "run without torch.compile" in said(caplog)[1]


def test_gradient_mode_and_dtype_are_part_of_the_shapes() -> None:
    x = torch.ones(2)
    with torch.no_grad():
        without = shapes_of((x,), {})
    assert without != shapes_of((x,), {})
    assert shapes_of((x,), {}) != shapes_of((x.double(),), {})
    assert shapes_of((3, {"a": [x]}), {}) == shapes_of((), {"b": x})
