"""Python: switches of torch, libraries for NVIDIA alone, builds of extensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from ratchet.amd.port.python_tree import PythonTree
from ratchet.amd.port.rule import (
    FLAGS,
    LINKED,
    MODULES,
    PROGRAMS,
    SWITCHES,
    VARIABLES,
    Edit,
    Match,
    Rules,
)

RULES: Final = Rules[PythonTree]()

FP8: Final = ("torch.float8_e4m3fn", "torch.float8_e5m2")


@RULES.add("torch-switch", "warning", fix="set it for CUDA alone")
def switches(tree: PythonTree) -> Iterator[Match]:
    """The switch means something else on ROCm, or nothing."""
    for name, node in tree.attributes:
        said = SWITCHES.get(name)
        if said and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=name, fix=f"on ROCm {said}")


@RULES.add("cuda-package", "error", fix="use its counterpart")
def libraries(tree: PythonTree) -> Iterator[Match]:
    """The package is for NVIDIA, or has another build for ROCm."""
    seen: set[tuple[str, int]] = set()
    for module, node in tree.modules():
        for name, instead in MODULES.items():
            at = tree.at(node)
            if name in tree.source.own_modules or (name, at) in seen:
                continue
            if module == name or module.startswith(f"{name}."):
                seen.add((name, at))
                if not tree.is_guarded(node):
                    yield Match(at=at, detail=name, fix=f"use {instead}")


@RULES.add(
    "fp8-dtype",
    "warning",
    fix=(
        "take float8_e4m3fnuz and float8_e5m2fnuz on gfx942, with scales of their own maximum "
        "(torch.finfo(dtype).max)"
    ),
)
def fp8_types(tree: PythonTree) -> Iterator[Match]:
    """Gfx942's fp8 is FNUZ: the same bits are half the value, and the largest e4m3 is 240 rather
    than 448. gfx950 and gfx1201 have OCP's formats."""
    for name, node in tree.attributes:
        if name in FP8 and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=name)


CAPABILITY: Final = re.compile(
    r"get_device_capability|\bcapability\b|compute_capability|\bsm_?version\b"
    r"|properties\([^)]*\)\.(?:major|minor)|\bprops?\.major"
)


@RULES.add(
    "device-capability",
    "warning",
    fix="ask torch.version.hip, and get_device_properties().gcnArchName for the architecture",
)
def capabilities(tree: PythonTree) -> Iterator[Match]:
    """On ROCm the capability is the gfx number, such as (9, 4) for gfx942: it compares as Hopper's
    would."""
    for node in tree.nodes[ast.Compare]:
        numbers = [one for one in ast.walk(node) if isinstance(getattr(one, "value", ""), int)]
        said = tree.said(node)
        if numbers and CAPABILITY.search(said) and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=" ".join(said.split())[:60])


@RULES.add("cuda-version", "warning", fix="ask torch.version.hip too")
def cuda_version(tree: PythonTree) -> Iterator[Match]:
    """Torch.version.cuda is None on ROCm."""
    for name, node in tree.attributes:
        if name.startswith("torch.version.cuda") and not tree.is_guarded(node):
            if name == "torch.version.cuda" and _is_none_test(tree, node):
                continue
            yield Match(at=tree.at(node), detail=tree.said(node))


def _is_none_test(tree: PythonTree, node: ast.AST) -> bool:
    parent = tree.parents.get(id(node))
    if isinstance(parent, ast.Compare):
        return any(
            isinstance(one, ast.Constant) and one.value is None for one in parent.comparators
        )
    return isinstance(parent, ast.If | ast.IfExp | ast.BoolOp)


@RULES.add("nvidia-program", "warning", fix="use ROCm's")
def programs(tree: PythonTree) -> Iterator[Match]:
    """The program is NVIDIA's."""
    for name, call in tree.calls:
        if not re.search(
            r"(^|\.)(run|call|check_call|check_output|Popen|system|popen|which|getoutput)$", name
        ):
            continue
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                word = re.split(r"[\s|;]", node.value.strip())[0].rpartition("/")[2]
                if word in PROGRAMS and not tree.is_guarded(node):
                    yield Match(at=tree.at(node), detail=word, fix=f"call {PROGRAMS[word]}")


@RULES.add("cuda-variable", "warning", fix="set its counterpart")
def variables(tree: PythonTree) -> Iterator[Match]:
    """The environment variable is CUDA's or NVIDIA's."""
    for node in tree.strings():
        instead = VARIABLES.get(str(node.value))
        if instead and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail=str(node.value), fix=instead)


@RULES.add(
    "nvcc-flag", "error", fix="give them for CUDA alone; architectures are PYTORCH_ROCM_ARCH's"
)
def nvcc_flags(tree: PythonTree) -> Iterator[Match]:
    """Flags of nvcc: hipcc stops at them."""
    for node, strings in _flag_lists(tree):
        words = [str(one.value) for one in strings]
        bad = [
            one
            for one, text, after in zip(strings, words, [*words[1:], "sm_"], strict=True)
            if _is_cuda_flag(text)
            and (text != "-arch" or re.match("sm_|compute_|native|all", after))
        ]
        if bad and not tree.is_guarded(node):
            first = bad[0]
            yield Match(
                at=tree.at(first),
                detail=", ".join(dict.fromkeys(str(one.value).split("=")[0] for one in bad))[:80],
                edits=_by_backend(tree, node, bad),
            )


def _flag_lists(tree: PythonTree) -> Iterator[tuple[ast.AST, list[ast.Constant]]]:
    for node in tree.of(ast.List):
        strings = [
            one for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if strings and any(str(one.value).startswith("-") for one in strings):
            yield node, strings
    for name, call in tree.calls:
        flags = [
            one for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if flags and re.search(r"(?i)(flag|arg|opt)\w*\.append$", name):
            yield call, flags


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


@RULES.add("cuda-build", "error", fix="ask for ROCm's too")
def cuda_only_builds(tree: PythonTree) -> Iterator[Match]:
    """The build asks for CUDA's own toolkit."""
    for node in (*tree.nodes[ast.Name], *tree.nodes[ast.Attribute]):
        if tree.name(node).endswith("cpp_extension.CUDA_HOME") and not tree.is_guarded(node):
            yield Match(at=tree.at(node), detail="CUDA_HOME", fix="ask for ROCM_HOME too")
    for _, call in tree.calls:
        for word in call.keywords:
            if word.arg in ("libraries", "extra_ldflags", "extra_link_args"):
                yield from _cuda_libraries(tree, word.value)


CUDA_LIBRARY: Final = re.compile(
    r"(?:-l)?(cudart(?:_static)?|cuda|cublas(?:Lt)?|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvToolsExt|nccl|cupti|nvidia-ml)"
)


def _cuda_libraries(tree: PythonTree, node: ast.AST) -> Iterator[Match]:
    for one in ast.walk(node):
        if not isinstance(one, ast.Constant) or not isinstance(one.value, str):
            continue
        found = CUDA_LIBRARY.fullmatch(one.value)
        if found and not tree.is_guarded(one):
            instead = LINKED.get(found[1], "")
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
