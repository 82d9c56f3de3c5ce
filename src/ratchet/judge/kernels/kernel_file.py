"""Kernels from files, which are never run here, and torch itself as a kernel."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ratchet.base import NAME as PACKAGE
from ratchet.base import file_of
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.kernels.source_files import files_beside, with_files
from ratchet.judge.problems.card import ANSWER
from ratchet.judge.problems.problem import Problem, reference_text
from ratchet.judge.problems.problem_file import (
    MODEL,
    imported_packages,
    parsed,
    python_names,
    read_source,
)

# References as candidates: a source that carries the Ratchet modules that it imports.
#
# A candidate's sandbox holds none of these modules, since they tell how answers are judged. A
# source that stands for the reference itself (`--candidate eager`) includes their text instead.

_PRELUDE: Final = '''
import importlib.machinery as _machinery
import sys as _sys


class _Carried:
    """A finder for the modules that this source carries, where the sandbox lacks or closes them."""

    texts = {texts!r}

    def find_spec(self, name, path=None, target=None):
        if name not in self.texts or self.is_open(name, path):
            return None
        below = any(one.startswith(name + ".") for one in self.texts)
        spec = _machinery.ModuleSpec(name, self, origin="<carried>", is_package=below)
        spec.has_location = True  # some modules ask for their __file__
        return spec

    def is_open(self, name, path):
        found = _machinery.PathFinder.find_spec(name, path)
        try:
            open(found.origin).close()
        except (AttributeError, TypeError, OSError):  # not found, or no file, or closed
            return False
        return True

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.texts[module.__name__], "<carried>", "exec"), module.__dict__)


_sys.meta_path.insert(0, _Carried())
'''


def with_modules(source: str) -> str:
    """Return a Python source without imports of Ratchet; unchanged if it has none."""
    tree = ast.parse(source)
    texts = _carried(tree)
    if not texts:
        return source
    lines = source.splitlines(keepends=True)
    first = _lines_before_code(tree)
    prelude = _PRELUDE.replace("{texts!r}", repr(texts))
    return "".join([*lines[:first], prelude, *lines[first:]])


def _lines_before_code(tree: ast.Module) -> int:
    """Return the number of lines of the docstring and `from __future__`, which must stay on top."""
    last = 0
    for place, node in enumerate(tree.body):
        is_text = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node.end_lineno or last
    return last


def _carried(tree: ast.Module) -> dict[str, str]:
    """Return the texts of all imported modules, directly or not; parent packages are empty.

    Imports inside functions count only in the source itself: a reference calls nothing that draws
    inputs or checks answers.
    """
    texts: dict[str, str] = {}
    left = list(_imported(ast.walk(tree)))
    while left:
        name = left.pop()
        path = file_of(name)
        if path is None or name in texts or name == PACKAGE:
            continue
        texts[name] = path.read_text(encoding="utf-8")
        left += _imported(iter(ast.parse(texts[name]).body))
    above = {parent for name in texts for parent in _parents(name)}
    return dict.fromkeys(sorted(above - {PACKAGE}), "") | texts


def _imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Return the names that the imports among some nodes ask for, if they are or may be modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                yield one.name
                if one.name == PACKAGE:
                    yield from _homes(sys.modules[PACKAGE].__all__)
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from _homes([one.name for one in node.names])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _homes(names: list[str]) -> Iterator[str]:
    """Return the modules of the public names that a problem is made of."""
    homes = (sys.modules[PACKAGE]._HOMES.get(name, "") for name in names)
    made_of = (f"{PACKAGE}.judge.kernels.", f"{PACKAGE}.judge.problems.")
    return (home for home in homes if home.startswith(made_of))


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


_DEVICE_DECORATORS: Final = ("jit", "autotune", "heuristics")
LANGUAGES: Final[dict[str, Language]] = {
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".py": "torch",
    ".hip": "hip",
    ".cu": "hip",
}
_C_ASIDE = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*define\b[^\n]*|__attribute__\s*\(\(.*?\)\)",
    re.DOTALL | re.MULTILINE,
)
"""Comments, macros and attributes, which may contain the words of an entry."""
_BOUND: Final = re.compile(r'\bm\w*\s*\.\s*(?:def|impl)\s*\(\s*"(?:\w+::)?(\w+)')
"""Functions that an extension binds for Python."""
_BINDS: Final = re.compile(r"\b(PYBIND11_MODULE|TORCH_LIBRARY\w*)\s*\(")
FORWARD: Final = "forward"  # The usual name of the function that an extension binds
_C_ENTRY = re.compile(r'(?:RATCHET_ENTRY|extern\s+"C"\s+[\w\s]+?)\s*\b(\w+)\s*\(')


def load_kernel(
    path: str | os.PathLike[str],
    *,
    entry: str | None = None,
    called: bool = True,
    or_only_one: bool = False,
    of_model: bool = False,
    named: bool = False,
) -> Kernel:
    """Return the kernel of a file without running it.

    The file's ending gives the language; a .py file that imports triton is in triton. The entry is
    `entry` if the file has it, else `ModelNew`. Without an entry, or with `or_only_one`, it is
    `forward` or the file's only public function. Files beside it that a HIP source includes, or
    that a Python source names for `load`, follow its text. A kernel that will not be `called`,
    since its problem has a fault, needs no entry. In Python the entry for a KernelBench problem
    (`of_model`) is `ModelNew`, unless `entry` is a class of the file. An entry that the user
    `named` must be in the file. Raises KernelError: a file that cannot be read or parsed, an
    unknown ending or entry.
    """
    path = Path(path)
    spoken = LANGUAGES.get(path.suffix)
    if spoken is None:
        raise KernelError(
            f"{str(path)!r} has no ending of a kernel: use one of {', '.join(LANGUAGES)}"
        )
    source = read_source(path)
    if path.suffix == ".py":
        tree = parsed(path, source)
        body = tree.body
        names, offered = list(python_names(body, deep=True)), _python_entries(body)
        if of_model and called:
            entry = _model_entry(path, names, body, entry, named=named)
            or_only_one = False
        if "triton" in imported_packages(tree):
            spoken = "triton"
    else:
        found = _BOUND if is_extension(source) else _C_ENTRY
        names = offered = list(dict.fromkeys(found.findall(_C_ASIDE.sub(" ", source))))
    if or_only_one and entry not in names:
        lone = [one for one in offered if one == FORWARD] or offered
        entry = lone[0] if len(lone) == 1 else entry
    chosen = _entry(path, names, offered, source, entry, named=named) if called else ""
    if spoken == "hip" or "cpp_extension" in source:
        comment = "#" if path.suffix == ".py" else "//"
        source = with_files(source, files_beside(path, source), comment)
    return Kernel(name=path.stem, language=spoken, source=source, entry=chosen)


def is_extension(source: str) -> bool:
    """Return whether a C++ source is a torch extension: it binds functions for Python."""
    return _BINDS.search(_C_ASIDE.sub(" ", source)) is not None


def bound_names(source: str) -> list[str]:
    """Return the functions that a torch extension binds for Python, each once."""
    return list(dict.fromkeys(_BOUND.findall(_C_ASIDE.sub(" ", source))))


def built_in_kernel(problem: Problem, candidate: str) -> Kernel:
    """Return torch as a kernel: the problem's own reference, `eager` or under `torch.compile`."""
    compiled = candidate == "torch.compile"
    if problem.model is not None:
        ending = _COMPILED_MODEL if compiled else f"\n\n{ANSWER} = {MODEL}\n"
        return Kernel(name=candidate, language="torch", source=problem.text + ending, entry=ANSWER)
    source = with_modules(problem.text or reference_text(problem.reference))
    function = problem.reference.rpartition(":")[2]
    ending = _COMPILED_FUNCTION if compiled else "\n\n_answer = {function}\n"
    return Kernel(
        name=candidate,
        language="torch",
        source=source + ending.replace("{function}", function),
        entry="_answer",
    )


