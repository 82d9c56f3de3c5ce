"""Rules on device code: PTX, matrix instructions, copies, clusters, sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.cuda_tree import Called, CudaTree, listed, replaced
from ratchet.amd.port.preprocessor import SIZES
from ratchet.amd.port.rule import DEVICE_FUNCTIONS, PTX, Edit, Match, Rules, inserted

if TYPE_CHECKING:
    from tree_sitter import Node


RULES: Final = Rules[CudaTree]()

MATRIX: Final = re.compile(r"\b(mma\.sync|mma\.sp|wgmma|tcgen05|wmma|ldmatrix|stmatrix|movmatrix)")
COPIES: Final = re.compile(r"\bcp\.async|\bmbarrier|\bcp\.reduce|\bgriddepcontrol|\bsetmaxnreg")
IS_AMD: Final = re.compile(r"\s*(s_|v_|ds_|buffer_|global_|;)")
STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
LANE: Final = re.compile(r"\s*mov\.[us]32\s+%0\s*,\s*%%?laneid\s*;\s*")


def _assembly(tree: CudaTree) -> Iterator[tuple[Node, str]]:
    for node in tree.nodes("asm"):
        yield node, " ".join(STRING.findall(tree.said(node, "assembly_code")))
    for call in tree.calls_of("asm", "__asm__", "__asm"):  # where tree-sitter sees a call
        yield call.node, " ".join(STRING.findall(tree.said(call.node)))


def _first(text: str) -> str:
    """Return the first instruction of an assembly text."""
    found = re.search(
        r"[a-z][\w.]*\.[\w.:]+|[a-z]\w+", re.sub(r"\\[nt]|[{}]|\.reg[^;]*;", " ", text)
    )
    return found[0] if found else "assembly"


@RULES.add(
    "inline-ptx", "error", fix="write it in C, with a builtin of the compiler, or in AMD's assembly"
)
def plain_ptx(tree: CudaTree) -> Iterator[Match]:
    """PTX is NVIDIA's assembly; AMD's compiler rejects it."""
    for node, text in _assembly(tree):
        if not text.strip() or IS_AMD.match(text) or MATRIX.search(text) or COPIES.search(text):
            continue
        found = next((fix for pattern, fix in PTX.items() if re.search(pattern, text)), "")
        yield Match(
            at=node.start_byte,
            detail=_first(text),
            fix=f"use {found}" if found and not found.startswith("none") else found,
            edits=_lane(tree, node, text),
        )


def _lane(tree: CudaTree, node: Node, text: str) -> tuple[Edit, ...]:
    """Replace the reading of a lane's number, the one form that is always the same."""
    outputs = node.child_by_field_name("output_operands")
    if not LANE.fullmatch(text) or outputs is None or len(outputs.named_children) != 1:
        return ()
    text = f"""
#ifdef __HIP_PLATFORM_AMD__
    {tree.said(outputs.named_children[0], "value")} = __lane_id() & 31u
#else
    {tree.said(node)}
#endif
"""
    return (replaced(node, text),)


@RULES.add(
    "matrix-ptx",
    "error",
    fix=(
        "use rocWMMA, or __builtin_amdgcn_mfma_* on CDNA and __builtin_amdgcn_wmma_* on RDNA; "
        "fragments have to be loaded anew"
    ),
)
def matrix_ptx(tree: CudaTree) -> Iterator[Match]:
    """PTX's matrix instructions fix a layout of fragments over 32 lanes; MFMA (CDNA) and WMMA
    (RDNA) have other shapes and layouts."""
    for node, text in _assembly(tree):
        if (found := MATRIX.search(text)) and not COPIES.search(text):
            yield Match(at=node.start_byte, detail=found[0])


@RULES.add(
    "async-copy-ptx",
    "error",
    fix=(
        "load into registers and store to shared memory before __syncthreads(); on gfx950 "
        "__builtin_amdgcn_global_load_lds takes 16 bytes a lane"
    ),
)
def copy_ptx(tree: CudaTree) -> Iterator[Match]:
    """Copies past the registers (cp.async, TMA) and their barriers are NVIDIA's hardware."""
    for node, text in _assembly(tree):
        if found := COPIES.search(text):
            yield Match(at=node.start_byte, detail=found[0])


