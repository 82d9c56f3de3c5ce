"""The GPU's part of a CUDA text: what compiles without the headers that its host code needs.

Functions of the host are blanked, at the same lines. Templates of kernels are named with the types
that launches give, here or in another file of the tree, so that they are compiled too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ratchet.amd.port.cuda_tree import CudaTree
from ratchet.amd.port.preprocessor import SIZES

if TYPE_CHECKING:
    from tree_sitter import Node

OF_HOST: Final = re.compile(
    r"torch/|ATen/|c10/|pybind11/|Python\.h|c10d/|gtest|hip/hip_runtime_api|rccl|nccl|hipblas|hipfft|"
    r"hipsparse|hipsolver|hiprand/hiprand\.h|miopen|roctracer|rocm_smi|iostream|chrono|thread$|nvToolsExt|"
    r"mpi\.h|omp\.h|opencv2/|glog/|gflags/"
)
HOST_TYPE: Final = re.compile(r"\b(torch|at|c10|std::(vector|string|mutex|map))\b")
HOST_STATEMENT: Final = re.compile(
    r"\s*(TORCH_LIBRARY|PYBIND11|using namespace (torch|at)\b|using (torch|at)::|"
    r"namespace \w+ = (torch|at|c10|pybind11|cv)\b|"
    r"using std::(c(out|err|in|log)|endl|flush|[io]?stream|chrono|thread)\b)"
)
HOST_MACRO: Final = re.compile(r"\b(torch::|at::|c10::|m\.def|TORCH_)|<<<")
"""Signs of the host in a macro's body."""
ON_GPU: Final = frozenset(("__global__", "__device__", "constexpr", "__forceinline__"))
"""Words before a function that the GPU may call; clang takes a constexpr one for both sides."""
DEVICE_MACRO: Final = re.compile(rb"(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\(.*?\))?.*__device__")
DISPATCHED: Final = "float"  # the type for which torch's dispatch macros are compiled
DISPATCHED_NAMES: Final = re.compile(r"\b(scalar_t|opmath_t|acc_t|accscalar_t|T|type)\b")
KNOWN: Final = frozenset((*SIZES, "unsigned", "signed", "long", "short", "std", "true", "false"))


