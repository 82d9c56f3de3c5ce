"""CUDA's libraries and API names: what hipify maps, and what has no counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from ratchet.port.cuda_tree import CudaTree
from ratchet.port.finding import Match
from ratchet.port.rules.rule import Rule

NO_COUNTERPART: Final = {
    "cutlass/": "Composable Kernel (ck/ck.hpp), or hipBLASLt for plain products",
    "cute/": "Composable Kernel's tiles (ck_tile), or rocWMMA",
    "cudnn": "MIOpen: torch's map renames cudnn* to miopen*, but descriptors and algorithms differ",
    "cutensor": "hipTensor, for contractions",
    "cusparseLt": "hipSPARSELt",
    "npp": "RPP for images; nothing for the rest",
    "nvjpeg": "rocJPEG",
    "nvcuvid": "rocDecode",
    "cuviddec": "rocDecode",
    "optix": "HIP RT",
    "cufile": "nothing: there is no GPUDirect Storage",
    "nvshmem": "rocSHMEM, with fewer calls",
    "NvInfer": "MIGraphX",
    "cuda/std/": "libhipcxx, or the standard headers of C++",
    "cuda/atomic": "libhipcxx, or __hip_atomic_* of the compiler",
    "cuda/barrier": "__syncthreads(); there are no barriers in shared memory",
    "cuda/pipeline": "copies through registers",
    "cuda/ptx": "builtins of the compiler",
    "cuda_pipeline": "copies through registers",
    "cooperative_groups/reduce.h": "shuffles of the tile, or hipcub::WarpReduce",
    "cooperative_groups/memcpy_async.h": "copies through registers",
    "cooperative_groups/scan.h": "shuffles of the tile, or hipcub::WarpScan",
    "mma.h": "rocwmma/rocwmma.hpp",
    "nvml.h": "amd_smi/amdsmi.h; torch's map names the older rocm_smi/rocm_smi.h",
    "cuda_profiler_api.h": "roctx ranges; rocprofv3 starts and stops by roctxProfilerPause",
    "nvToolsExtCuda": "roctracer/roctx.h, without domains",
    "cudaTypedefs.h": "hip/hip_runtime_api.h, without entry points by version",
    "nvfunctional": "std::function on the host; nothing on the device",
    "cupti": "rocprofiler-sdk",
    "cuda_fp4.h": "hip/hip_ext_ocp.h, on gfx950",
    "cuda_fp6.h": "hip/hip_ext_ocp.h, on gfx950",
    "crt/": "nothing: these are the compiler's own headers",
    "sm_": "nothing: these are the compiler's own headers",
    "device_launch_parameters.h": "hip/hip_runtime.h",
    "helper_cuda.h": "a check of hipError_t of your own: this header is of NVIDIA's samples",
    "cuda_gl_interop.h": "hip/hip_gl_interop.h",
}
"""Headers by how they begin, and what takes their place. Sources: ROCm's list of API libraries,
https://rocm.docs.amd.com/en/latest/reference/api-libraries.html, and HIPIFY's tables."""
API: Final = re.compile(
    r"(?:cuda|cublas(?:Lt)?|cudnn|cufft|curand|cusparse|cusolver|cutensor|nvrtc|nvml|nccl|nvtx|cupti)[A-Z_]\w*"
    r"|cu[A-Z][a-z]\w+|CU(?:DA|BLAS|FFT|RAND|SPARSE|SOLVER|DNN|_)[A-Z_]*_\w+"
)
TORCH_NAMES: Final = re.compile(
    r"(?:getCurrentCUDA|getStreamFromPool|getDefaultCUDA|CUDA(?:Stream|Guard|Event|Generator|Caching|Graph|Extension|Context|HooksInterface|_KERNEL|_num_threads)|is_cuda|kCUDA|C10_CUDA|AT_CUDA|TORCH_CUDA|CUDA_CHECK|CUDAStreamGuard)\w*|CUDA_\w+"
)
STREAM_ORDERED: Final = ("cudaMallocAsync", "cudaFreeAsync", "cudaMallocFromPoolAsync")
GRAPHS: Final = re.compile(
    r"cudaGraphConditional\w*|cudaGraphNodeTypeConditional|cudaGraphSetConditional|cudaGraphInstantiateFlagDeviceLaunch|cudaGraphKernelNode\w*Device\w*"
)


@cache
def hip_names() -> Mapping[str, str]:
    """Return torch's map of names, as its hipify has it."""
    from torch.utils.hipify import hipify_python

    return {name: str(instead) for name, instead in hipify_python.PYTORCH_MAP.items()}


