"""`auto` fits a problem's operations, bytes and slow work, by counting: no clock is asked."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratchet.judge.problems import model_scale
from ratchet.judge.problems.assigned_sizes import sizes
from ratchet.judge.problems.model_problem import model_problem
from ratchet.judge.problems.model_scale import AUTO_CASE_BYTES, Cost

TEXT = """
import torch

batch_size = 64
length = 4096


class Model(torch.nn.Module):
    def forward(self, x):
        {forward}
        return x


def get_inputs():
    return [torch.rand(batch_size, length)]


def get_init_inputs():
    return []
"""
ELEMENTWISE = TEXT.format(forward="x = torch.relu(x)")
CONVOLUTION = """
import torch

batch_size = 8
length = 64


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(16, 16, 3)

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.rand(batch_size, 16, length, length)]


def get_init_inputs():
    return []
"""
MANY_OPERATORS = TEXT.format(forward="for at in range(length): x = x + 1.0")


def cost_of(text: str) -> Cost:
    found = model_scale.measure(text)
    assert found is not None
    return found


def fitted(text: str, threads: int = 2) -> tuple[str, Cost]:
    most = model_scale.MOST_OPERATORS
    return model_scale.fit(text, cost_of(text), model_scale.auto_budget(threads), most)


def test_the_sizes_do_not_hang_on_how_fast_the_machine_is_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = CONVOLUTION.replace("length = 64", "length = 256")
    quiet = model_problem(text, "p", scale="auto", threads=2)
    clocks = {name: getattr(time, name) for name in ("perf_counter", "process_time", "monotonic")}
    for name, clock in clocks.items():
        monkeypatch.setattr(time, name, lambda clock=clock: 100.0 * clock())
    assert model_problem(text, "p", scale="auto", threads=2).hash == quiet.hash
    assert any("shrunk to fit" in note for note in quiet.notes)


def test_a_convolution_counts_as_slow_in_float64_and_one_in_groups_as_slower() -> None:
    dense = cost_of(CONVOLUTION)
    grouped = cost_of(CONVOLUTION.replace("16, 3)", "16, 3, groups=16)"))
    assert cost_of(ELEMENTWISE).slow_s == 0
    assert dense.flops > 10 * grouped.flops
    assert 0 < dense.slow_s / dense.flops < grouped.slow_s / grouped.flops
    _, less = fitted(CONVOLUTION.replace("length = 64", "length = 512"))
    assert 0 < less.slow_s <= model_scale.auto_budget(2).slow_s


def test_sorting_counts_as_slow() -> None:
    text = ELEMENTWISE.replace("torch.relu(x)", "torch.sort(x, 1)[0]")
    assert cost_of(text).slow_s == pytest.approx(64 * 4096 * model_scale.SORTED_S)


def test_a_network_of_many_steps_has_no_more_of_them_than_can_be_waited_for() -> None:
    lstm = (
        TEXT.replace("length", "steps")
        .replace("4096", "2048")
        .format(forward="x = torch.nn.LSTM(1, 8, batch_first=True)(x.unsqueeze(-1))[0]")
    )
    text, less = fitted(lstm)
    assert less.bytes < float("inf")
    assert "steps = 32\n" in text


def test_a_model_that_refuses_float64_has_no_slow_work() -> None:
    refuses = TEXT.format(forward="assert x.dtype == torch.float32")
    assert cost_of(refuses).slow_s == 0
    assert torch.get_default_dtype() == torch.float32


def test_a_case_of_auto_is_at_most_so_large() -> None:
    text = ELEMENTWISE.replace("length = 4096", "length = 1048576")
    _, cost = model_scale.fit(text, cost_of(text), model_scale.auto_budget(64))
    assert cost.case_bytes <= AUTO_CASE_BYTES


def test_a_model_of_many_small_operators_is_shrunk_until_they_can_be_waited_for() -> None:
    cost = cost_of(MANY_OPERATORS)
    assert cost.bytes == float("inf")
    text, less = model_scale.fit(MANY_OPERATORS, cost, model_scale.auto_budget(64))
    assert less.bytes < float("inf")
    assert "batch_size = 4\nlength = 512" in text


@pytest.mark.parametrize("forward", ["x = torch.relu(x)", "x = x @ x.T", "x = x.softmax(-1)"])
def test_meta_tensors_say_what_fake_ones_do(monkeypatch: pytest.MonkeyPatch, forward: str) -> None:
    quick = cost_of(TEXT.format(forward=forward))
    monkeypatch.setattr(model_scale, "_meta", model_scale._fake)
    assert quick == cost_of(TEXT.format(forward=forward))


@pytest.mark.parametrize("place", ['"cpu"', '"cuda"'])
def test_a_tensor_that_is_placed_by_name_takes_no_memory(place: str) -> None:
    rand = "torch.rand(batch_size, length"
    text = ELEMENTWISE.replace(rand, f"torch.rand(length**3, length, device={place}")
    assert cost_of(text).case_bytes > 1e15


def test_a_cost_is_known_without_an_import_of_dynamo() -> None:
    script = (
        "import sys; from ratchet.judge.problems import model_scale; "
        f"model_scale.measure({TEXT.format(forward='x = torch.nn.functional.gelu(x)')!r}); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


PRODUCT = """
import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(384, 512), torch.randn(512, 640)]


