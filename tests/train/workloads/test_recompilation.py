"""A compiled function whose inputs change shape: few compilations, one warning, right answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from ratchet.train.workloads.compiling import BoundedCompile, shapes_of

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

    names = {False: "fixed", None: "numbered", True: "dynamic"}

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        def backend(module: Any, inputs: Any) -> Any:
            def run(*given: Any) -> Any:
                ran.append(names[dynamic])
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
    assert "was compiled for 4 shapes" in line
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


def test_a_number_that_changes_at_every_call_becomes_an_input(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two batch shapes keep fixed graphs; 0 and 1 are numbers that torch always fixes."""

    def step(x: Tensor, index: int, rate: float) -> Tensor:
        return x.sum() * index + rate

    bounded = BoundedCompile(step, {})
    for index in range(2, 40):
        rows = 4 if index < 20 else 6
        assert float(bounded(torch.ones(rows), index, index / 8)) == rows * index + index / 8
    assert said(caplog) == []
    assert ran == ["fixed"] * 3 + ["numbered"] * 35
    assert counters["frames"]["total"] == 5


def test_a_module_that_counts_its_calls_is_compiled_a_few_times(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x.sum() if self.calls % 7 else -x.sum()

    module = Counting()

    def step(x: Tensor) -> Tensor:
        found: Tensor = module(x)
        return found

    bounded = BoundedCompile(step, {})
    found = [float(bounded(torch.ones(4))) for _ in range(28)]
    assert found == [4.0 if index % 7 else -4.0 for index in range(1, 29)]
    assert module.calls == 28 and said(caplog) == []
    assert counters["frames"]["total"] <= torch._dynamo.config.recompile_limit


def test_without_numbers_the_warning_names_the_number(
    ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def step(x: Tensor, index: int) -> Tensor:
        return x.sum() * index

    bounded = BoundedCompile(step, {}, numbers=False)
    for index in range(2, 30):
        assert float(bounded(torch.ones(4), index)) == 4 * index
    (line,) = said(caplog)
    assert "a number among them changes (5, then 6)" in line and "pad" not in line
    assert bounded.recompilations == 4


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
    (line,) = said(caplog)
    assert "something that it reads elsewhere changes" in line
    assert "runs without torch.compile" in line and "pad" not in line
    assert counters["frames"]["total"] <= torch._dynamo.config.recompile_limit


def test_flags_are_not_numbers(ran: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def step(x: Tensor, update: bool) -> Tensor:
        return x.sum() if update else -x.sum()

    bounded = BoundedCompile(step, {})
    for index in range(20):
        assert float(bounded(torch.ones(4), index % 4 == 3)) == (4 if index % 4 == 3 else -4)
    assert said(caplog) == [] and bounded.recompilations == 0


def test_gradient_mode_and_dtype_are_part_of_the_shapes() -> None:
    x = torch.ones(2)
    with torch.no_grad():
        without = shapes_of((x,), {})
    assert without != shapes_of((x,), {})
    assert shapes_of((x,), {}) != shapes_of((x.double(),), {})
    assert shapes_of((3, {"a": [x]}), {}) == shapes_of((), {"b": x})