def device_codes(texts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the texts of a tree without their host code, with their kernels' templates named."""
    macros = frozenset(
        name.decode() for text in texts.values() for name in DEVICE_MACRO.findall(text)
    )
    trees = {name: CudaTree(_without_host_macros(text)) for name, text in texts.items()}
    named: dict[str, set[str]] = defaultdict(set)
    own = {name: set(_instances(tree)) for name, tree in trees.items()}
    for name, found in own.items():
        here = _kernels(trees[name])
        for kernel, instance in found:
            if kernel not in here:
                named[kernel].add(instance)
    return {name: _device_code(tree, macros, own[name], named) for name, tree in trees.items()}


def _device_code(
    tree: CudaTree,
    macros: frozenset[str],
    own: set[tuple[str, str]],
    named: Mapping[str, set[str]],
) -> str:
    made = bytearray(tree.text)
    for start, end in _of_host(tree, macros):
        made[start:end] = re.sub(rb"[^\n]", b" ", bytes(made[start:end]))
    kernels, types = _kernels(tree), _types(tree)
    asked = {one for kernel, one in own if kernel in kernels}
    asked |= {one for kernel in kernels for one in named.get(kernel, ())}
    instances = {one for one in asked if _is_known(one, types)}
    lines = "".join(
        f"__attribute__((used)) static auto port_instance_{index} = &{name};\n"
        for index, name in enumerate(sorted(instances))
    )
    return f"{made.decode(errors='replace')}\n{lines}"


def _of_host(tree: CudaTree, device_macros: frozenset[str]) -> Iterator[tuple[int, int]]:
    for path, node in tree.includes:
        if OF_HOST.match(path):
            yield tree.text.rfind(b"\n", 0, node.start_byte) + 1, node.end_byte
    for node in _top(tree.root):
        inner = node
        while inner.type in ("template_declaration", "linkage_specification"):
            if not inner.named_children:
                break
            inner = inner.named_children[-1]
        if inner.type == "function_definition" and not RECORD.match(tree.said(inner)):
            words = {*re.findall(r"\w+", tree.head(inner))}
            if not (words & ON_GPU or words & device_macros):
                yield node.start_byte, node.end_byte
        elif _is_of_host(tree, inner):
            yield node.start_byte, node.end_byte


RECORD: Final = re.compile(
    r"\s*(typedef\s+)?(struct|class|union)\s+(__align__|alignas|__attribute__)"
)
"""A type that the parser takes for a function, because of its attribute."""
DEFINED: Final = re.compile(
    rb"^[ \t]*#[ \t]*define[ \t]+(\w+)\((?:[^)\n]|\\\n)*\)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE
)
BINDS: Final = (rb"PYBIND11_MODULE", rb"TORCH_LIBRARY\w*")


def _without_host_macros(text: bytes) -> bytes:
    """Return a text in which blanks stand for macros that make functions of the host.

    The parser takes several of them in a row, which need no semicolon, for one thing.
    """
    names = list(BINDS)
    for name, body in DEFINED.findall(text):
        said = body.decode(errors="replace")
        if HOST_MACRO.search(said) and not re.search(r"__(global|device)__", said):
            names.append(re.escape(name))
    made = bytearray(text)
    for found in re.finditer(rb"(?m)^(?:%s)\s*\(" % b"|".join(names), text):
        end = _closed(text, found.end(), b"()")
        block = re.compile(rb"\s*\{").match(text, end)
        end = _closed(text, block.end(), b"{}") if block is not None else end
        made[found.start() : end] = re.sub(rb"[^\n]", b" ", text[found.start() : end])
    return bytes(made)


def _closed(text: bytes, at: int, pair: bytes) -> int:
    """Return where the bracket closes that opened just before."""
    depth = 1
    for end in range(at, len(text)):
        depth += {pair[0]: 1, pair[1]: -1}.get(text[end], 0)
        if not depth:
            return end + 1
    return len(text)


def _top(node: Node) -> Iterator[Node]:
    """Yield the definitions at the top, in namespaces and in what the preprocessor chooses."""
    for one in node.named_children:
        body = one.child_by_field_name("body")
        is_block = one.type in ("namespace_definition", "linkage_specification")
        if is_block and body is not None and body.type == "declaration_list":
            yield from _top(body)
        elif one.type in ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"):
            yield from _top(one)
        else:
            yield one


def _is_of_host(tree: CudaTree, node: Node) -> bool:
    said = tree.said(node)
    if node.type == "declaration":
        return HOST_TYPE.search(said) is not None and "__device__" not in said
    if node.type in (
        *("expression_statement", "using_declaration"),
        *("namespace_alias_definition", "alias_declaration"),
    ):
        return HOST_STATEMENT.match(said) is not None
    return node.type == "ERROR" and not any(one in said for one in tree.kernel_macros)


def _instances(tree: CudaTree) -> Iterator[tuple[str, str]]:
    """Yield the templates that launches name with arguments: the kernel, and its instance."""
    for call in tree.launches:
        said = " ".join(tree.said(call.function).split())
        if "<" not in said or _is_of_parameters(tree, call.at, said):
            continue
        kernel, arguments = said.split("<", 1)
        arguments = DISPATCHED_NAMES.sub(DISPATCHED, arguments)
        arguments = re.sub(
            r"\b[A-Za-z_]\w*", lambda one: str(tree.constants.get(one[0], one[0])), arguments
        )
        if re.fullmatch(r"[\w:<>, ]+", said):
            yield call.name, f"{kernel}<{arguments}"


def _kernels(tree: CudaTree) -> set[str]:
    """Return the names of the templates of kernels that a text defines."""
    return {
        _name(tree, one)
        for one in tree.functions
        if "__global__" in tree.head(one)
        and one.parent is not None
        and one.parent.type == "template_declaration"
    }


def _is_known(instance: str, types: frozenset[str]) -> bool:
    """Return whether an instance's arguments are values and types that a file's end knows."""
    words = re.findall(r"[A-Za-z_]\w*", instance.split("<", 1)[1])
    return all(one in KNOWN or one in types for one in words)


NAMED: Final = ("struct_specifier", "class_specifier", "enum_specifier", "alias_declaration")


def _types(tree: CudaTree) -> frozenset[str]:
    """Return the types and constants that a text has outside of functions."""
    found = set[str]()
    for node in _top(tree.root):
        if node.type in NAMED:
            found.add(tree.said(node, "name"))
        elif node.type == "type_definition":
            found |= {tree.said(one) for one in node.children_by_field_name("declarator")}
    return frozenset(found)


def _is_of_parameters(tree: CudaTree, at: int, said: str) -> bool:
    """Return whether a name in a macro's body is made of the macro's parameters."""
    function = tree.function_at(at)
    if function is None or not tree.is_macro(function):
        return False
    words: Iterable[str] = re.findall(r"[A-Za-z_]\w*", said.partition("<")[2])
    return not all(one in tree.constants or one in SIZES for one in words)


def _name(tree: CudaTree, function: Node) -> str:
    said = tree.said(function, "declarator").partition("(")[0]
    return said.strip().rpartition("::")[2]
