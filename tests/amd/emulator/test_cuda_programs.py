"""Whole CUDA programs: their main runs on the CPU, their kernels as a GPU's machine code."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import PortError
from ratchet.judge.sandbox.rocm import bitcode_folder, find_tool

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from ratchet.amd.port.program import compile_program, sources_of

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
    assert sources_of(["python", "a.cu"]) == sources_of(["a.cpp"]) == []
    with pytest.raises(PortError, match=r"nowhere\.cu is no file"):
        compile_program([Path("nowhere.cu")], "gfx942")


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
