"""Whole CUDA programs: their main runs on the CPU, their kernels as a GPU's machine code."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ratchet.amd.compile import hip_compiler
from ratchet.amd.emulator import hip_runtime
from ratchet.amd.emulator.hip_runtime import CLOSED, GpuMemory
from ratchet.base.errors import KernelError, PortError
from ratchet.judge.sandbox.rocm import bitcode_folder, find_tool

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from ratchet.amd.port import program
from ratchet.amd.port.program import compile_program, sources_of
from ratchet.amd.port.scan import scan

needs_hip = pytest.mark.skipif(
    find_tool("clang") is None or bitcode_folder() is None or find_spec("triton") is None,
    reason="clang, rocm-device-libs or triton is not installed",
)
PROGRAM = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>
#include <cublas_v2.h>
#include "rows.cuh"

int main(int argc, char** argv) {
  const int rows = 4, columns = atoi(argv[1]);
  std::vector<float> x(rows * columns), y(x.size()), z(rows * rows);
  std::ifstream file(argv[2]);
  for (float& one : x) file >> one;
  float *a, *b, *c, one = 1, zero = 0;
  CHECK(cudaMalloc(&a, x.size() * 4));
  CHECK(cudaMallocManaged(&b, x.size() * 4));
  CHECK(cudaMalloc((void**)&c, z.size() * 4));
  CHECK(cudaMemcpy(a, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK(cudaStreamCreate(&stream));
  cudaEventCreate(&begin), cudaEventCreate(&end);
  cudaEventRecord(begin, stream);
  softmax<<<rows / 2, 64, 0, stream>>>(a, b, columns + (argc > 3 ? 1 << 20 : 0));
  CHECK(cudaGetLastError());
  cudaEventRecord(end, stream);
  CHECK(cudaStreamSynchronize(stream));
  float ms = -1;
  cudaEventElapsedTime(&ms, begin, end);
  cublasHandle_t handle;
  cublasCreate(&handle);
  cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, rows, rows, columns, &one, b, columns, b, columns,
              &zero, c, rows);
  CHECK(cudaMemcpy(z.data(), c, z.size() * 4, cudaMemcpyDeviceToHost));
  double worst = 0, square = 0;
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += exp((double)x[r * columns + i]);
    for (int i = 0; i < columns; ++i) {
      const double want = exp((double)x[r * columns + i]) / sum;
      worst = fmax(worst, fabs(want - b[r * columns + i]));
      square += r == 3 ? want * want : 0;
    }
  }
  cudaDeviceProp all;
  cudaGetDeviceProperties(&all, 0);
  printf("%s %d %s %s\\n", all.name, all.warpSize, worst < 1e-6 ? "right" : "wrong",
         fabs(square - z[15]) < 1e-6 && ms >= 0 ? "right" : "wrong");
  exit(7);
}
"""
ROWS = """
#define CHECK(call) if (cudaError_t e = (call)) { printf("%s\\n", cudaGetErrorString(e)); exit(3); }
__device__ float total(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  return __shfl_sync(0xffffffff, v, 0);
}
__global__ void softmax(const float* x, float* y, int columns) {
  const int row = blockIdx.x * 2 + threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum = 0;
  for (int i = lane; i < columns; i += 32) sum += expf(x[row * columns + i]);
  sum = total(sum);
  for (int i = lane; i < columns; i += 32) y[row * columns + i] = expf(x[row * columns + i]) / sum;
  if (row == 3 && lane == 0) printf("row %d\\n", row);
}
"""


def test_a_command_names_sources_first() -> None:
    assert sources_of(["a.cu", "b.cpp", "3", "c.cu"]) == [Path("a.cu"), Path("b.cpp")]
    assert sources_of(["python", "a.cu"]) == []
    # The main function may be host code, and HIP's programs are often .cpp alone.
    assert sources_of(["main.cpp", "k.cu", "3"]) == [Path("main.cpp"), Path("k.cu")]
    with pytest.raises(PortError, match=r"nowhere\.cu is no file"):
        compile_program([Path("nowhere.cu")], "gfx942")


def test_missing_device_libraries_are_no_fault_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hip_compiler, "find_tool", lambda name: name)
    monkeypatch.setattr(hip_compiler, "bitcode_folder", lambda: None)
    monkeypatch.setattr(hip_compiler, "hip_headers", lambda: tmp_path)
    (tmp_path / "main.cu").write_text("int main() {}\n")
    with pytest.raises(KernelError, match=r"device libraries are installed: .*rocm-device-libs"):
        compile_program([tmp_path / "main.cu"], "gfx942")


