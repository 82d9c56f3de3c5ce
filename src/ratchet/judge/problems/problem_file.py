"""Problems from files; a problem's file only runs in separate processes.

A problem's file has one of two forms. KernelBench's form holds `class Model(nn.Module)`,
`get_inputs()` and `get_init_inputs()`. Its kernel is a file with `class ModelNew(nn.Module)`, built
with the same arguments. The harness sets the values of its state before each call;
docs/how-to/kernelbench.md states the contract, and how a kernel in C++ is called.
The model runs in training mode, as in KernelBench, or in eval mode if it is random in training
mode. New values of buffers are not compared. Our form:

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
may be `scaled_backward = gradient_of(scaled, inputs=(0, 1))`, with `gradient_of` from ratchet. It
takes the gradient of the output, then the forward's inputs.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

import msgspec

from ratchet.base import files
from ratchet.base.errors import KernelError
from ratchet.base.process import WALL_FACTOR, watchdog
from ratchet.base.process.channel import Message
from ratchet.judge.problems import file_keeper
from ratchet.judge.problems.assigned_sizes import rewritten
from ratchet.judge.problems.card import ProblemCard, card_of
from ratchet.judge.problems.case import Scale
from ratchet.judge.problems.file_keeper import DECLARED
from ratchet.judge.problems.problem import JUDGED_AT, Problem, Tier

MAX_SOURCE_BYTES: Final = 4 << 20
LOADING_LIMIT_S: Final = 180.0  # The default
TORCH: Final = "torch"
KEEPER_GRACE_S: Final = 3.0
LONGEST_WAIT_S: Final = 1e6  # Largest timeout: poll(2) takes milliseconds in 31 bits
Describe = Callable[[Message, float], Message]
"""Runs a problem's file in a process of its own, given the request and the limit in seconds of
work; returns its answer, or a `fault`."""
PATIENT: Final = {"OMP_WAIT_POLICY": "passive"}
"""The setting of the judge's workers: spinning threads slow down a busy machine, and `auto` would
count the spinning as work."""
MODEL, STAR = "Model", "*"
MODEL_FORM: Final = ("get_inputs", "get_init_inputs")
"""The other names that a KernelBench file defines."""


def load_problem(
    path_or_name: str | os.PathLike[str],
    *,
    scale: Scale = "auto",
    tiers: Sequence[Tier] = JUDGED_AT,
    time_limit_s: float = LOADING_LIMIT_S,
    describe: Describe | None = None,
) -> Problem:
    """Return the problem of a file, or of a suite by its name.

    `scale` shrinks a problem in KernelBench's format. A problem in our format gets the cases of the
    first of `tiers` that it has. If a file is readable but cannot be judged, or exceeds the limit,
    its problem has a `fault`, and the judge refuses it. `describe` runs the file in place of
    `described`. It also reads a suite's problem if this process has not imported torch, which takes
    longer than all else here. Raises KernelError: a file that is unreadable or holds no problem, an
    unknown name, or a problem with none of the tiers.
    """
    given = os.fspath(path_or_name)
    path = Path(given)
    if names_a_suites(given):
        from ratchet.judge.problems.suites import family_of, find_problem

        family_of(given)
        if describe is None or TORCH in sys.modules:
            return find_problem(given).at(*tiers)
        text = ""
        request: Message = {
            "by": family_of.__module__,
            "name": given,
            "threads": len(os.sched_getaffinity(0)),
        }
    else:
        text, _, names = _read_problem(given)
        request = _request(path, text, names, scale)
    found = (describe or described)(request, time_limit_s)
    if "problem" in found:
        problem = Problem.from_json(found["problem"])
        return problem if problem.model is not None else problem.at(*tiers)
    return Problem(name=path.stem, reference="file:", cases=(), text=text, fault=found["fault"])


def at_own_sizes(
    problem: Problem, *, describe: Describe, time_limit_s: float, emulated: bool
) -> Problem:
    """Return a model's problem at the sizes of its file, some of which were shrunk.

    Nothing is timed at them. It has a `fault` if they do not fit here: into memory, or into the
    time of a verdict.
    """
    form = problem.model
    assert form is not None
    text = rewritten(problem.text, {one.name: one.old for one in form.shrunk})
    request: Message = {
        "text": text,
        "name": problem.name,
        "scale": None,
        "within": "emulated" if emulated else "auto",
        "declared": False,
        "threads": len(os.sched_getaffinity(0)),
    }
    found = describe(request, time_limit_s)
    if "fault" in found:
        return replace(problem, text=text, fault=found["fault"])
    own = Problem.from_json(found["problem"])
    assert own.model is not None
    own = replace(own, task=problem.task, model=replace(own.model, frozen=form.frozen))
    return own if emulated else own.untimed()


def load_card(
    path_or_name: str | os.PathLike[str],
    *,
    scale: Scale = "auto",
    time_limit_s: float = LOADING_LIMIT_S,
) -> tuple[Problem, ProblemCard]:
    """Return a problem with all its cases, and its card for a kernel's author.

    Raises the errors of `load_problem`, and a KernelError for a problem with a fault.
    """
    given = os.fspath(path_or_name)
    if names_a_suites(given):
        from ratchet.judge.problems.suites import find_problem

        problem = find_problem(given)
        return problem, card_of(problem, given=given, entry=default_entry(given))
    text, tree, names = _read_problem(given)
    name = (_declared_name(tree) if DECLARED in names else None) or Path(given).stem
    request = _request(Path(given), text, names, scale) | {
        "given": given,
        "entry": default_entry(name),
    }
    found = described(request, time_limit_s)
    if "fault" in found:
        raise KernelError(f"problem {given!r} cannot be shown: {found['fault']}")
    return Problem.from_json(found["problem"]), msgspec.convert(found["card"], ProblemCard)


def default_entry(problem: str) -> str:
    """Return the default entry of a problem's kernels.

    A name that is no identifier becomes one: `1_relu-like` is `kernel_1_relu_like`.
    """
    word = re.sub(r"\W", "_", problem)
    return word if word.isidentifier() else f"kernel_{word}"


def _request(path: Path, text: str, names: Sequence[str], scale: Scale) -> Message:
    return {
        "text": text,
        "name": path.stem,
        "scale": scale,
        "declared": DECLARED in names,
        "threads": len(os.sched_getaffinity(0)),
    }


def problem_name(path_or_name: str | os.PathLike[str]) -> str | None:
    """Return a problem's name from its text alone, before anything is loaded or run.

    None if a file in our form does not spell it out. Raises the errors of `load_problem` for a text
    without a problem and for an unknown name.
    """
    given = os.fspath(path_or_name)
    if names_a_suites(given):
        from ratchet.judge.problems.suites import family_of

        return given if family_of(given) else None
    _, tree, names = _read_problem(given)
    return _declared_name(tree) if DECLARED in names else Path(given).stem


def holds_model(path_or_name: str | os.PathLike[str]) -> bool:
    """Return whether a problem is in KernelBench's form, from its text alone."""
    given = os.fspath(path_or_name)
    return not names_a_suites(given) and DECLARED not in _read_problem(given)[2]


