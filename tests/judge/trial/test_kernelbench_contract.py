"""KernelBench's contract: a file runs as a module, and state is matched by more than its names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ratchet.base.errors import KernelError
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.readiness import why_no_kernels
from ratchet.kernels.kernel_file import load_kernel
from ratchet.problems.model_state import StatefulCall
from ratchet.problems.problem_file import load_problem

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return torch.relu(self.fc(x)) * 0.5

def get_inputs():
    return [torch.randn(16, 24)]

def get_init_inputs():
    return [24, 32]
"""
HEAD = """from __future__ import annotations
import torch
import torch.nn.functional as F
from torch import nn
"""
KERNELS = {
    "an alias": """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w, self.b = self.fc.weight, self.fc.bias
    def forward(self, x):
        return F.linear(x, self.w, self.b).relu() * 0.5
""",
    "a buffer of its own": """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.register_buffer("factor", torch.tensor(0.5))
    def forward(self, x):
        return self.fc(x).relu() * self.factor
""",
    "other names": """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(m))
        self.matrix = nn.Parameter(torch.empty(m, n))
    def forward(self, x):
        return F.linear(x, self.matrix, self.bias).relu() * 0.5
""",
    "a dataclass": """
from dataclasses import dataclass

@dataclass
class Scale:
    factor: float = 0.5

class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc, self.scale = nn.Linear(n, m), Scale()
    def forward(self, x):
        return self.fc(x).relu() * self.scale.factor
""",
    "a script": """
class Tail(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.5

@torch.jit.script
def head(x, w, b):
    return F.linear(x, w, b)

class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc, self.tail = nn.Linear(n, m), torch.jit.script(Tail())
    def forward(self, x):
        return self.tail(head(x, self.fc.weight, self.fc.bias))
""",
}
FOLDED = """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.register_buffer("folded", self.fc.weight.detach() * 0.5)
    def forward(self, x):
        return (F.linear(x, self.folded) + self.fc.bias * 0.5).relu()
"""
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)


def status(court: KernelJudge, folder: Path, source: str) -> tuple[str, str]:
    problem, kernel = folder / "problem.py", folder / "kernel.py"
    problem.write_text(PROBLEM)
    kernel.write_text(HEAD + source)
    verdict = court.judge(load_kernel(kernel), load_problem(problem), time_limit_s=120)
    return verdict.status, verdict.reason


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("name", KERNELS)
def test_an_honest_way_is_right(name: str, court: KernelJudge, tmp_path: Path) -> None:
    found, reason = status(court, tmp_path, KERNELS[name])
    assert found in ("correct", "proven"), reason


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_weights_that_were_folded_once_are_wrong(court: KernelJudge, tmp_path: Path) -> None:
    assert status(court, tmp_path, FOLDED)[0] == "wrong"


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(3))
        self.a = nn.Parameter(torch.zeros(3))
        self.wide = nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide @ x + self.b * 10 + self.a


FORMS = [((3,), torch.float32), ((3,), torch.float32), ((3, 2), torch.float32)]


def test_names_come_first_then_shapes_in_order() -> None:
    one, two, wide = torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]), torch.ones(3, 2)
    named = StatefulCall(Two(), ["a", "b", "wide"], [None], (), FORMS)
    (found,) = named(one, two, wide, torch.zeros(2), ())
    assert torch.equal(found, two * 10 + one)
    other = StatefulCall(Two(), ["first", "second", "wide"], [None], (), FORMS)
    (found,) = other(one, two, wide, torch.zeros(2), ())
    assert torch.equal(found, one * 10 + two)  # `b` is the first that the model made


def test_a_part_without_a_place_is_named_and_what_is_left_over_stays() -> None:
    forms = [*FORMS, ((9,), torch.float32)]
    call = StatefulCall(Two(), ["a", "b", "wide", "gain"], [None], (), forms)
    assert call.unplaced == ["gain"]
    fewer = StatefulCall(Two(), ["a", "wide"], [None], (), [FORMS[0], FORMS[2]])
    assert fewer.unplaced == []
    (found,) = fewer(torch.ones(3), torch.ones(3, 2), torch.zeros(2), ())
    assert torch.equal(found, torch.ones(3))  # `b` kept its zeros


def test_a_reference_must_have_exactly_the_state() -> None:
    with pytest.raises(KernelError, match="it lacks gain"):
        StatefulCall(Two(), ["a", "b", "wide", "gain"], [None])
    with pytest.raises(KernelError, match="it adds b"):
        StatefulCall(Two(), ["a", "wide"], [None])


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(3, 2))
        self.turned = self.wide.detach().t()
        self.kept = [self.wide.data]
        self.again = nn.Parameter(self.wide.data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.turned + self.kept[0].sum() + self.again.sum()


@pytest.mark.parametrize("frozen", [False, True])
def test_views_of_a_weight_follow_it(frozen: bool) -> None:
    call = StatefulCall(Views(), ["wide"], [None], (), [((3, 2), torch.float32)], frozen=frozen)
    first, x = torch.arange(6.0).view(3, 2), torch.ones(2)
    (found,) = call(first, x, ())
    assert torch.equal(found, x @ first.t() + 30)
    (found,) = call(torch.zeros(3, 2), x, ())
    assert torch.equal(found, x @ first.t() + 30 if frozen else torch.zeros(3))
