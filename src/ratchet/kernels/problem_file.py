"""Problems and kernels from files; a problem's file only runs in separate processes.

A problem's file has one of two forms. KernelBench's form holds `class Model(nn.Module)`,
`get_inputs()` and `get_init_inputs()`. Its kernel is a file with `class ModelNew(nn.Module)`, built
with the same arguments and with parameters and buffers of the same names. The harness sets their
values before each call; docs/kernelbench.md lists further state and how a kernel in C++ is called.
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from ratchet import files, watchdog
from ratchet.errors import KernelError
from ratchet.kernels.at_work import WALL_FACTOR
from ratchet.kernels.carried_modules import with_modules
from ratchet.kernels.kernel import Kernel, Language
from ratchet.kernels.problem import JUDGED_AT, Problem, Tier, reference_text
from ratchet.kernels.problem_card import ANSWER, ProblemCard, card_of

Scale = float | Literal["auto"] | None
MAX_SOURCE_BYTES: Final = 4 << 20
LOADING_LIMIT_S: Final = 180.0
"""Where nobody gives another."""
KEEPER: Final = "ratchet.kernels.file_keeper"
KEEPER_GRACE_S: Final = 3.0
LONGEST_WAIT_S: Final = 1e6
"""poll(2) takes milliseconds in 31 bits."""
PATIENT: Final = {"OMP_WAIT_POLICY": "passive"}
"""As in the judge's workers: threads that spin while they wait slow down a busy machine, and `auto`
would take the spinning for work."""
MODEL, DECLARED, STAR = "Model", "PROBLEM", "*"
_DEVICE_DECORATORS: Final = ("jit", "autotune", "heuristics")
MODEL_FORM: Final = ("get_inputs", "get_init_inputs")
"""What else a file in KernelBench's format defines."""
LANGUAGES: Final[dict[str, Language]] = {
    ".cpp": "cpp",
    ".cc": "cpp",
    ".cxx": "cpp",
    ".py": "torch",
    ".hip": "hip",
}
_C_ASIDE = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*define\b[^\n]*|__attribute__\s*\(\(.*?\)\)",
    re.DOTALL | re.MULTILINE,
)
"""Comments, macros and attributes, which hold the words of an entry and are none."""
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
    if _names_a_suites(given):
        from ratchet.kernels.suites import find_problem

        return find_problem(given).at(*tiers)
    text, _, names = _read_problem(given)
    found = _described(_request(path, text, names, scale), time_limit_s)
    if "problem" in found:
        problem = Problem.from_json(found["problem"])
        return problem if problem.model is not None else problem.at(*tiers)
    return Problem(name=path.stem, reference="file:", cases=(), text=text, fault=found["fault"])


def load_card(
    path_or_name: str | os.PathLike[str],
    *,
    scale: Scale = "auto",
    time_limit_s: float = LOADING_LIMIT_S,
) -> tuple[Problem, ProblemCard]:
    """A problem with all its cases, and what one must know to write a kernel for it.

    Raises what `load_problem` does, and a KernelError for a problem with a fault.
    """
    given = os.fspath(path_or_name)
    if _names_a_suites(given):
        from ratchet.kernels.suites import find_problem

        problem = find_problem(given)
        return problem, card_of(problem, given=given, entry=default_entry(given))
    text, tree, names = _read_problem(given)
    name = (_declared_name(tree) if DECLARED in names else None) or Path(given).stem
    request = _request(Path(given), text, names, scale) | {
        "given": given,
        "entry": default_entry(name),
    }
    found = _described(request, time_limit_s)
    if "fault" in found:
        raise KernelError(f"problem {given!r} cannot be shown: {found['fault']}")
    return Problem.from_json(found["problem"]), ProblemCard.from_json(found["card"])


