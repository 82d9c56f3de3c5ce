"""Problems and kernels from files; a problem's file runs in processes of its own, never here.

A problem's file has one of two forms. KernelBench's: `class Model(nn.Module)`, `get_inputs()` and
`get_init_inputs()`; a kernel for it is a file with `class ModelNew(nn.Module)`, built with the same
arguments and with parameters and buffers of the same names, whose values the harness sets before
each call (docs/judge.md says what else is state, and how a kernel in C++ is called). The model is
in training mode, as in KernelBench, or in eval mode where it is random in training mode; new values
of buffers are not compared. Ours:

    from ratchet import Case, Problem, TensorSpec

    def reference(x, scale, scalars):
        return (x * scale + scalars[0],)

    PROBLEM = Problem(
        name="scaled", reference="reference",
        cases=(
            Case(name="rows", timed=True, scalars=(0.5,), inputs=(
                TensorSpec(shape=(512, 256), dtype="float32"),
                TensorSpec(shape=(256,), dtype="float32", distribution="shifted"))),
            Case(name="gaps", hidden=True, scalars=(0.5,), inputs=(
                TensorSpec(shape=(7, 33), dtype="float32", layout="strided"),
                TensorSpec(shape=(33,), dtype="float32"))),
        ),
    )

`reference` and `check` name functions of the same file. A backward is a problem too: its reference
may be `scaled_backward = gradient_of(scaled, inputs=(0, 1))`, with `gradient_of` from ratchet. That
is called with the gradient of the output before the forward's inputs.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from ratchet.errors import KernelError
from ratchet.kernels.at_work import WALL_FACTOR
from ratchet.kernels.carried_modules import with_modules
from ratchet.kernels.kernel import Kernel, Language
from ratchet.kernels.problem import JUDGED_AT, Problem, Tier, reference_text

Scale = float | Literal["auto"] | None
MAX_SOURCE_BYTES: Final = 4 << 20
LOADING_LIMIT_S: Final = 180.0
"""Where nobody gives another."""
KEEPER: Final = "ratchet.kernels.file_keeper"
KEEPER_GRACE_S: Final = 3.0
PATIENT: Final = {"OMP_WAIT_POLICY": "passive"}
"""As in the judge's workers: threads that spin while they wait slow down a busy machine, and `auto`
would take the spinning for work."""
MODEL, ANSWER, DECLARED, STAR = "Model", "ModelNew", "PROBLEM", "*"
MODEL_FORM: Final = ("get_inputs", "get_init_inputs")
"""What else a file in KernelBench's format defines."""
LANGUAGES: Final[dict[str, Language]] = {
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".py": "torch",
    ".hip": "hip",
}
_C_ENTRY = re.compile(r'(?:RATCHET_ENTRY|extern\s+"C"\s+[\w\s]+?)\s*\b(\w+)\s*\(')


def load_problem(
    path_or_name: str | os.PathLike[str],
    *,
    scale: Scale = "auto",
    tiers: Sequence[Tier] = JUDGED_AT,
    time_limit_s: float = LOADING_LIMIT_S,
) -> Problem:
    """The problem of a file, or of a suite by its name.

    `scale` shrinks a problem in KernelBench's format; in ours the cases are those of the first of
    `tiers` that there is. A file that is read but cannot be judged, or takes longer than the limit,
    gives a problem with a `fault`, which the judge refuses.

    Raises:
        KernelError: what is no readable Python file with a problem in it, an unknown name, or a
            problem with none of the tiers.
    """
    given = os.fspath(path_or_name)
    path = Path(given)
    if not (path.suffix or os.sep in given or path.exists()):
        from ratchet.kernels.suites import find_problem

        return find_problem(given).at(*tiers)
    text = read_source(path)
    names = list(_python_names(_parsed(path, text).body, deep=True))
    _check_names(given, names)
    request = {
        "text": text,
        "name": path.stem,
        "scale": scale,
        "declared": DECLARED in names,
        "threads": len(os.sched_getaffinity(0)),
    }
    found = _described(request, time_limit_s)
    if "problem" in found:
        problem = Problem.from_json(found["problem"])
        return problem if problem.model is not None else problem.at(*tiers)
    return Problem(name=path.stem, reference="file:", cases=(), text=text, fault=found["fault"])


def with_text(problem: Problem) -> Problem:
    """A Problem that was imported from its file, with that file's text; any other as it is.

    Such a one names functions of its file alone, so the file is looked for among the modules that
    were imported: it is the one whose PROBLEM this is.
    """
    if problem.text or ":" in problem.reference:
        return problem
    for name, module in list(sys.modules.items()):
        defined = getattr(module, "__dict__", {})
        declares = bool(defined.get(DECLARED) is problem) and problem.reference in defined
        if declares and name != "__main__" and defined.get("__file__"):
            return replace(problem, text=read_source(Path(defined["__file__"])))
    return problem


