"""Inline PTX, matrix instructions, asynchronous copies, clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.cuda_tree import CudaTree
from ratchet.amd.port.finding import Edit, Match
from ratchet.amd.port.rules.rule import Rules
from ratchet.amd.port.rules.words import PTX

if TYPE_CHECKING:
    from tree_sitter import Node

RULES: Final = Rules[CudaTree]()

MATRIX: Final = re.compile(r"\b(mma\.sync|mma\.sp|wgmma|tcgen05|wmma|ldmatrix|stmatrix|movmatrix)")
COPIES: Final = re.compile(r"\bcp\.async|\bmbarrier|\bcp\.reduce|\bgriddepcontrol|\bsetmaxnreg")
LANE: Final = re.compile(r"\s*mov\.[us]32\s+%0\s*,\s*%%?laneid\s*;\s*")


def _assembly(tree: CudaTree) -> Iterator[tuple[Node, str]]:
    for node in tree.nodes("asm"):
        yield node, _spoken(tree, node.child_by_field_name("assembly_code"))
    for call in tree.calls_of("asm", "__asm__", "__asm"):  # where tree-sitter sees a call
        yield call.node, _spoken(tree, call.node)


def _spoken(tree: CudaTree, node: Node | None) -> str:
    return " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', tree.said(node) if node is not None else ""))


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
        if not text.strip() or _is_amd(text) or MATRIX.search(text) or COPIES.search(text):
            continue
        found = next((fix for pattern, fix in PTX.items() if re.search(pattern, text)), "")
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
        function = call.node.child_by_field_name("function")
        said = tree.said(function) if function is not None else ""
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
