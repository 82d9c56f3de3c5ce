"""Verdicts on the kernels of a ported tree: each is judged as an AMD GPU's machine code.

A kernel is one file to a judge: an extension's sources become one text, its own headers in place.
Programs with a main of their own run from begin to end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from ratchet.amd.emulator.program import launches_in_words
from ratchet.amd.port.compile import is_clean
from ratchet.amd.port.patch import edited
from ratchet.amd.port.porting import MAIN, RAN, UNTRIED, KernelProof, PortResult
from ratchet.amd.port.program import TreePrograms
from ratchet.amd.port.rule import Severity
from ratchet.amd.port.scan import CPP_SUFFIXES, ScannedFile
from ratchet.base.errors import RatchetError
from ratchet.base.files import why_not_folder
from ratchet.judge.court.calls import judge_named
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import bound_names, is_extension
from ratchet.judge.problems.card import ANSWER
from ratchet.judge.problems.suites import NAMES
from ratchet.judge.terms import Terms

SOURCES: Final = (".cu", ".cpp", ".cc", ".cxx")
INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"][^\n]*$', re.MULTILINE)
ONCE: Final = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PortedKernel:
    """A kernel with the patch, and where it comes from."""

    file: str  # the file that it is reported under
    kernel: Kernel
    sources: tuple[str, ...]  # all files of the tree that it is made of


def left_in(
    sources: Collection[str], scanned: Iterable[ScannedFile], severity: Severity
) -> list[str]:
    """Return the errors or warnings that the patch leaves in some files, with their places."""
    return [
        f"{found.file}:{found.line}: {found.rule} ({found.detail})"
        for one in scanned
        if one.found.name in sources and not (severity == "error" and is_clean(one))
        for found in one.findings
        if found.severity == severity and not found.fixable
    ]


def ported_kernels(scanned: Sequence[ScannedFile]) -> list[PortedKernel]:
    """Return what a tree offers to callers: functions that extensions bind, and `ModelNew`s."""
    texts = {one.found.name: text for one in scanned if (text := _text(one))}
    found, taken = [], set[str]()
    for one in scanned:
        if one.found.kind != "python":
            continue
        name, text = one.found.name, edited(one).decode(errors="replace")
        if one.has_kernels and re.search(rf"^class {ANSWER}\b", text, re.MULTILINE):
            stem = PurePosixPath(name).stem
            kernel = Kernel(name=stem, language="torch", source=text, entry=ANSWER)
            found.append(PortedKernel(file=name, kernel=kernel, sources=(name,)))
        for sources in _built(text, name, texts):
            taken |= {*sources}
            found += _extension(sources, texts)
    for name, text in texts.items():
        if name not in taken and name.endswith(".cu") and is_extension(text):
            found += _extension([name], texts)
    return sorted(found, key=lambda one: (one.file, one.kernel.entry))


def _text(scanned: ScannedFile) -> str:
    """Return a C++ or CUDA file with the patch; "" for other files and those that are not read."""
    found = scanned.found
    if found.kind == "cuda":
        return edited(scanned).decode(errors="replace")
    plain = found.kind is None and not found.skipped and found.path.suffix in CPP_SUFFIXES
    return found.path.read_text(errors="replace") if plain else ""


def _built(text: str, file: str, texts: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the sources of each CUDAExtension of a build script, as files of the tree."""
    if "CUDAExtension" not in text:
        return
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    folder = PurePosixPath(file).parent
    here = f"{folder.as_posix()}/" if folder.parts else ""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("CUDAExtension"):
            words = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            named = [here + one for one in words if isinstance(one, str) and one.endswith(SOURCES)]
            all_here = [one for one in texts if one.startswith(here) and one.endswith(SOURCES)]
            sources = [one for one in named if one in texts] or all_here
            if sources:
                yield sources


def _extension(sources: Sequence[str], texts: Mapping[str, str]) -> Iterator[PortedKernel]:
    text, files = merged(sources, texts)
    for entry in bound_names(text):
        defined = re.compile(rf"\b{entry}\w*\s*\(")
        gpu = (one for one in sources if one.endswith(".cu") and defined.search(texts[one]))
        kernel = Kernel(name=entry, language="hip", source=text, entry=entry)
        yield PortedKernel(file=next(gpu, sources[0]), kernel=kernel, sources=files)


