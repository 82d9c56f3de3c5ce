"""Triton: what its AMD backend does not have, and settings that were chosen for NVIDIA."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from ratchet.amd.port.python_tree import PythonTree, keyword, number, strings
from ratchet.amd.port.rule import Edit, Match, Rules
from ratchet.amd.port.rules.device import LDS_BYTES

RULES: Final = Rules[PythonTree]()

MOST_WARPS: Final = 16  # 1,024 threads of a block, in waves of 64 lanes
LEAST_STAGES: Final = 3
AMD_OPTIONS: Final = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")


def uses_triton(tree: PythonTree) -> bool:
    """Return whether a text imports Triton."""
    return any(name.startswith("triton") for name in tree.imported.values())


@RULES.add(
    "triton-inline-asm", "error", fix="write it in Triton, or with triton.language.extra.libdevice"
)
def inline_asm(tree: PythonTree) -> Iterator[Match]:
    """The assembly is PTX; AMD's backend takes its own instructions."""
    for name, call in tree.calls:
        if name.endswith("inline_asm_elementwise"):
            text = " ".join(text for _, text in strings(ast.walk(call)))
            if not re.search(r"\b[vs]_\w+", text) or "%" in text:
                yield Match(at=tree.at(call), detail=" ".join(text.split())[:60])


TMA: Final = (
    *("_experimental_descriptor_load", "_experimental_descriptor_store"),
    *("create_1d_tma_descriptor", "create_2d_tma_descriptor", "fill_2d_tma_descriptor"),
    "_experimental_make_tensormap",
)
DESCRIPTORS: Final = ("make_tensor_descriptor", "TensorDescriptor", "TensorDescriptor.from_tensor")


@RULES.add(
    "triton-tma",
    "error",
    fix="use tl.make_tensor_descriptor, which AMD's backend turns into pointers, or tl.load",
)
def old_tma(tree: PythonTree) -> Iterator[Match]:
    """These descriptors are for Hopper's TMA; AMD's backend has none."""
    for name, call in tree.calls:
        if name.rpartition(".")[2] in TMA:
            yield Match(at=tree.at(call), detail=name.rpartition(".")[2])


@RULES.add("triton-descriptor", "note", fix="nothing to do; pointers may be faster")
def descriptors(tree: PythonTree) -> Iterator[Match]:
    """AMD's backend turns tensor descriptors into plain loads and stores."""
    if uses_triton(tree):
        for name, call in tree.calls:
            if name.endswith(DESCRIPTORS):
                yield Match(at=tree.at(call), detail=name.rpartition(".")[2])


SPECIAL: Final = (
    *("warp_specialize", "num_consumer_groups", "num_buffers_warp_spec"),
    *("reg_dec_producer", "reg_inc_consumer"),
)


@RULES.add("triton-warp-specialization", "warning", fix="leave it out on ROCm")
def warp_specialization(tree: PythonTree) -> Iterator[Match]:
    """Warps cannot be specialized on AMD: the option is ignored, or refused as unknown."""
    for name, call in tree.calls:
        given = [
            word.arg
            for word in call.keywords
            if word.arg in SPECIAL and getattr(word.value, "value", True) not in (False, 0)
        ]
        if given and uses_triton(tree):
            yield Match(at=tree.at(call), detail=str(given[0]))
        elif name.endswith("async_task"):
            yield Match(at=tree.at(call), detail="async_task")


def _configs(tree: PythonTree) -> Iterator[ast.Call]:
    for name, call in tree.calls:
        if name in ("triton.Config", "triton.runtime.Config", "triton.runtime.autotuner.Config"):
            yield call


def _given(tree: PythonTree, name: str, least: int) -> Iterator[Match]:
    """Yield where a config or a launch, `kernel[grid](...)`, gives an option `least` or more."""
    if not uses_triton(tree):
        return
    launches = (call for _, call in tree.calls if isinstance(call.func, ast.Subscript))
    for call in (*_configs(tree), *launches):
        given = keyword(call, name)
        value = number(given)
        if given is not None and value is not None and value >= least and not tree.is_guarded(call):
            yield Match(at=tree.at(given), detail=f"{name}={value}")


@RULES.add(
    "triton-stages", "warning", fix="use num_stages=2 on ROCm, or 1 where a kernel has two products"
)
def stages(tree: PythonTree) -> Iterator[Match]:
    """Stages meant for cp.async multiply LDS, of which there is 64 KiB; AMD's pipeline is best at 2
    stages."""
    yield from _given(tree, "num_stages", LEAST_STAGES)


@RULES.add(
    "triton-warps", "error", fix="use at most 16, and half of what NVIDIA takes as a beginning"
)
def too_many_warps(tree: PythonTree) -> Iterator[Match]:
    """A warp has 64 lanes on CDNA: more than 16 are more than 1,024 threads."""
    yield from _given(tree, "num_warps", MOST_WARPS + 1)


@RULES.add("triton-clusters", "error", fix="leave it out on ROCm; waves_per_eu limits registers")
def clusters(tree: PythonTree) -> Iterator[Match]:
    """AMD's backend has no clusters (num_ctas) and no register limit (maxnreg)."""
    yield from _given(tree, "num_ctas", 2)
    yield from _given(tree, "maxnreg", 1)


