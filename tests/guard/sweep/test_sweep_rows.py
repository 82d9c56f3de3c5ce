from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from ratchet.base.process import families
from ratchet.guard.sweep import ArmRun, SweepRequest, SweepResult, TypeRow, trial
from ratchet.train.graph.scope import InstallReport
from ratchet.train.workloads.hf_config import HEADS

CPU = torch.device("cpu")
LOSSES = (2.0, 1.5, 1.25)
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
"""pytest has threads; the program that forks has none."""


def ran(losses: tuple[float, ...] = LOSSES, gradient: float = 1.0, breaks: int = 0) -> object:
    return trial._Ran(
        run=ArmRun(losses=losses),
        gradients={"weight": torch.full((4,), gradient)},
        report=InstallReport(),
        breaks={"no graph for print": breaks} if breaks else {},
        model="Model",
        inputs=("input_ids",),
    )


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What each arm of a type gives: a run, or an exception."""
    given: dict[str, object] = {name: ran() for name in trial.ARMS}

    def give(name: str, arm: str, device: torch.device) -> object:
        found = given[arm]
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(trial, "_ran", give)
    return given


def row() -> TypeRow:
    return trial.try_type("bert", HEADS["masked"], device=CPU, keep=lambda _: None)


def test_equal_losses_in_whole_graphs_are_a_type_that_works(arms: dict[str, object]) -> None:
    found = row()
    assert (found.status, found.why, found.arm) == ("works", "", "")
    assert set(found.runs) == {"written", "autocast", "kernels", "bf16"}


def test_a_step_that_fails_as_written_is_not_held_against_ratchet(arms: dict[str, object]) -> None:
    arms["written"] = ValueError("no labels\nsecond line")
    found = row()
    assert (found.status, found.why) == ("does not train as written", "ValueError: no labels")
    settings = dict(versions="", out=Path(), quick=False, device="cpu")
    assert SweepResult(rows=(found,), left_out=(), **settings).share is None


def test_a_lever_that_fails_is_left_out_and_named(arms: dict[str, object]) -> None:
    arms["kernels"] = RuntimeError("aten.foo has no kernel")
    found = row()
    assert found.status == "falls back"
    assert found.why == "kernels: RuntimeError: aten.foo has no kernel"
    assert found.arm == "kernels"
    assert "compile" in found.runs


def test_losses_that_are_not_finite_are_a_fault_that_a_row_can_hold(
    arms: dict[str, object],
) -> None:
    arms["kernels"] = ran(losses=(2.0, float("nan"), float("inf")))
    found = row()
    assert found.why.startswith("kernels: the losses are 2, nan, inf")
    assert msgspec.json.decode(msgspec.json.encode(found), type=TypeRow) == found


def test_a_part_of_a_row_that_a_killed_child_left_is_passed_over() -> None:
    with tempfile.TemporaryFile() as rows:
        whole = msgspec.json.encode(TypeRow(type="bert", status="works"))
        rows.write(whole + b"\n" + whole[:30] + b"}")
        assert trial._last_row("bert", rows).status == "works"


def test_a_type_of_which_no_arm_trains_fails(arms: dict[str, object]) -> None:
    arms |= dict.fromkeys(("kernels", "compile", "optimizer"), RuntimeError("no"))
    assert row().status == "fails"


def test_a_graph_break_is_a_part_that_falls_back(arms: dict[str, object]) -> None:
    arms["kernels"] = ran(breaks=2)
    found = row()
    assert (found.status, found.breaks) == ("falls back", 2)
    assert found.why == "2 graph breaks: no graph for print"


@pytest.mark.parametrize("arm", ["kernels", "bf16"])
@pytest.mark.parametrize(
    "wrong", [{"losses": (2.0, 1.5, 1.4)}, {"gradient": 1.3}], ids=["loss", "gradient"]
)
def test_another_loss_or_gradient_differs(
    arms: dict[str, object], arm: str, wrong: dict[str, object]
) -> None:
    arms[arm] = ran(**wrong)  # type: ignore[arg-type]
    found = row()
    assert found.status == "differs"
    assert found.why.startswith(f"{arm}: ")
    assert found.why.endswith("torch.compile alone does not")


@pytest.mark.parametrize(("eager", "status"), [(1.25, "falls back"), (1.4, "differs")])
def test_a_step_that_torch_compile_alone_changes_stays_eager(
    arms: dict[str, object], eager: float, status: str
) -> None:
    """It trains if the rest of Ratchet agrees with the step as written."""
    arms |= dict.fromkeys(("kernels", "compile"), ran(losses=(2.0, 1.5, 1.4)))
    arms["optimizer"] = ran(losses=(2.0, 1.5, eager))
    found = row()
    assert (found.status, found.arm) == (status, "kernels")
    assert "torch.compile alone differs too" in found.why


@pytest.mark.parametrize(("again", "status"), [(LOSSES, "works"), ((2.0, 1.5, 1.4), "differs")])
def test_inductors_own_code_decides_where_torchs_operators_differ(
    arms: dict[str, object], again: tuple[float, ...], status: str
) -> None:
    from torch._inductor import config

    arms["kernels"] = [ran(losses=(2.0, 1.5, 1.4)), ran(losses=again), ran(losses=again)]
    with config.patch(trial.QUICK):
        assert row().status == status


@pytest.mark.parametrize(
    ("rounded", "status"), [(1.2501, "works"), (1.25001, "differs"), (1.6, "differs")]
)
def test_what_a_rounding_of_the_weights_changes_is_no_difference(
    arms: dict[str, object], rounded: float, status: str
) -> None:
    """By ten times as much, and never by more than bf16 explains."""
    arms["rounded"] = ran(losses=(2.0, 1.5, rounded))
    arms["kernels"] = ran(losses=(2.0, 1.5, 1.2504 if rounded < 1.5 else 1.28))
    assert row().status == status


@pytest.mark.parametrize(("gradient", "status"), [(2.0, "works"), (1.1, "differs")])
def test_where_bf16_leaves_noise_of_a_gradient_losses_may_differ_more(
    arms: dict[str, object], gradient: float, status: str
) -> None:
    arms["autocast"] = ran(losses=(2.0, 1.5, 1.26), gradient=gradient)
    arms["bf16"] = ran(losses=(2.0, 1.5, 1.33), gradient=gradient)
    assert row().status == status


def test_a_rounding_changes_every_weight_in_its_last_digits() -> None:
    model = torch.nn.Linear(64, 64)
    before = model.weight.detach().clone()
    trial._round(model)
    apart = ((model.weight.detach() - before) / before).abs()
    assert 1e-8 < float(apart.mean()) < 1e-6


def test_a_percent_of_a_gradient_is_noise_in_bf16_and_a_fault_in_fp32(
    arms: dict[str, object],
) -> None:
    arms["bf16"] = ran(gradient=1.01)
    assert row().status == "works"
    arms["kernels"] = ran(gradient=1.01)
    assert row().status == "differs"


def test_a_step_that_differs_from_itself_is_not_compared(arms: dict[str, object]) -> None:
    arms["written"] = [ran(), ran(losses=(2.0, 1.5, 1.3))]
    arms["kernels"] = ran(losses=(2.0, 1.5, 1.4))
    found = row()
    assert found.status == "does not train as written"
    assert found.why == "two runs of one seed differ"


def request(limit_s: float) -> SweepRequest:
    return SweepRequest(
        types=("bert",),
        device="cpu",
        budget_s=None,
        limit_s=limit_s,
        memory_bytes=8 << 30,
        quick=True,
        versions="",
    )


KEPT, KEEPS = os.pipe()


def _hang(*_: object, keep: Callable[[TypeRow], None], **__: object) -> TypeRow:
    keep(TypeRow(type="bert", status="fails", doing="kernels"))
    os.write(KEEPS, b".")
    time.sleep(1 << 20)
    raise AssertionError


def _crash(*_: object, **__: object) -> TypeRow:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@FORKS
def test_a_hang_is_its_type_s_row(monkeypatch: pytest.MonkeyPatch) -> None:
    as_ever = families.has_ended_within

    def once_it_kept_a_row(child: int, limit_s: float) -> bool:
        os.read(KEPT, 1)
        return as_ever(child, limit_s)

    monkeypatch.setattr(families, "has_ended_within", once_it_kept_a_row)
    monkeypatch.setattr(trial, "try_type", _hang)
    found = trial.in_a_fork("bert", request(limit_s=0.5))
    assert (found.status, found.why) == ("fails", "kernels: it took more than 0.5 s")
    assert found.arm == "kernels"  # so that it gets a script


@FORKS
def test_a_crash_is_its_type_s_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "try_type", _crash)
    found = trial.in_a_fork("bert", request(limit_s=60))
    assert found.status == "does not train as written"
    assert "killed by SIGKILL" in found.why


@pytest.mark.parametrize("count", [trial.WARM_FROM - 1, trial.WARM_FROM])
def test_a_program_of_many_types_compiles_one_before_it_forks(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On one thread, and with the settings of the forks."""
    seen: list[tuple[str, int, bool]] = []

    def run_arm(name: str, arm: str, device: torch.device) -> ArmRun:
        quick = bool(torch._inductor.config.fallback_by_default)
        seen.append((arm, torch.get_num_threads(), quick))
        raise RuntimeError("its row will tell")

    monkeypatch.setattr(trial, "run_arm", run_arm)
    monkeypatch.setattr(
        trial, "in_a_fork", lambda name, _: TypeRow(type=name, status="works", quick=True)
    )
    asked = msgspec.structs.replace(request(60), types=("bert",) * count)
    monkeypatch.setattr("sys.argv", ["forks", msgspec.json.encode(asked).decode()])
    threads = torch.get_num_threads()
    trial.main()
    assert seen == ([("kernels", 1, True)] if count == trial.WARM_FROM else [])
    assert torch.get_num_threads() == threads
    assert len(capsys.readouterr().out.splitlines()) == count
