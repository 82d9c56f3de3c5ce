"""`ratchet.judge(kernel, problem)`: one verdict from a path or a name, as a library call."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Unpack

from ratchet.base import FOLDER
from ratchet.base.errors import KernelError, LedgerError, RatchetError
from ratchet.base.files import LEDGER
from ratchet.base.process import ends_within
from ratchet.judge.api import as_kernel, as_problem, check_texts
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import imported_packages, names_a_suites, read_source
from ratchet.judge.sandbox.accelerator import may_use_gpu
from ratchet.judge.targets import targets
from ratchet.judge.terms import JudgedKernel, Options, Terms, parse_threads, signature_with
from ratchet.judge.trial.sources import uses_extensions
from ratchet.judge.verdict import Verdict

# Verdicts by texts alone: found before a problem's file runs and before torch is imported.
#
# An emulated verdict times nothing. It follows from the texts of kernel, problem, Ratchet and
# compiler if neither file can read anything else. A file that might is judged anew.

CLOSED: Final = frozenset(
    {
        *("__future__", "abc", "collections", "copy", "dataclasses", "enum", "functools"),
        *("itertools", "math", "numpy", "operator", "ratchet", "torch", "triton", "typing"),
        "typing_extensions",
    }
)
"""Packages that decide nothing by other files. Their versions are part of the key, or of the
ledger's fingerprint."""
OPEN_NAMES: Final = frozenset(("__import__", "compile", "eval", "exec", "open"))
OPEN_PARTS: Final = frozenset(
    ("from_file", "fromfile", "genfromtxt", "hub", "load", "load_library", "loadtxt", "memmap")
)
"""Functions of torch and numpy that read files."""