def merged(sources: Sequence[str], texts: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return sources as one text, and the files in it: a header stands where it is first asked for.

    Lines keep their file's name and number for the compiler.
    """
    seen: dict[str, None] = {}

    def whole(name: str) -> str:
        seen[name] = None
        text = ONCE.sub("", texts[name])

        def included(match: re.Match[str]) -> str:
            header = _header(match[1], name, texts)
            if header is None:
                return match[0]
            line = text.count("\n", 0, match.start()) + 2
            return "" if header in seen else f'{whole(header)}\n#line {line} "{name}"'

        return f'#line 1 "{name}"\n{INCLUDE.sub(included, text)}'

    made = "\n".join(whole(one) for one in sources) + "\n"
    return made, tuple(seen)


def _header(path: str, asker: str, texts: Mapping[str, str]) -> str | None:
    """Return the tree's file that an include names: beside the asker, else the one it ends."""
    beside = (PurePosixPath(asker).parent / path).as_posix()
    ends = [one for one in texts if one == path or one.endswith(f"/{path.removeprefix('../')}")]
    return beside if beside in texts else ends[0] if len(ends) == 1 else None


EXECUTED: Final = ("gfx942",)  # targets that a kernel is executed on if none is named
PROBLEMS: Final = "problems"  # the folder of a tree that holds problem files, if no other is named
WARNINGS_SAID: Final = 3  # most warnings that explain a wrong kernel
MOST_SAID: Final = 120  # characters of a program's last line
SIGNALS: Final = 128  # exit codes of what a signal ended are above


def prove(
    result: PortResult,
    court: Court,
    *,
    targets: Sequence[str],
    problems: Path | None = None,
    time_limit_s: float = 300.0,
    say: Callable[[str], None] = lambda _: None,
) -> PortResult:
    """Judge the kernels of a ported tree that have a problem, and run its programs, emulated.

    A problem is the file of `problems` that is named after the function or after the kernel's file;
    else the shipped problem of the function's name. `problems` defaults to the tree's folder of
    that name. `say` gets the name of each kernel before it is judged. Raises RatchetError:
    `problems` is no folder.
    """
    if problems is None:
        problems = Path(result.path) / PROBLEMS
    elif why := why_not_folder(problems):
        raise RatchetError(f"{problems} {why}: name a folder of problem files")
    proofs = []
    for one in ported_kernels(result.scanned):
        problem = problem_of(one, problems)
        errors, warnings = (
            left_in(one.sources, result.scanned, how) for how in ("error", "warning")
        )
        for target in targets:
            if errors:
                status, why = UNTRIED, f"the patch leaves {errors[0]}"
            else:
                say(f"{one.file}: {one.kernel.entry} on {target}")
                terms = Terms(time_limit_s=time_limit_s, target=target)
                status, why = _judged(one, problem, court, terms)
            if status == "wrong" and warnings:
                why += f"; the patch leaves {'; '.join(warnings[:WARNINGS_SAID])}"
            proofs.append(
                KernelProof(
                    file=one.file, entry=one.kernel.entry, target=target, status=status, why=why
                )
            )
    proofs += _programs(result, targets, time_limit_s, say)
    return replace(result, proofs=tuple(proofs))


def _programs(
    result: PortResult, targets: Sequence[str], time_limit_s: float, say: Callable[[str], None]
) -> Iterator[KernelProof]:
    """Yield how each program of a tree ended on each target."""
    root = Path(result.path)
    programs = TreePrograms(root if root.is_dir() else root.parent, result.scanned)
    for units in programs.units():
        errors = left_in(units, result.scanned, "error")
        for target in targets:
            if errors:
                status, why = UNTRIED, f"the patch leaves {errors[0]}"
            else:
                say(f"{units[0]}: {MAIN} on {target}")
                status, why = _ran(programs, units, target, time_limit_s)
            yield KernelProof(file=units[0], entry=MAIN, target=target, status=status, why=why)


def _ran(
    programs: TreePrograms, units: Sequence[str], target: str, time_limit_s: float
) -> tuple[str, str]:
    """Return whether a program ran, and what it launched and said last.

    Only the program itself knows what is right: the proof is its exit code and its launches.
    """
    try:
        ended, said = programs.run(units, target, time_limit_s)
    except RatchetError as error:
        return UNTRIED, str(error)
    last = next((one for one in reversed(said.splitlines()) if one.strip()), "")
    why = f"exit code {ended.exit_code}"
    if ended.launches or ended.faults:
        why = f"{launches_in_words(ended)}, {why}"
    fault = f"; {ended.faults[0].kernel}: {ended.faults[0].reason}" if ended.faults else ""
    why += fault or (f"; it says last: {last.strip()[:MOST_SAID]}" if last else "")
    if not ended.code:
        return RAN, why
    before = not ended.launches and not ended.faults and ended.exit_code < SIGNALS
    return (UNTRIED, f"it ends before a launch: {why}") if before else ("failed", why)


def problem_of(ported: PortedKernel, problems: Path) -> Path | str | None:
    """Return the problem that says what is right for a kernel, or None."""
    for name in _names(ported):
        if (found := problems / f"{name}.py").is_file():
            return found
    entry = ported.kernel.entry
    return entry if any(entry in names for names in NAMES.values()) else None


def _names(ported: PortedKernel) -> Iterator[str]:
    if ported.kernel.entry != ANSWER:
        yield ported.kernel.entry
    yield PurePosixPath(ported.file).stem


def _judged(
    ported: PortedKernel, problem: Path | str | None, court: Court, terms: Terms
) -> tuple[str, str]:
    """Return the verdict's status and why it is not right, or that it was not tried, and why."""
    if problem is None:
        name = " or ".join(f"{PROBLEMS}/{one}.py" for one in _names(ported))
        return UNTRIED, f"no problem says what is right: write {name}"
    try:
        verdict = judge_named(court, ported.kernel, problem, terms).verdict
    except RatchetError as error:
        return UNTRIED, str(error)
    return verdict.status, "" if verdict.status in ("correct", "proven") else verdict.reason