@RULES.add(
    "wmma",
    "error",
    fix=(
        "use rocWMMA: <rocwmma/rocwmma.hpp> and rocwmma:: have the same fragments and calls, "
        "for blocks counted in waves of 64 on CDNA"
    ),
)
def wmma(tree: CudaTree) -> Iterator[Match]:
    """Nvcuda::wmma does not exist on ROCm."""
    seen = set()
    for name in ("nvcuda", "wmma"):
        for node in tree.names.get(name, ()):
            function = tree.function_at(node.start_byte)
            key = function.id if function is not None else 0
            parent = node.parent.type if node.parent is not None else ""
            if key not in seen and parent == "qualified_identifier":
                seen.add(key)
                yield Match(at=node.start_byte, detail="nvcuda::wmma")


PIPELINE: Final = ("__pipeline_memcpy_async", "memcpy_async", "make_pipeline", "cp_async_bulk")


@RULES.add("async-copy", "error", fix="copy through registers, then __syncthreads()")
def async_copy(tree: CudaTree) -> Iterator[Match]:
    """HIP has no asynchronous copies into shared memory, and no pipelines."""
    for call in tree.calls_of(*PIPELINE):
        yield Match(at=call.at, detail=call.name)


GROUPS: Final = ("reduce", "inclusive_scan", "exclusive_scan", "labeled_partition", "invoke_one")


@RULES.add(
    "group-collective", "error", fix="reduce with shuffles of the tile, or with hipcub::WarpReduce"
)
def cooperative(tree: CudaTree) -> Iterator[Match]:
    """HIP's cooperative groups have tiles and shuffles but not these collectives."""
    for call in tree.calls_of(*GROUPS):
        said = tree.said(call.function)
        if said.startswith(("cg::", "cooperative_groups::")):
            yield Match(at=call.at, detail=said.partition("<")[0])


CLUSTERS: Final = ("__cluster_dims__", "this_cluster", "cudaLaunchAttributeClusterDimension")


@RULES.add(
    "thread-block-cluster",
    "error",
    fix="exchange through global memory, or let one block do the work",
)
def clusters(tree: CudaTree) -> Iterator[Match]:
    """AMD's GPUs have no clusters of blocks with a shared memory between them."""
    for name in CLUSTERS:
        for at in tree.positions(name):
            yield Match(at=at, detail=name)
            break