def texts_key(problem: str | os.PathLike[str], kernel: Kernel, terms: Terms) -> str | None:
    """Return a hash of all that decides an emulated verdict; None if more may decide it.

    `problem` is a file or the name of a suite's problem. Raises KernelError if its file cannot be
    read.
    """
    assert terms.target is not None
    given = os.fspath(problem)
    text = "" if names_a_suites(given) else read_source(Path(given))
    is_python = kernel.language in WITH_TORCH
    if not _is_closed(text, reads=OPEN_PARTS) or (is_python and not _is_closed(kernel.source)):
        return None
    is_triton = kernel.language == "triton" and not uses_extensions(kernel)
    try:
        toolchain = "" if is_triton else targets().toolchain(terms.target)
    except KernelError:  # the verdict says that there is no compiler
        return None
    parts = [
        *(Path(given).stem, text, kernel.hash, terms.target, terms.entry, terms.tier),
        *(terms.scale, terms.task, terms.frozen_weights),
        *(package_state(), len(os.sched_getaffinity(0)), importlib.metadata.version("numpy")),
        toolchain,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_closed(text: str, *, reads: frozenset[str] = frozenset()) -> bool:
    """Return True if a Python text imports only CLOSED packages, and names nothing that reads."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in OPEN_NAMES:
            return False
        if isinstance(node, ast.Attribute) and node.attr in reads:
            return False
    return imported_packages(tree) <= CLOSED


@functools.cache
def package_state() -> str:
    """Return a hash of the names, sizes and times of change of all of Ratchet's files."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if "__pycache__" not in path.parts:
            told = path.stat()
            digest.update(f"{path}:{told.st_size}:{told.st_mtime_ns}\n".encode())
    return digest.hexdigest()


LOG = logging.getLogger(__name__)


def judge(
    kernel: Kernel | str | os.PathLike[str],
    problem: Problem | str | os.PathLike[str],
    *,
    threads: int | None = None,
    **options: Unpack[Options],
) -> Verdict:
    """Judge one kernel on one problem now, and store the verdict in the ledger.

    `kernel` is a file (.cpp, .py) or a Kernel; `problem` a file in KernelBench's form or ours, the
    name of a suite's problem, or a Problem, such as the `PROBLEM` that is imported from its file.
    `tier` picks its cases: by default those of tier cpu of a problem that is named or read, or of
    what other tier it has, and all that a Problem has. `entry` is the function to call if the
    file does not say it by its problem's name. `scale` shrinks a KernelBench problem.
    `time_limit_s`, seconds or a text such as `5m`, is for reading a problem's file and judging
    together. `task` says whether the work must run in the kernel's own code; by default the problem
    says so. `device` is `cpu`, `cuda` or `cuda:N` (ROCm too): by default a kernel in
    Triton takes a GPU where there is one, and every other the machine's cores. `target`, an
    AMD GPU such as `gfx942`, judges a kernel in Triton or HIP by that GPU's machine code, emulated;
    nothing is timed then. `profile` adds the static profile of a kernel in Triton or HIP, and with
    `target` the bound of the reference's compiled kernels. With `frozen_weights`, a KernelBench
    model's weights are those that its constructor draws and never change, so a kernel may fold
    them; that is another problem for the ledger. `seed` is for tests: a verdict with one is not
    stored.

    The ledger is the one that RATCHET_LEDGER names, or the default file. If the default file cannot
    be written, a warning says so and the verdict is not stored. Raises RatchetError: a file that
    cannot be read or is not what it should be, an unknown name, a value that an argument cannot
    have, a ledger that RATCHET_LEDGER names and that fails.
    """
    threads, terms = parse_threads(threads), Terms.of(**options)
    read = check_texts(problem, kernel, entry=terms.entry, run_here=terms.target is None)
    with _own_court(threads) as court:
        return judge_named(court, kernel, problem, terms, read=read).verdict


judge.__signature__ = signature_with(Options, judge)  # type: ignore[attr-defined]


def judge_named(
    court: Court,
    kernel: Kernel | str | os.PathLike[str],
    problem: Problem | str | os.PathLike[str],
    terms: Terms,
    *,
    read: Kernel | None = None,
    warn: Callable[[float], None] | None = None,
    fresh: bool = True,
) -> JudgedKernel:
    """Read a problem and a kernel and judge them, both within the limit of `terms`.

    Unless `fresh`, the ledger may answer for a kernel that is emulated (`texts_key`).
    What is compiled once for a target is compiled before the limit begins.
    `read` is the kernel that `check_texts` returned. `warn` gets the seconds that a whole verdict
    takes here if the limit is shorter.
    """
    key, known = None, kernel if isinstance(kernel, Kernel) else read
    target = terms.target
    if target is not None:
        if terms.scale == "auto":
            terms = replace(terms, scale="emulated")
        if read is not None and not isinstance(problem, Problem):
            key = texts_key(problem, read, terms)
        if key is not None and not fresh:
            answered = court.known_by_texts(key, terms)
            if answered is not None:
                return answered
        if known is not None:
            targets().make_ready(known, target)
    began = time.monotonic()
    with ends_within(terms.time_limit_s):
        if read is not None and terms.device in ("auto", "cpu"):  # beside the problem's process
            court.begin("torch" if target else read.language)
        runs_on_gpu = target is None and (
            terms.device.startswith("cuda")
            or (known is not None and may_use_gpu(known, terms.device))
        )
        asked = as_problem(problem, terms, describe=court.describe, on_gpu=runs_on_gpu)
        given = as_kernel(kernel, asked, entry=terms.entry)
        if target is not None:
            given = _for_target(given, target)
        elif warn is not None:
            expected_s = court.expected_s(given, asked, terms)
            if expected_s > terms.time_limit_s:
                warn(expected_s)
        spent = replace(terms, spent_s=time.monotonic() - began)
        judged = court.judge(given, asked, spent, fresh=True)
    if key is not None and terms.seed is None:
        court.keep_texts(key, judged)
    return judged


def _for_target(kernel: Kernel, target: str) -> Kernel:
    """Return a kernel that can be emulated, ported if it is CUDA; raises RatchetError."""
    is_cuda = kernel.language == "hip" or uses_extensions(kernel)
    if kernel.language != "triton" and not is_cuda:
        raise RatchetError(
            f"target {target} is for kernels in Triton, HIP or CUDA: this is {kernel.language}"
        )
    return targets().ported(kernel) if is_cuda else kernel


def _own_court(threads: int | None) -> Court:
    """Open a court over the default ledger; one in memory if that cannot be written."""
    named = bool(os.environ.get(LEDGER))
    try:
        return Court(threads=threads, must_keep=named)
    except LedgerError as error:
        if named:
            raise
        LOG.warning("the verdict is not stored: %s", error)
        return Court("sqlite://", threads=threads, must_keep=False)
