"""CUDA's libraries and API names: what hipify maps, and what has no counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ratchet.amd.emulator import extension_build
from ratchet.amd.port.cuda_tree import CudaTree, around, replaced
from ratchet.amd.port.rule import HEADERS, Edit, Match, Rules
from ratchet.base.errors import PortError

if TYPE_CHECKING:
    from tree_sitter import Node


@cache
def hip_names() -> Mapping[str, str]:
    """Return torch's map of names with ours, read from files: importing torch takes seconds.

    Raises PortError if torch has no such files.
    """
    try:
        made = extension_build.hipify_module()
    except ImportError as error:
        raise PortError("torch.utils.hipify is missing: install torch") from error
    found = {name: str(instead) for name, instead in made.PYTORCH_MAP.items()}
    return {**found, **extension_build.MORE_NAMES}


def hipified(text: bytes, name: str) -> bytes:
    """Return a text as torch.utils.hipify rewrites it; `name` decides by its suffix.

    Raises PortError for a text that is not UTF-8.
    """
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise PortError(f"{name} is not UTF-8: hipify cannot read it") from error
    return extension_build.hipified(words, Path(name).suffix).encode()


RULES: Final = Rules[CudaTree]()

API: Final = re.compile(
    r"(?:cuda|cublas(?:Lt)?|cudnn|cufft|curand|cusparse|cusolver|cutensor|nvrtc|nvml|nccl|nvtx|cupti)"
    r"[A-Z]\w*|cu[A-Z][a-z]\w+|CU(?:DA|BLAS|FFT|RAND|SPARSE|SOLVER|DNN|_)[A-Z_]*_\w+"
)
TORCH_NAMES: Final = re.compile(
    r"(?:getCurrentCUDA|getStreamFromPool|getDefaultCUDA|CUDA(?:Stream|Guard|Event|Generator|Caching|Graph|Extension|Context|HooksInterface|_KERNEL|_num_threads)|is_cuda|kCUDA|C10_CUDA|AT_CUDA|TORCH_CUDA|CUDA_CHECK|CUDAStreamGuard)\w*|CUDA_\w+"
)
STREAM_ORDERED: Final = ("cudaMallocAsync", "cudaFreeAsync", "cudaMallocFromPoolAsync")
GRAPHS: Final = re.compile(
    r"cudaGraphConditional\w*|cudaGraphNodeTypeConditional|cudaGraphSetConditional|cudaGraphInstantiateFlagDeviceLaunch|cudaGraphKernelNode\w*Device\w*"
)


@RULES.add("library-header", "error", fix="use ROCm's own library")
def headers(tree: CudaTree) -> Iterator[Match]:
    """This header is not on ROCm, and hipify does not replace it."""
    for path, node in tree.includes:
        instead = next((one for start, one in HEADERS.items() if _is_of(path, start)), "")
        if instead and path.rpartition("/")[2] not in tree.own:
            edits = _included(tree, node, REPLACED[path]) if path in REPLACED else ()
            yield Match(at=node.start_byte, detail=path, fix=f"use {instead}", edits=edits)


REPLACED: Final = {
    "cuda_fp8.h": ("#include <hip/hip_fp8.h>",),
    "device_launch_parameters.h": ("#include <hip/hip_runtime.h>",),
    "cuda_profiler_api.h": ("#include <hip/hip_runtime_api.h>",),
    "sm_61_intrinsics.h": ("#include <hip/hip_runtime.h>",),
    "sm_20_atomic_functions.h": ("#include <hip/hip_runtime.h>",),
}
"""Headers of which HIP has another, and of which hipify knows nothing."""


def _included(tree: CudaTree, node: Node, lines: Sequence[str]) -> tuple[Edit, ...]:
    """Return what includes something else on AMD."""
    start = tree.text.rfind(b"\n", 0, node.start_byte) + 1
    said = tree.text[start : node.end_byte].decode(errors="replace").strip()
    text = "\n".join(["#ifdef __HIP_PLATFORM_AMD__", *lines, "#else", said, "#endif"])
    return (Edit(start=start, end=node.end_byte, text=text),)


MATH_CONSTANTS: Final = b"math_constants.h"
COMMON: Final = ("INF_F", "NAN_F", "PI_F", "INF", "NAN", "PI")
CONSTANT: Final = re.compile(rb"\bCUDART_((?!VERSION|CB\b)[A-Z0-9_]+)\b(?<!16)")


@RULES.add("math-constants", "error", fix="include hip/hip_math_constants.h")
def math_constants(tree: CudaTree) -> Iterator[Match]:
    """ROCm has CUDA's constants under other names, in another header; hipify knows neither."""
    for path, node in tree.includes:
        if path.encode() == MATH_CONSTANTS:
            used = sorted({one.decode() for one in CONSTANT.findall(tree.text)}) or COMMON
            lines = [f"#define CUDART_{one} HIP_{one}" for one in used]
            edits = _included(tree, node, ("#include <hip/hip_math_constants.h>", *lines))
            yield Match(at=node.start_byte, detail=path, edits=edits)


def _is_of(path: str, start: str) -> bool:
    if start in ("npp", "sm_"):
        return re.fullmatch(rf"{start}[a-z0-9_]*\.h", path) is not None
    return path.startswith(start)