def names_a_suites(given: str) -> bool:
    """Return whether a text is the name of a suite's problem, not a path."""
    path = Path(given)
    return not (path.suffix or os.sep in given or path.exists())


def _read_problem(given: str) -> tuple[str, ast.Module, list[str]]:
    """Return the parsed text of a problem's file, and the names that it defines."""
    path = Path(given)
    text = read_source(path)
    tree = parsed(path, text)
    names = list(python_names(tree.body, deep=True))
    _check_names(given, names)
    return text, tree, names


def _declared_name(tree: ast.Module) -> str | None:
    """Return the `name` of the only `PROBLEM = Problem(...)`, if it is a literal."""
    declared = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and DECLARED in map(ast.unparse, node.targets)
    ]
    call = declared[0] if len(declared) == 1 else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func).split(".")[-1] != "Problem":
        return None
    named = [one.value for one in call.keywords if one.arg == "name"]
    if len(named) != 1 or not isinstance(named[0], ast.Constant):
        return None
    return named[0].value if isinstance(named[0].value, str) else None


def with_text(problem: Problem) -> Problem:
    """Return a Problem that was imported from its file with that file's text; any other unchanged.

    Such a Problem names only functions of its file. Its file is found among the imported modules:
    it is the one whose PROBLEM this is.
    """
    if problem.text or ":" in problem.reference:
        return problem
    for name, module in list(sys.modules.items()):
        defined = getattr(module, "__dict__", {})
        declares = bool(defined.get(DECLARED) is problem) and problem.reference in defined
        if declares and name != "__main__" and defined.get("__file__"):
            return replace(problem, text=read_source(Path(defined["__file__"])))
    return problem


