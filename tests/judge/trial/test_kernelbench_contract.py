"""KernelBench's contract: a file runs as a module, and state is matched by more than its names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from answers import assert_right
from torch import nn

from ratchet.base.errors import KernelError
from ratchet.judge.api import as_kernel, as_problem, check_texts
from ratchet.judge.problems.model_state import FormError, StatefulCall, digest
from ratchet.judge.sandbox import accelerator
from ratchet.judge.terms import Terms
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

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
MORE = {
    "a detached alias": """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.turned = self.fc.weight.detach().t()
    def forward(self, x):
        return torch.addmm(self.fc.bias, x, self.turned).relu() * 0.5
""",
    "a constant of its file": """
batch = 16

class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
    def forward(self, x):
        return (self.fc(x).relu() * 0.5).view(batch, 32)
""",
    "sizes in its text": """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        assert m == 32
    def forward(self, x):
        if x.shape[0] * 2 != 32:
            raise ValueError("16 rows alone")
        return self.fc(x).relu() * 0.5
""",
}
USUAL = ("other names", "a script", "a detached alias", "a constant of its file")
FOLDED = """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.turned = (self.fc.weight.detach() * 0.5).t().contiguous()
    def forward(self, x):
        return torch.addmm(self.fc.bias * 0.5, x, self.turned).relu()
"""
BY_VERSION = """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc, self.seen = nn.Linear(n, m), None
    def forward(self, x):
        if self.seen != self.fc.weight._version:
            self.turned = self.fc.weight.t().contiguous()
            self.seen = self.fc.weight._version
        return torch.addmm(self.fc.bias, x, self.turned).relu() * 0.5
"""
RAISES = """
class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
    def forward(self, x):
        print("first words")
        print("the last words")
        return self.fc(x.view(7, -1))
"""
LARGE = """
import torch
from torch import nn

batch = 40000
width = 1024

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.h0 = torch.randn(batch, width)

    def forward(self, x):
        return torch.tanh(x + self.h0)

def get_inputs():
    return [torch.randn(batch, width)]

def get_init_inputs():
    return [width]
"""
OF_LARGE = """
ROWS = 40000

class ModelNew(nn.Module):
    def __init__(self, width, rows=ROWS):
        super().__init__()
        self.h0 = torch.randn(rows, width)
    def forward(self, x):
        return {body}