def default_entry(problem: str) -> str:
    """What a kernel of the problem of that name is called where nobody says otherwise.

    A name that is no identifier is made one: `1_relu-like` is `kernel_1_relu_like`.
    """
    word = re.sub(r"\W", "_", problem)
    return word if word.isidentifier() else f"kernel_{word}"


def _request(path: Path, text: str, names: Sequence[str], scale: Scale) -> dict[str, Any]:
    """What a file's own process is asked."""
    return {
        "text": text,
        "name": path.stem,
        "scale": scale,
        "declared": DECLARED in names,
        "threads": len(os.sched_getaffinity(0)),
    }


def problem_name(path_or_name: str | os.PathLike[str]) -> str | None:
    """The name of a problem as its text shows it, before anything of it is loaded or run.

    None where a file in our form does not spell it out. Raises what `load_problem` raises for a
    text that holds no problem and for an unknown name.
    """
    given = os.fspath(path_or_name)
    if _names_a_suites(given):
        from ratchet.kernels.suites import family_of

        return given if family_of(given) else None
    _, tree, names = _read_problem(given)
    return _declared_name(tree) if DECLARED in names else Path(given).stem


def _names_a_suites(given: str) -> bool:
    """Whether a text is the name of a suite's problem, rather than a path."""
    path = Path(given)
    return not (path.suffix or os.sep in given or path.exists())


def _read_problem(given: str) -> tuple[str, ast.Module, list[str]]:
    """The text of a problem's file, parsed, and the names that it defines."""
    path = Path(given)
    text = read_source(path)
    tree = _parsed(path, text)
    names = list(_python_names(tree.body, deep=True))
    _check_names(given, names)
    return text, tree, names


def _declared_name(tree: ast.Module) -> str | None:
    """The `name` of the one `PROBLEM = Problem(...)`, where it is a plain text."""
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
    `entry` is taken where the file has it, else `ModelNew`. The file's only public function is
    taken where no entry is given, or with `or_only_one`. A kernel that will not be `called`, as its
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
        body = _parsed(path, source).body
        names, offered = list(_python_names(body)), _python_entries(body)
        imported = _imports(source)
        if language is None and "triton" in imported:
            spoken = "triton"
    else:
        names = offered = _C_ENTRY.findall(_C_ASIDE.sub(" ", source))
    if or_only_one and len(offered) == 1:
        entry = offered[0]
    chosen = _entry(path, names, offered, source, entry) if called else ""
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
        raise KernelError(f"{str(path)!r} is {files.kind(found.st_mode)}: give a source file")
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
            start_new_session=True,
            env=watchdog.environment({**os.environ, **PATIENT}),
            text=True,
        )
        try:
            # The keeper itself counts work.
            most_s = min(WALL_FACTOR * limit_s + KEEPER_GRACE_S, LONGEST_WAIT_S)
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


def _python_entries(body: Sequence[ast.stmt]) -> list[str]:
    """The names in a Python file that are meant to be called as kernels, in order.

    Public functions that are no kernels of Triton's, and `ModelNew`; where there are none, what a
    call made, such as `torch.compile(f)`.
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
    """Whether a function is launched by Triton instead of called: `@triton.jit` and its like."""
    called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(ast.unparse(one).split(".")[-1] in _DEVICE_DECORATORS for one in called)


def _entry(
    path: Path, names: list[str], offered: list[str], source: str, wanted: str | None
) -> str:
    in_macro = path.suffix != ".py" and re.search(rf"\b{re.escape(wanted or '')}\b", source)
    if wanted is not None and (wanted in names or in_macro):
        return wanted
    if ANSWER in names:
        return ANSWER
    if wanted is None and len(offered) == 1:
        return offered[0]
    shown = f"no {wanted!r}" if wanted else "no entry that is obvious"
    raise KernelError(
        f"{str(path)!r} has {shown}: name the function with --entry; its entries are "
        f"{', '.join(offered[:8])}"
        if offered
        else f"{str(path)!r} has {shown}: it defines no entry, so write that function"
    )
