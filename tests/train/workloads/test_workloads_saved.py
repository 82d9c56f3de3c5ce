"""A Workload object as a file that other processes load."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import in_fork
from torch import Tensor, nn

from ratchet.base.errors import RatchetError, WorkloadError
from ratchet.train.turn.settings import Settings
from ratchet.train.workloads.check import check
from ratchet.train.workloads.load import load
from ratchet.train.workloads.user import as_spec, save
from ratchet.train.workloads.workload import Workload

SCRIPT = """
import sys
import torch
from torch import nn
import ratchet

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight

    def forward(self, x):
        return self.tied(self.first(x))

def loss(model, batch):
    return model(batch).square().mean()

class Batches:
    def __call__(self, index):
        return torch.full((2, 4), float(index + 1))

def make():
    return ratchet.Workload(name="mine", model=Model(), loss=loss, batch=Batches())

if __name__ == "__main__":
    from pathlib import Path
    from ratchet.train.workloads.user import save

    save(make(), Path(sys.argv[1]))
"""


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def batch(index: int) -> Tensor:
    return torch.full((2, 4), float(index + 1))


def own(**changes: Any) -> Workload:
    workload = Workload(name="a/b c", model=nn.Linear(4, 1), loss=loss, batch=batch)
    return replace(workload, **changes)


def test_a_script_s_own_classes_are_found_by_its_path(tmp_path: Path) -> None:
    script, saved = tmp_path / "train_saved.py", tmp_path / "mine.workload"
    script.write_text(SCRIPT)

    def run() -> None:
        sys.argv = [str(script), str(saved)]
        runpy.run_path(str(script), run_name="__main__")

    done = in_fork(run)
    assert done.returncode == 0, done.stderr
    loaded = load(str(saved))
    assert check(loaded) == ()
    assert type(loaded.model).__module__ == "train_saved"
    assert loaded.model.tied.weight is loaded.model.first.weight


def test_an_object_keeps_its_weights_and_its_name() -> None:
    workload = own()
    with as_spec(workload) as spec:
        loaded = load(spec)
        assert Settings(workload=spec).title == "a/b c"
        folder = Path(spec).parent
        assert torch.equal(loaded.model.weight, workload.model.weight)
    assert not folder.exists()


def test_the_same_object_is_the_same_turn_and_other_weights_are_another() -> None:
    workload, keys = own(), []
    for one in (workload, workload, own()):
        with as_spec(one) as spec:
            keys.append(Settings(workload=spec).key())
    assert keys[0] == keys[1] != keys[2]


def test_a_built_in_workload_is_an_object_too() -> None:
    with as_spec(load("llama-tiny")) as spec:
        loaded = load(spec)
    assert loaded.shrink is not None
    assert loaded.shrink(1).name == "llama-tiny"


def local() -> Callable[..., Tensor]:
    def inner(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).mean()

    return inner


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": lambda model, x: model(x).mean()}, "its loss cannot be sent"),
        ({"loss": local()}, "the function 'inner' inside another function"),
        ({"batch": lambda index: torch.ones(2, 4)}, "its batch cannot be sent"),
        ({"batch": (x for x in ())}, "its batch cannot be sent"),
    ],
)
def test_what_no_other_process_can_find_is_one_line(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        save(own(**changes), tmp_path / "w.workload")
    assert expected in str(error.value)
    assert "pass the function that makes the workload" in str(error.value)
    if "lambda" in str(error.value):
        assert f"{__file__}:" in str(error.value)


def test_the_function_that_makes_a_workload_is_its_place() -> None:
    with as_spec(own) as spec:
        assert spec == f"{__file__}:own"
    with pytest.raises(WorkloadError, match="a lambda"), as_spec(lambda: own()):
        pass
    with pytest.raises(WorkloadError, match="workload is int"), as_spec(3):  # type: ignore[arg-type]
        pass


def test_a_script_without_a_guard_does_not_start_itself_again(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("import ratchet\nratchet.optimize('llama-tiny')\ndef make(): ...\n")
    with pytest.raises(RatchetError, match='put the call under `if __name__ == "__main__":`'):
        load(f"{script}:make")


def test_a_class_of_an_interactive_session_is_one_line(tmp_path: Path) -> None:
    code = SCRIPT.replace("sys.argv[1]", repr(str(tmp_path / "w.workload")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "is defined in an interactive session" in done.stderr.splitlines()[-1]