_CACHE = """
import os as _os
import tempfile as _tempfile

import torch as _torch

_os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", _tempfile.mkdtemp())
_os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
"""
_COMPILED_MODEL = f"""

{_CACHE}

class {ANSWER}({MODEL}):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.compile()
"""
_COMPILED_FUNCTION = f"""

{_CACHE}
_answer = _torch.compile({{function}})
"""


def _python_entries(body: Sequence[ast.stmt]) -> list[str]:
    """Return the names in a Python file that are callable as kernels, in order.

    These are `ModelNew` and public functions, without Triton's own. If there are none, they are the
    results of calls, such as `torch.compile(f)`.
    """
    found = [
        node.name
        for node in body
        if (isinstance(node, ast.FunctionDef) and not _runs_on_the_device(node))
        or (isinstance(node, ast.ClassDef) and node.name == ANSWER)
    ]
    made = [
        target.id
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.Name))
        for target in node.targets
        if isinstance(target, ast.Name) and (target.id.islower() or target.id == ANSWER)
    ]
    public = [name for name in found if not name.startswith("_")]
    return public or [name for name in made if not name.startswith("_")]


def _runs_on_the_device(node: ast.FunctionDef) -> bool:
    """Return whether Triton launches a function (`@triton.jit` and the like)."""
    called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(ast.unparse(one).split(".")[-1] in _DEVICE_DECORATORS for one in called)


def _model_entry(
    path: Path, names: list[str], body: Sequence[ast.stmt], wanted: str | None, *, named: bool
) -> str | None:
    """Return the class of a file that answers, which no function with the problem's name does."""
    if any(isinstance(one, ast.FunctionDef) and one.name == wanted for one in body):
        if ANSWER in names and not named:
            return ANSWER
        raise KernelError(
            f"{str(path)!r}: {wanted} is a function, and a KernelBench problem is answered by a "
            f"class: write class {ANSWER}(nn.Module) whose forward calls it"
        )
    if ANSWER in names or wanted in names:
        return wanted
    classes = [f"class {one.name}" for one in body if isinstance(one, ast.ClassDef)]
    remedy = "write it"
    if classes:
        remedy = f"it defines {', '.join(classes[:4])}: rename one, or name it with --entry"
    raise KernelError(
        f"{str(path)!r} has no class {ANSWER}: a KernelBench solution defines class "
        f"{ANSWER}(nn.Module), built with the arguments of {MODEL}; {remedy}"
    )


def _entry(
    path: Path,
    names: list[str],
    offered: list[str],
    source: str,
    wanted: str | None,
    *,
    named: bool,
) -> str:
    in_macro = path.suffix != ".py" and re.search(rf"\b{re.escape(wanted or '')}\b", source)
    if wanted is not None and (wanted in names or in_macro):
        return wanted
    if ANSWER in names and not named:
        return ANSWER
    if wanted is None and len(offered) == 1:
        return offered[0]
    shown = f"no {wanted!r}" if wanted else "no obvious entry"
    raise KernelError(
        f"{str(path)!r} has {shown}: name the function with --entry; its entries are "
        f"{', '.join(offered[:8])}"
        if offered
        else f"{str(path)!r} has {shown}: write that function, as the file defines no entry"
    )
