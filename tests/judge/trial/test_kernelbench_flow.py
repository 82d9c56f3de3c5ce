"""KernelBench's format before the judge, in real processes: right answers, wrong ones, bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing, KernelError
from ratchet.judge.api import as_kernel
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.trial import open_problem, plan
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

LIKE = Path(__file__).parents[1] / "kernelbench_like"
FILES = sorted(LIKE.glob("level*/*.py"))
HEAD = "import torch\nfrom torch import nn\n"
THOROUGH = (pytest.mark.thorough,)
TYPICAL = ("2_matmul", "3_attention_block", "8_batch_norm", "9_embedding", "2_gru_outputs")
"""One of each kind: no state, parameters, buffers, integers, plain attributes."""
pytestmark = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


@pytest.fixture(autouse=True)
def short(few_rounds: None, loaded_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer still: these tests ask for answers, not for speed."""
    monkeypatch.setattr(plan, "LAUNCHES", 1)
    monkeypatch.setattr(plan, "MIN_LAUNCHES", 1)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)


def problem(name: str) -> Problem:
    (path,) = LIKE.glob(f"level*/{name}.py")
    return load_problem(path, scale=None)


def new(body: str) -> Kernel:
    return Kernel(name="test", language="torch", source=HEAD + body, entry="ModelNew")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in TYPICAL else THOROUGH)
        for path in FILES
    ],
)
def test_a_model_answers_itself(judge: KernelJudge, path: Path) -> None:
    asked = load_problem(path)
    verdict = judge.judge(built_in_kernel(asked, "eager"), asked)
    assert_right(verdict)
    assert "correct on given" in {entry.check for entry in verdict.evidence}


RELU = """
class ModelNew(nn.Module):
    def forward(self, x):
        return {answer}
"""
NORM = """
class ModelNew(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape)
    def forward(self, x):
        {body}
"""
WRONG = {
    "identity where inputs are positive": ("1_relu", RELU.format(answer="x.clone()")),
    "an empty tensor": ("1_relu", RELU.format(answer="torch.empty_like(x)")),
    "norm without its scale": (
        "4_layer_norm",
        NORM.format(body="return nn.functional.layer_norm(x, x.shape[-1:])"),
    ),
    "weights kept from the first call": (
        "4_layer_norm",
        NORM.format(
            body="self.kept = getattr(self, 'kept', None) or [p.clone() for p in "
            "self.parameters()]\n        "
            "return nn.functional.layer_norm(x, x.shape[-1:], *self.kept)"
        ),
    ),
    "targets left out": (
        "5_mse_loss",
        "class ModelNew(nn.Module):\n    def forward(self, p, t): return (p - 0.5).square().mean()",
    ),
    "a list in place of a tensor": ("1_relu", RELU.format(answer="[x.relu()]")),
    "the batch's own statistics left out": (
        "8_batch_norm",
        "class ModelNew(nn.Module):\n"
        "    def __init__(self, channels):\n"
        "        super().__init__()\n        self.norm = nn.BatchNorm2d(channels)\n"
        "    def forward(self, x): return self.norm.eval()(x)",
    ),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if at in (1, 3, 6) else THOROUGH)
        for at, what in enumerate(WRONG)
    ],
)
def test_a_wrong_answer_is_wrong(judge: KernelJudge, what: str) -> None:
    name, source = WRONG[what]
    assert judge.judge(new(source), problem(name)).status == "wrong"


TRIANGLES = """
class ModelNew(nn.Module):
    def forward(self, a, b):
        half = a.shape[0] // 2
        c = torch.zeros_like(a)
        c[:half, :half] = a[:half, :half] @ b[:half, :half]
        c[:half, half:] = a[:half] @ b[:, half:]
        c[half:, half:] = a[half:, half:] @ b[half:, half:]
        return c.triu()
"""
SYMMETRIC = """
class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.triu() + a.triu(1).T) @ b.T
"""
HALF = "class ModelNew(nn.Module):\n    def forward(self, a, b): return a.triu() @ b"


@pytest.mark.parametrize(
    ("name", "source"), [("10_triangles", TRIANGLES), ("11_symmetric", SYMMETRIC)]
)
def test_a_kernel_may_use_what_all_inputs_are(judge: KernelJudge, name: str, source: str) -> None:
    verdict = judge.judge(new(source), problem(name))
    assert_right(verdict)
    assert {"correct on signed", "correct on shifted"} <= {one.check for one in verdict.evidence}


@pytest.mark.parametrize("name", ["2_matmul", "11_symmetric"])
def test_half_of_a_dense_input_is_not_enough(judge: KernelJudge, name: str) -> None:
    assert judge.judge(new(HALF), problem(name)).status == "wrong"


