from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ratchet.base.errors import DeviceError, WorkloadError
from ratchet.train.workloads.bench import bench
from ratchet.train.workloads.check import check
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import check_name
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import AdamWSpec, Workload

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_own.py"
SCRIPT = """
import torch
from ratchet.train.workloads.workload import Workload

def make_workload():
    model = torch.nn.Linear(4, 1)
    return Workload(
        name="own", model=model, loss=LOSS, batch=lambda index: torch.ones(2, 4) * (index + 1),
        tokens_per_batch=2,
    )

def bad_result():
    return 3

def fails():
    return helper()

def helper():
    raise KeyError("no such corpus")

def leaves():
    raise SystemExit("bye")
"""
GOOD_LOSS = "lambda m, x: m(x).square().mean()"


def script(folder: Path, loss: str = GOOD_LOSS) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("LOSS", loss))
    return path


def message(spec: str) -> str:
    with pytest.raises(WorkloadError) as error:
        check(load(spec))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_users_workload_is_loaded_and_trains(tmp_path: Path) -> None:
    spec = f"{script(tmp_path)}:make_workload"
    workload = load(spec, precision="bf16_autocast")
    check(workload)
    assert (workload.source, workload.precision) == (spec, "bf16_autocast")
    step = TrainingStep(workload, StepConfig())
    assert step(workload.batch(0)) > step(workload.batch(0))


def test_the_seed_gives_the_weights(tmp_path: Path) -> None:
    spec = f"{script(tmp_path)}:make_workload"
    first, again, other = (load(spec, seed=seed).model.weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("lambda m, x: m(x).mean() * float('nan')", "the loss of the first batch is nan"),
        ("lambda m, x: m(x)", r"the loss is shape (2, 1), not a scalar"),
        ("lambda m, x: 1.0", "the loss is float, not a scalar"),
        ("lambda m, x: x.mean()", "does not depend on the weights"),
        ("lambda m, x: m(x).detach().mean()", "does not depend on the weights"),
        ("lambda m, x: (m(x) * 0).mean()", "does not depend on the weights"),
        ("lambda m, x: (m(x) * 0).sum().sqrt()", "gradient of the first batch is not finite"),
        ("lambda m, x: m(x, x)", "raised TypeError"),
        ("3", "loss is not callable"),
    ],
)
def test_a_loss_that_cannot_train_is_one_line(tmp_path: Path, loss: str, expected: str) -> None:
    assert expected in message(f"{script(tmp_path, loss)}:make_workload")


def test_a_wrong_result_names_what_came_and_what_should(tmp_path: Path) -> None:
    text = message(f"{script(tmp_path)}:bad_result")
    assert "returned int, not a ratchet.Workload; return ratchet.Workload(" in text


@pytest.mark.parametrize("optimizer", ["None", "[]", "{}"])
def test_a_script_that_updates_by_hand_is_told_to_take_an_optimizer(
    optimizer: str, tmp_path: Path
) -> None:
    path = tmp_path / "by_hand.py"
    path.write_text(
        f"import torch\ndef build():\n    return torch.nn.Linear(2, 2), {optimizer}, id, id\n"
    )
    assert f"returned the optimizer {optimizer}; let a torch.optim" in message(f"{path}:build")


def test_an_exception_names_its_place_in_the_users_file(tmp_path: Path) -> None:
    path = script(tmp_path)
    text = message(f"{path}:fails")
    line = 1 + path.read_text().splitlines().index('    raise KeyError("no such corpus")')
    assert f"raised KeyError: 'no such corpus' ({path}:{line})" in text


def test_a_package_that_is_missing_is_to_be_installed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import no_such_package\ndef build():\n    pass\n")
    assert message(f"{path}:build").endswith(f"({path}:1); install it, or import it only if needed")


OPTIONS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, REST)
args = parser.parse_args()
def build():
    return args.rows, parser.parse_args().rows