def get_init_inputs():
    return []
"""


def test_sizes_that_shrink_keep_their_divisors_and_stay_apart() -> None:
    budget = model_scale.emulated_budget(1)
    text, cost = model_scale.fit(PRODUCT, cost_of(PRODUCT), budget)
    assert cost.over(budget) <= 1 and text != PRODUCT
    rows, inner, again, columns = (one.value for one in sizes(text))
    assert inner == again
    assert all(one % 128 == 0 for one in (rows, inner, columns))
    assert len({rows, inner, columns}) == 3


@given(st.integers(1, 40), st.integers(0, 12), st.floats(1.01, 100.0), st.booleans())
def test_a_smaller_size_is_a_multiple_of_the_power_of_two_that_still_fits(
    odd: int, power: int, over: float, batch: bool
) -> None:
    was = odd << power
    name = "batch" if batch else "width"
    value = model_scale._smaller(name, was, was, over, {1 << 9})
    least = model_scale.SMALLEST_BATCH if batch else model_scale.SMALLEST_SIZE
    assert least <= value <= max(least, was - 1)
    kept = math.gcd(was, model_scale.KEPT_POWER)
    most = int(was / over) if batch else was // 2
    if most >= max(kept, least):
        assert value % kept == 0
    if value > least:
        assert value <= most


@pytest.mark.parametrize(
    ("was", "others", "smaller"),
    [
        (384, {512, 640}, 128),
        (512, {256, 384}, 128),  # 256 is taken
        (640, {384, 512}, 256),
        (3072, set(), 1024),  # not 1536, half of whose 1024 is left
        (1920, set(), 640),  # and so do other divisors
        (97, set(), 48),
    ],
)
def test_powers_of_two_come_first(was: int, others: set[int], smaller: int) -> None:
    assert model_scale._smaller("width", was, was, 2.0, others) == smaller


def test_a_budget_for_the_emulator_also_shrinks_the_numbers_of_get_inputs() -> None:
    text = CONVOLUTION.replace("length = 64\n", "").replace("length, length", "224, 224")
    problem = model_problem(text, "convolution", scale="emulated", threads=1)
    assert problem.model is not None
    changed = {one.name: one.new for one in problem.model.shrunk}
    assert changed["batch_size"] == 4
    assert {changed["get_inputs #1"], changed["get_inputs #2"]} <= {32, 64, 96}
    cost = model_scale.measure(problem.text)
    assert cost is not None and cost.over(model_scale.emulated_budget(1)) <= 1
