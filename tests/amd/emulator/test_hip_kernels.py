"""HIP kernels: their host code runs in the sandbox, and their launches are emulated."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest

from ratchet.amd.emulator.hip_runtime import CLOSED, GpuBlock
from ratchet.amd.emulator.linking import KernelTexts, one_kernel
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import Verdict

SOFTMAX = r"""
#include <hip/hip_runtime.h>
#include "ratchet_abi.h"

__device__ float reduced(float* part, float value, bool largest) {
  part[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) {
      const float other = part[threadIdx.x + half];
      part[threadIdx.x] = largest ? fmaxf(part[threadIdx.x], other) : part[threadIdx.x] + other;
    }
    BARRIER
  }
  const float found = part[0];
  __syncthreads();
  return found;
}

__global__ void softmax_rows(const float* x, float* y, int64_t width) {
  __shared__ float part[256];
  const float* row = x + blockIdx.x * width;
  float most = -INFINITY, sum = 0;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, row[i]);
  most = reduced(part, most, true);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum += expf(row[i] - most);
  sum = reduced(part, sum, false);
  for (int64_t i = threadIdx.x; i < EDGE; i += blockDim.x)
    y[blockIdx.x * width + i] = expf(row[i] - most) / sum;
}

__global__ void copy_rows(const float* x, float* y, int64_t rows, int64_t width, int64_t along_x,
                          int64_t down_x, int64_t along_y, int64_t down_y) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * width; i += step)
    y[i / width * down_y + i % width * along_y] = x[i / width * down_x + i % width * along_x];
}

RATCHET_ENTRY softmax(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
  if (count != 2 || t[0].dtype != RATCHET_F32 || t[0].ndim != 2) return RATCHET_DECLINED;
  const int64_t rows = t[0].size[0], width = t[0].size[1];
  const float* x = (const float*)t[0].data;
  float *y = (float*)t[1].data, *dense_x = nullptr, *dense_y = nullptr;
  const size_t bytes = rows * width * 4;
  if (hipMalloc((void**)&dense_x, bytes) || hipMalloc((void**)&dense_y, bytes)) return 2;
  copy_rows<<<4, 128>>>(x, dense_x, rows, width, t[0].stride[1], t[0].stride[0], 1, width);
  HOST
  hipLaunchKernelGGL(softmax_rows, dim3((unsigned)rows), BLOCK, 0, 0, dense_x, dense_y, width);
  copy_rows<<<4, 128>>>(dense_y, y, rows, width, 1, width, t[1].stride[1], t[1].stride[0]);
  hipFree(dense_x);
  return hipGetLastError();
}
"""
TRANSPOSED = r"""
#include <hip/hip_runtime.h>
#include "ratchet_abi.h"

extern __shared__ float tile[];

__global__ void through_tiles(const float* x, float* y, int64_t rows, int64_t width) {
  const int64_t row = blockIdx.y * blockDim.y + threadIdx.y;
  const int64_t column = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned at = threadIdx.y * (blockDim.x + 1) + threadIdx.x;
  if (row < rows && column < width) tile[at] = fmaxf(x[row * width + column], 0.f);
  __syncthreads();
  const unsigned linear = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned i = linear % blockDim.y, j = linear / blockDim.y;  // the tile's other way round
  const int64_t to_row = blockIdx.y * blockDim.y + i, to_column = blockIdx.x * blockDim.x + j;
  if (to_row < rows && to_column < width) {
    const float v = tile[i * (blockDim.x + 1) + j];
    y[to_row * width + to_column] = v * v;
  }
}

