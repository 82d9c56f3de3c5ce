"""Inline PTX, matrix instructions, asynchronous copies, clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.port.cuda_tree import CudaTree
from ratchet.port.finding import Edit, Match
from ratchet.port.rules.rule import Rule

if TYPE_CHECKING:
    from tree_sitter import Node

COUNTERPARTS: Final = (
    (r"%laneid", "__lane_id()"),
    (r"%lanemask_(lt|le|gt|ge|eq)", "a mask made of __lane_id(), of 64 bits on CDNA"),
    (r"\b(ld)\.global\.nc|\bld\.global", "a plain load, or __builtin_nontemporal_load"),
    (r"\bst\.global|\bst\.cs", "a plain store, or __builtin_nontemporal_store"),
    (r"\bex2\.approx", "exp2f, or __builtin_amdgcn_exp2f"),
    (r"\blg2\.approx", "log2f, or __builtin_amdgcn_logf"),
    (r"\brcp\.approx", "__builtin_amdgcn_rcpf"),
    (r"\brsqrt\.approx", "__builtin_amdgcn_rsqf"),
    (r"\btanh\.approx", "tanhf"),
    (r"\blop3", "the logic written out in C; v_bitop3 exists on gfx950 only"),
    (r"\bprmt", "__byte_perm"),
    (r"\bbfe|\bbfi", "shifts and masks; the compiler finds v_bfe and v_bfi"),
    (r"\bdp4a", "__builtin_amdgcn_sdot4 or __builtin_amdgcn_udot4"),
    (r"\bshfl\.", "__shfl_sync and its kin, with a width"),
    (r"\bbar\.sync|\bbarrier\.sync", "__syncthreads(); barriers of a part of a block have none"),
    (r"\bmembar|\bfence", "__threadfence_block(), __threadfence() or __threadfence_system()"),
    (r"\bred\.|\batom\.", "atomicAdd and its kin, or __hip_atomic_fetch_add"),
    (r"\bcvt\.", "a conversion of hip_fp16.h, hip_bf16.h or hip_fp8.h"),
    (r"\bnanosleep", "__builtin_amdgcn_s_sleep"),
    (r"%smid|%nsmid", "none; blocks must not ask which compute unit runs them"),
    (r"%globaltimer|%clock", "wall_clock64() or clock64()"),
    (r"\btrap\b|\bexit\b", "__builtin_trap() or a return"),
)
MATRIX: Final = re.compile(r"\b(mma\.sync|mma\.sp|wgmma|tcgen05|wmma|ldmatrix|stmatrix|movmatrix)")
COPIES: Final = re.compile(r"\bcp\.async|\bmbarrier|\bcp\.reduce|\bgriddepcontrol|\bsetmaxnreg")
LANE: Final = re.compile(r"\s*mov\.[us]32\s+%0\s*,\s*%%?laneid\s*;\s*")


def _assembly(tree: CudaTree) -> Iterator[tuple[Node, str]]:
    for node in tree.nodes("asm"):
        yield node, _spoken(tree, node.child_by_field_name("assembly_code"))
    for name in ("asm", "__asm__", "__asm"):  # in a macro's body or a place tree-sitter cannot read
        for call in tree.calls.get(name, ()):
            yield call.node, _spoken(tree, call.node)


def _spoken(tree: CudaTree, node: Node | None) -> str:
    return " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', tree.said(node) if node is not None else ""))


def _first(text: str) -> str:
    """Return the first instruction of an assembly text."""
    found = re.search(r"[a-z][\w.]*\.[\w.:]+|[a-z]\w+", re.sub(r"\\[nt]|[{}]|\.reg[^;]*;", " ", text))
    return found[0] if found else "assembly"


def plain_ptx(tree: CudaTree) -> Iterator[Match]:
    for node, text in _assembly(tree):
        if not text.strip() or _is_amd(text) or MATRIX.search(text) or COPIES.search(text):
            continue
        found = next((fix for pattern, fix in COUNTERPARTS if re.search(pattern, text)), "")
        yield Match(
            at=node.start_byte,
            detail=_first(text),
            fix=f"use {found}" if found and not found.startswith("none") else found,
            edits=_lane(tree, node, text),
        )


def _is_amd(text: str) -> bool:
    return bool(re.match(r"\s*(s_|v_|ds_|buffer_|global_|;)", text))


def _lane(tree: CudaTree, node: Node, text: str) -> tuple[Edit, ...]:
    """Replace the reading of a lane's number, the one form that is always the same."""
    outputs = node.child_by_field_name("output_operands")
    if not LANE.fullmatch(text) or outputs is None or len(outputs.named_children) != 1:
        return ()
    value = outputs.named_children[0].child_by_field_name("value")
    if value is None:
        return ()
    name = tree.said(value)
    text = f"""
#ifdef __HIP_PLATFORM_AMD__
    {name} = __lane_id() & 31u
#else
    {tree.said(node)}
#endif
"""
    return (Edit(start=node.start_byte, end=node.end_byte, text=text),)


def matrix_ptx(tree: CudaTree) -> Iterator[Match]:
    for node, text in _assembly(tree):
        if (found := MATRIX.search(text)) and not COPIES.search(text):
            yield Match(at=node.start_byte, detail=found[0])


