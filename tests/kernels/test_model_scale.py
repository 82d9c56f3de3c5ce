"""`auto` fits a problem's time as well as its operations and bytes; no outcome hangs on a clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ratchet.kernels import model_scale
from ratchet.kernels.model_scale import AUTO_CASE_BYTES, LEAST_SHARE, Cost

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
MANY_OPERATORS = TEXT.format(forward="for at in range(length): x = x + 1.0")


def cost_of(text: str) -> Cost:
    found = model_scale.measure(text)
    assert found is not None
    return found


def elements(text: str) -> int:
    found = {size.name: size.value for size in model_scale.sizes(text)}
    return found["batch_size"] * found["length"]


def test_a_call_that_is_slow_is_made_smaller_by_powers_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def slowness(text: str) -> float:
        asked.append(elements(text))
        return 6.0 * elements(text) / elements(ELEMENTWISE)

    monkeypatch.setattr(model_scale, "slowness", slowness)
    text, cost, over = model_scale.fit_time(ELEMENTWISE, cost_of(ELEMENTWISE))
    assert over <= model_scale.SLOW
    assert elements(ELEMENTWISE) // elements(text) == 8
    assert cost.bytes == cost_of(text).bytes
    assert asked == [elements(ELEMENTWISE), elements(text)]


@pytest.mark.parametrize("noise", [0.8, 1.0, 1.25])
def test_a_little_noise_gives_the_same_sizes(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    monkeypatch.setattr(
        model_scale, "slowness", lambda text: 4 * noise * elements(text) / (1 << 18)
    )
    text, _, _ = model_scale.fit_time(ELEMENTWISE, cost_of(ELEMENTWISE))
    assert elements(text) == 1 << 16


def test_what_stays_slow_is_left_where_no_size_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_scale, "slowness", lambda text: 1000.0)
    text, _, over = model_scale.fit_time(ELEMENTWISE, cost_of(ELEMENTWISE))
    assert over == 1000.0
    assert elements(text) >= elements(ELEMENTWISE) * LEAST_SHARE**model_scale.MOST_TIMED / 2


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
        "import sys; from ratchet.kernels import model_scale; "
        f"model_scale.measure({TEXT.format(forward='x = torch.nn.functional.gelu(x)')!r}); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_both_precisions_are_called() -> None:
    assert model_scale.slowness(ELEMENTWISE) > 0
    refuses = TEXT.format(forward="assert x.dtype == torch.float32")
    assert model_scale.slowness(refuses) > 0
