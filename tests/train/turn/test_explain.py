"""Where a step's time goes: a real trace of a small step, read back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.probe import probe
from ratchet.trace.advice import FINDINGS
from ratchet.train.levers import all_levers
from ratchet.train.recipe.facts import record_steps
from ratchet.train.turn import compose
from ratchet.train.turn.explain import categorise, explain
from ratchet.train.turn.optimize_result import StepProfile

STEPS = 3
ROWS, WIDTH = 64, 256
CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 1e11},
    copy_bytes_per_s={"dram": 1e12},
    triad_bytes_per_s={"dram": 1e12},
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> StepProfile:
    """One linear layer and a loss, three steps."""
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    path = tmp_path_factory.mktemp("explain") / "trace.json.gz"

    def step(batch: torch.Tensor) -> None:
        layer(batch).square().sum().backward()

    told = record_steps(step, [torch.randn(ROWS, WIDTH)], STEPS, "cpu", path)
    assert told["steps"] == STEPS and told["system_s"] >= 0
    return explain(path, STEPS, probe("cpu"), CEILINGS)


def test_operators_are_counted_for_one_step(profile: StepProfile) -> None:
    calls = {op.name: op.calls for op in profile.ops}
    assert calls["aten::mm"] == 2  # forward, and the weight's gradient
    assert profile.total_s == pytest.approx(sum(op.time_s for op in profile.ops))
    assert sum(op.share for op in profile.ops) == pytest.approx(1.0)


def test_the_parts_of_the_window_sum_to_it(profile: StepProfile) -> None:
    parts = msgspec.to_builtins(profile.identity)
    window_s = parts.pop("window_s")
    assert window_s > 0
    assert sum(parts.values()) == pytest.approx(window_s)
    assert parts["compute_s"] == pytest.approx(profile.total_s, rel=0.5)


def test_a_matmul_is_held_against_the_measured_ceiling(profile: StepProfile) -> None:
    (matmul,) = (op for op in profile.ops if op.name == "aten::mm")
    rate = 2 * 2 * ROWS * WIDTH * WIDTH / matmul.time_s
    assert matmul.category == "matmul"
    wanted = f"compute ({rate / 1e11:.0%} of the ceiling)"
    assert matmul.bound in (wanted, "overhead")


def test_the_trace_stays_for_the_trace_command(profile: StepProfile) -> None:
    assert Path(profile.trace).stat().st_size > 0


def test_an_operator_belongs_to_one_category() -> None:
    assert categorise("aten::_scaled_dot_product_flash_attention_for_cpu") == "attention"
    assert categorise("aten::cross_entropy_loss") == "loss"
    assert categorise("something else") == "other"


def test_findings_name_levers_that_exist() -> None:
    source = "".join(
        Path(f"{find.__globals__['__file__']}").read_text(encoding="utf-8") for find in FINDINGS
    )
    named = {
        word.strip("\"' ")
        for part in source.split("levers=(")[1:]
        for word in part.split(")")[0].split(",")
        if word.strip("\"' ")
    }
    assert named and named <= set(all_levers())


@pytest.mark.parametrize("truth", [4e11, 1e11])
def test_a_step_above_its_ceiling_has_the_ceilings_measured_anew(
    truth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step as written is above in its own dtype; the recipe's is not."""
    known = msgspec.structs.replace(CEILINGS, gemm_flops_per_s={"fp32": 1e11, "bf16": 4e11})
    anew = msgspec.structs.replace(known, gemm_flops_per_s={"fp32": truth, "bf16": 4e11})
    monkeypatch.setattr(
        compose.ceilings,
        "measure",
        lambda device, *, again="", folder=None: anew if again else known,
    )
    turn: Any = SimpleNamespace(
        ceilings=known,
        device=probe("cpu"),
        warnings=[],
        schedule=SimpleNamespace(may_start=lambda *_: True),
    )
    assert compose.ceilings_above(turn, [(9e10, "fp32"), (3e11, "bf16")]) is known
    found = compose.ceilings_above(turn, [(2e11, "fp32"), (3e11, "bf16")])
    assert found is turn.ceilings is anew
    assert len(turn.warnings) == (truth < 2e11)