def headers(tree: CudaTree) -> Iterator[Match]:
    for path, node in tree.includes:
        instead = next((one for start, one in NO_COUNTERPART.items() if _is_of(path, start)), "")
        if instead:
            yield Match(at=node.start_byte, detail=path, fix=f"use {instead}")


def _is_of(path: str, start: str) -> bool:
    if start in ("npp", "sm_"):
        return re.fullmatch(rf"{start}[a-z0-9_]*\.h", path) is not None
    return path.startswith(start)


def mapped_names(tree: CudaTree) -> Iterator[Match]:
    """Match the first name, or header, that hipify renames: there is one finding a file."""
    found = [node.start_byte for name, node in _api(tree) if name in hip_names()]
    headers = [node.start_byte for path, node in tree.includes if path in hip_names()]
    if found or headers:
        count = len(found) + len(headers)
        yield Match(at=min(found + headers), detail=f"{count} name{'s' * (count > 1)}")


def unmapped_names(tree: CudaTree) -> Iterator[Match]:
    """Match the first use of each name of CUDA's API that hipify does not know."""
    seen: set[str] = set()
    for name, node in _api(tree):
        if name in seen or name in hip_names() or GRAPHS.fullmatch(name):
            continue
        seen.add(name)
        if name.startswith("nccl") or _is_own(tree, name) or name in _ELSEWHERE:
            continue
        yield Match(at=node.start_byte, detail=name)


_ELSEWHERE: Final = frozenset(
    "cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cudaGridDependencySynchronize "
    "cudaTriggerProgrammaticLaunchCompletion cudaLaunchAttributeClusterDimension".split()
)
"""Names that another rule tells of."""


def _api(tree: CudaTree) -> Iterator[tuple[str, object]]:
    for name, nodes in tree.names.items():
        if API.fullmatch(name) and not TORCH_NAMES.fullmatch(name):
            for node in nodes:
                yield name, node


def _is_own(tree: CudaTree, name: str) -> bool:
    """The program's own name that looks like CUDA's, such as cudaCheck or CU_ASSERT."""
    if tree.function_named(name) or name in tree.constants:
        return True
    own = re.search(r"(?i)check|assert|safe|_?call$|error_?handler|try|kernel$|helper|wrapper", name)
    return own is not None and name not in hip_names()


def cudnn(tree: CudaTree) -> Iterator[Match]:
    names = [name for name in tree.names if re.fullmatch(r"cudnn[A-Z]\w+", name)]
    for name in names:
        yield Match(at=tree.names[name][0].start_byte, detail=name)
        return


def stream_ordered(tree: CudaTree) -> Iterator[Match]:
    for name in STREAM_ORDERED:
        for call in tree.calls.get(name, ()):
            yield Match(at=call.at, detail=name)


def graph_nodes(tree: CudaTree) -> Iterator[Match]:
    for name, nodes in tree.names.items():
        if GRAPHS.fullmatch(name):
            yield Match(at=nodes[0].start_byte, detail=name)


RULES: Final = (
    Rule(
        name="api-name",
        severity="error",
        why="names of CUDA's API, which torch.utils.hipify maps to HIP's.",
        fix="hipify renames them",
        matches=mapped_names,
    ),
    Rule(
        name="api-unmapped",
        severity="error",
        why="torch.utils.hipify has no counterpart for this name.",
        fix="look for it in HIP's API, or leave it out on AMD",
        matches=unmapped_names,
    ),
    Rule(
        name="library-header",
        severity="error",
        why="this header is not on ROCm, and hipify does not replace it.",
        fix="use ROCm's own library",
        matches=headers,
    ),
    Rule(
        name="cudnn",
        severity="warning",
        why="hipify renames cuDNN's calls to MIOpen's, whose descriptors, algorithms and workspaces "
        "differ: what compiles may not run.",
        fix="call torch's convolutions, or write the calls of MIOpen anew",
        matches=cudnn,
    ),
    Rule(
        name="stream-ordered-allocator",
        severity="note",
        why="HIP has pools and hipMallocAsync; sharing pools between processes and their limits "
        "differ.",
        fix="nothing to do; torch's own allocator is the safer one",
        matches=stream_ordered,
    ),
    Rule(
        name="graph-node",
        severity="error",
        why="HIP's graphs have no conditional nodes and cannot be launched by a kernel.",
        fix="decide on the host, or keep both branches as graphs",
        matches=graph_nodes,
    ),
)
