"""Triton: what its AMD backend does not have, and settings that were chosen for NVIDIA."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from ratchet.port.finding import Edit, Match
from ratchet.port.python_tree import PythonTree, keyword, number
from ratchet.port.rules.device import LDS_BYTES
from ratchet.port.rules.rule import Rule

MOST_WARPS: Final = 16
"""1,024 threads of a block, in waves of 64 lanes."""
LEAST_STAGES: Final = 3
AMD_OPTIONS: Final = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def uses_triton(tree: PythonTree) -> bool:
    """Return whether a text imports Triton."""
    return any(name.startswith("triton") for name in tree.imported.values())


def inline_asm(tree: PythonTree) -> Iterator[Match]:
    for name, call in tree.calls:
        if name.endswith("inline_asm_elementwise"):
            text = " ".join(
                str(one.value)
                for one in ast.walk(call)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
            if not re.search(r"\b[vs]_\w+", text) or "%" in text:
                yield Match(at=tree.at(call), detail=" ".join(text.split())[:60])


TMA: Final = (
    "_experimental_descriptor_load",
    "_experimental_descriptor_store",
    "create_1d_tma_descriptor",
    "create_2d_tma_descriptor",
    "fill_2d_tma_descriptor",
    "_experimental_make_tensormap",
)
DESCRIPTORS: Final = ("make_tensor_descriptor", "TensorDescriptor", "TensorDescriptor.from_tensor")


def old_tma(tree: PythonTree) -> Iterator[Match]:
    for name, call in tree.calls:
        if name.rpartition(".")[2] in TMA:
            yield Match(at=tree.at(call), detail=name.rpartition(".")[2])


def descriptors(tree: PythonTree) -> Iterator[Match]:
    if uses_triton(tree):
        for name, call in tree.calls:
            if name.endswith(DESCRIPTORS):
                yield Match(at=tree.at(call), detail=name.rpartition(".")[2])


SPECIAL: Final = (
    "warp_specialize",
    "num_consumer_groups",
    "num_buffers_warp_spec",
    "reg_dec_producer",
    "reg_inc_consumer",
)


def warp_specialization(tree: PythonTree) -> Iterator[Match]:
    for name, call in tree.calls:
        given = [word.arg for word in call.keywords if word.arg in SPECIAL and not _is_off(word)]
        if given and uses_triton(tree):
            yield Match(at=tree.at(call), detail=str(given[0]))
        elif name.endswith("async_task"):
            yield Match(at=tree.at(call), detail="async_task")


def _is_off(word: ast.keyword) -> bool:
    return isinstance(word.value, ast.Constant) and word.value.value in (False, 0)


def _configs(tree: PythonTree) -> Iterator[ast.Call]:
    for name, call in tree.calls:
        if name in ("triton.Config", "triton.runtime.Config", "triton.runtime.autotuner.Config"):
            yield call


def _launches(tree: PythonTree) -> Iterator[ast.Call]:
    """Yield launches of kernels: `kernel[grid](..., num_warps=4)`."""
    for node in tree.nodes[ast.Call]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield node


def stages(tree: PythonTree) -> Iterator[Match]:
    for call in (*_configs(tree), *_launches(tree)):
        given = keyword(call, "num_stages")
        value = number(given)
        if given is not None and value is not None and value >= LEAST_STAGES:
            if not tree.is_guarded(call) and uses_triton(tree):
                yield Match(at=tree.at(given), detail=f"num_stages={value}")


def too_many_warps(tree: PythonTree) -> Iterator[Match]:
    for call in (*_configs(tree), *_launches(tree)):
        given = keyword(call, "num_warps")
        value = number(given)
        if given is not None and value is not None and value > MOST_WARPS and uses_triton(tree):
            yield Match(at=tree.at(given), detail=f"num_warps={value}")


def clusters(tree: PythonTree) -> Iterator[Match]:
    for call in (*_configs(tree), *_launches(tree)):
        for name, least in (("num_ctas", 2), ("maxnreg", 1)):
            given = keyword(call, name)
            value = number(given)
            if given is not None and value is not None and value >= least and uses_triton(tree):
                yield Match(at=tree.at(given), detail=f"{name}={value}")


def blocks_over_lds(tree: PythonTree) -> Iterator[Match]:
    """Match configs whose tiles of two operands, in 16 bits, take more than 64 KiB."""
    for call in _configs(tree):
        sizes = _sizes(call)
        m, n, k = (_size(sizes, letter) for letter in "MNK")
        if not (m and n and k):
            continue
        stages = number(keyword(call, "num_stages")) or 2
        needed = (m * k + k * n) * 2 * max(1, stages - 1)
        if needed > LDS_BYTES and not tree.is_guarded(call):
            yield Match(at=tree.at(call), detail=f"{needed} bytes of LDS in {stages} stages")


def _sizes(call: ast.Call) -> dict[str, int]:
    given = call.args[0] if call.args else keyword(call, "kwargs")
    if not isinstance(given, ast.Dict):
        return {}
    pairs = zip(given.keys, given.values, strict=True)
    return {
        str(key.value): value
        for key, node in pairs
        if isinstance(key, ast.Constant) and (value := number(node)) is not None
    }


def _size(sizes: dict[str, int], letter: str) -> int:
    for name, value in sizes.items():
        if re.fullmatch(rf"(?:BLOCK|TILE|B)_?(?:SIZE_?)?{letter}", name.upper()):
            return value
    return 0


LIBDEVICE: Final = ("triton.language.extra.cuda", "triton.language.libdevice", "triton.language.math.libdevice")


def libdevice(tree: PythonTree) -> Iterator[Match]:
    for node in tree.nodes[ast.ImportFrom]:
        assert isinstance(node, ast.ImportFrom)
        names = [one.name for one in node.names]
        if node.module == "triton.language.extra.cuda" and names == ["libdevice"]:
            alias = node.names[0].asname
            text = "from triton.language.extra import libdevice" + (f" as {alias}" if alias else "")
            edit = Edit(start=tree.at(node), end=tree.end(node), text=text)
            yield Match(at=tree.at(node), detail=tree.said(node)[:60], edits=(edit,))
        elif node.module == "triton.language.extra.cuda.libdevice":
            text = f"from triton.language.extra.libdevice import {', '.join(map(_imported, node.names))}"
            edit = Edit(start=tree.at(node), end=tree.end(node), text=text)
            yield Match(at=tree.at(node), detail=tree.said(node)[:60], edits=(edit,))
    for name, node in tree.attributes:
        if name.startswith(("triton.language.extra.cuda.libdevice.", "triton.language.libdevice.")):
            if not name.startswith("triton.language.extra.cuda.libdevice") or "extra" in tree.said(node):
                yield Match(at=tree.at(node), detail=tree.said(node))


def _imported(one: ast.alias) -> str:
    return one.name + (f" as {one.asname}" if one.asname else "")


CUDA_EXTRA: Final = ("globaltimer", "smid", "num_threads", "num_warps", "gdc_wait", "gdc_launch_dependents", "convert_custom_float8_sm80")


def cuda_extra(tree: PythonTree) -> Iterator[Match]:
    for name, call in tree.calls:
        if name.startswith("triton.language.extra.cuda.") and name.rpartition(".")[2] in CUDA_EXTRA:
            yield Match(at=tree.at(call), detail=name.rpartition(".")[2])
    for call in (*_configs(tree), *_launches(tree)):
        if (given := keyword(call, "launch_pdl")) is not None and not _is_false(given):
            yield Match(at=tree.at(given), detail="launch_pdl")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def tf32(tree: PythonTree) -> Iterator[Match]:
    for name, call in tree.calls:
        if not name.endswith("triton.language.dot") and name != "triton.language.dot":
            continue
        for word in call.keywords:
            if not isinstance(word.value, ast.Constant):
                continue
            if (word.arg, word.value.value) in (("allow_tf32", True), ("input_precision", "tf32x3")):
                yield Match(at=tree.at(word.value), detail=f"{word.arg}={word.value.value}")


def fp8(tree: PythonTree) -> Iterator[Match]:
    for name, node in tree.attributes:
        if name in ("triton.language.float8e4nv", "triton.language.float8e5") and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=tree.said(node))


def backend(tree: PythonTree) -> Iterator[Match]:
    """Match a comparison of Triton's backend with "cuda"."""
    for node in tree.nodes[ast.Compare]:
        said = tree.said(node)
        if re.search(r"\.backend\s*[!=]=\s*['\"]cuda['\"]", said):
            yield Match(at=tree.at(node), detail=" ".join(said.split())[:60])


