"""A kernel that cannot be proven here and now is left out: one warning, and training goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from own_recipes import MadeUpJudge, batch, believe, make, recipe, step_of

import ratchet
from ratchet.base.devices.probe import probe
from ratchet.base.errors import CompilerMissing, JudgeError, KernelError, LedgerError, RecipeError
from ratchet.base.ledger import Ledger
from ratchet.base.serialise import document_of
from ratchet.judge.court import machines
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.languages import cpp
from ratchet.train.workloads.config import StepConfig

NORM = ("rms_norm_forward", "rms_norm_backward", "add_rms_norm_forward", "add_rms_norm_backward")
ADAMW = ("gradient_square_sum", "adamw_step")


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> MadeUpJudge:
    made = MadeUpJudge()
    monkeypatch.setattr(machines, "KernelJudge", made)
    return made


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Compile and load nothing; give the entries that would have been loaded."""
    entries: list[str] = []
    monkeypatch.setattr(cpp, "compile_kernel", lambda kernel: Path("library.so"))
    monkeypatch.setattr(cpp, "load", lambda path, entry: None)
    monkeypatch.setattr(registry, "activate", lambda kernel, path: entries.append(kernel.entry))
    yield entries
    registry.deactivate()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def train(ledger: str, **options: Any) -> list[float]:
    model, optimizer = make()
    step = ratchet.compile(
        step_of(model, optimizer), model, optimizer, recipe=recipe(), ledger=ledger, **options
    )
    return [float(step(batch(index))) for index in range(3)]


