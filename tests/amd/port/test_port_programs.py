"""Standalone CUDA programs, and HIP: kernels compile beside what else such files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from ratchet.amd.port.compile import Compilation, why_not
from ratchet.amd.port.porting import PortResult, PortSettings, port
from ratchet.amd.port.scan import scan
from ratchet.amd.port.show import headline

SCALE = "__global__ void scale(float* x, float f) { x[threadIdx.x] *= f; }\n"
RUN = "void run(float* x) { scale<<<1, 64>>>(x, 2.f); }\n"
PROGRAMS = {
    "blas.cu": (
        "#include <cublas_v2.h>\n#include <cublasLt.h>\nstatic cublasHandle_t handle;\n"
        "static cublasComputeType_t how = CUBLAS_COMPUTE_32F_FAST_16BF;\n"
        "static cublasLtHandle_t lt; cublasMath_t math = CUBLAS_TF32_TENSOR_OP_MATH;\n"
        f"{SCALE}{RUN}"
        "void product(const float* a, float* c) {\n  float one = 1, zero = 0;\n"
        "  cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 2, 2, 2, &one, a, 2, a, 2, &zero, c, 2);\n"
        "}\n"
    ),
    "nccl.cu": f"#include <nccl.h>\nstatic ncclComm_t comm;\n{SCALE}{RUN}",
    "marks.cu": (
        "#include <nvtx3/nvToolsExt.h>\n"
        f'{SCALE}void run(float* x) {{ nvtxRangePushA("a"); scale<<<1, 64>>>(x, 2.f); }}\n'
    ),
    "block.cu": (
        "#include <cub/cub.cuh>\n__global__ void total(const float* x, float* y) {\n"
        "  using Reduce = cub::BlockReduce<float, 256>;\n  using Warp = cub::WarpReduce<float>;\n"
        "  __shared__ typename Reduce::TempStorage room;\n"
        "  __shared__ typename Warp::TempStorage small;\n"
        "  float s = Reduce(room).Sum(x[threadIdx.x]) + Warp(small).Sum(x[threadIdx.x]);\n"
        "  if (threadIdx.x == 0) y[0] = s;\n}\n"
    ),
    "halves.cu": (
        "#include <torch/extension.h>\n__global__ void copy(const float* x, float* y) {\n"
        "  reinterpret_cast<half2*>(y)[threadIdx.x] ="
        " reinterpret_cast<const half2*>(x)[threadIdx.x];\n}\n"
    ),
    "main.cu": (
        "#include <algorithm>\n#include <cassert>\n#include <iostream>\n#include <vector>\n"
        "#define DEVICE __device__ __forceinline__\n"
        "constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }\n"
        "DEVICE float twice(float v) { return 2 * v; }\n"
        "template <typename T, int N> __global__ void fill(T* x) {\n"
        "  assert(blockDim.x >= ceil_div(N, 2));\n  x[threadIdx.x] = twice(N);\n}\n"
        "int main() {\n  std::vector<float> host(64);\n  float* x;\n"
        "  cudaMalloc(&x, 256);\n  fill<float, 3><<<1, 64>>>(x);\n"
        "  cudaMemcpy(host.data(), x, 256, cudaMemcpyDeviceToHost);\n"
        '  std::cout << *std::max_element(host.begin(), host.end()) << "\\n";\n}\n'
    ),
    "src/deep/use.cu": f'#include "own/sizes.h"\n{SCALE}int sizes[OWN_SIZE];\n{RUN}',
    "third/include/own/sizes.h": "#define OWN_SIZE 3\n",
    "tiled/tile.cu": "__global__ void tile(float* x) { x[threadIdx.x] = TILE; }\n",
    "tiled/Makefile": "all:\n\tnvcc -O3 -DTILE=16 tile.cu -o tile\n",
    "bound.cu": (
        "#include <torch/extension.h>\n#include <device_launch_parameters.h>\n"
        "struct __align__(8) Pair { float m, d; };\n"
        "template <int N, typename T> __global__ void both(T* x) { Pair p = {1, 2}; x[N] = p.d; }\n"
        "#define BIND(name, \\\n             kind) \\\n"
        "  void name(torch::Tensor x) { both<4, kind><<<1, 1>>>(x.data_ptr<kind>()); }\n"
        "BIND(first, float)\nBIND(second, double)\n"
        "void third() { const int wide = 8; both<wide, float><<<1, 1>>>(nullptr); }\n"
        "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n"
        '  m.def("first", &first);\n  m.def("second", &second);\n}\n'
    ),
    "linked.cu": (
        'extern "C" void run(float* x);\n'
        "__global__ void least(unsigned* x) { x[0] = umin(x[0], x[1]); }\n"
        'extern "C" void run(float* x) { least<<<1, 1>>>((unsigned*)x); undeclared(x); }\n'
    ),
    "kernels/part.cuh": "template <int N> __global__ void part(float* x) { x[N] = Scale::one; }\n",
    "kernels/runner.cu": (
        'struct Scale { static constexpr float one = 1; };\n#include "part.cuh"\n'
        "void start(float* x) { part<4><<<1, 1>>>(x); }\n"
    ),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compilation]:
    if why := why_not():
        pytest.skip(why)
    root = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    result = port(root, PortSettings(targets=("gfx942",)))
    return {one.file: one for one in result.compiled}


@pytest.mark.parametrize("name", [one for one in PROGRAMS if "__global__" in PROGRAMS[one]])
def test_the_kernels_of_a_program_compile(compiled: dict[str, Compilation], name: str) -> None:
    found = compiled[name]
    assert (found.status, found.why) == ("compiled", "")
    assert found.kernels == 1


OF_TORCH = """#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
template <typename scalar_t> __global__ void twice(scalar_t* x) {
  using acc = at::acc_type<scalar_t, true>;
  x[threadIdx.x] = static_cast<acc>(x[threadIdx.x]) * acc(2);
}
void run(torch::Tensor x) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "twice", [&] {
    twice<scalar_t><<<1, 64, 0, stream>>>(x.data_ptr<scalar_t>());
  });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_gpu_code_with_torchs_headers_compiles(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "twice.cu").write_text(OF_TORCH)
    (tmp_path / "setup.py").write_text("from torch.utils.cpp_extension import CUDAExtension\n")
    (found,) = port(tmp_path, PortSettings(targets=("gfx942",))).compiled
    assert (found.status, found.why, found.kernels) == ("compiled", "", 3)