def amd_configs(tree: PythonTree) -> Iterator[Match]:
    """Match lists of configs of a kernel with tl.dot in which none has AMD's options."""
    if not any(name == "triton.language.dot" for name, _ in tree.calls):
        return
    for name, call in tree.calls:
        if name not in ("triton.autotune", "triton.runtime.autotune"):
            continue
        given = keyword(call, "configs") or (call.args[0] if call.args else None)
        if not isinstance(given, ast.List) or not given.elts or tree.is_guarded(given):
            continue
        said = tree.said(given)
        if "triton.Config" not in said and "Config(" not in said or any(one in said for one in AMD_OPTIONS):
            continue
        yield Match(at=tree.at(given), detail=f"{len(given.elts)} configs", edits=_extended(tree, given))


def _extended(tree: PythonTree, given: ast.List) -> tuple[Edit, ...]:
    """Append the first config's tiles with AMD's options, on ROCm only."""
    first = given.elts[0]
    if tree.imported.get("torch") != "torch" or not isinstance(first, ast.Call) or not first.args:
        return ()
    sizes = first.args[0]
    if not isinstance(sizes, ast.Dict):
        return ()
    inner = tree.said(sizes)[1:-1].strip().rstrip(",")
    config = tree.said(first.func)
    made = ", ".join(
        f'{config}({{{inner}, "waves_per_eu": {waves}, "matrix_instr_nonkdim": 16, "kpack": 1}}, '
        f"num_warps={warps}, num_stages=2)"
        for waves, warps in ((0, 4), (2, 8))
    )
    end = tree.end(given)
    return (Edit(start=end, end=end, text=f" + ([{made}] if torch.version.hip else [])"),)


