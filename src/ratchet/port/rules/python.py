"""Python: switches of torch, libraries for NVIDIA alone, builds of extensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from ratchet.port.finding import Edit, Match
from ratchet.port.python_tree import PythonTree
from ratchet.port.rules.rule import Rule
from ratchet.port.rules.words import FLAGS, PROGRAMS, VARIABLES

SWITCHES: Final = {
    "torch.backends.cuda.matmul.allow_tf32": "only gfx942 has such a format (xf32); elsewhere it "
    "does nothing",
    "torch.backends.cuda.matmul.fp32_precision": "only gfx942 has such a format (xf32)",
    "torch.backends.cudnn.allow_tf32": "MIOpen has no such format",
    "torch.backends.cudnn.conv.fp32_precision": "MIOpen has no such format",
    "torch.backends.cudnn.benchmark": "MIOpen searches as it likes: MIOPEN_FIND_MODE decides",
    "torch.backends.cudnn.version": "it returns MIOpen's version",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "hipBLASLt decides",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "hipBLASLt decides",
    "torch.backends.cuda.enable_cudnn_sdp": "there is no such attention: CK's and AOTriton's are "
    "behind enable_flash_sdp",
    "torch.backends.cuda.cudnn_sdp_enabled": "there is no such attention",
    "torch.backends.cuda.preferred_linalg_library": "'cusolver' is hipSOLVER, 'magma' is MAGMA",
}
LIBRARIES: Final = {
    "apex": "torch's own fused optimizers and norms, or ROCm/apex",
    "flash_attn": "flash-attn's builds for ROCm (CK or Triton: FLASH_ATTENTION_TRITON_AMD_ENABLE), "
    "or torch's scaled_dot_product_attention",
    "flash_attn_interface": "torch's scaled_dot_product_attention: FlashAttention 3 is for Hopper",
    "xformers": "ROCm/xformers, or torch's scaled_dot_product_attention",
    "bitsandbytes": "bitsandbytes 0.48 or later, whose ROCm build is a preview",
    "transformer_engine": "ROCm/TransformerEngine",
    "pynvml": "amdsmi, which ROCm installs",
    "nvidia_smi": "amdsmi, which ROCm installs",
    "py3nvml": "amdsmi, which ROCm installs",
    "pycuda": "hip-python",
    "cuda": "hip-python (hip), whose cuda modules stand in",
    "cupy": "cupy-rocm, an experimental build",
    "numba.cuda": "Triton, or a HIP extension: numba's HIP target is a preview",
    "tensorrt": "MIGraphX (torch_migraphx)",
    "torch_tensorrt": "MIGraphX (torch_migraphx)",
    "nvidia.dali": "rocAL, or torch's own loaders",
    "cudf": "hipDF",
    "cuml": "scikit-learn: there is none on ROCm",
    "cutlass": "Composable Kernel",
    "deep_gemm": "hipBLASLt's grouped products, or aiter",
    "flashinfer": "aiter, or ROCm/flashinfer",
    "cuequivariance": "nothing on ROCm",
    "cudnn": "MIOpen through torch",
    "nvtx": "torch.cuda.nvtx, which is roctx on ROCm",
    "auto_gptq": "GPTQModel, which has ROCm builds",
    "awq_ext": "a build for ROCm of AutoAWQ's kernels",
    "thunderkittens": "HipKittens",
}
FP8: Final = ("torch.float8_e4m3fn", "torch.float8_e5m2")


def switches(tree: PythonTree) -> Iterator[Match]:
    for name, node in tree.attributes:
        said = SWITCHES.get(name)
        if said and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=name, fix=f"on ROCm {said}")


def libraries(tree: PythonTree) -> Iterator[Match]:
    seen: set[tuple[str, int]] = set()
    for module, node in tree.modules():
        for name, instead in LIBRARIES.items():
            at = tree.at(node)
            if (module == name or module.startswith(f"{name}.")) and (name, at) not in seen:
                seen.add((name, at))
                if not tree.is_guarded(node):
                    yield Match(at=at, detail=name, fix=f"use {instead}")


def fp8_types(tree: PythonTree) -> Iterator[Match]:
    for name, node in tree.attributes:
        if name in FP8 and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=name)


CAPABILITY: Final = ("get_device_capability", "compute_capability")


def capabilities(tree: PythonTree) -> Iterator[Match]:
    """Match a comparison of a device's capability, or of its major, with a number."""
    for node in tree.nodes[ast.Compare]:
        said = tree.said(node)
        if tree.is_guarded(node) or not any(
            isinstance(one.value, int)
            for side in ast.walk(node)
            for one in [side]
            if isinstance(one, ast.Constant)
        ):
            continue
        if re.search(r"get_device_capability|\bcapability\b|compute_capability|\bsm_?version\b|properties\([^)]*\)\.(?:major|minor)|\bprops?\.major", said):
            yield Match(at=tree.at(node), detail=" ".join(said.split())[:60])


