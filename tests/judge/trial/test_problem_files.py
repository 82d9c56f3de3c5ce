"""Problems and kernels from files: both forms, bad files, scaling; all files run elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from answers import assert_right

from ratchet.base.errors import KernelError, RatchetError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.problems import assigned_sizes, model_scale
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import MAX_SOURCE_BYTES, load_problem
from ratchet.judge.trial.kernel_trial import KernelJudge

LIKE = Path(__file__).parents[1] / "kernelbench_like"
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return {answer}

batch_size = {batch}
def get_inputs():
    return [torch.rand(batch_size, 64), torch.rand(batch_size, 64)]

def get_init_inputs():
    return []
"""
OURS = """
from ratchet import Case, Problem, TensorSpec

def scaled(x, w, scalars):
    return (x * w + scalars[0],)

def spec(*shape, **rest):
    return TensorSpec(shape=shape, dtype="float32", **rest)

PROBLEM = Problem(
    name="scaled", reference="scaled",
    cases=(
        Case(name="rows", timed=True, scalars=(0.5,), inputs=(spec(32, 64), spec(64))),
        Case(name="tiny", tier="ci", timed=True, scalars=(0.5,), inputs=(spec(2, 4), spec(4))),
        Case(name="gaps", hidden=True, scalars=(0.5,),
             inputs=(spec(7, 33, layout="strided"), spec(33, distribution="shifted"))),
    ),
)
"""


def written(folder: Path, text: str, name: str = "problem.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def model(folder: Path, answer: str, *, batch: int = 16) -> Problem:
    path = written(folder, MODEL.format(answer=answer, batch=batch))
    return load_problem(path, scale=None)


def test_a_model_becomes_a_problem_with_hidden_variations() -> None:
    problem = load_problem(LIKE / "level1" / "4_layer_norm.py")
    assert problem.fault == ""
    assert problem.model is not None
    assert problem.model.state == ("norm.weight", "norm.bias")
    assert problem.model.training
    first, *others = problem.cases
    assert first.timed and not first.hidden
    assert all(case.hidden for case in others)
    assert {"signed", "fewer rows"} <= {case.name for case in others}
    assert Problem.from_json(problem.as_json()) == problem
    assert len(problem.hash) == 64


def test_integer_inputs_keep_their_range_and_plain_ones_are_kept() -> None:
    embedding = load_problem(LIKE / "level1" / "9_embedding.py")
    assert [case.name for case in embedding.cases] == ["given", "fewer rows"]
    cumsum = load_problem(LIKE / "level1" / "7_cumsum.py")
    assert cumsum.model is not None
    assert cumsum.model.arguments == (None, "1")


def test_a_model_that_is_random_in_training_is_judged_in_eval_mode() -> None:
    problem = load_problem(LIKE / "level2" / "3_attention_block.py")
    assert problem.fault == "" and problem.model is not None
    assert not problem.model.training
    assert any("eval mode" in note for note in problem.notes)


BAD = {
    "nondeterministic": ("x + y + torch.rand(())", "its forward draws random numbers; pass them"),
    "an input left out": ("x + 1", "does not depend on input 1"),
    "always zero": ("torch.relu(-x - y - 1)", "does not depend on input 0"),
    "raises": ("x @ y", "it raises RuntimeError"),
    "returns no tensor": ("'text'", "returns tensors, alone or in tuples and lists, not str"),
    "returns a dict": ("{'sum': x + y}", "not dict: have its forward return the tensors"),
    "returns None beside": ("(x + y, None)", "not NoneType: have its forward return"),
    "reads a clock": (
        "x + y + __import__('time').perf_counter_ns() % 1000",
        "a second call on the same inputs and with the same seed differs",
    ),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if at in (0, 1) else (pytest.mark.thorough,))
        for at, what in enumerate(BAD)
    ],
)
def test_a_problem_that_cannot_be_judged_says_why(
    what: str, judge: KernelJudge, tmp_path: Path
) -> None:
    answer, words = BAD[what]
    path = written(tmp_path, MODEL.format(answer=answer, batch=16))
    problem = load_problem(path, scale=None, describe=judge.describe)
    assert words in problem.fault
    assert "\n" not in problem.fault
    assert problem.cases == ()


CONSTRUCTED = """
import torch
from torch import nn
{imported}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {state}

    def forward(self, x):
        return x * {factor}

def get_inputs():
    return {inputs}

def get_init_inputs():
    return []
"""


def constructed(folder: Path, **parts: str) -> Problem:
    usual = {"imported": "", "state": "pass", "factor": "2", "inputs": "[torch.rand(8, 32)]"}
    return load_problem(written(folder, CONSTRUCTED.format(**{**usual, **parts})), scale=None)


