"""Shared memory, launch bounds, device functions, fp8, textures, architecture switches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.port.cuda_tree import SIZES, Called, CudaTree
from ratchet.port.finding import Edit, Match
from ratchet.port.rules.rule import Rule

if TYPE_CHECKING:
    from tree_sitter import Node

LDS_BYTES: Final = 64 << 10
"""Shared memory of a block on gfx90a, gfx942, gfx1100 and gfx1201; gfx950 has 160 KiB (CDNA4 ISA)."""
LIMIT_NAMES: Final = ("cudaFuncAttributeMaxDynamicSharedMemorySize", "MAX_DYNAMIC_SHARED_SIZE_BYTES")


def shared_too_large(tree: CudaTree) -> Iterator[Match]:
    for call in tree.launches:
        if len(call.launch) > 2 and (found := _over(tree, call.launch[2])):
            yield Match(at=call.at, detail=found)
    for call in tree.calls.get("cudaFuncSetAttribute", ()):
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
    said = tree.said(node)
    if not said.startswith(("__shared__", "static __shared__")) or "[" not in said:
        return 0
    kind = node.child_by_field_name("type")
    size = SIZES.get(tree.said(kind) if kind is not None else "", 0)
    for extent in re.findall(r"\[([^\]]*)\]", said):
        size *= tree.value(extent) or 0
    return size


def launch_bounds(tree: CudaTree) -> Iterator[Match]:
    for node in tree.nodes("launch_bounds"):
        inner = [one for one in node.named_children if one.type != "comment"]
        if len(inner) < 2 or "PORT_WAVES" in tree.said(node):
            continue
        threads, blocks = (tree.said(one) for one in inner[:2])
        if tree.value(inner[1]) == 1:
            continue
        text = f"PORT_WAVES_PER_EU({threads}, {blocks})"
        edit = Edit(start=inner[1].start_byte, end=inner[1].end_byte, text=text)
        yield Match(
            at=node.start_byte,
            detail=f"{threads} threads, {blocks} blocks",
            edits=(edit,),
            needs=("PORT_WAVES_PER_EU",),
        )


MISSING: Final = {
    **dict.fromkeys(("__ldcg", "__ldca", "__ldcs", "__ldcv", "__ldlu"), "*pointer"),
    **dict.fromkeys(("__stcg", "__stcs", "__stwb", "__stwt"), "*pointer = value"),
    "__dp4a": "__builtin_amdgcn_sdot4(a, b, c, false)",
    "__dp2a_lo": "products and sums written out",
    "__dp2a_hi": "products and sums written out",
    "__nanosleep": "__builtin_amdgcn_s_sleep(n)",
    "__trap": "__builtin_trap()",
    "__brkpt": "__builtin_debugtrap()",
    "__cvta_generic_to_shared": "the pointer itself: LDS needs no address of its own in C",
    "__cvta_generic_to_global": "the pointer itself",
    "__isShared": "__builtin_amdgcn_is_shared(pointer)",
    "__isGlobal": "!__builtin_amdgcn_is_shared(pointer)",
    "__prof_trigger": "nothing",
    "atomicAdd_block": "__hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP)",
    "atomicCAS_block": "__hip_atomic_compare_exchange_strong with the scope of a workgroup",
    "cudaGridDependencySynchronize": "nothing: there is no programmatic dependent launch",
    "cudaTriggerProgrammaticLaunchCompletion": "nothing: there is no programmatic dependent launch",
}
"""Device functions that the headers of ROCm 7.1 lack, and what takes their place."""
LOADS: Final = frozenset(("__ldcg", "__ldca", "__ldcs", "__ldcv", "__ldlu"))
STORES: Final = frozenset(("__stcg", "__stcs", "__stwb", "__stwt"))
SIMD: Final = re.compile(
    r"__v(?:add|sub|avg|abs|absdiff|max|min|neg|sad|cmp|set|haddu|ibmax|ibmin)\w*[24]"
)


def missing_functions(tree: CudaTree) -> Iterator[Match]:
    for name, calls in tree.calls.items():
        instead = MISSING.get(name) or ("the bytes one by one" if SIMD.fullmatch(name) else "")
        if not instead or tree.function_named(name):
            continue
        for call in calls:
            yield Match(at=call.at, detail=name, fix=f"write {instead}", edits=_plain(call))


def _plain(call: Called) -> tuple[Edit, ...]:
    """Turn a load or a store with a hint of caching into a plain one, which both have."""
    function, end = call.node.child_by_field_name("function"), call.node.end_byte
    assert function is not None
    opened = Edit(start=function.start_byte, end=call.arguments[0].start_byte, text="(*(")
    closed = Edit(start=end - 1, end=end, text="))")
    if call.name in LOADS and len(call.arguments) == 1:
        return opened, closed
    if call.name in STORES and len(call.arguments) == 2:
        place, value = call.arguments
        between = Edit(start=place.end_byte, end=value.start_byte, text=") = (")
        return opened, between, closed
    return ()


FP8: Final = re.compile(r"__nv_fp8\w*|__NV_E[45]M[23]|Float8_e4m3fn|kFloat8_e4m3fn|Float8_e5m2|kFloat8_e5m2|float_e4m3_t|float_e5m2_t")


def fp8_types(tree: CudaTree) -> Iterator[Match]:
    for name, nodes in tree.names.items():
        if FP8.fullmatch(name):
            yield Match(at=nodes[0].start_byte, detail=name)


def textures(tree: CudaTree) -> Iterator[Match]:
    for name in ("tex1Dfetch", "tex1D", "tex2D", "tex3D", "texCubemap", "surf2Dread", "surf2Dwrite"):
        for call in tree.calls.get(name, ()):
            yield Match(at=call.at, detail=name)


def architectures(tree: CudaTree) -> Iterator[Match]:
    """Match a choice of code by __CUDA_ARCH__ whose other branch AMD would take."""
    for node in tree.nodes("condition"):
        condition = node.child_by_field_name("condition") or node.child_by_field_name("name")
        said = tree.said(condition) if condition is not None else ""
        if "__CUDA_ARCH__" in said and not _for_both(said):
            yield Match(at=node.start_byte, detail=" ".join(said.split())[:60])


def _for_both(said: str) -> bool:
    return any(word in said for word in ("USE_ROCM", "__HIP", "HIPCC", "AMDGCN"))


def nested_launches(tree: CudaTree) -> Iterator[Match]:
    for call in tree.launches:
        function = tree.function_at(call.at)
        if function is None or tree.head(function).startswith("void m()"):
            continue
        if re.search(r"__(global|device)__", tree.head(function).partition("(")[0]) and (
            "__host__" not in tree.head(function)
        ):
            yield Match(at=call.at, detail=call.name)


def grid_constants(tree: CudaTree) -> Iterator[Match]:
    for name in ("__grid_constant__", "__maxnreg__", "__block_size__"):
        for at in tree.positions(name):
            yield Match(at=at, detail=name)


def half_atomics(tree: CudaTree) -> Iterator[Match]:
    for call in tree.calls.get("atomicAdd", ()):
        said = tree.said(call.arguments[0]) if call.arguments else ""
        if re.search(r"\(\s*(__half2?|half2?|__nv_bfloat162?|nv_bfloat162?)\s*\*\s*\)|_cast<\s*(__half2?|half2?|__nv_bfloat162?)\s*\*", said):
            yield Match(at=call.at, detail=said[:60])


RULES: Final = (
    Rule(
        name="shared-memory-limit",
        severity="error",
        why="a block has 64 KiB of LDS on gfx90a, gfx942, gfx1100 and gfx1201, and 160 KiB on gfx950; "
        "a launch that asks for more fails.",
        fix="make tiles smaller, or keep fewer stages",
        matches=shared_too_large,
    ),
    Rule(
        name="launch-bounds",
        severity="warning",
        why="the second number is blocks a multiprocessor in CUDA and waves a SIMD in HIP: a number "
        "meant for CUDA limits registers otherwise than meant.",
        fix="convert it: threads times blocks over 256 on CDNA (64 lanes, four SIMDs)",
        matches=launch_bounds,
    ),
    Rule(
        name="device-function",
        severity="error",
        why="HIP has no such device function.",
        fix="write it out",
        matches=missing_functions,
    ),
    Rule(
        name="fp8-format",
        severity="error",
        why="gfx942's fp8 is FNUZ: the exponent's bias is one more, so the same bits are half the "
        "value, and the largest e4m3 is 240 rather than 448. gfx950 and gfx1201 have OCP's.",
        fix="take __hip_fp8_e4m3_fnuz (torch.float8_e4m3fnuz) on gfx942, and double the scale of "
        "what was quantized as OCP",
        matches=fp8_types,
    ),
    Rule(
        name="texture",
        severity="error",
        why="CDNA has no texture units: reads of textures do not compile for gfx942 and gfx950.",
        fix="read the memory with plain loads, and interpolate in code",
        matches=textures,
    ),
    Rule(
        name="arch-switch",
        severity="warning",
        why="__CUDA_ARCH__ is not defined on AMD: the code inside is left out, and the branch for "
        "the oldest GPUs, if any, is taken.",
        fix="say what AMD takes: || defined(__HIP_DEVICE_COMPILE__), or a branch of its own",
        matches=architectures,
    ),
    Rule(
        name="nested-launch",
        severity="error",
        why="HIP cannot launch a kernel from a kernel.",
        fix="launch from the host, or loop inside the kernel",
        matches=nested_launches,
    ),
    Rule(
        name="kernel-attribute",
        severity="error",
        why="HIP has no such attribute.",
        fix="remove it on AMD; __launch_bounds__ limits registers",
        matches=grid_constants,
    ),
    Rule(
        name="half-atomic",
        severity="error",
        why="HIP has no atomicAdd on half or bfloat16 values; packed pairs have unsafeAtomicAdd.",
        fix="use unsafeAtomicAdd on a pair, or a loop of atomicCAS on 32 bits",
        matches=half_atomics,
    ),
)
