"""Problems and kernels from files; a problem's file runs in processes of its own, never here.

A problem's file has one of two forms. KernelBench's: `class Model(nn.Module)`, `get_inputs()` and
`get_init_inputs()`; a kernel for it is a file with `class ModelNew(nn.Module)`, built with the same
arguments and with parameters and buffers of the same names, whose values the harness sets before
each call. The model is in training mode, as in KernelBench, or in eval mode where it is random in
training mode; new values of buffers are not compared. Ours:

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
import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal

from ratchet.errors import KernelError
from ratchet.kernels.kernel import Kernel, Language
from ratchet.kernels.problem import Problem, Tier, reference_text

Scale = float | Literal["auto"] | None
MAX_SOURCE_BYTES: Final = 4 << 20
DESCRIBE_LIMIT_S: Final = 180.0
WORKER: Final = "ratchet.kernels.file_worker"
MODEL, ANSWER, DECLARED = "Model", "ModelNew", "PROBLEM"
LANGUAGES: Final[dict[str, Language]] = {
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".py": "torch",
    ".hip": "hip",
}
_C_ENTRY = re.compile(r'(?:RATCHET_ENTRY|extern\s+"C"\s+[\w\s]+?)\s*\b(\w+)\s*\(')


def load_problem(
    path_or_name: str | os.PathLike[str], *, scale: Scale = "auto", tier: Tier = "cpu"
) -> Problem:
    """The problem of a file, or of a suite by its name.

    `scale` shrinks a problem in KernelBench's format; `tier` picks cases in ours. A file that is
    read but cannot be judged gives a problem with a `fault`, which the judge refuses.

    Raises:
        KernelError: what is no readable Python file with a problem in it, or an unknown name.
    """
    given = os.fspath(path_or_name)
    path = Path(given)
    if not (path.suffix or os.sep in given or path.exists()):
        from ratchet.kernels.suites import find_problem

        return find_problem(given).at(tier)
    text = read_source(path)
    names = _python_names(path, text)
    if DECLARED not in names and MODEL not in names:
        raise KernelError(
            f"{given!r} defines neither {MODEL} nor {DECLARED}: it holds no problem; write one in "
            "KernelBench's format or in ours"
        )
    request = {
        "text": text,
        "name": path.stem,
        "scale": scale,
        "tier": tier,
        "declared": DECLARED in names,
        "threads": len(os.sched_getaffinity(0)),
    }
    found = _described(request)
    if "problem" in found:
        return Problem.from_json(found["problem"])
    return Problem(name=path.stem, reference="file:", cases=(), text=text, fault=found["fault"])


def load_kernel(
    path: str | os.PathLike[str], *, entry: str | None = None, language: Language | None = None
) -> Kernel:
    """The kernel of a file; nothing of it is run.

    The language follows from the file's ending; a .py file that imports triton is in triton.
    `entry` is taken where the file has it, else `ModelNew`, else the only function there is.

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
        names = _python_names(path, source)
        imported = _imports(source)
        if language is None and "triton" in imported:
            spoken = "triton"
    else:
        names = _C_ENTRY.findall(source)
    return Kernel(
        name=path.stem, language=spoken, source=source, entry=_entry(path, names, source, entry)
    )


def built_in_kernel(problem: Problem, candidate: str) -> Kernel:
    """Torch itself as a kernel: the problem's own reference, `eager` or under `torch.compile`."""
    compiled = candidate == "torch.compile"
    if problem.model is not None:
        ending = _COMPILED_MODEL if compiled else f"\n\n{ANSWER} = {MODEL}\n"
        return Kernel(name=candidate, language="torch", source=problem.text + ending, entry=ANSWER)
    source = problem.text or reference_text(problem.reference)
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


def _described(request: dict[str, Any]) -> dict[str, Any]:
    """What the file's own process says of it."""
    answer = os.memfd_create("ratchet-problem", os.MFD_CLOEXEC)
    command = [sys.executable, "-P", "-m", WORKER, str(answer)]
    with os.fdopen(answer, "r", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(answer,),
            start_new_session=True,
            text=True,
        )
        try:
            process.communicate(json.dumps(request), timeout=DESCRIBE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"fault": f"it did not come to an end within {DESCRIBE_LIMIT_S:.0f} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        text = file.read()
    if not text:
        return {"fault": f"its process died (exit code {process.returncode})"}
    found: dict[str, Any] = json.loads(text)
    return found


def _parsed(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        words = getattr(error, "msg", None) or str(error)
        raise KernelError(f"{str(path)!r} is not Python: {words}{where}") from error


def _python_names(path: Path, text: str) -> list[str]:
    """What is defined at the top of a Python file, in order."""
    names: list[str] = []
    for node in _parsed(path, text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [one.id for one in node.targets if isinstance(one, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [(one.asname or one.name) for one in node.names]
    return names


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