def read_source(path: Path) -> str:
    """Return the text of a file of at most 4 MiB; a KernelError for any other file."""
    try:
        # A plain open of a FIFO without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise KernelError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise KernelError(f"{str(path)!r} is {files.kind(found.st_mode)}: give a source file")
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size > MAX_SOURCE_BYTES:
            raise KernelError(
                f"{str(path)!r} has {found.st_size} bytes: give at most {MAX_SOURCE_BYTES}"
            )
        raw = file.read(MAX_SOURCE_BYTES + 1)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise KernelError(f"{str(path)!r} is not UTF-8 text: give a source file") from error


def _check_names(given: str, names: Sequence[str]) -> None:
    """Raise a KernelError if a file lacks a name that its form needs."""
    if DECLARED in names or STAR in names:
        return
    if MODEL not in names:
        raise KernelError(
            f"{given!r} defines neither {MODEL} nor {DECLARED}, so it holds no problem: define "
            f"{MODEL} for KernelBench's format or {DECLARED} for ours"
        )
    missing = [name for name in MODEL_FORM if name not in names]
    if missing:
        raise KernelError(
            f"{given!r} defines no {' and no '.join(missing)}: KernelBench's format needs "
            f"{MODEL}, {' and '.join(MODEL_FORM)}"
        )


def described(request: Message, limit_s: float) -> Message:
    """Return the answer of the file's own process; `fault` in it says why there is none."""
    answer = os.memfd_create("ratchet-problem", os.MFD_CLOEXEC)
    arguments = [str(answer), f"{limit_s:.3f}", str(os.getpid())]
    with os.fdopen(answer, "r", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", file_keeper.__name__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(answer,),
            start_new_session=True,
            env=watchdog.environment({**os.environ, **PATIENT}),
            text=True,
        )
        try:
            process.communicate(json.dumps(request), timeout=longest_wait_s(limit_s))
        except subprocess.TimeoutExpired:
            return {"fault": f"its file did not end within {limit_s:.3g} s"}
        finally:
            _end(process)
        return read_answer(file, process.returncode)


def longest_wait_s(limit_s: float) -> float:
    """Return how long to wait for a keeper, which itself limits the work."""
    return min(WALL_FACTOR * limit_s + KEEPER_GRACE_S, LONGEST_WAIT_S)


def read_answer(file: TextIO, code: int | None) -> Message:
    """Return what a keeper wrote before it ended; its exit code, if known, is for the fault."""
    file.seek(0)
    try:
        found: Message = json.loads(file.read())
    except ValueError:
        ending = "" if code is None else f" (exit code {code})"
        return {"fault": f"its process died{ending}"}
    return found


def _end(keeper: subprocess.Popen[str]) -> None:
    """Make the keeper end its processes, then end the keeper, if either still runs."""
    keeper.terminate()
    try:
        keeper.wait(KEEPER_GRACE_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()


def parsed(path: Path, text: str) -> ast.Module:
    """Return a Python file's tree; a KernelError names the line that is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        words = getattr(error, "msg", None) or str(error)
        raise KernelError(f"{str(path)!r} is not Python: {words}{where}") from error


def python_names(body: Sequence[ast.stmt], *, deep: bool = False) -> Iterator[str]:
    """Return the names defined at the top of a Python file, in order; `deep` looks into blocks too.

    An import of all names of another module gives a `*`.
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
            yield from python_names([*node.body, *parts], deep=True)


def defined_by(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [one.asname or one.name.partition(".")[0] for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def imported_packages(tree: ast.Module) -> set[str]:
    """Return the packages that a Python file imports anywhere in it; "" for a relative import."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("" if node.level else (node.module or "").partition(".")[0])
    return found
