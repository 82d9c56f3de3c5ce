"""Public kernels on an emulated GPU: launchers that name `cuda`, and small HIP kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_emulated_verdict import needs_sandbox, needs_triton
from test_hip_kernels import needs_clang

from ratchet.judge.court.calls import judge
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

PROBLEM = """
import torch
from ratchet import Case, Problem, TensorSpec

def wanted(*inputs):
    {inputs}
    return ({answer},)

PROBLEM = Problem(name="answer", reference="wanted", cases=(
    Case(name="small", tier="ci", timed=True, inputs=({specs})),
))
"""
HEAD = "import torch, triton\nimport triton.language as tl\n"
TIMES = """
@triton.jit
def times(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, (tl.load(x + at, at < n) * 3).to(y.dtype.element_ty), at < n)
"""
ON_CUDA = f"""{HEAD}{TIMES}
def answer(x, scalars):
    y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    assert y.cuda() is y and y.to("cuda:0").shape == x.shape
    warps = 16 if torch.version.hip else 32  # 32 warps of 64 lanes cannot be launched
    times[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128, num_warps=warps)
    return (y,)
"""
TUNED = f"""{HEAD}
CONFIGS = [triton.Config({{"BLOCK": size}}) for size in (64, 128)]

@triton.autotune(configs=CONFIGS, key=["n"], use_cuda_graph=True)
{TIMES.strip()}

def answer(x, scalars):
    y = torch.empty_like(x)
    times[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return (y,)
"""
TO_FP8 = f"""{HEAD}{TIMES}
def answer(x, scalars):
    y = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    times[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return (y,)
"""
DOT = f"""{HEAD}
@triton.jit
def product(a, b, c):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

def answer(a, b, scalars):
    c = torch.empty_like(a)
    product[(1,)](a, b, c)
    return (c,)
"""
SCALED = """
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(300{device}))

    def forward(self, x):
        return x * self.scale * 3
"""
GIVEN = """
def get_inputs():
    return [torch.randn(300)]

def get_init_inputs():
    return []
"""
ON_GPU = ', device="cuda"'
LAUNCHED = """
    def forward(self, x):
        y = torch.empty(x.shape, device="cuda")
        times[(triton.cdiv(x.numel(), 128),)](x * self.scale, y, x.numel(), BLOCK=128)
        return y
"""
HIP_HEAD = '#include <hip/hip_runtime.h>\n#include "ratchet_abi.h"\n'
FLOATS = "(const float*)t[0].data, (float*)t[1].data"
ENTRY = "RATCHET_ENTRY answer(const ratchet_tensor* t, int64_t, const double*, int64_t)"
STRIDE = f"""{HIP_HEAD}
__global__ void column(const float* x, float* y, int width, int64_t count) {{
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < count) y[row] = x[(long long)row * width];  // one v_mad_i64_i32
}}
{ENTRY} {{
  column<<<(unsigned)((t[0].size[0] + 63) / 64), 64>>>({FLOATS}, (int)t[0].size[1], t[0].size[0]);
  return RATCHET_DONE;
}}
"""
SHIFT = f"""{HIP_HEAD}
__global__ void shift(const float* x, float* y) {{
  y[threadIdx.x] = __shfl_down(x[threadIdx.x], 8) + __shfl_up(x[threadIdx.x], 3, 16);
}}
{ENTRY} {{ shift<<<1, 64>>>({FLOATS}); return RATCHET_DONE; }}
"""
TANH = f"""{HIP_HEAD}
__global__ void tanhs(const float* x, float* y, int64_t n) {{
  const int64_t at = blockIdx.x * 256 + threadIdx.x;
  if (at < n) y[at] = 3.0f * tanhf(x[at]);
}}
{ENTRY} {{
  const int64_t n = ratchet_numel(&t[0]);
  tanhs<<<(unsigned)((n + 255) / 256), 256>>>({FLOATS}, n);
  return RATCHET_DONE;
}}
"""
SHIFTED = (
    "x[torch.cat([torch.arange(8, 64), torch.arange(56, 64)])]"
    " + x[torch.tensor([i - 3 if i % 16 >= 3 else i for i in range(64)])]"
)


def spec(shape: str, more: str = "") -> str:
    return f'TensorSpec(shape={shape}, dtype="float32"{more}),'


def judged(
    court: KernelJudge, folder: Path, source: str, answer: str, specs: str, target: str
) -> Verdict:
    inputs = "a, b, _ = inputs" if "a @ b" in answer else "x, _ = inputs"
    file = folder / "problem.py"
    file.write_text(PROBLEM.format(inputs=inputs, answer=answer, specs=specs))
    language = "hip" if source.startswith(HIP_HEAD) else "triton"
    kernel = Kernel(name="answer", language=language, source=source, entry="answer")
    return court.judge(kernel, load_problem(file, tiers=("ci",)), target=target)


@needs_triton
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("source", "answer", "specs"),
    [
        (ON_CUDA, "x * 3", spec("(300,)")),
        (TUNED, "x * 3", spec("(300,)")),
        (TO_FP8, "(x * 3).to(torch.float8_e4m3fn)", spec("(300,)")),
        (DOT, "a @ b", spec("(16, 16)") * 2),
    ],
    ids=["cuda", "graph", "fp8", "xf32"],
)
def test_a_launcher_of_other_people_s(
    source: str, answer: str, specs: str, court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, source, answer, specs, "gfx942")
    assert verdict.status == "correct", verdict.reason


@needs_triton
@needs_sandbox
@pytest.mark.compiler
def test_a_model_names_the_gpu_in_its_constructor_and_its_call(
    tmp_path: Path, one_judge: None
) -> None:
    problem, kernel = tmp_path / "scaled.py", tmp_path / "kernel.py"
    problem.write_text(f"import torch\n\n{SCALED.format(name='Model', device='')}{GIVEN}")
    kernel.write_text(f"{HEAD}{TIMES}\n{SCALED.format(name='ModelNew', device=ON_GPU)}{LAUNCHED}")
    verdict = judge(kernel, problem, target="gfx942")
    assert verdict.status == "correct", verdict.reason


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("source", "answer", "specs"),
    [
        (STRIDE, "x[:, 0]", spec("(200, 7)")),
        (SHIFT, SHIFTED, spec("(64,)")),
        (TANH, "3 * torch.tanh(x)", spec("(999,)", ', distribution="tiny"')),
        (TANH, "3 * torch.tanh(x)", spec("(999,)", ', distribution="large"')),
    ],
    ids=["stride", "shuffles", "tanh of tiny", "tanh of large"],
)
def test_a_small_hip_kernel(
    source: str, answer: str, specs: str, court: KernelJudge, tmp_path: Path
) -> None:
    verdict = judged(court, tmp_path, source, answer, specs, "gfx942")
    assert verdict.status == "correct", verdict.reason