RATCHET_ENTRY squared_relu(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  if (t[0].dtype != RATCHET_F32 || !ratchet_is_contiguous(&t[0])) return RATCHET_DECLINED;
  const int64_t width = t[0].size[t[0].ndim - 1], rows = ratchet_numel(&t[0]) / width;
  const dim3 block(16, 8), grid((unsigned)((width + 15) / 16), (unsigned)((rows + 7) / 8));
  through_tiles<<<grid, block, 17 * 8 * sizeof(float)>>>((const float*)t[0].data,
                                                         (float*)t[1].data, rows, width);
  return RATCHET_DONE;
}
"""
RIGHT = {"BARRIER": "__syncthreads();", "EDGE": "width", "HOST": "", "BLOCK": "dim3(256)"}

needs_clang = pytest.mark.skipif(
    find_tool("clang") is None or shutil.which("ld") is None, reason="clang is not installed"
)
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


def source(**changes: str) -> str:
    found = SOFTMAX.replace("-INFINITY", "-__builtin_inff()")
    for name, text in (RIGHT | changes).items():
        found = found.replace(name, text)
    return found


def judged(court: KernelJudge, text: str, target: str = "gfx942") -> Verdict:
    kernel = Kernel(name="softmax", language="hip", source=text, entry="softmax")
    return court.judge(kernel, find_problem("softmax").at("ci"), target=target)


@pytest.mark.parametrize("collected", [True, False])
def test_a_block_may_be_collected_while_it_is_closed(
    collected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may free the last tensor between the look at the block and the call."""
    block = GpuBlock(4096)
    block.leave_to_tensors()
    answers = iter([False, collected])
    monkeypatch.setattr(GpuBlock, "is_gone", property(lambda _: next(answers)))
    with (
        contextlib.nullcontext()
        if collected
        else pytest.raises(KernelError, match="cannot be protected")
    ):
        block.protect(CLOSED)


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.parametrize("target", [one for one in TARGETS if one.startswith("gfx94")])
def test_a_right_kernel_is_correct_and_its_launches_are_counted(
    court: KernelJudge, target: str
) -> None:
    verdict = judged(court, source(), target)
    assert verdict.status == "correct", verdict.reason
    (case,) = verdict.emulated[:1]
    launches = {one.name: one.launches for one in case.kernels}
    assert launches == {"softmax_rows": 1, "copy_rows": 2}
    assert verdict.speedup.vs_reference is None


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"EDGE": "width - 1"}, "wrong", "inf or NaN where the reference is finite"),
        ({"EDGE": "width + 9999"}, "wrong", r"out of bounds at line \d+ of softmax_rows"),
        ({"BARRIER": ""}, "wrong", r"race in LDS at line \d+ of softmax_rows"),
        ({"BLOCK": "dim3(64, 64)"}, "crashed", "64 x 64 x 1 threads cannot be launched"),
        ({"HOST": "return RATCHET_DECLINED;"}, "refused", "declines"),
        ({"HOST": "dense_x[0] = 1;"}, "crashed", ""),
        ({"HOST": "hipFree((void*)64);"}, "crashed", "frees memory"),
        ({"HOST": "hipMemset(dense_x, 0, bytes + 1);"}, "crashed", "outside"),
        ({"HOST": "this is no code"}, "refused", "does not compile"),
        ({"RATCHET_ENTRY softmax": "RATCHET_ENTRY other"}, "refused", "no RATCHET_ENTRY softmax"),
        ({"EDGE": "*(volatile int*)0"}, "wrong", "softmax_rows"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_told(
    court: KernelJudge, changes: dict[str, str], status: str, words: str
) -> None:
    verdict = judged(court, source(**changes))
    assert verdict.status == status, verdict.reason
    assert re.search(words, verdict.reason), verdict.reason


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
def test_memory_that_a_kernel_adds_to_can_be_cleared(court: KernelJudge) -> None:
    verdict = judged(court, source(HOST="hipMemsetAsync(dense_y, 0, bytes, 0);"))
    assert verdict.status == "correct", verdict.reason


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
def test_the_kernel_of_the_docs_is_correct(court: KernelJudge) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "emulator.md").read_text(
        encoding="utf-8"
    )
    (found,) = re.findall(r"```cpp\n(.*?)```", text, re.DOTALL)
    kernel = Kernel(name="squared_relu", language="hip", source=found, entry="squared_relu")
    verdict = court.judge(kernel, find_problem("squared_relu").at("ci"), target="gfx942")
    assert verdict.status == "correct", verdict.reason


@needs_clang
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx1100"])
def test_blocks_have_dimensions_and_lds_of_the_launch(court: KernelJudge, target: str) -> None:
    kernel = Kernel(name="squared", language="hip", source=TRANSPOSED, entry="squared_relu")
    verdict = court.judge(kernel, find_problem("squared_relu").at("ci"), target=target)
    assert verdict.status == "correct", verdict.reason


def test_other_languages_are_not_emulated(court: KernelJudge) -> None:
    kernel = Kernel(name="softmax", language="cpp", source="//", entry="softmax")
    verdict = court.judge(kernel, find_problem("softmax").at("ci"), target="gfx942")
    assert verdict.status == "unmeasured" and "Triton, HIP or CUDA" in verdict.reason


TWO = """\
\t.amdhsa_kernel one
\t\t.amdhsa_group_segment_fixed_size 4
\t.end_amdhsa_kernel
\t.amdhsa_kernel two
\t\t.amdhsa_group_segment_fixed_size 8
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args: []
    .name:           one
  - .args: []
    .name:           two
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...
\t.end_amdgpu_metadata
"""


def test_a_kernel_is_told_apart_from_others() -> None:
    found = one_kernel(TWO, "two")
    assert "size 8" in found and "size 4" not in found
    assert found.count(".name:") == 1 and "amdhsa.target" in found
    with pytest.raises(KernelError, match="describes 0 kernels called 'three'"):
        one_kernel(TWO, "three")
    with pytest.raises(KernelError, match="no description"):
        one_kernel("", "one")


CODE = """\
\t.type\tone,@function
one:
\t.file\t1 "folder" "kernel.hip"
\tv_unheard_of v0
.Lfunc_end0:
\t.type\ttwo,@function
two:
\t.loc\t1 7 3
\ts_endpgm
.Lfunc_end1:
\t.type\ttable,@object
\t.data
table:
\t.long\t1
\t.section\t.debug_info,"",@progbits
\t.long\t2
"""


def test_a_kernel_s_text_is_without_the_others_code() -> None:
    texts = KernelTexts(CODE + TWO)
    assert texts.names == {"one", "two"}
    found = texts.of("two")
    assert "s_endpgm" in found and "unheard" not in found
    assert '"kernel.hip"' in found, "its lines are in a file that the other named"
    assert ".long\t1" in found and ".long\t2" not in found