def test_what_a_model_draws_and_keeps_is_its_state(tmp_path: Path) -> None:
    problem = constructed(
        tmp_path,
        state="self.mask = torch.ones(32); self.noise = torch.rand(32); "
        "self.register_buffer('hidden', torch.rand(32), persistent=False)",
        factor="self.noise * self.mask + self.hidden",
    )
    assert problem.fault == "" and problem.model is not None
    assert problem.model.state == ("noise", "hidden") == problem.model.attributes
    assert Problem.from_json(problem.as_json()) == problem


def test_what_is_drawn_and_kept_as_a_number_is_named(tmp_path: Path) -> None:
    problem = constructed(tmp_path, state="self.f = torch.rand(()).item()", factor="self.f")
    assert "keep every random draw of __init__ in one of these" in problem.fault


def test_a_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    problem = constructed(tmp_path, imported="from no_such_package.layers import Mixer")
    assert "it imports 'no_such_package', which is not installed here" in problem.fault
    assert "install it" in problem.fault
    problem = constructed(tmp_path, imported="import torch.no_such_module")
    assert "it raises ModuleNotFoundError: No module named 'torch.no_such" in problem.fault


def test_inputs_that_cannot_be_handed_on_say_so_in_one_line(tmp_path: Path) -> None:
    problem = constructed(tmp_path, inputs="[(torch.rand(8, 32), torch.rand(8, 32))]")
    assert "give each tensor as an input of its own" in problem.fault
    assert "\n" not in problem.fault


def test_a_problem_that_is_too_large_is_refused_or_shrunk(tmp_path: Path) -> None:
    large = 1 << 34
    assert "too large for this machine" in model(tmp_path, "x + y", batch=large).fault
    shrunk = load_problem(tmp_path / "problem.py", scale="auto")
    assert shrunk.fault == ""
    assert shrunk.cases[0].inputs[0].shape[0] < 1 << 20
    assert any(f"batch_size {large} -> " in note for note in shrunk.notes)


def test_a_factor_shrinks_the_batch_by_it(tmp_path: Path) -> None:
    written(tmp_path, MODEL.format(answer="x + y", batch=64))
    problem = load_problem(tmp_path / "problem.py", scale=0.25)
    assert problem.cases[0].inputs[0].shape == (16, 64)
    assert load_problem(tmp_path / "problem.py", scale=None).cases[0].inputs[0].shape == (64, 64)


def test_a_file_that_ends_its_process_is_a_fault(tmp_path: Path) -> None:
    text = "import os\nos.kill(os.getpid(), 9)\nPROBLEM = None\n"
    assert "its process died" in load_problem(written(tmp_path, text)).fault


def test_our_own_form_keeps_its_cases_by_tier(tmp_path: Path) -> None:
    path = written(tmp_path, OURS)
    problem = load_problem(path)
    assert problem.fault == ""
    assert [case.name for case in problem.cases] == ["rows", "gaps"]
    assert [case.name for case in load_problem(path, tiers=("ci",)).cases] == ["tiny", "gaps"]
    assert Problem.from_json(problem.as_json()) == problem


DOCS = Path(__file__).parents[3] / "docs" / "reference" / "judge.md"
BACKWARD = """
def gated_backward(grad, x, w, scalars):
    share = torch.sigmoid(x * w)
    slope = grad * scalars[0] * share * (1 + x * w * (1 - share))
    return slope, (grad * scalars[0] * x * x * share * (1 - share)).sum(0)
"""


def test_the_backward_of_the_docs_is_judged(
    tmp_path: Path, judge: KernelJudge, few_rounds: None
) -> None:
    blocks = DOCS.read_text().split("```python\n")[1:]
    (text,) = (block.split("```")[0] for block in blocks if "gated_backward.py" in block)
    problem = load_problem(written(tmp_path, text))
    assert problem.fault == ""
    right = "import torch\n" + BACKWARD
    kernel = Kernel(name="mine", language="torch", source=right, entry="gated_backward")
    assert_right(judge.judge(kernel, problem))
    mistaken = replace(kernel, source=right.replace("* x * x *", "* x *"))
    verdict = judge.judge(mistaken, problem)
    assert verdict.status == "wrong", verdict.reason


def test_a_mistaken_backward_says_what_is_wrong(tmp_path: Path, judge: KernelJudge) -> None:
    ours = OURS.replace("TensorSpec\n", "TensorSpec, gradient_of\n", 1)
    ours = ours.replace(
        "def spec(", "backward = gradient_of(scaled, inputs=({place},))\n\ndef spec("
    )
    ours = ours.replace('reference="scaled"', 'reference="backward"')
    far = ours.replace("{place}", "1")  # the gradient stands first, so one is missing
    whole = ours.replace("{place}", "0").replace('dtype="float32"', 'dtype="int64", low=0, high=9')
    for text, words in ((far, "there is no input 1"), (whole, "input 0 is not real")):
        kernel = Kernel(name="mine", language="torch", source=BACKWARD, entry="gated_backward")
        verdict = judge.judge(kernel, load_problem(written(tmp_path, text)))
        assert verdict.status == "refused"
        assert words in verdict.reason