TENSOR_MAPS: Final = ("CUtensorMap", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col")


@RULES.add("tensor-map", "error", fix="compute addresses in the kernel and load with vector loads")
def tensor_maps(tree: CudaTree) -> Iterator[Match]:
    """Tensor maps describe copies for Hopper's TMA."""
    for name in TENSOR_MAPS:
        for node in tree.names.get(name, ())[:1]:
            yield Match(at=node.start_byte, detail=name)


@RULES.add(
    "active-group",
    "warning",
    fix="read size() and thread_rank() of the group, and keep no array of 32",
)
def partition_lanes(tree: CudaTree) -> Iterator[Match]:
    """A group of the active lanes has up to 64 members on CDNA; its size and ranks change."""
    for call in tree.calls_of("coalesced_threads", "binary_partition"):
        yield Match(at=call.at, detail=call.name)


LDS_BYTES: Final = 64 << 10  # shared memory of a block; gfx950 alone has more, 160 KiB (CDNA4 ISA)


@RULES.add("shared-memory-limit", "error", fix="make tiles smaller, or keep fewer stages")
def shared_too_large(tree: CudaTree) -> Iterator[Match]:
    """A block has 64 KiB of LDS on gfx90a, gfx942, gfx1100 and gfx1201, and 160 KiB on gfx950; a
    launch that asks for more fails."""
    for call in tree.launches:
        if len(call.launch) > 2 and (found := _over(tree, call.launch[2])):
            yield Match(at=call.at, detail=found)
    for call in tree.calls_of("cudaFuncSetAttribute"):
        if len(call.arguments) == 3 and (found := _over(tree, call.arguments[2])):
            yield Match(at=call.at, detail=found)
    yield from _static_arrays(tree)


def _over(tree: CudaTree, node: Node) -> str:
    value = tree.value(node)
    return f"{value} bytes" if value is not None and value > LDS_BYTES else ""


def _static_arrays(tree: CudaTree) -> Iterator[Match]:
    """Match a function's arrays from the first that no longer fits."""
    total: dict[int, int] = {}
    for node in tree.nodes("declaration"):
        size = _bytes_of(tree, node)
        function = tree.function_at(node.start_byte) if size else None
        if function is None:
            continue
        before = total.get(function.id, 0)
        total[function.id] = before + size
        if before <= LDS_BYTES < before + size:
            yield Match(at=node.start_byte, detail=f"{before + size} bytes")


def _bytes_of(tree: CudaTree, node: Node) -> int:
    """Return the bytes of the arrays that a declaration makes in shared memory."""
    if not tree.said(node).startswith(("__shared__", "static __shared__")):
        return 0
    size = SIZES.get(tree.said(node, "type"), 0)
    arrays = [tree.said(one) for one in node.named_children if one.type == "array_declarator"]
    extents = ([tree.value(one) or 0 for one in re.findall(r"\[([^\]]*)\]", a)] for a in arrays)
    return sum(size * math.prod(one) for one in extents)


@RULES.add(
    "launch-bounds",
    "warning",
    fix="convert it: threads times blocks over 256 on CDNA (64 lanes, four SIMDs)",
)
def launch_bounds(tree: CudaTree) -> Iterator[Match]:
    """The second number is blocks a multiprocessor in CUDA and waves a SIMD in HIP: a number meant
    for CUDA limits registers otherwise than meant."""
    for node in tree.nodes("launch_bounds"):
        inner = listed(node)
        if len(inner) < 2 or "PORT_WAVES" in tree.said(node) or tree.value(inner[1]) == 1:
            continue
        threads, blocks = (tree.said(one) for one in inner[:2])
        yield Match(
            at=node.start_byte,
            detail=f"{threads} threads, {blocks} blocks",
            edits=(replaced(inner[1], f"PORT_WAVES_PER_EU({threads}, {blocks})"),),
            needs=("PORT_WAVES_PER_EU",),
        )


LOADS: Final = frozenset(("__ldcg", "__ldca", "__ldcs", "__ldcv", "__ldlu"))
STORES: Final = frozenset(("__stcg", "__stcs", "__stwb", "__stwt"))
SIMD: Final = re.compile(
    r"__v(?:add|sub|avg|abs|absdiff|max|min|neg|sad|cmp|set|haddu|ibmax|ibmin)\w*[24]"
)


@RULES.add("device-function", "error", fix="write it out")
def missing_functions(tree: CudaTree) -> Iterator[Match]:
    """HIP has no such device function."""
    for name, calls in tree.calls.items():
        instead = DEVICE_FUNCTIONS.get(name) or (
            "the bytes one by one" if SIMD.fullmatch(name) else ""
        )
        if not instead or name in tree.own:
            continue
        for call in calls:
            edits = _plain(call)
            if name in RENAMED and call.function is not None:
                edits = (replaced(call.function, instead),)
            yield Match(at=call.at, detail=name, fix=f"write {instead}", edits=edits)


RENAMED: Final = frozenset(("umin", "umax", "ullmin", "ullmax", "llmin", "llmax"))
"""Functions of which HIP has the same with another name."""


def _plain(call: Called) -> tuple[Edit, ...]:
    """Turn a load or a store with a hint of caching into a plain one, which both have."""
    function, end = call.function, call.node.end_byte
    if function is None or not call.arguments:
        return ()
    opened = Edit(start=function.start_byte, end=call.arguments[0].start_byte, text="(*(")
    closed = Edit(start=end - 1, end=end, text="))")
    if call.name in LOADS and len(call.arguments) == 1:
        return opened, closed
    if call.name in STORES and len(call.arguments) == 2:
        place, value = call.arguments
        between = Edit(start=place.end_byte, end=value.start_byte, text=") = (")
        return opened, between, closed
    return ()


FP8: Final = re.compile(
    r"__nv_fp8\w*|__NV_E[45]M[23]|Float8_e4m3fn|kFloat8_e4m3fn|Float8_e5m2|kFloat8_e5m2|float_e4m3_t|float_e5m2_t"
)


@RULES.add(
    "fp8-format",
    "error",
    fix=(
        "take __hip_fp8_e4m3_fnuz (torch.float8_e4m3fnuz) on gfx942, and double the scale of "
        "what was quantized as OCP"
    ),
)
def fp8_types(tree: CudaTree) -> Iterator[Match]:
    """Gfx942's fp8 is FNUZ: the exponent's bias is one more, so the same bits are half the value,
    and the largest e4m3 is 240 rather than 448. gfx950 and gfx1201 have OCP's."""
    for name, nodes in tree.names.items():
        if FP8.fullmatch(name):
            yield Match(at=nodes[0].start_byte, detail=name)


TEXTURES: Final = (
    *("tex1Dfetch", "tex1D", "tex2D", "tex3D", "texCubemap", "tex2DLod", "tex3DLod", "tex2DGrad"),
    *("tex1DLayered", "tex2DLayered", "texCubemapLayered", "tex2Dgather"),
    *(f"surf{kind}{how}" for kind in ("1D", "2D", "3D") for how in ("read", "write")),
)


@RULES.add("texture", "error", fix="read the memory with plain loads, and interpolate in code")
def textures(tree: CudaTree) -> Iterator[Match]:
    """CDNA has no texture units: reads of textures do not compile for gfx942 and gfx950."""
    for call in tree.calls_of(*TEXTURES):
        yield Match(at=call.at, detail=call.name)


@RULES.add(
    "arch-switch",
    "warning",
    fix="say what AMD takes: || defined(__HIP_DEVICE_COMPILE__), or a branch of its own",
)
def architectures(tree: CudaTree) -> Iterator[Match]:
    """__CUDA_ARCH__ is not defined on AMD: the code inside is left out, and the branch for the
    oldest GPUs, if any, is taken."""
    for node in tree.nodes("condition"):
        said = tree.said(node, "condition") or tree.said(node, "name")
        for_both = any(word in said for word in ("USE_ROCM", "__HIP", "HIPCC", "AMDGCN"))
        if "__CUDA_ARCH__" in said and not for_both:
            yield Match(at=node.start_byte, detail=" ".join(said.split())[:60])


OF_GPU: Final = re.compile(r"__(global|device)__")


@RULES.add("nested-launch", "error", fix="launch from the host, or loop inside the kernel")
def nested_launches(tree: CudaTree) -> Iterator[Match]:
    """HIP cannot launch a kernel from a kernel."""
    for call in tree.launches:
        function = tree.function_at(call.at)
        if function is None or tree.is_macro(function):
            continue
        head = tree.head(function)
        if OF_GPU.search(head.partition("(")[0]) and "__host__" not in head:
            yield Match(at=call.at, detail=call.name)


@RULES.add("launch-sizes", "error", fix="write dim3{...}")
def listed_sizes(tree: CudaTree) -> Iterator[Match]:
    """clang reads no list in braces between <<< and >>>."""
    for call in tree.launches:
        for node in call.launch[:2]:
            said = tree.said(node)
            if said.lstrip().startswith("{"):
                at = node.start_byte + said.index("{")
                yield Match(at=at, detail=said.strip(), edits=(inserted(at, "dim3"),))


SPLIT: Final = re.compile(rb"(<<\s+<|<\s+<<)[^;{}]*?(>>\s+>|>\s+>>)(?=\s*\()")


@RULES.add("launch-brackets", "error", fix="write <<< and >>>")
def split_brackets(tree: CudaTree) -> Iterator[Match]:
    """clang reads no launch where spaces stand inside of its brackets."""
    for found in SPLIT.finditer(tree.text):
        if not tree.is_dead(found.start()):
            places = ((found.start(1), found.end(1), "<<<"), (found.start(2), found.end(2), ">>>"))
            edits = tuple(Edit(start=start, end=end, text=text) for start, end, text in places)
            yield Match(at=found.start(), detail="<< <", edits=edits)


@RULES.add("host-function", "error", fix="write 1.0f / sqrtf(x) on the host")
def functions_of_the_host(tree: CudaTree) -> Iterator[Match]:
    """CUDA has rsqrtf on the host too; HIP has it on the device alone."""
    for call in tree.calls_of("rsqrtf"):
        function, name = tree.function_at(call.at), call.function
        if function is None or name is None or tree.is_macro(function) or "rsqrtf" in tree.own:
            continue
        if not OF_GPU.search(tree.head(function)):
            edits = replaced(name, "(1.0f / sqrtf"), inserted(call.node.end_byte, ")")
            yield Match(at=call.at, detail="rsqrtf", edits=edits)


@RULES.add("kernel-attribute", "error", fix="remove it on AMD; __launch_bounds__ limits registers")
def grid_constants(tree: CudaTree) -> Iterator[Match]:
    """HIP has no such attribute."""
    for name in ("__grid_constant__", "__maxnreg__", "__block_size__"):
        for at in tree.positions(name):
            yield Match(at=at, detail=name)


HALF_POINTER: Final = re.compile(
    r"\(\s*(__half2?|half2?|__nv_bfloat162?|nv_bfloat162?)\s*\*\s*\)"
    r"|_cast<\s*(__half2?|half2?|__nv_bfloat162?)\s*\*"
)


@RULES.add(
    "half-atomic", "error", fix="use unsafeAtomicAdd on a pair, or a loop of atomicCAS on 32 bits"
)
def half_atomics(tree: CudaTree) -> Iterator[Match]:
    """HIP has no atomicAdd on half or bfloat16 values; packed pairs have unsafeAtomicAdd."""
    for call in tree.calls_of("atomicAdd"):
        said = tree.said(call.arguments[0]) if call.arguments else ""
        if HALF_POINTER.search(said):
            yield Match(at=call.at, detail=said[:60])