def copy_ptx(tree: CudaTree) -> Iterator[Match]:
    for node, text in _assembly(tree):
        if found := COPIES.search(text):
            yield Match(at=node.start_byte, detail=found[0])


def wmma(tree: CudaTree) -> Iterator[Match]:
    """Match the first use of wmma in each function."""
    seen = set()
    for name in ("nvcuda", "wmma"):
        for node in tree.names.get(name, ()):
            function = tree.function_at(node.start_byte)
            key = function.id if function is not None else 0
            parent = node.parent.type if node.parent is not None else ""
            if key not in seen and parent == "qualified_identifier":
                seen.add(key)
                yield Match(at=node.start_byte, detail="nvcuda::wmma")


PIPELINE: Final = (
    *("__pipeline_memcpy_async", "memcpy_async", "make_pipeline", "make_shared_pipeline"),
    *("__pipeline_commit", "__pipeline_wait_prior", "cp_async_bulk"),
)


def async_copy(tree: CudaTree) -> Iterator[Match]:
    for name in PIPELINE[:4]:
        for call in tree.calls.get(name, ()):
            yield Match(at=call.at, detail=name)


GROUPS: Final = ("reduce", "inclusive_scan", "exclusive_scan", "labeled_partition", "invoke_one")


def cooperative(tree: CudaTree) -> Iterator[Match]:
    for name in GROUPS:
        for call in tree.calls.get(name, ()):
            function = call.node.child_by_field_name("function")
            said = tree.said(function) if function is not None else ""
            if said.startswith(("cg::", "cooperative_groups::")):
                yield Match(at=call.at, detail=said.partition("<")[0])


CLUSTERS: Final = ("__cluster_dims__", "this_cluster", "cudaLaunchAttributeClusterDimension")


def clusters(tree: CudaTree) -> Iterator[Match]:
    for name in CLUSTERS:
        for at in tree.positions(name):
            yield Match(at=at, detail=name)
            break


TENSOR_MAPS: Final = ("CUtensorMap", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col")


def tensor_maps(tree: CudaTree) -> Iterator[Match]:
    for name in TENSOR_MAPS:
        for node in tree.names.get(name, ())[:1]:
            yield Match(at=node.start_byte, detail=name)


def partition_lanes(tree: CudaTree) -> Iterator[Match]:
    for name in ("coalesced_threads", "binary_partition"):
        for call in tree.calls.get(name, ()):
            yield Match(at=call.at, detail=name)


RULES: Final = (
    Rule(
        name="inline-ptx",
        severity="error",
        why="PTX is NVIDIA's assembly; AMD's compiler rejects it.",
        fix="write it in C, with a builtin of the compiler, or in AMD's assembly",
        matches=plain_ptx,
    ),
    Rule(
        name="matrix-ptx",
        severity="error",
        why="PTX's matrix instructions fix a layout of fragments over 32 lanes; MFMA (CDNA) and WMMA "
        "(RDNA) have other shapes and layouts.",
        fix="use rocWMMA, or __builtin_amdgcn_mfma_* on CDNA and __builtin_amdgcn_wmma_* on RDNA; "
        "fragments have to be loaded anew",
        matches=matrix_ptx,
    ),
    Rule(
        name="async-copy-ptx",
        severity="error",
        why="copies past the registers (cp.async, TMA) and their barriers are NVIDIA's hardware.",
        fix="load into registers and store to shared memory before __syncthreads(); on gfx950 "
        "__builtin_amdgcn_global_load_lds takes 16 bytes a lane",
        matches=copy_ptx,
    ),
    Rule(
        name="wmma",
        severity="error",
        why="nvcuda::wmma does not exist on ROCm.",
        fix="use rocWMMA: <rocwmma/rocwmma.hpp> and rocwmma:: have the same fragments and calls, for "
        "blocks counted in waves of 64 on CDNA",
        matches=wmma,
    ),
    Rule(
        name="async-copy",
        severity="error",
        why="HIP has no asynchronous copies into shared memory, and no pipelines.",
        fix="copy through registers, then __syncthreads()",
        matches=async_copy,
    ),
    Rule(
        name="group-collective",
        severity="error",
        why="HIP's cooperative groups have tiles and shuffles but not these collectives.",
        fix="reduce with shuffles of the tile, or with hipcub::WarpReduce",
        matches=cooperative,
    ),
    Rule(
        name="thread-block-cluster",
        severity="error",
        why="AMD's GPUs have no clusters of blocks with a shared memory between them.",
        fix="exchange through global memory, or let one block do the work",
        matches=clusters,
    ),
    Rule(
        name="tensor-map",
        severity="error",
        why="tensor maps describe copies for Hopper's TMA.",
        fix="compute addresses in the kernel and load with vector loads",
        matches=tensor_maps,
    ),
    Rule(
        name="active-group",
        severity="warning",
        why="a group of the active lanes has up to 64 members on CDNA; its size and ranks change.",
        fix="read size() and thread_rank() of the group, and keep no array of 32",
        matches=partition_lanes,
    ),
)
