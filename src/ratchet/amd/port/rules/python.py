"""Python: switches of torch, libraries for NVIDIA alone, builds of extensions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ratchet.amd.port.python_tree import PythonTree, strings
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
        if name in SWITCHES:
            yield from tree.match(node, name, fix=f"on ROCm {SWITCHES[name]}")


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
                yield from tree.match(node, name, fix=f"use {instead}")


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
        if name in FP8:
            yield from tree.match(node, name)


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
        if numbers and CAPABILITY.search(said):
            yield from tree.match(node, " ".join(said.split())[:60])


@RULES.add("cuda-version", "warning", fix="ask torch.version.hip too")
def cuda_version(tree: PythonTree) -> Iterator[Match]:
    """Torch.version.cuda is None on ROCm."""
    for name, node in tree.attributes:
        if name.startswith("torch.version.cuda") and not tree.is_guarded(node):
            parent = tree.parents.get(id(node))
            asks_if_set = isinstance(parent, ast.If | ast.IfExp | ast.BoolOp) or (
                isinstance(parent, ast.Compare)
                and any(getattr(one, "value", "") is None for one in parent.comparators)
            )
            if name != "torch.version.cuda" or not asks_if_set:
                yield Match(at=tree.at(node), detail=tree.said(node))


STARTS: Final = re.compile(
    r"(^|\.)(run|call|check_call|check_output|Popen|system|popen|which|getoutput)$"
)


@RULES.add("nvidia-program", "warning", fix="use ROCm's")
def programs(tree: PythonTree) -> Iterator[Match]:
    """The program is NVIDIA's."""
    for name, call in tree.calls:
        for node, text in strings(ast.walk(call)) if STARTS.search(name) else ():
            word = re.split(r"[\s|;]", text.strip())[0].rpartition("/")[2]
            if word in PROGRAMS:
                yield from tree.match(node, word, fix=f"call {PROGRAMS[word]}")


@RULES.add("cuda-variable", "warning", fix="set its counterpart")
def variables(tree: PythonTree) -> Iterator[Match]:
    """The environment variable is CUDA's or NVIDIA's."""
    for node, name in tree.strings():
        if name in VARIABLES:
            yield from tree.match(node, name, fix=VARIABLES[name])


@RULES.add(
    "nvcc-flag", "error", fix="give them for CUDA alone; architectures are PYTORCH_ROCM_ARCH's"
)
def nvcc_flags(tree: PythonTree) -> Iterator[Match]:
    """Flags of nvcc: hipcc stops at them."""
    lists = [(one, one.elts) for one in tree.of(ast.List)]
    appended = [
        (call, call.args)
        for name, call in tree.calls
        if re.search(r"(?i)(flag|arg|opt)\w*\.append$", name)
    ]
    for node, elements in (*lists, *appended):
        given = strings(elements)
        if isinstance(node, ast.List) and not any(text.startswith("-") for _, text in given):
            continue
        after = [*(text for _, text in given[1:]), "sm_"]
        bad = {
            id(one): text
            for (one, text), next_one in zip(given, after, strict=False)
            if _is_of_nvcc(text) and (text != "-arch" or ARCHITECTURE.match(next_one))
        }
        if bad and not tree.is_guarded(node):
            first = next(one for one, _ in given if id(one) in bad)
            yield Match(
                at=tree.at(first),
                detail=", ".join(dict.fromkeys(one.split("=")[0] for one in bad.values()))[:80],
                edits=_by_backend(tree, node, bad),
            )


ARCHITECTURE: Final = re.compile("sm_|compute_|native|all")


def _is_of_nvcc(text: str) -> bool:
    known = any(text == flag or text.startswith((f"{flag}=", f"{flag} ")) for flag in FLAGS)
    return known or re.match(r"(arch|code)=|sm_\d|compute_\d", text) is not None


def _by_backend(tree: PythonTree, node: ast.AST, bad: Mapping[int, str]) -> tuple[Edit, ...]:
    """Keep the list as it is for CUDA, and drop what is nvcc's on ROCm; `bad` is by id."""
    if not isinstance(node, ast.List) or any(isinstance(one, ast.Starred) for one in node.elts):
        return ()
    kept = []
    for one in node.elts:
        if id(one) not in bad:
            kept.append(tree.said(one))
        elif (instead := FLAGS.get(bad[id(one)], "")).startswith("-"):
            kept.append(f'"{instead}"')
    said = tree.said(node)
    return tree.replaced(node, f"({said} if torch.version.hip is None else [{', '.join(kept)}])")


@RULES.add("cuda-build", "error", fix="ask for ROCm's too")
def cuda_only_builds(tree: PythonTree) -> Iterator[Match]:
    """The build asks for CUDA's own toolkit."""
    for node in (*tree.nodes[ast.Name], *tree.nodes[ast.Attribute]):
        if tree.name(node).endswith("cpp_extension.CUDA_HOME"):
            yield from tree.match(node, "CUDA_HOME", fix="ask for ROCM_HOME too")
    for _, call in tree.calls:
        for word in call.keywords:
            if word.arg in ("libraries", "extra_ldflags", "extra_link_args"):
                yield from _cuda_libraries(tree, word.value)


CUDA_LIBRARY: Final = re.compile(
    r"(?:-l)?(cudart(?:_static)?|cuda|cublas(?:Lt)?|cudnn|cufft|curand|cusparse|cusolver|nvrtc|nvToolsExt|nccl|cupti|nvidia-ml)"
)


def _cuda_libraries(tree: PythonTree, node: ast.AST) -> Iterator[Match]:
    for one, text in strings(ast.walk(node)):
        found = CUDA_LIBRARY.fullmatch(text)
        if found and not tree.is_guarded(one):
            instead = LINKED.get(found[1], "")
            other = text.replace(found[1], instead)
            chosen = f'({tree.said(one)} if torch.version.hip is None else "{other}")'
            yield Match(
                at=tree.at(one),
                detail=text,
                fix=f"link {instead or 'its counterpart'} on ROCm",
                edits=tree.replaced(one, chosen) if instead else (),
            )