def cuda_version(tree: PythonTree) -> Iterator[Match]:
    for name, node in tree.attributes:
        if name.startswith("torch.version.cuda") and not tree.is_guarded(node):
            if name == "torch.version.cuda" and _is_none_test(tree, node):
                continue
            yield Match(at=tree.at(node), detail=tree.said(node))


def _is_none_test(tree: PythonTree, node: ast.AST) -> bool:
    parent = tree.parents.get(id(node))
    if isinstance(parent, ast.Compare):
        return any(isinstance(one, ast.Constant) and one.value is None for one in parent.comparators)
    return isinstance(parent, ast.If | ast.IfExp | ast.BoolOp)


def programs(tree: PythonTree) -> Iterator[Match]:
    """Match NVIDIA's programs where a call starts one or looks for it."""
    for name, call in tree.calls:
        if not re.search(r"(^|\.)(run|call|check_call|check_output|Popen|system|popen|which|getoutput)$", name):
            continue
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                word = re.split(r"[\s|;]", node.value.strip())[0].rpartition("/")[2]
                if word in PROGRAMS and not tree.is_guarded(node):
                    yield Match(at=tree.at(node), detail=word, fix=f"call {PROGRAMS[word]}")


def variables(tree: PythonTree) -> Iterator[Match]:
    """Match strings that are the name of one of CUDA's variables."""
    for node in tree.strings():
        instead = VARIABLES.get(str(node.value))
        if instead and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=str(node.value), fix=instead)


def nvcc_flags(tree: PythonTree) -> Iterator[Match]:
    """Match the lists of flags for nvcc, each once."""
    for node, strings in _flag_lists(tree):
        bad = [one for one in strings if _is_cuda_flag(str(one.value))]
        if bad and not tree.is_guarded(node):
            first = bad[0]
            yield Match(
                at=tree.at(first),
                detail=", ".join(dict.fromkeys(str(one.value).split("=")[0] for one in bad))[:80],
                edits=_by_backend(tree, node, bad),
            )


def _flag_lists(tree: PythonTree) -> Iterator[tuple[ast.AST, list[ast.Constant]]]:
    for node in tree.nodes[ast.List]:
        assert isinstance(node, ast.List)
        strings = [
            one
            for one in node.elts
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if strings and any(str(one.value).startswith("-") for one in strings):
            yield node, strings


def _is_cuda_flag(text: str) -> bool:
    return any(text == flag or text.startswith((f"{flag}=", f"{flag} ")) for flag in FLAGS) or bool(
        re.match(r"(arch|code)=|sm_\d|compute_\d", text)
    )


def _by_backend(tree: PythonTree, node: ast.AST, bad: list[ast.Constant]) -> tuple[Edit, ...]:
    """Keep the list as it is for CUDA, and drop what is nvcc's on ROCm."""
    if tree.imported.get("torch") != "torch" or not isinstance(node, ast.List):
        return ()
    if any(isinstance(one, ast.Starred) for one in node.elts):
        return ()
    dropped = {id(one) for one in bad}
    kept = []
    for one in node.elts:
        if id(one) in dropped:
            instead = FLAGS.get(str(one.value), "") if isinstance(one, ast.Constant) else ""
            if instead.startswith("-"):
                kept.append(f'"{instead}"')
        else:
            kept.append(tree.said(one))
    said = tree.said(node)
    text = f"({said} if torch.version.hip is None else [{', '.join(kept)}])"
    return (Edit(start=tree.at(node), end=tree.end(node), text=text),)


def cuda_only_builds(tree: PythonTree) -> Iterator[Match]:
    """Match what a build says only of CUDA: CUDA_HOME, and libraries of CUDA's by name."""
    for name, node in tree.attributes:
        if name.endswith("cpp_extension.CUDA_HOME") and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail="CUDA_HOME", fix="ask for ROCM_HOME too")
    for node in tree.nodes[ast.Name]:
        assert isinstance(node, ast.Name)
        name = tree.imported.get(node.id, "")
        if name.endswith("cpp_extension.CUDA_HOME") and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail="CUDA_HOME", fix="ask for ROCM_HOME too")
    for _, call in tree.calls:
        for word in call.keywords:
            if word.arg in ("libraries", "extra_ldflags", "extra_link_args"):
                yield from _cuda_libraries(tree, word.value)