"""


def test_a_script_that_parses_options_gets_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["ratchet", "optimize", "--budget", "1m"])
    path = tmp_path / "options.py"
    path.write_text(OPTIONS.replace("REST", "default=4"))
    assert "returned (int, int)" in message(f"{path}:build")
    assert sys.argv[0] == "ratchet"


def test_an_option_that_a_script_needs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "options.py"
    path.write_text(OPTIONS.replace("REST", "required=True"))
    said = message(f"{path}:build")
    assert f"the following arguments are required: --rows ({path}:5)" in said
    assert "set sys.argv before it is parsed" in said


def test_a_function_that_takes_arguments_is_refused_before_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(
        "def given(function): return lambda: function(0, 1)\n"
        "def train(model, lr=1, *, data, seed=0): ...\n"
        "@given\ndef decorated(model, data): ...\n"
        "def bare(lr=1, *args): ...\n"
    )
    with pytest.raises(WorkloadError, match="train takes model, data, but Ratchet gives it noth"):
        check_name(f"{path}:train")
    for name in ("decorated", "bare"):
        check_name(f"{path}:{name}")


def test_a_script_that_exits_is_one_line(tmp_path: Path) -> None:
    assert "raised SystemExit: bye" in message(f"{script(tmp_path)}:leaves")


def test_a_function_whose_name_is_made_as_the_file_runs_is_found(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text("for size in (1, 2):\n    globals()[f'build_{size}'] = lambda: None\n")
    check_name(f"{path}:build_2")


def test_a_missing_function_lists_those_that_are_there(tmp_path: Path) -> None:
    text = message(f"{script(tmp_path)}:make")
    assert "has no function 'make'; it has bad_result, fails, helper, leaves, make_workload" in text


def test_a_missing_file_or_name_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in message(f"{tmp_path}/none.py:make")
    assert "No such file" in message(f"{tmp_path}/none.py")
    said = message(str(script(tmp_path)))
    assert "names no function; write " in said and "(model, optimizer, step, batch)" in said


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef make(:\n")
    assert f"({path}:2)" in message(f"{path}:make")


def test_options_that_only_the_file_can_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="batch size 4 cannot be set"):
        load(f"{script(tmp_path)}:make_workload", batch_size=4)


def test_a_batch_out_of_memory_is_a_device_error(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    huge = script(tmp_path).read_text().replace("LOSS", GOOD_LOSS)
    path.write_text(huge.replace("torch.ones(2, 4) * (index + 1)", "torch.ones(2**50, 4)"))
    with pytest.raises(DeviceError, match="does not fit in the memory of cpu; use a smaller batch"):
        check(load(f"{path}:make_workload"))


def own(**changes: object) -> Workload:
    workload = Workload(
        name="own",
        model=nn.Linear(4, 1),
        loss=lambda model, x: model(x).square().mean(),
        batch=lambda index: torch.ones(2, 4),
        tokens_per_batch=2,
    )
    return replace(workload, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": 3}, "model is int, not an nn.Module"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"precision": "fp16"}, "precision is 'fp16'"),
        ({"checkpointing": "all"}, "checkpointing is 'all'"),
        ({"model": nn.Linear(4, 1).requires_grad_(False)}, "no parameter requires a gradient"),
        (
            {"batch": lambda index: torch.rand(2, 4)},
            "two calls of batch(0) returned different batches",
        ),
    ],
)
def test_a_wrong_field_is_one_line(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(WorkloadError) as error:
        check(own(**changes))
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"optimizer": 5}, "optimizer is not callable"),
        (
            {"optimizer": lambda parameters: 5},
            "optimizer returned int 5, not a torch.optim.Optimizer",
        ),
        ({"optimizer": lambda p: torch.optim.AdamW(p, betas=5)}, "raised TypeError"),
        ({"optimizer": AdamWSpec(betas=5)}, "raised TypeError"),  # type: ignore[arg-type]
        (
            {"batch": lambda index: torch.ones(2, 4, device="meta")},
            "batch(0) is on the meta device",
        ),
        ({"model": nn.Linear(4, 1, device="meta")}, "the model is on the meta device"),
    ],
)
def test_an_optimizer_or_a_tensor_that_cannot_be_used_is_one_line(
    changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        check(own(**changes))
    assert expected in str(error.value)
    if "raised" in expected and not isinstance(changes["optimizer"], AdamWSpec):
        assert f"({__file__}:" in str(error.value)


class Late:
    """Raises from its third call on."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls > 6:
            raise KeyError("late")
        return self.value(*arguments)


@pytest.mark.parametrize("field", ["loss", "batch"])
def test_a_late_exception_names_its_line(field: str) -> None:
    workload = own()
    late = replace(workload, **{field: Late(getattr(workload, field))})
    check(late)
    with pytest.raises(WorkloadError, match=r"raised KeyError: 'late' \(.*user\.py:\d+\)"):
        bench(late, late.as_written(), steps=8)


def test_a_fault_of_ours_in_a_step_is_not_blamed_on_the_user() -> None:
    step = TrainingStep(own(), StepConfig())
    step.loss = None  # type: ignore[assignment]
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        step(torch.ones(2, 4))


def unseeded(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean() + float(np.random.default_rng().random())


def dropped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(model(x), 0.5).square().mean()


def test_noise_in_a_loss_is_a_warning() -> None:
    assert check(own()) == ()
    (warning,) = check(own(loss=unseeded))
    assert "two runs with the same seed and batch gave the losses" in warning
    assert "Seed it from the batch's index" in warning


def test_dropout_is_another_warning_and_leaves_the_generators_as_they_were() -> None:
    x = torch.arange(4000.0).view(1000, 4)
    workload = own(loss=dropped, batch=lambda index: x)
    before = torch.random.get_rng_state()
    (warning,) = check(workload)
    assert "the loss is random" in warning and "the draws of the step as written" in warning
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_check_leaves_running_means_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert check(own(model=model, batch=lambda index: torch.randn(8, 4, generator=seed(0)))) == ()
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def seed(value: int) -> torch.Generator:
    return torch.Generator().manual_seed(value)


def test_a_device_of_the_users_that_is_not_there_is_one_line() -> None:
    with pytest.raises(DeviceError, match="is not available"):
        check(own(device=f"cuda:{torch.cuda.device_count()}"))


def test_the_example_trains_and_shrinks() -> None:
    workload = load(f"{EXAMPLE}:make_workload")
    check(workload)
    assert workload.shrink is not None
    small = workload.shrink(1)
    step = TrainingStep(small, StepConfig())
    losses = [step(small.batch(index)).item() for index in range(30)]
    assert losses[-1] < losses[0] - 0.3