def load_kernel(
    path: str | os.PathLike[str],
    *,
    entry: str | None = None,
    language: Language | None = None,
    called: bool = True,
    or_only_one: bool = False,
) -> Kernel:
    """The kernel of a file; nothing of it is run.

    The language follows from the file's ending; a .py file that imports triton is in triton.
    `entry` is taken where the file has it, else `ModelNew`. The only function there is is taken
    where no entry is given, or with `or_only_one`. A kernel that will not be `called`, as its
    problem has a fault, needs none.

    Raises:
        KernelError: a file that cannot be read or parsed, an ending or entry that is not known.
    """
    path = Path(path)
    spoken = language or LANGUAGES.get(path.suffix)
    if spoken is None:
        raise KernelError(
            f"{str(path)!r} is in no language of kernels: use one of {', '.join(LANGUAGES)}"
        )
    source = read_source(path)
    if path.suffix == ".py":
        names = list(_python_names(_parsed(path, source).body))
        imported = _imports(source)
        if language is None and "triton" in imported:
            spoken = "triton"
    else:
        names = _C_ENTRY.findall(source)
    if or_only_one and len(names) == 1:
        entry = names[0]
    chosen = _entry(path, names, source, entry) if called else ""
    return Kernel(name=path.stem, language=spoken, source=source, entry=chosen)


def built_in_kernel(problem: Problem, candidate: str) -> Kernel:
    """Torch itself as a kernel: the problem's own reference, `eager` or under `torch.compile`."""
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


def read_source(path: Path) -> str:
    """The text of a file of at most 4 MiB; a KernelError where it is no such file."""
    try:
        # A FIFO without a writer would keep a plain open waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise KernelError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise KernelError(f"{str(path)!r} is {kind}: give a source file")
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > MAX_SOURCE_BYTES:
            raise KernelError(
                f"{str(path)!r} has {found.st_size} bytes: a source has at most {MAX_SOURCE_BYTES}"
            )
        raw = file.read(MAX_SOURCE_BYTES + 1)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise KernelError(f"{str(path)!r} is not UTF-8 text: give a source file") from error


def _check_names(given: str, names: Sequence[str]) -> None:
    """KernelError where a file lacks a name that its form needs."""
    if DECLARED in names or STAR in names:
        return
    if MODEL not in names:
        raise KernelError(
            f"{given!r} defines neither {MODEL} nor {DECLARED}: it holds no problem; write one in "
            "KernelBench's format or in ours"
        )
    missing = [name for name in MODEL_FORM if name not in names]
    if missing:
        raise KernelError(
            f"{given!r} defines no {' and no '.join(missing)}: KernelBench's format has "
            f"{MODEL}, {' and '.join(MODEL_FORM)}"
        )


def _described(request: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """What the file's own process says of it."""
    answer = os.memfd_create("ratchet-problem", os.MFD_CLOEXEC)
    arguments = [str(answer), f"{limit_s:.3f}", str(os.getpid())]
    with os.fdopen(answer, "r", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", KEEPER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(answer,),
            env={**os.environ, **PATIENT},
            start_new_session=True,
            text=True,
        )
        try:
            most_s = WALL_FACTOR * limit_s + KEEPER_GRACE_S  # the keeper itself counts work
            process.communicate(json.dumps(request), timeout=most_s)
        except subprocess.TimeoutExpired:
            return {"fault": f"its file could not be ended within {limit_s:.3g} s"}
        finally:
            _end(process)
        file.seek(0)
        text = file.read()
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"fault": f"its process died (exit code {process.returncode})"}
    return found


def _end(keeper: subprocess.Popen[str]) -> None:
    """Have the keeper end what it keeps, then the keeper itself, where it has not come to that."""
    keeper.terminate()
    try:
        keeper.wait(KEEPER_GRACE_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def _parsed(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        words = getattr(error, "msg", None) or str(error)
        raise KernelError(f"{str(path)!r} is not Python: {words}{where}") from error


def _python_names(body: Sequence[ast.stmt], *, deep: bool = False) -> Iterator[str]:
    """What is defined at the top of a Python file, in order; `deep`: under an `if` or `try` too.

    There is a `*` where all names of another module are imported.
    """
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((one.asname or one.name) for one in node.names)
        elif deep and isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            parts = [part for one in getattr(node, "handlers", ()) for part in one.body]
            parts += getattr(node, "orelse", []) + getattr(node, "finalbody", [])
            yield from _python_names([*node.body, *parts], deep=True)


def _imports(text: str) -> set[str]:
    """The packages that a Python file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _entry(path: Path, names: list[str], source: str, wanted: str | None) -> str:
    in_macro = path.suffix != ".py" and re.search(rf"\b{re.escape(wanted or '')}\b", source)
    if wanted is not None and (wanted in names or in_macro):
        return wanted
    if ANSWER in names:
        return ANSWER
    if wanted is None and len(names) == 1:
        return names[0]
    shown = f"no {wanted!r}" if wanted else "no entry that is obvious"
    raise KernelError(
        f"{str(path)!r} has {shown}: name the function with --entry; it defines "
        f"{', '.join(names[:8]) or 'nothing'}"
    )