@RULES.add("api-name", "error", fix="hipify renames them")
def mapped_names(tree: CudaTree) -> Iterator[Match]:
    """Names of CUDA's API, which torch.utils.hipify maps to HIP's."""
    known = hip_names()
    found = [node for name, node in _api(tree) if name in known]
    found += [
        node
        for path, node in tree.includes
        if path.startswith("ATen/cuda/") or path in known or f"include <{path}" in known
    ]
    places = [node.start_byte for node in found if not tree.is_for_rocm(node.start_byte)]
    if places:
        yield Match(at=min(places), detail=f"{len(places)} name{'s' * (len(places) > 1)}")


@RULES.add("api-unmapped", "error", fix="look for it in HIP's API, or leave it out on AMD")
def unmapped_names(tree: CudaTree) -> Iterator[Match]:
    """Torch.utils.hipify has no counterpart for this name."""
    seen: set[str] = set()
    for name, node in _api(tree):
        if name == "CUDART_CB":
            fix = "leave it out: it says nothing but on Windows"
            yield Match(at=node.start_byte, detail=name, fix=fix, edits=(replaced(node, ""),))
            continue
        if name in seen or name in hip_names() or GRAPHS.fullmatch(name):
            continue
        seen.add(name)
        if MATH_CONSTANTS in tree.text and CONSTANT.fullmatch(name.encode()):
            continue
        is_told = name.lower().startswith(("nccl", "cudnn", "cu_tensor_map")) or name in _ELSEWHERE
        if not is_told and not _is_own(tree, name):
            yield Match(at=node.start_byte, detail=name)


KERNEL_AT: Final = {
    "cudaFuncSetAttribute": 0,
    "cudaFuncSetCacheConfig": 0,
    "cudaFuncSetSharedMemConfig": 0,
    "cudaFuncGetAttributes": 1,
}


@RULES.add("kernel-pointer", "error", fix="cast the kernel to const void*")
def kernel_pointers(tree: CudaTree) -> Iterator[Match]:
    """CUDA takes a kernel here as it is, by a template; HIP takes a const void*."""
    for name, place in KERNEL_AT.items():
        for call in tree.calls_of(name):
            given = call.arguments[place] if len(call.arguments) > place else None
            if given is not None and not VOID.search(tree.said(given)):
                edits = around(given, "reinterpret_cast<const void*>(", ")")
                yield Match(at=call.at, detail=name, edits=edits)


@RULES.add("event-flags", "error", fix="call cudaEventCreateWithFlags")
def event_flags(tree: CudaTree) -> Iterator[Match]:
    """C++ code may give flags to cudaEventCreate; HIP has another function for them."""
    for call in tree.calls_of("cudaEventCreate"):
        if len(call.arguments) == 2 and call.function is not None:
            edits = (replaced(call.function, "cudaEventCreateWithFlags"),)
            yield Match(at=call.at, detail=call.name, edits=edits)


VOID: Final = re.compile(r"\(\s*(const\s+)?void\s*(const\s*)?\*\s*\)|_cast<[^>]*void")
_ELSEWHERE: Final = (
    *("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cudaGridDependencySynchronize"),
    *("cudaTriggerProgrammaticLaunchCompletion", "cudaLaunchAttributeClusterDimension"),
)
"""Names that another rule tells of."""


def _api(tree: CudaTree) -> Iterator[tuple[str, Node]]:
    for name, nodes in tree.names.items():
        if API.fullmatch(name) and not TORCH_NAMES.fullmatch(name):
            for node in nodes:
                yield name, node


def _is_own(tree: CudaTree, name: str) -> bool:
    """The program's own name that looks like CUDA's, such as cudaCheck or CU_ASSERT."""
    if name in tree.own or name in tree.constants or name in tree.declared:
        return True
    own = re.search(
        r"(?i)check|assert|safe|_?call$|error_?handler|try|kernel$|helper|wrapper", name
    )
    return own is not None and name not in hip_names()


@RULES.add("cudnn", "warning", fix="call torch's convolutions, or write the calls of MIOpen anew")
def cudnn(tree: CudaTree) -> Iterator[Match]:
    """Hipify renames cuDNN's calls to MIOpen's, whose descriptors, algorithms and workspaces
    differ: what compiles may not run."""
    found = [nodes[0] for name, nodes in tree.names.items() if re.fullmatch(r"cudnn[A-Z]\w+", name)]
    for node in sorted(found, key=lambda node: node.start_byte)[:1]:
        yield Match(at=node.start_byte, detail=tree.said(node))


@RULES.add(
    "stream-ordered-allocator", "note", fix="nothing to do; torch's own allocator is the safer one"
)
def stream_ordered(tree: CudaTree) -> Iterator[Match]:
    """HIP has pools and hipMallocAsync; sharing pools between processes and their limits differ."""
    for call in tree.calls_of(*STREAM_ORDERED):
        yield Match(at=call.at, detail=call.name)


@RULES.add("graph-node", "error", fix="decide on the host, or keep both branches as graphs")
def graph_nodes(tree: CudaTree) -> Iterator[Match]:
    """HIP's graphs have no conditional nodes and cannot be launched by a kernel."""
    for name, nodes in tree.names.items():
        if GRAPHS.fullmatch(name):
            yield Match(at=nodes[0].start_byte, detail=name)
