"""Verdicts by texts alone: found before a problem's file runs and before torch is imported.

An emulated verdict times nothing. It follows from the texts of kernel, problem, Ratchet and
compiler if neither file can read anything else. A file that might is judged anew.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ratchet.base import FOLDER
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.options import Scale
from ratchet.judge.problems.problem import Task, Tier
from ratchet.judge.problems.problem_file import names_a_suites, read_source
from ratchet.judge.targets import targets
from ratchet.judge.trial.processes.built_extensions import uses_extensions

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


def texts_key(
    problem: str | os.PathLike[str],
    kernel: Kernel,
    target: str,
    *,
    entry: str | None,
    tier: Tier | None,
    scale: Scale,
    task: Task | None,
    frozen_weights: bool,
) -> str | None:
    """Return a hash of all that decides an emulated verdict; None if more may decide it.

    `problem` is a file or the name of a suite's problem. Raises KernelError if its file cannot be
    read.
    """
    given = os.fspath(problem)
    text = "" if names_a_suites(given) else read_source(Path(given))
    is_python = kernel.language in WITH_TORCH
    if not _is_closed(text, reads=OPEN_PARTS) or (is_python and not _is_closed(kernel.source)):
        return None
    is_triton = kernel.language == "triton" and not uses_extensions(kernel)
    try:
        toolchain = "" if is_triton else targets().toolchain(target)
    except KernelError:  # the verdict says that there is no compiler
        return None
    parts = [
        *(Path(given).stem, text, kernel.hash, target, entry, tier, scale, task, frozen_weights),
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
        if any(name.partition(".")[0] not in CLOSED for name in _imported(node)):
            return False
    return True


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "" if node.level else node.module or ""


@functools.cache
def package_state() -> str:
    """Return a hash of the names, sizes and times of change of all of Ratchet's files."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if "__pycache__" not in path.parts:
            told = path.stat()
            digest.update(f"{path}:{told.st_size}:{told.st_mtime_ns}\n".encode())
    return digest.hexdigest()