def test_a_library_that_is_not_here_is_no_failure(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "k.hip").write_text(
        f"#include <hipsolver/hipsolver.h>\nstatic hipsolverRfHandle_t handle;\n{SCALE}"
    )
    (found,) = port(tmp_path, PortSettings(targets=("gfx942",))).compiled
    assert (found.status, found.why) == ("not compiled", "hipSOLVER is not on this machine")


def test_a_header_of_the_hosts_that_is_not_here_is_no_failure(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "k.cu").write_text(f"#include <mpi.h>\n{SCALE}struct Shared {{ MPI_Comm all; }};\n")
    (tmp_path / "own.cuh").write_text('__device__ void f() { asm("ex2.approx.f32 a, b;"); }\n')
    (tmp_path / "use.cu").write_text(f'#include "own.cuh"\n{SCALE}float x = f();\n')
    found = {one.file: one for one in port(tmp_path, PortSettings(targets=("gfx942",))).compiled}
    assert found["k.cu"].why == "the header mpi.h is not on this machine"
    assert found["use.cu"].status != "compiled"


def test_a_file_that_does_not_compile_counts(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    (tmp_path / "k.cu").write_text("__global__ void k(float* x) { x[0] = missing; }\n")
    result = port(tmp_path, PortSettings(targets=("gfx942",)))
    assert result.failed == ["k.cu"] and not result.is_done
    assert headline(result) == "1 file with kernels does not compile for AMD GPUs."
    assert result.compiled[0].why.startswith("k.cu:1:38: error: use of undeclared")


def rules(path: Path, text: str) -> list[str]:
    path.write_text(text)
    (file,) = scan(path)
    return [one.rule for one in file.findings if one.severity != "note"]


@pytest.mark.parametrize("name", ["k.hip", "k.cu", "k.hip.cpp"])
def test_hip_that_counts_in_32s_is_told(tmp_path: Path, name: str) -> None:
    loop = "__device__ float f(float v) {{ for (int o = {}; o > 0; o /= 2) v += {}; return v; }}\n"
    hip = "#include <hip/hip_runtime.h>\n__global__ void k();\n" + loop
    path, half = tmp_path / name, "__shfl_down(v, o)"
    assert rules(path, hip.format(16, half)) == ["shuffle-width"]
    assert rules(path, hip.format(32, half)) == []
    assert rules(path, hip.format("warpSize / 2", half)) == []
    assert rules(path, hip.format(16, "__shfl_down(v, o, 32)")) == []
    assert rules(path, hip.format(16, "__shfl_xor(v, o)")) == []
    vote = "(__ballot(v > 0) >> (threadIdx.x & {})) & 1"
    assert rules(path, hip.format(8, vote.format(31))) == ["warp-vote"]
    assert rules(path, hip.format(8, vote.format(63))) == []


def test_a_tree_of_hip_is_read(tmp_path: Path) -> None:
    (tmp_path / "k.hip").write_text("#include <hip/hip_runtime.h>\n" + SCALE)
    result: PortResult = port(tmp_path, PortSettings(compiles=False))
    assert headline(result) == f"Nothing in {tmp_path} stands between it and ROCm."
    (tmp_path / "k.hip").rename(tmp_path / "k.txt")
    (tmp_path / "main.cu").write_text("void wait() { cudaDeviceSynchronize(); }\n")
    found = headline(port(tmp_path, PortSettings(compiles=False)))
    assert ": 1 is fixed by the patch, 0 are left for you." in found
    (tmp_path / "main.cu").unlink()
    result = port(tmp_path, PortSettings(compiles=False))
    assert headline(result) == f"{tmp_path} holds no CUDA, HIP, Triton or build files."


def test_an_address_gets_no_advice_for_half_precision(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        "__device__ unsigned where(void* p) {\n  unsigned a;\n"
        '  asm("{ .reg .u64 q; cvta.to.shared.u64 q, %1; cvt.u32.u64 %0, q; }"'
        ' : "=r"(a) : "l"(p));\n'
        "  return a;\n}\n"
    )
    (file,) = scan(tmp_path)
    (found,) = [one for one in file.findings if one.rule == "inline-ptx"]
    assert "pointer" in found.fix and "half" not in found.fix and "fp16" not in found.fix