def test_our_own_form_with_a_mistake_in_it_is_a_fault(tmp_path: Path) -> None:
    wrong = OURS.replace('reference="scaled"', 'reference="scalde"')
    assert "scalde" in load_problem(written(tmp_path, wrong)).fault
    nothing = load_problem(written(tmp_path, "PROBLEM = 3\n"))
    assert "PROBLEM is int" in nothing.fault


UNREADABLE = {
    "no Python": ("class Model(", "not Python"),
    "no problem": ("x = 3\n", "neither Model nor PROBLEM"),
    "nothing": ("", "neither Model nor PROBLEM"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_problem_file_raises_one_line(what: str, tmp_path: Path) -> None:
    text, words = UNREADABLE[what]
    with pytest.raises(KernelError, match=words) as caught:
        load_problem(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def special(kind: str, folder: Path) -> Path:
    path = folder / "thing.py"
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "gigabytes":
        path.touch()
        os.truncate(path, 4 << 30)
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe\x00")
    return path


KINDS = {
    "directory": "is a folder",
    "FIFO": "is a FIFO",
    "gigabytes": f"at most {MAX_SOURCE_BYTES}",
    "no text": "not UTF-8",
    "missing": "No such file",
}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_cannot_be_read_raise_at_once(kind: str, tmp_path: Path) -> None:
    path = special(kind, tmp_path)
    for load in (load_problem, load_kernel):
        with pytest.raises(RatchetError, match=KINDS[kind]):
            load(path)


def test_the_language_and_the_entry_of_a_kernel_follow_from_its_file(tmp_path: Path) -> None:
    new = written(tmp_path, "class ModelNew: pass\n\ndef relu(): ...\n", "new.py")
    assert load_kernel(new).entry == "ModelNew"
    assert load_kernel(new, entry="relu").entry == "relu"
    assert load_kernel(new).language == "torch"
    triton = written(tmp_path, "import triton.language as tl\ndef f(): ...\n", "t.py")
    assert load_kernel(triton, entry="f").language == "triton"
    cpp = written(tmp_path, 'extern "C" long silu(const void* t) { return 0; }\n', "k.cpp")
    assert (load_kernel(cpp).language, load_kernel(cpp).entry) == ("cpp", "silu")


def test_a_kernel_file_with_a_mistake_raises(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="not Python"):
        load_kernel(written(tmp_path, "def f(:\n"))
    with pytest.raises(KernelError, match="has no ending of a kernel"):
        load_kernel(written(tmp_path, "x", "kernel.txt"))
    with pytest.raises(KernelError, match="no 'wanted'"):
        load_kernel(written(tmp_path, "def f(): ...\n"), entry="wanted")


def words(old: str, new: str) -> list[str]:
    return [one.words() for one in assigned_sizes.changes(old, new)]


def test_sizes_are_read_and_rewritten_in_place() -> None:
    text = "M = 64 * 2\nname = 'é'; K = 192  # inner\nK2 = K\ntwice = 3\ntwice = 4\n"
    named = [(size.name, size.value) for size in assigned_sizes.sizes(text)]
    assert named == [("M", 128), ("K", 192)]
    changed = assigned_sizes.rewritten(text, {"M": 7, "K": 16})
    assert changed == "M = 7\nname = 'é'; K = 16  # inner\nK2 = K\ntwice = 3\ntwice = 4\n"
    assert words(text, changed) == ["M 128 to 7", "K 192 to 16"]


def test_sizes_in_a_tuple_shrink_with_those_that_they_must_fit() -> None:
    text = (
        "import torch\nrows = 512\nshape = (512, 3)\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        return (x * y.T).sum()\n"
        "def get_inputs():\n    return [torch.rand(rows, 3), torch.rand(3, shape[0])]\n"
        "def get_init_inputs():\n    return []\n"
    )
    named = [(size.name, size.value) for size in assigned_sizes.sizes(text)]
    assert named == [("rows", 512), ("shape[0]", 512), ("shape[1]", 3)]
    changed = assigned_sizes.rewritten(text, {"shape[0]": 1024, "shape[1]": 4})
    assert "shape = (1024, 4)\n" in changed
    cost = model_scale.measure(text)
    assert cost is not None
    shrunk, less = model_scale.fit(text, cost, model_scale.share_of(cost, 0.6))
    assert less.bytes < cost.bytes
    assert words(text, shrunk) == ["rows 512 to 256", "shape[0] 512 to 256"]