def test_a_fresh_ledger_has_every_kernel_proved_again(
    ledger: str, judge: MadeUpJudge, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    train(ledger)
    assert sorted(loaded) == sorted([*NORM, *ADAMW])
    assert warned(caplog) == []
    judge.asked.clear()
    train(ledger)
    assert judge.asked == []


def proven_here(ledger: str) -> None:
    """Have a turn on this machine end with the recipe, proven in its step."""
    made = recipe()
    with Ledger.open(ledger) as opened:
        here = opened.here(probe("cpu"))
        turn = opened.start_turn(made.workload, fingerprint=here)
        opened.record_recipe(turn, document_of(made))
        opened.finish_turn(turn, {"recipe_is": "proven"})


def test_of_a_recipe_that_was_proven_here_a_kernel_need_only_be_right(
    ledger: str, judge: MadeUpJudge, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    judge.fast = dict.fromkeys((*NORM, *ADAMW), "correct")
    proven_here(ledger)
    train(ledger)
    assert sorted(loaded) == sorted([*NORM, *ADAMW]) and warned(caplog) == []
    assert not any(timed for _, timed in judge.asked)


def test_a_wrong_kernel_of_a_recipe_that_was_proven_here_is_left_out(
    ledger: str, judge: MadeUpJudge, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    judge.right = {"rms_norm_backward": "wrong"}
    proven_here(ledger)
    train(ledger)
    assert sorted(loaded) == sorted(ADAMW)
    assert "rms_norm_backward is wrong here" in warned(caplog)[0]


def test_every_entry_s_answers_are_asked_before_any_time(ledger: str, judge: MadeUpJudge) -> None:
    train(ledger)
    norm = [timed for entry, timed in judge.asked if entry in NORM]
    assert norm == sorted(norm) and any(norm)


def test_a_wrong_kernel_is_never_timed(
    ledger: str, judge: MadeUpJudge, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    judge.right["rms_norm_backward"] = "wrong"
    train(ledger)
    assert sorted(loaded) == sorted(ADAMW)
    assert ("rms_norm_backward", False) in judge.asked
    assert not any(timed for entry, timed in judge.asked if entry in NORM)
    (line,) = warned(caplog)
    assert "rms_norm (rms_norm_backward is wrong here" in line


@pytest.mark.parametrize("status", ["correct", "unmeasured", "timed_out", "crashed", "refused"])
def test_what_is_right_but_not_proven_is_left_out(
    ledger: str,
    judge: MadeUpJudge,
    loaded: list[str],
    caplog: pytest.LogCaptureFixture,
    status: str,
) -> None:
    judge.fast["rms_norm_forward"] = judge.fast["adamw_step"] = status
    model, optimizer = make()
    plain = [float(step_of(model, optimizer)(batch(index))) for index in range(3)]
    assert train(ledger) == pytest.approx(plain, abs=1e-6)
    assert loaded == []
    (line,) = warned(caplog)
    assert f"rms_norm_forward is {status} here" in line
    assert f"adamw_step is {status} here" in line
    assert "\n" not in line


def test_an_optimizer_kernel_that_is_left_out_leaves_torch_s_update(
    ledger: str, judge: MadeUpJudge
) -> None:
    judge.fast["adamw_step"] = "correct"
    before = registry.fallbacks["adamw_step"]
    train(ledger)
    assert registry.fallbacks["adamw_step"] == before


def test_a_measured_answer_is_not_asked_for_again_and_an_unmeasured_one_is(
    ledger: str, judge: MadeUpJudge
) -> None:
    judge.fast["rms_norm_forward"] = "correct"
    judge.fast["adamw_step"] = "unmeasured"
    train(ledger)
    judge.asked.clear()
    train(ledger)
    assert judge.asked == [("adamw_step", True)]


def test_strict_raises_and_changes_nothing(
    ledger: str, judge: MadeUpJudge, loaded: list[str]
) -> None:
    judge.fast["adamw_step"] = "correct"
    model, optimizer = make()
    step, update = step_of(model, optimizer), optimizer.step
    with pytest.raises(RecipeError, match="adamw_step is correct here") as caught:
        ratchet.compile(step, model, optimizer, recipe=recipe(), ledger=ledger, strict=True)
    assert "\n" not in str(caught.value)
    assert loaded == []
    assert optimizer.step == update


def test_strict_is_content_with_what_is_proven(ledger: str, loaded: list[str]) -> None:
    believe(ledger, recipe().kernels)
    train(ledger, strict=True)
    assert sorted(loaded) == sorted([*NORM, *ADAMW])


@pytest.mark.parametrize(
    "error",
    [JudgeError("no sandbox"), CompilerMissing("no C++ compiler found"), OSError(28, "no space")],
)
def test_a_fault_of_the_judge_does_not_stop_the_training(
    ledger: str,
    judge: MadeUpJudge,
    loaded: list[str],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    judge.raises = error
    train(ledger)
    assert loaded == []
    (line,) = warned(caplog)
    assert str(error) in line


def test_a_ledger_that_cannot_be_opened_does_not_stop_the_training(
    tmp_path: Path, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger.db").write_text("this is no database, and it is long enough to be one")
    train(str(tmp_path / "ledger.db"))
    assert loaded == []
    (line,) = warned(caplog)
    assert "ledger.db" in line


def test_a_ledger_that_cannot_be_written_does_not_stop_the_training(
    ledger: str,
    judge: MadeUpJudge,
    loaded: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def locked(self: Ledger, *_: object, **__: object) -> None:
        raise LedgerError("the ledger is locked")

    monkeypatch.setattr(Ledger, "record_verdict", locked)
    train(ledger)
    assert loaded == []
    (line,) = warned(caplog)
    assert "the ledger is locked" in line


def test_a_kernel_that_does_not_compile_is_left_out(
    ledger: str,
    loaded: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_kernel(kernel: Any) -> Path:
        if kernel.entry == "adamw_step":
            raise KernelError("it does not compile")
        return Path("library.so")

    monkeypatch.setattr(cpp, "compile_kernel", compile_kernel)
    believe(ledger, recipe().kernels)
    train(ledger)
    assert sorted(loaded) == sorted(NORM)
    (line,) = warned(caplog)
    assert "adamw (it does not compile)" in line


def test_a_kernel_that_this_version_lacks_is_left_out(
    ledger: str, loaded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = recipe()
    strange = msgspec.structs.replace(made.kernels[0], hash="0" * 64)
    forged = msgspec.structs.replace(made, kernels=(strange, *made.kernels[1:])).sealed()
    believe(ledger, forged.kernels)
    model, optimizer = make()
    step = step_of(model, optimizer)
    ratchet.compile(step, model, optimizer, recipe=forged, ledger=ledger)(batch(0))
    assert sorted(loaded) == sorted(ADAMW)
    (line,) = warned(caplog)
    assert "is not in this version's library" in line


def test_a_workload_s_step_leaves_them_out_too(
    ledger: str, judge: MadeUpJudge, caplog: pytest.LogCaptureFixture
) -> None:
    from ratchet.train.recipe import signature_of
    from ratchet.train.workloads.load import load

    judge.fast["adamw_step"] = "correct"
    workload = load("llama-tiny")
    made = recipe(StepConfig(optimizer="kernel"), model=signature_of(workload.model))
    with pytest.raises(RecipeError, match="adamw_step"):
        ratchet.apply(workload, made, ledger=ledger, strict=True)
    step = ratchet.apply(workload, made, ledger=ledger)
    assert isinstance(step.optimizer, torch.optim.AdamW)
    assert len(warned(caplog)) == 1


def test_a_kernel_that_is_not_needed_is_not_proved(ledger: str, judge: MadeUpJudge) -> None:
    """A model alone carries no optimizer, so its kernel is not asked about."""
    model, _ = make()
    ratchet.compile(model, recipe=recipe(), ledger=ledger)
    assert not {entry for entry, _ in judge.asked} & set(ADAMW)