CUDA_LIBRARY: Final = re.compile(
    r"(?:-l)?(cudart(?:_static)?|cuda|cublas(?:Lt)?|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvToolsExt|nccl|cupti|nvidia-ml)"
)
IN_ROCM: Final = {
    "cudart": "amdhip64",
    "cuda": "amdhip64",
    "cublas": "hipblas",
    "cublasLt": "hipblaslt",
    "cudnn": "MIOpen",
    "cufft": "hipfft",
    "curand": "hiprand",
    "cusparse": "hipsparse",
    "cusolver": "hipsolver",
    "nvrtc": "hiprtc",
    "nvToolsExt": "roctx64",
    "nccl": "rccl",
    "nvidia-ml": "amd_smi",
}


def _cuda_libraries(tree: PythonTree, node: ast.AST) -> Iterator[Match]:
    for one in ast.walk(node):
        if not isinstance(one, ast.Constant) or not isinstance(one.value, str):
            continue
        found = CUDA_LIBRARY.fullmatch(one.value)
        if found and not tree.is_guarded(one):
            instead = IN_ROCM.get(found[1], "")
            yield Match(
                at=tree.at(one),
                detail=one.value,
                fix=f"link {instead or 'its counterpart'} on ROCm",
                edits=_chosen(tree, one, one.value.replace(found[1], instead)) if instead else (),
            )


def _chosen(tree: PythonTree, node: ast.Constant, instead: str) -> tuple[Edit, ...]:
    """Return what chooses between a string and its counterpart by torch's build."""
    if tree.imported.get("torch") != "torch":
        return ()
    text = f'({tree.said(node)} if torch.version.hip is None else "{instead}")'
    return (Edit(start=tree.at(node), end=tree.end(node), text=text),)


RULES: Final = (
    Rule(
        name="torch-switch",
        severity="warning",
        why="the switch means something else on ROCm, or nothing.",
        fix="set it for CUDA alone",
        matches=switches,
    ),
    Rule(
        name="cuda-package",
        severity="error",
        why="the package is for NVIDIA, or has another build for ROCm.",
        fix="use its counterpart",
        matches=libraries,
    ),
    Rule(
        name="fp8-dtype",
        severity="warning",
        why="gfx942's fp8 is FNUZ: the same bits are half the value, and the largest e4m3 is 240 "
        "rather than 448. gfx950 and gfx1201 have OCP's formats.",
        fix="take float8_e4m3fnuz and float8_e5m2fnuz on gfx942, with scales of their own maximum "
        "(torch.finfo(dtype).max)",
        matches=fp8_types,
    ),
    Rule(
        name="device-capability",
        severity="warning",
        why="on ROCm the capability is the gfx number, such as (9, 4) for gfx942: it compares as "
        "Hopper's would.",
        fix="ask torch.version.hip, and get_device_properties().gcnArchName for the architecture",
        matches=capabilities,
    ),
    Rule(
        name="cuda-version",
        severity="warning",
        why="torch.version.cuda is None on ROCm.",
        fix="ask torch.version.hip too",
        matches=cuda_version,
    ),
    Rule(
        name="nvidia-program",
        severity="warning",
        why="the program is NVIDIA's.",
        fix="use ROCm's",
        matches=programs,
    ),
    Rule(
        name="cuda-variable",
        severity="warning",
        why="the environment variable is CUDA's or NVIDIA's.",
        fix="set its counterpart",
        matches=variables,
    ),
    Rule(
        name="nvcc-flag",
        severity="error",
        why="flags of nvcc: hipcc stops at them.",
        fix="give them for CUDA alone; architectures are PYTORCH_ROCM_ARCH's",
        matches=nvcc_flags,
    ),
    Rule(
        name="cuda-build",
        severity="error",
        why="the build asks for CUDA's own toolkit.",
        fix="ask for ROCm's too",
        matches=cuda_only_builds,
    ),
)