"""
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)


def judged(
    court: KernelJudge,
    folder: Path,
    source: str,
    *,
    problem: str = PROBLEM,
    frozen_weights: bool = False,
) -> Verdict:
    asked, kernel = folder / "problem.py", folder / "kernel.py"
    asked.write_text(problem)
    kernel.write_text(HEAD + source)
    found = as_problem(asked, Terms(frozen_weights=frozen_weights), describe=court.describe)
    return court.judge(as_kernel(kernel, found), found, time_limit_s=120)


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(
    "name",
    [
        one if one in USUAL else pytest.param(one, marks=pytest.mark.thorough)
        for one in (*KERNELS, *MORE)
    ],
)
def test_an_honest_way_is_right(name: str, court: KernelJudge, tmp_path: Path) -> None:
    assert_right(judged(court, tmp_path, {**KERNELS, **MORE}[name]))


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(
    "source",
    [FOLDED, pytest.param(BY_VERSION, marks=pytest.mark.thorough)],
    ids=["folded", "by version"],
)
def test_old_weights_are_wrong_unless_they_are_frozen(
    source: str, court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, source)
    assert verdict.status == "wrong"
    assert verdict.reason.startswith("weights change between calls; this kernel kept old ones")
    frozen = judged(court, tmp_path, source, frozen_weights=True)
    assert_right(frozen)
    assert frozen.environment["weights"] == "frozen"
    assert frozen.status == "unmeasured" or "with frozen weights" in frozen.reason
    assert frozen.problem_hash != verdict.problem_hash


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_a_kernel_that_is_wrong_for_another_reason_kept_no_weights(
    court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, MORE["a detached alias"].replace("* 0.5", "* 0.6"))
    assert verdict.status == "wrong"
    assert verdict.reason.startswith("case given: ")


@needs_sandbox
def test_a_crash_names_its_case_and_what_was_printed(court: KernelJudge, tmp_path: Path) -> None:
    verdict = judged(court, tmp_path, RAISES)
    assert verdict.status == "crashed"
    assert verdict.reason.startswith("case given (16x24 float32): the kernel raised: RuntimeError")
    assert verdict.reason.endswith("it printed: first words | the last words")


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_a_kernels_constants_follow_a_problem_that_is_shrunk(
    court: KernelJudge, tmp_path: Path
) -> None:
    source = OF_LARGE.format(body="torch.tanh(x + self.h0).view(ROWS, 1024)")
    kernel, asked = (one.replace("40000", "4000") for one in (source, LARGE))
    verdict = judged(court, tmp_path, kernel, problem=asked)
    assert_right(verdict)
    (sizes,) = [one.detail for one in verdict.evidence if one.check == "sizes"]
    assert "batch 4000 to" in sizes


@needs_sandbox
@pytest.mark.usefixtures("few_rounds")
def test_constants_that_do_not_follow_are_held_against_no_kernel(
    court: KernelJudge, tmp_path: Path
) -> None:
    fixed = OF_LARGE.format(body="torch.tanh(x + self.h0).view(2 * 20000, -1).view(20000, -1)")
    verdict = judged(court, tmp_path, fixed, problem=LARGE)
    assert verdict.status == "unmeasured"
    assert "(at sizes that the judge chose: batch 40000 to " in verdict.reason


def test_frozen_weights_need_a_model(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="has no model whose weights could be frozen"):
        as_problem("silu", Terms(frozen_weights=True))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(3))
        self.a = nn.Parameter(torch.zeros(3))
        self.wide = nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide @ x + self.b * 10 + self.a


FORMS = [((3,), torch.float32), ((3,), torch.float32), ((3, 2), torch.float32)]


def test_what_was_drawn_comes_first_then_names_then_shapes_in_order() -> None:
    one, two, wide = torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]), torch.ones(3, 2)
    named = StatefulCall(Two(), ["a", "b", "wide"], [None], (), FORMS)
    (found,) = named(one, two, wide, torch.zeros(2), ())
    assert torch.equal(found, two * 10 + one)
    drawn = [digest(torch.ones(3)), digest(torch.zeros(3)), digest(torch.zeros(3, 2))]
    model = Two()
    model.a.data.fill_(1.0)
    told = StatefulCall(model, ["first", "second", "wide"], [None], (), FORMS, drawn=drawn)
    (found,) = told(one, two, wide, torch.zeros(2), ())
    assert torch.equal(found, two * 10 + one)  # `a` has the values that `first` was drawn with
    other = StatefulCall(Two(), ["first", "second", "wide"], [None], (), FORMS)
    (found,) = other(one, two, wide, torch.zeros(2), ())
    assert torch.equal(found, one * 10 + two)  # `b` is the first that the model made


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = Box(nn.Parameter(torch.ones(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.box.weight


def test_a_parameter_that_no_module_registers_is_found_by_what_was_drawn() -> None:
    drawn = [digest(torch.ones(3))]
    call = StatefulCall(Hidden(), ["w"], [None], (), FORMS[:1], drawn=drawn)
    assert call.unplaced == []
    (found,) = call(torch.full((3,), 5.0), torch.ones(3), ())
    assert torch.equal(found, torch.full((3,), 5.0))


def test_a_part_without_a_place_is_named_and_what_is_left_over_stays() -> None:
    forms = [*FORMS, ((9,), torch.float32)]
    call = StatefulCall(Two(), ["a", "b", "wide", "gain"], [None], (), forms)
    assert call.unplaced == ["gain"]
    fewer = StatefulCall(Two(), ["a", "wide"], [None], (), [FORMS[0], FORMS[2]])
    assert fewer.unplaced == []
    (found,) = fewer(torch.ones(3), torch.ones(3, 2), torch.zeros(2), ())
    assert torch.equal(found, torch.ones(3))  # `b` kept its zeros


def test_a_model_may_have_a_state_where_the_problem_has_none() -> None:
    call = StatefulCall(Two(), [], [None], (), [])
    assert call.unplaced == []
    (found,) = call(torch.ones(2), ())
    assert torch.equal(found, Two()(torch.ones(2)))


class InATuple(Two):
    def forward(self, x: torch.Tensor) -> Any:
        return [super().forward(x)]


def test_a_tensor_and_a_tuple_of_one_are_two_results() -> None:
    for model in (Two(), InATuple()):
        alone = type(model) is Two
        (found,) = StatefulCall(model, [], [None], (), [], alone=alone)(torch.ones(2), ())
        assert torch.equal(found, Two()(torch.ones(2)))
        with pytest.raises(FormError, match="tensor by itself" if alone else "a tuple or a list"):
            StatefulCall(model, [], [None], (), [], alone=not alone)(torch.ones(2), ())


def test_a_reference_must_have_exactly_the_state() -> None:
    with pytest.raises(KernelError, match="it lacks gain"):
        StatefulCall(Two(), ["a", "b", "wide", "gain"], [None])
    with pytest.raises(KernelError, match="it adds b"):
        StatefulCall(Two(), ["a", "wide"], [None])


class Box:
    """Keeps a weight where no module looks."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(3, 2))
        self.turned = self.wide.detach().t()
        self.kept = [self.wide.data]
        self.again = nn.Parameter(self.wide.data)
        self.box = Box(self.wide.data.view(-1))
        flat = self.wide.detach().view(6)
        self.total = lambda: flat.sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = self.kept[0].sum() + self.again.sum() + self.box.weight.sum() + self.total()
        return x @ self.turned + more