@RULES.add("triton-lds", "warning", fix="use smaller tiles or fewer stages on ROCm")
def blocks_over_lds(tree: PythonTree) -> Iterator[Match]:
    """Tiles of 16-bit values take more than the 64 KiB of LDS that gfx90a, gfx942, gfx1100 and
    gfx1201 have: the config is out of resources there."""
    for call in _configs(tree):
        sizes = _sizes(call)
        m, n, k = (_size(sizes, letter) for letter in "MNK")
        if not (m and n and k):
            continue
        stages = number(keyword(call, "num_stages")) or 2
        needed = (m * k + k * n) * 2 * max(1, stages - 1)
        if needed > LDS_BYTES:
            yield from tree.match(call, f"{needed} bytes of LDS in {stages} stages")


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


OF_CUDA: Final = "triton.language.extra.cuda.libdevice"


@RULES.add(
    "triton-libdevice",
    "error",
    fix="import triton.language.extra.libdevice, which is each backend's own",
)
def libdevice(tree: PythonTree) -> Iterator[Match]:
    """This is CUDA's libdevice."""
    for node in tree.of(ast.ImportFrom):
        names = [f"{node.module}.{one.name}" for one in node.names]
        if any(name.startswith(OF_CUDA) for name in names):
            said = tree.said(node)
            text = said.replace("triton.language.extra.cuda", "triton.language.extra", 1)
            edit = Edit(start=tree.at(node), end=tree.end(node), text=text)
            yield Match(at=tree.at(node), detail=said[:60], edits=(edit,) * (len(names) == 1))
    for name, used in tree.attributes:
        said = tree.said(used)
        if name.startswith(("triton.language.libdevice.", OF_CUDA)) and not said.startswith(
            "libdevice."
        ):
            yield Match(at=tree.at(used), detail=said)


CUDA_EXTRA: Final = re.compile(
    r"triton\.language\.extra\.cuda\.(globaltimer|smid|num_threads|num_warps|gdc_\w+|convert_\w+)"
)


GLUON: Final = "triton.experimental.gluon.language.nvidia"


@RULES.add("triton-cuda-extra", "error", fix="leave it out on ROCm")
def cuda_extra(tree: PythonTree) -> Iterator[Match]:
    """The function is of Triton's CUDA backend."""
    for name, node in tree.modules():
        if name.startswith(GLUON):
            instead = "write it with triton.experimental.gluon.language.amd"
            yield from tree.match(node, name.removeprefix("triton.experimental."), fix=instead)
    for name, call in tree.calls:
        if CUDA_EXTRA.fullmatch(name):
            yield Match(at=tree.at(call), detail=name.rpartition(".")[2])
        given = keyword(call, "launch_pdl")
        if given is not None and not (isinstance(given, ast.Constant) and not given.value):
            yield Match(at=tree.at(given), detail="launch_pdl")


TF32: Final = (("allow_tf32", True), ("input_precision", "tf32x3"))


@RULES.add("triton-tf32", "warning", fix='give input_precision="ieee", or bf16 operands')
def tf32(tree: PythonTree) -> Iterator[Match]:
    """There is no TF32 on AMD but gfx942's xf32."""
    for name, call in tree.calls:
        for word in call.keywords if name == "triton.language.dot" else ():
            value = word.value.value if isinstance(word.value, ast.Constant) else None
            if (word.arg, value) in TF32:
                yield Match(at=tree.at(word.value), detail=f"{word.arg}={value!r}")


FP8: Final = ("triton.language.float8e4nv", "triton.language.float8e5")


@RULES.add("triton-fp8", "warning", fix="take tl.float8e4b8 and tl.float8e5b16 on gfx942")
def fp8(tree: PythonTree) -> Iterator[Match]:
    """Gfx942's fp8 is FNUZ: half the value for the same bits, and 240 as the largest e4m3."""
    for name, node in tree.attributes:
        if name in FP8:
            yield from tree.match(node, tree.said(node))


@RULES.add("triton-backend", "warning", fix='ask for "hip" too')
def backend(tree: PythonTree) -> Iterator[Match]:
    """The backend's name is "hip" on ROCm."""
    for node in tree.nodes[ast.Compare]:
        said = tree.said(node)
        if re.search(r"(?i)(target|driver|triton)[\w.()]*\.backend\s*[!=]=\s*['\"]cuda['\"]", said):
            yield Match(at=tree.at(node), detail=" ".join(said.split())[:60])


@RULES.add("triton-amd-configs", "note", fix="add some on ROCm")
def amd_configs(tree: PythonTree) -> Iterator[Match]:
    """The list has no config with AMD's options: waves_per_eu, matrix_instr_nonkdim, kpack."""
    if not any(name == "triton.language.dot" for name, _ in tree.calls):
        return
    for name, call in tree.calls:
        if name not in ("triton.autotune", "triton.runtime.autotune"):
            continue
        given = keyword(call, "configs") or (call.args[0] if call.args else None)
        if not isinstance(given, ast.List) or not given.elts or tree.is_guarded(given):
            continue
        said = tree.said(given)
        if "Config(" not in said or any(one in said for one in AMD_OPTIONS):
            continue
        yield Match(
            at=tree.at(given), detail=f"{len(given.elts)} configs", edits=_extended(tree, given)
        )


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
