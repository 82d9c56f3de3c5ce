"""Places in a Python kernel that cannot run without a GPU, found in its text before anything runs.

Only what the entry reaches counts, and nothing that the file itself makes depend on the device: a
test, a conditional expression, a `try`. A call that is overlooked fails later, with torch's words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

NEEDS_CUDA: Final = (
    "this machine has none; port it (`ratchet port`) or emulate it (`--target gfx942`)"
)
CUDA_NAME = re.compile(r"cuda(:[0-9]+)?")
ASKS: Final = ("is_available", "is_cuda", "device_count", "get_device")
"""Names by which a file asks for the device first."""
FAILS: Final = (
    "synchronize",
    "Stream",
    "Event",
    "CUDAGraph",
    "graph",
    "current_stream",
    "current_device",
    "set_device",
    "get_device_properties",
    "get_device_capability",
    "get_device_name",
)
"""Functions of torch.cuda that raise without a GPU."""
TORCH_SAYS = re.compile(
    r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs|CUDA_HOME|nvcc"
    r"|dummy base class (Event|Stream|CUDAGraph|_CudaStreamBase|_CudaEventBase|_CUDAGraph)"
    r"|not linked with support for cuda|CUDA driver (version|initialization)"
)
"""Words of the errors that torch raises for a call that was overlooked."""


def needs_cuda(source: str, entry: str) -> str:
    """Return why a Python kernel cannot run without a GPU, in one line; "" if it may."""
    body = ast.parse(source).body
    reached = _reached(body, entry)
    if found := _refusals(reached):
        return _needed(*found[0])
    names = {
        one.attr if isinstance(one, ast.Attribute) else one.id
        for part in reached
        for one in ast.walk(part)
        if isinstance(one, (ast.Attribute, ast.Name))
    }
    if names & set(ASKS):
        return ""
    named = {
        ast.unparse(target)
        for part in reached
        for one in ast.walk(part)
        if isinstance(one, ast.Assign) and _is_cuda(one.value, ())
        for target in one.targets
    }
    found = sorted({place for part in reached for place in _places(part, named)})
    if not found:
        return ""
    return _needed(*found[0])


def refuses_cores(source: str, entry: str) -> str:
    """Return why a Python kernel takes no tensors but a GPU's, in one line; "" if it may."""
    found = _refusals(_reached(ast.parse(source).body, entry))
    return _needed(*found[0]) if found else ""


def _needed(line: int, words: str) -> str:
    return f"the kernel needs CUDA ({words} at line {line}): {NEEDS_CUDA}"


def _refusals(reached: Sequence[ast.stmt]) -> list[tuple[int, str]]:
    """Return the line and the words of each demand that a tensor lies on a GPU, in order."""
    found = []
    for one in (one for part in reached for one in ast.walk(part)):
        match one:
            case ast.Assert(test=asked):
                pass
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=asked), body=[*_, ast.Raise()]):
                pass
            case _:
                continue
        all_of = asked.values if isinstance(asked, ast.BoolOp) else [asked]
        either = isinstance(asked, ast.BoolOp) and isinstance(asked.op, ast.Or)
        named = [each.attr for each in all_of if isinstance(each, ast.Attribute)]
        if "is_cuda" in named and not either:
            found.append((one.lineno, f"`{ast.unparse(one).splitlines()[0][:60]}`"))
    return sorted(found)


def _reached(body: Sequence[ast.stmt], entry: str) -> list[ast.stmt]:
    """Return the statements of a file that loading it and calling its entry run."""
    defined = {
        one.name: one
        for one in body
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    run: list[ast.stmt] = [
        one
        for one in body
        if one not in defined.values()
        and not isinstance(one, (ast.Import, ast.ImportFrom, ast.If, ast.Try, ast.With))
    ]
    todo, met = [entry], set[str]()
    todo += [one.id for part in run for one in ast.walk(part) if isinstance(one, ast.Name)]
    while todo:
        name = todo.pop()
        if name in met or name not in defined:
            continue
        met.add(name)
        run.append(defined[name])
        todo += [one.id for one in ast.walk(defined[name]) if isinstance(one, ast.Name)]
    return run


def _places(part: ast.AST, named: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each use of CUDA that nothing guards."""
    for child in ast.iter_child_nodes(part):
        if isinstance(child, (ast.If, ast.IfExp, ast.Try, ast.Compare, ast.match_case)):
            continue
        if isinstance(child, ast.Call):
            words = _of_call(child, named)
            if words:
                yield child.lineno, words
        yield from _places(child, named)


def _of_call(call: ast.Call, named: Collection[str]) -> str:
    """Return the words of a call that needs a GPU, or ""."""
    called = ast.unparse(call.func)
    last = called.rpartition(".")[2]
    if "autocast" in called or last in ("GradScaler", "custom_fwd", "custom_bwd"):
        return ""  # without a GPU these only do nothing
    if last == "cuda" and isinstance(call.func, ast.Attribute):
        return "`.cuda()`"
    if last in FAILS and called.endswith(f"cuda.{last}"):
        return f"`{called}()`"
    given = {one.arg: one.value for one in call.keywords}
    for name in ("cuda_sources", "cuda_source"):
        if name in given and not _is_empty(given[name]):
            return f"`{last}({name}=...)`"
    if last in ("to", "device", "set_default_device") and call.args:
        given["device"] = call.args[0]
    told = given.get("device")
    return f"`{ast.unparse(told)}`" if told is not None and _is_cuda(told, named) else ""


def _is_cuda(value: ast.expr, named: Collection[str]) -> bool:
    """Return whether a value is the text of a GPU's name, or a name that was given one."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return CUDA_NAME.fullmatch(value.value) is not None
    return ast.unparse(value) in named


def _is_empty(value: ast.expr) -> bool:
    nothing = isinstance(value, (ast.List, ast.Tuple)) and not value.elts
    return nothing or (isinstance(value, ast.Constant) and not value.value)