LSTM = """
class ModelNew(nn.Module):
    def __init__(self, width, hidden, layers, outputs):
        super().__init__()
        {state}
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.out(self.lstm(x, {given})[0][:, -1])
"""
DRAWN = "self.h0, self.c0 = torch.randn(2, 6, hidden), torch.randn(2, 6, hidden)"
STATES = {
    "plain attributes": (DRAWN, "(self.h0, self.c0)", "right"),
    "buffers": (
        "[self.register_buffer(name, torch.zeros(2, 6, hidden)) for name in ('h0', 'c0')]",
        "(self.h0, self.c0)",
        "right",
    ),
    "one left out": (DRAWN, "(self.h0, 0 * self.c0)", "wrong"),
    "none": ("pass", "None", "wrong"),
    "of another shape": (DRAWN.replace("2, 6", "2, 1"), "(self.h0, self.c0)", "crashed"),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if at in (0, 2, 4) else THOROUGH)
        for at, what in enumerate(STATES)
    ],
)
def test_state_in_plain_attributes_is_set(judge: KernelJudge, what: str) -> None:
    state, given, wanted = STATES[what]
    source = LSTM.format(state=state, given=given)
    verdict = judge.judge(new(source), problem("1_lstm_kept_state"))
    if wanted == "right":
        assert_right(verdict)
        return
    assert verdict.status == wanted, verdict.reason
    if wanted == "crashed":
        assert "Expected hidden" in verdict.reason
        assert verdict.reason.startswith("case given (6x")


SOUND = NORM.format(body="return self.norm(x)")
OTHERS = {
    "a parameter is missing": (
        "wrong",
        SOUND.replace("(shape)\n    def", "(shape, bias=False)\n    def"),
        "kept old ones (--frozen-weights judges it with those of its constructor); its model has "
        "no norm.bias of the problem's shape",
    ),
    "a parameter more": (
        "right",
        SOUND.replace(
            "(shape)\n    def", "(shape)\n        self.one = nn.Parameter(torch.ones(3))\n    def"
        ),
        "",
    ),
    "a parameter of another shape": (
        "crashed",
        SOUND.replace("(shape)\n    def", "(shape[0] // 2)\n    def"),
        "normalized_shape",
    ),
    "no such class": ("refused", "x = 3", "defines no class 'ModelNew'"),
    "no module": (
        "refused",
        "class ModelNew:\n    def __init__(self, shape): ...",
        "must be a torch.nn",
    ),
}


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=() if at in (0, 4) else THOROUGH) for at, what in enumerate(OTHERS)],
)
def test_a_model_with_other_parameters_is_judged_by_its_answers(
    judge: KernelJudge, what: str
) -> None:
    wanted, source, words = OTHERS[what]
    verdict = judge.judge(new(source), problem("4_layer_norm"))
    if wanted == "right":
        assert_right(verdict)
    else:
        assert verdict.status == wanted, verdict.reason
    assert words in verdict.reason


def faulty(folder: Path, answer: str) -> Problem:
    text = (
        f"{HEAD}class Model(nn.Module):\n    def forward(self, x):\n        return {answer}\n\n"
        "def get_inputs():\n    return [torch.rand(8, 32)]\n\ndef get_init_inputs():\n"
        "    return []\n"
    )
    path = folder / "faulty.py"
    path.write_text(text)
    return load_problem(path)