RULES: Final = (
    Rule(
        name="triton-inline-asm",
        severity="error",
        why="the assembly is PTX; AMD's backend takes its own instructions.",
        fix="write it in Triton, or with triton.language.extra.libdevice",
        matches=inline_asm,
    ),
    Rule(
        name="triton-tma",
        severity="error",
        why="these descriptors are for Hopper's TMA; AMD's backend has none.",
        fix="use tl.make_tensor_descriptor, which AMD's backend turns into pointers, or tl.load",
        matches=old_tma,
    ),
    Rule(
        name="triton-descriptor",
        severity="note",
        why="AMD's backend turns tensor descriptors into plain loads and stores.",
        fix="nothing to do; pointers may be faster",
        matches=descriptors,
    ),
    Rule(
        name="triton-warp-specialization",
        severity="warning",
        why="warps cannot be specialized on AMD: the option is ignored, or refused as unknown.",
        fix="leave it out on ROCm",
        matches=warp_specialization,
    ),
    Rule(
        name="triton-stages",
        severity="warning",
        why="stages meant for cp.async multiply LDS, of which there is 64 KiB; AMD's pipeline is "
        "best at 2 stages.",
        fix="use num_stages=2 on ROCm, or 1 where a kernel has two products",
        matches=stages,
    ),
    Rule(
        name="triton-warps",
        severity="error",
        why="a warp has 64 lanes on CDNA: more than 16 are more than 1,024 threads.",
        fix="use at most 16, and half of what NVIDIA takes as a beginning",
        matches=too_many_warps,
    ),
    Rule(
        name="triton-clusters",
        severity="error",
        why="AMD's backend has no clusters (num_ctas) and no register limit (maxnreg).",
        fix="leave it out on ROCm; waves_per_eu limits registers",
        matches=clusters,
    ),
    Rule(
        name="triton-lds",
        severity="warning",
        why="tiles of 16-bit values take more than the 64 KiB of LDS that gfx90a, gfx942, gfx1100 and "
        "gfx1201 have: the config is out of resources there.",
        fix="use smaller tiles or fewer stages on ROCm",
        matches=blocks_over_lds,
    ),
    Rule(
        name="triton-libdevice",
        severity="error",
        why="this is CUDA's libdevice.",
        fix="import triton.language.extra.libdevice, which is each backend's own",
        matches=libdevice,
    ),
    Rule(
        name="triton-cuda-extra",
        severity="error",
        why="the function is of Triton's CUDA backend.",
        fix="leave it out on ROCm",
        matches=cuda_extra,
    ),
    Rule(
        name="triton-tf32",
        severity="warning",
        why="there is no TF32 on AMD but gfx942's xf32.",
        fix='give input_precision="ieee", or bf16 operands',
        matches=tf32,
    ),
    Rule(
        name="triton-fp8",
        severity="warning",
        why="gfx942's fp8 is FNUZ: half the value for the same bits, and 240 as the largest e4m3.",
        fix="take tl.float8e4b8 and tl.float8e5b16 on gfx942",
        matches=fp8,
    ),
    Rule(
        name="triton-backend",
        severity="warning",
        why='the backend\'s name is "hip" on ROCm.',
        fix='ask for "hip" too',
        matches=backend,
    ),
    Rule(
        name="triton-amd-configs",
        severity="note",
        why="the list has no config with AMD's options: waves_per_eu, matrix_instr_nonkdim, kpack.",
        fix="add some on ROCm",
        matches=amd_configs,
    ),
)