@pytest.mark.parametrize("frozen", [False, True])
def test_views_of_a_weight_follow_it(frozen: bool) -> None:
    call = StatefulCall(Views(), ["wide"], [None], (), [((3, 2), torch.float32)], frozen=frozen)
    first, x = torch.arange(6.0).view(3, 2), torch.ones(2)
    (found,) = call(first, x, ())
    assert torch.equal(found, x @ first.t() + 60)
    (found,) = call(torch.zeros(3, 2), x, ())
    assert torch.equal(found, x @ first.t() + 60 if frozen else torch.zeros(3))


OTHER_CLASS = KERNELS["an alias"].replace("ModelNew", "FastModel")
ON_CUDA = KERNELS["an alias"].replace("return F.linear(x,", "return F.linear(x.cuda(),")


def texts(folder: Path, source: str, entry: str | None = None) -> str:
    """Return what the texts of a problem and a kernel alone show to be a mistake, or ""."""
    problem, kernel = folder / "problem.py", folder / "kernel.py"
    problem.write_text(PROBLEM)
    kernel.write_text(HEAD + source)
    try:
        check_texts(problem, kernel, entry=entry, run_here=True)
    except KernelError as error:
        return str(error)
    return ""


def test_a_file_without_the_class_is_told_in_kernelbenchs_words(tmp_path: Path) -> None:
    words = texts(tmp_path, OTHER_CLASS)
    assert "has no class ModelNew: a KernelBench solution defines class ModelNew(nn" in words
    assert words.endswith("it defines class FastModel: rename one, or name it with --entry")
    assert texts(tmp_path, OTHER_CLASS, entry="FastModel") == ""
    assert texts(tmp_path, "def fast(x): ...\n").endswith("of Model; write it")
    assert texts(tmp_path, OTHER_CLASS + "\nModelNew = FastModel\n") == ""


def test_a_missing_gpu_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "all_nodes", list)
    words = texts(tmp_path, ON_CUDA)
    assert words.startswith("the kernel needs CUDA (`.cuda()` at line ")
    assert "this machine has none; port it (`ratchet port`)" in words
    monkeypatch.setattr(accelerator, "all_nodes", lambda: ["/dev/nvidia0"])
    assert texts(tmp_path, ON_CUDA) == ""


@needs_sandbox
def test_a_missing_name_gets_no_advice_about_extensions(court: KernelJudge, tmp_path: Path) -> None:
    source = "from torch.utils.cpp_extension import load_inline\n" + KERNELS["an alias"]
    verdict = judged(court, tmp_path, source + "\nunknown_name.start()\n")
    assert verdict.status == "refused"
    assert "NameError" in verdict.reason
    assert "load_inline" not in verdict.reason