BAD = {
    "its output is constant": "x * 0 + 1",
    "it is nondeterministic": "x + torch.rand_like(x)",
    "it raises": "x.no_such_method()",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_problem_is_refused(judge: KernelJudge, what: str, tmp_path: Path) -> None:
    bad = faulty(tmp_path, BAD[what])
    verdict = judge.judge(new(RELU.format(answer="x")), bad)
    assert verdict.status == "refused"
    assert "\n" not in verdict.reason and len(verdict.reason) > 20


def test_a_shrunk_problem_says_so_in_the_verdict(judge: KernelJudge) -> None:
    (path,) = LIKE.glob("level*/1_relu.py")
    small = load_problem(path, scale=0.5)
    verdict = judge.judge(new(RELU.format(answer="torch.relu(x)")), small)
    assert_right(verdict)
    (sizes,) = [entry.detail for entry in verdict.evidence if entry.check == "sizes"]
    assert "batch_size 32 to 16" in sizes


def test_a_problem_in_our_own_form_is_judged_from_its_text(
    judge: KernelJudge, tmp_path: Path
) -> None:
    text = (
        "from ratchet import Case, Problem, TensorSpec\n"
        "def double(x, scalars):\n    return (2 * x,)\n"
        "def case(name, **rest):\n"
        "    spec = TensorSpec(shape=(5, 9), dtype='float32', **rest)\n"
        "    first = name == 'plain'\n"
        "    return Case(name=name, inputs=(spec,), timed=first, hidden=not first)\n"
        "PROBLEM = Problem(name='double', reference='double', cases=(case('plain'), "
        "case('gaps', layout='strided')))\n"
    )
    path = tmp_path / "double.py"
    path.write_text(text)
    asked = load_problem(path)
    right = Kernel(
        name="right",
        language="torch",
        source="def double(x, scalars):\n    return (x + x,)\n",
        entry="double",
    )
    assert_right(judge.judge(right, asked))
    wrong = Kernel(
        name="wrong",
        language="torch",
        source="def double(x, scalars):\n    return (x * 2.01,)\n",
        entry="double",
    )
    assert judge.judge(wrong, asked).status == "wrong"


def _compiler() -> bool:
    try:
        cpp.find_compiler()
    except CompilerMissing:
        return False
    return True


LAYER_NORM = """
#include <cmath>
#include <cstdint>
struct tensor { void* data; int64_t dtype, ndim, size[6], stride[6]; };
extern "C" int64_t helper() { return 0; }
extern "C" int64_t kernel_4_layer_norm(
    const tensor* t, int64_t count, const double*, int64_t scalars) {
    if (count != 4 || scalars != 0) return 1;
    const float *weight = (const float*)t[0].data, *bias = (const float*)t[1].data;
    const float* x = (const float*)t[2].data;
    float* y = (float*)t[3].data;
    const int64_t width = t[0].size[0];
    int64_t elements = 1;
    for (int64_t d = 0; d < t[2].ndim; ++d) elements *= t[2].size[d];
    for (int64_t row = 0; row < elements; row += width) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < width; ++i) sum += x[row + i];
        const double mean = sum / width;
        for (int64_t i = 0; i < width; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (int64_t i = 0; i < width; ++i)
            y[row + i] = float((x[row + i] - mean) * scale * weight[i] + BIAS);
    }
    return 0;
}
"""


@pytest.mark.compiler
@pytest.mark.skipif(not _compiler(), reason="needs a C++ compiler")
def test_a_kernel_in_cpp_gets_the_state_and_then_the_inputs(
    judge: KernelJudge, tmp_path: Path
) -> None:
    asked, path = problem("4_layer_norm"), tmp_path / "norm.cpp"
    path.write_text(LAYER_NORM.replace("BIAS", "bias[i]"))
    kernel = as_kernel(path, asked)
    assert kernel.entry == "kernel_4_layer_norm"
    assert_right(judge.judge(kernel, asked))
    path.write_text(LAYER_NORM.replace("BIAS", "0 * bias[i]"))
    assert judge.judge(as_kernel(path, asked), asked).status == "wrong"


def test_the_entry_of_a_kernel_in_cpp(tmp_path: Path) -> None:
    path, head = tmp_path / "mine.cpp", 'extern "C" long {}(const void*, long) {{ return 0; }}\n'
    for name, wanted in (
        ("1_relu", "kernel_1_relu"),
        ("3-D conv.v2", "kernel_3_D_conv_v2"),
        ("relu-6", "relu_6"),
        ("relu", "relu"),
    ):
        asked = Problem(name=name, reference="file:", cases=())
        path.write_text(head.format("other") + head.format(wanted))
        assert as_kernel(path, asked).entry == wanted
    asked = Problem(name="1_relu", reference="file:", cases=())
    path.write_text(head.format("mine"))
    assert as_kernel(path, asked).entry == "mine"
    path.write_text(head.format("mine") + head.format("other"))
    with pytest.raises(KernelError, match="has no 'kernel_1_relu': name the function"):
        as_kernel(path, asked)


@pytest.mark.compiler
@pytest.mark.skipif(not _compiler(), reason="torch.compile needs a C++ compiler")
def test_torch_compile_is_timed_as_a_rival(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_problem, "COMPILE_LIMIT_S", 200.0)
    asked = problem("1_relu")
    verdict: Verdict = judge.judge(
        built_in_kernel(asked, "eager"), asked, against_compile=True, time_limit_s=500.0
    )
    assert_right(verdict)
    assert verdict.speedup.vs_compile is not None
    assert verdict.speedup.vs_compile.low <= verdict.speedup.vs_compile.ratio
    assert "torch.compile of the reference" in {sample.arm for sample in verdict.samples}