def test_only_what_a_program_includes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a small program may be somebody's home, with other work and closed folders."""
    home = tmp_path / "home"
    for name, text in {
        "main.cu": '#include "rows.cuh"\n#include <shared.h>\nint main() {}\n',
        "lib/rows.cuh": '#include "../common/deep.h"\n',
        "lib/common/deep.h": "#pragma once\n",
        "Makefile": "all:\n\tnvcc -DROWS=4 main.cu\n",
        "other/rest.cu": "__global__ void rest() {}\n",
        "other/script.py": "import torch\n",
        "beside/shared.h": "#pragma once\n",
    }.items():
        place = (home if name != "beside/shared.h" else tmp_path) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    read = []
    monkeypatch.setattr(
        program, "scan", lambda root, names: read.append(names) or scan(root, names)
    )
    monkeypatch.setattr(program, "_built", lambda texts, *_: sorted(texts))
    assert compile_program([home / "main.cu"], "gfx942") == [
        "above/beside/shared.h", "lib/common/deep.h", "lib/rows.cuh", "main.cu",
    ]  # fmt: skip
    assert read[0] == {"main.cu", "lib/rows.cuh", "lib/common/deep.h", "Makefile"}


def run(folder: Path, target: str, *words: str) -> tuple[int, dict[str, Any], str]:
    (folder / "include").mkdir()
    (folder / "include" / "rows.cuh").write_text(ROWS)
    (folder / "main.cu").write_text(PROGRAM)
    (folder / "x.txt").write_text(" ".join(str((7 * i % 11) / 4) for i in range(4 * 45)))
    command = [sys.executable, "-m", "ratchet", "emulate", "--target", target, "--json", "--"]
    done = subprocess.run(
        [*command, "main.cu", *words], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@needs_hip
@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", pytest.param("gfx1100", marks=pytest.mark.thorough)])
def test_a_program_ends_with_the_right_numbers(tmp_path: Path, target: str) -> None:
    code, told, said = run(tmp_path, target, "45", "x.txt")
    lanes = 64 if target == "gfx942" else 32
    *_, row, last = said.strip().splitlines()
    assert row == "row 3" and last.startswith("AMD "), said
    assert last.endswith(f"{lanes} right right"), said
    assert code == told["exit_code"] == 7
    assert [(one["name"], one["launches"]) for one in told["kernels"]] == [("softmax", 1)]


@needs_hip
@pytest.mark.compiler
@pytest.mark.slow
def test_a_fault_is_told_and_the_program_sees_it(tmp_path: Path) -> None:
    code, told, said = run(tmp_path, "gfx942", "45", "x.txt", "outside")
    assert code == 3 and "unspecified launch failure" in said
    assert [(one["kernel"], one["kind"]) for one in told["faults"]] == [("softmax", "fault")]
    assert "rows.cuh:10" in told["faults"][0]["reason"]


LIBRARIES = r"""
#include <cmath>
#include <cstdio>
#include <vector>
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <nccl.h>
const int M = 5, N = 7, K = 9;
typedef std::vector<float> Row;
__global__ void ramp(float* x, int n, float by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = by * (i * 7 % 13 - 6);
}
float* made(int n, float by) {
  float* x;
  cudaMalloc(&x, n * 4);
  ramp<<<1, 64>>>(x, n, by);
  return x;
}
Row host(const float* x, int n) {
  Row found(n);
  cudaMemcpy(found.data(), x, n * 4, cudaMemcpyDeviceToHost);
  return found;
}
double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
void told(const char* name, bool ok) { printf("%s %s\n", name, ok ? "right" : "wrong"); }
bool near(const Row& a, const std::vector<double>& b) {
  bool ok = a.size() == b.size();
  for (size_t i = 0; ok && i < a.size(); ++i) ok = fabs(a[i] - b[i]) < 1e-4;
  return ok;
}
struct Lt {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t how;
  cublasLtMatrixLayout_t a, b, d;
  float *bias = made(M, .5f), *aux = made(M * N, .1f);
  Lt() {
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, 8);
    int64_t ld = M;
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, 8);
    cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, K, M, K);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, K, N, K);
    cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, M, N, M);
  }
  bool run(cublasLtEpilogue_t epilogue, const float* x, const float* y, float* into) {
    cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulPreferenceCreate(&wish);
    size_t room = 1 << 20;
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, 8);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, how, a, b, d, d, wish, 1, &found, &count);
    const float one = 1, none = 0;
    return count == 1 && cublasLtMatmul(handle, how, &one, x, a, y, b, &none, into, d, into, d,
                                        &found.algo, nullptr, 0, 0) == CUBLAS_STATUS_SUCCESS;
  }
};
int main() {
  float *a = made(K * M, .25f), *b = made(K * N, .125f), *d = made(M * N, 1);
  const Row x = host(a, K * M), y = host(b, K * N);
  std::vector<double> plain(M * N), with(M * N), want(M * N), sums(M);
  Lt lt;
  const Row bias = host(lt.bias, M), old = host(lt.aux, M * N);
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < M; ++i) {
      for (int k = 0; k < K; ++k) plain[j * M + i] += (double)x[i * K + k] * y[j * K + k];
      with[j * M + i] = plain[j * M + i] + bias[i];
    }
  told("plain", lt.run(CUBLASLT_EPILOGUE_DEFAULT, a, b, d) && near(host(d, M * N), plain));
  told("bias", lt.run(CUBLASLT_EPILOGUE_BIAS, a, b, d) && near(host(d, M * N), with));
  for (int i = 0; i < M * N; ++i) want[i] = fmax(with[i], 0);
  told("relu", lt.run(CUBLASLT_EPILOGUE_RELU_BIAS, a, b, d) && near(host(d, M * N), want));
  for (int i = 0; i < M * N; ++i) {
    const double v = old[i], h = 1e-5;
    want[i] = plain[i] * (gelu(v + h) - gelu(v - h)) / (2 * h);
  }
  told("dgelu", lt.run(CUBLASLT_EPILOGUE_DGELU, a, b, d) && near(host(d, M * N), want));
  for (int i = 0; i < M * N; ++i) want[i] = gelu(with[i]);
  told("gelu", lt.run(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, a, b, d) && near(host(d, M * N), want) &&
                   near(host(lt.aux, M * N), with));
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) sums[i] += x[i * K + k];
  told("sums", lt.run(CUBLASLT_EPILOGUE_BGRADA, a, b, d) && near(host(lt.bias, M), sums));
  told("unknown", !lt.run((cublasLtEpilogue_t)(1 << 20), a, b, d));
  cublasHandle_t blas;
  cublasCreate(&blas);
  __nv_bfloat16 ones[4] = {1.0f, 2.0f, 3.0f, 4.0f}, *wide;
  float two = 2, one = 1;
  cudaMalloc(&wide, 8);
  cudaMemcpy(wide, ones, 8, cudaMemcpyHostToDevice);
  cudaMemset(d, 0, 16);
  cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &two, wide, CUDA_R_16BF, 2, wide,
               CUDA_R_16BF, 2, &one, d, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  told("bf16", near(host(d, 4), {14, 20, 30, 44}));
  ncclComm_t comm;
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  int ranks = 0;
  const bool begun = ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess;
  ncclCommCount(comm, &ranks);
  float* all = made(K * N, 9);
  ncclAllReduce(b, all, K * N, ncclFloat, ncclAvg, comm, 0);
  const bool reduced = host(all, K * N) == y;
  ncclGroupStart();
  ncclRecv(all, K * M, ncclFloat, 0, comm, 0);
  ncclSend(a, K * M, ncclFloat, 0, comm, 0);
  const bool ended = ncclGroupEnd() == ncclSuccess;
  told("nccl", begun && ranks == 1 && reduced && ended && host(all, K * M) == x);
  int *fresh, word = 0;
  cudaMalloc(&fresh, 4);
  cudaMemcpy(&word, fresh, 4, cudaMemcpyDeviceToHost);
  told("unwritten", word == -1);
  told("ranks", ncclCommInitRank(&comm, 2, id, 0) != ncclSuccess);
}
"""


@needs_hip
@pytest.mark.compiler
@pytest.mark.slow
def test_libraries_of_products_and_collectives_answer(tmp_path: Path) -> None:
    (tmp_path / "libraries.cu").write_text(LIBRARIES)
    command = [sys.executable, "-m", "ratchet", "emulate", "--target", "gfx942", "--json", "--"]
    done = subprocess.run(
        [*command, "libraries.cu"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    names = ["plain", "bias", "relu", "dgelu", "gelu", "sums", "unknown", "bf16", "nccl"]
    names += ["unwritten", "ranks"]
    said = [one for one in done.stderr.splitlines() if one.endswith(("right", "wrong"))]
    assert said == [f"{one} right" for one in names], done.stderr
    assert "several ranks: one GPU is emulated" in done.stderr


def test_a_copy_opens_its_own_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of small copies must not pay for every block that there is."""
    memory = GpuMemory()
    blocks = [memory.block(100) for _ in range(9)]
    memory.protect(CLOSED)
    changed: list[int] = []
    monkeypatch.setattr(hip_runtime, "_mprotect", lambda at, *_: changed.append(at) or 0)
    first, second = blocks[6].address, blocks[2].address
    with memory.opened_at(first + 4, second, 12345):
        assert changed == [first, second]
    assert changed == [first, second] * 2
    assert memory.find(first + 99) is blocks[6] and memory.find(first + 90, 10) is blocks[6]
    assert memory.find(first + 100) is memory.find(first - 1) is memory.find(first + 91, 10) is None
    assert memory.release(first) and not memory.release(first) and memory.find(first) is None
    assert memory.find(second) is blocks[2]
