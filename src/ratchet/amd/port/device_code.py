"""Take the GPU's part out of a text: what a compiler without torch's headers can compile.

Functions of the host are blanked, at the same lines; templates of kernels are named with the types
that their launches give, so that they are compiled too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.cuda_tree import CudaTree
from ratchet.amd.port.preprocessor import SIZES

if TYPE_CHECKING:
    from tree_sitter import Node

OF_HOST: Final = re.compile(
    r"torch/|ATen/|c10/|pybind11/|Python\.h|c10d/|gtest|hip/hip_runtime_api|rccl|nccl|hipblas|hipfft|"
    r"hipsparse|hipsolver|hiprand/hiprand\.h|miopen|roctracer|rocm_smi|iostream|chrono|thread$|nvToolsExt"
)
DISPATCHED: Final = "float"
"""The type for which torch's dispatch macros are compiled."""


def device_code(text: bytes) -> bytes:
    """Return the text without its host code, and with its kernels' templates named."""
    tree = CudaTree(text)
    made = bytearray(text)
    for start, end in _of_host(tree):
        made[start:end] = re.sub(rb"[^\n]", b" ", bytes(made[start:end]))
    named = "".join(
        f"__attribute__((used)) static auto port_instance_{index} = &{name};\n"
        for index, name in enumerate(sorted(_instances(tree)))
    )
    return bytes(made) + b"\n" + named.encode()


def _of_host(tree: CudaTree) -> Iterator[tuple[int, int]]:
    for path, node in tree.includes:
        if OF_HOST.match(path):
            yield tree.text.rfind(b"\n", 0, node.start_byte) + 1, node.end_byte
    for node in _top(tree.root):
        inner = _inside(node)
        if inner.type == "function_definition":
            if not re.search(r"__(global|device)__", tree.head(inner)):
                yield node.start_byte, node.end_byte
        elif _is_of_host(tree, inner):
            yield node.start_byte, node.end_byte


def _top(node: Node) -> Iterator[Node]:
    """Yield the definitions at the top, in namespaces and in what the preprocessor chooses."""
    for one in node.named_children:
        if one.type in ("namespace_definition", "linkage_specification"):
            body = one.child_by_field_name("body")
            if body is not None and body.type == "declaration_list":
                yield from _top(body)
            elif body is not None:
                yield body
        elif one.type in ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"):
            yield from _top(one)
        else:
            yield one


def _inside(node: Node) -> Node:
    while node.type == "template_declaration" and node.named_children:
        node = node.named_children[-1]
    return node


def _is_of_host(tree: CudaTree, node: Node) -> bool:
    said = tree.said(node)
    if node.type == "declaration":
        return re.search(
            r"\b(torch|at|c10|std::(vector|string|mutex|map))\b", said
        ) is not None and ("__device__" not in said)
    if node.type in ("expression_statement", "using_declaration"):
        return (
            re.match(
                r"\s*(TORCH_LIBRARY|PYBIND11|using namespace (torch|at)\b|using (torch|at)::|"
                r"using std::(c(out|err|in|log)|endl|flush|[io]?stream|chrono|thread)\b)",
                said,
            )
            is not None
        )
    return node.type == "ERROR" and not any(one in said for one in tree.kernel_macros)


def _instances(tree: CudaTree) -> Iterator[str]:
    """Yield the kernels' templates that launches name with arguments, each once."""
    seen = set()
    kernels = {_name(tree, one) for one in tree.functions if "__global__" in tree.head(one)}
    for call in tree.launches:
        function = call.node.child_by_field_name("function")
        said = " ".join(tree.said(function).split()) if function is not None else ""
        if "<" not in said or call.name not in kernels or _is_of_parameters(tree, call.at, said):
            continue
        said = re.sub(r"\b(scalar_t|opmath_t|acc_t|accscalar_t|T|type)\b", DISPATCHED, said)
        if said not in seen and re.fullmatch(r"[\w:<>, ]+", said):
            seen.add(said)
            yield said


def _is_of_parameters(tree: CudaTree, at: int, said: str) -> bool:
    """Return whether a name in a macro's body is made of the macro's parameters."""
    function = tree.function_at(at)
    if function is None or not tree.is_macro(function):
        return False
    words = re.findall(r"[A-Za-z_]\w*", said.partition("<")[2])
    return not all(one in tree.constants or one in SIZES for one in words)


def _name(tree: CudaTree, function: Node) -> str:
    made = function.child_by_field_name("declarator")
    said = tree.said(made).partition("(")[0] if made is not None else ""
    return said.strip().rpartition("::")[2]
