"""Kernels in Python whose source is more than a function: it builds C++, or holds a class.

C++ that a source in torch builds as it is loaded (`load_inline`) is built once for all its
processes. A candidate's first process builds it, and hands it over before it has seen any input.
Its report is not believed: names, numbers and sizes are bounded, and only the same candidate runs
the files, in the same sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.assigned_sizes import Followed
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.sandbox.shared_memory import PackedFiles

USED: Final = "cpp_extension"
REMEDY: Final = (
    "load_inline and load take C++ for the cores here, and need ninja and a C++ compiler; "
    "or give the C++ source as a .cpp kernel"
)
MOST_FILES: Final = 256
DEEPEST: Final = 4
_PART: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.+-]{1,120}")


_OF_A_BUILD: Final = re.compile(
    r"building extension|[Nn]inja|[Cc]ompiler|CUDA_HOME|nvcc|g\+\+|\.so\b|fatal error|Python\.h"
)


class NoFiles(ValueError):
    """The answer is not a list of files."""


def uses_extensions(kernel: Kernel) -> bool:
    """Return True if a kernel's text names torch's module that builds extensions."""
    return kernel.language in WITH_TORCH and USED in kernel.source


def remedy_for(kernel: Kernel, reply: Mapping[str, object]) -> str:
    """Return the remedy if a kernel could not be loaded because its extension was not built."""
    error = reply.get("error")
    words = str(error.get("message")) if isinstance(error, dict) else ""
    return REMEDY if uses_extensions(kernel) and _OF_A_BUILD.search(words) else ""


def checked(told: object, descriptor: int) -> PackedFiles | None:
    """Return the reported files of a sealed descriptor; None if there are none."""
    files = _checked(told, os.fstat(descriptor).st_size)
    return PackedFiles(files=files, descriptor=descriptor) if files else None


def _checked(told: object, size: int) -> list[tuple[str, int, int]]:
    if not isinstance(told, list) or len(told) > MOST_FILES:
        raise NoFiles("no list of files")
    for one in told:
        if not (isinstance(one, list) and [type(part) for part in one] == [str, int, int]):
            raise NoFiles("no name, time and size")
        parts = one[0].split("/")
        if len(parts) > DEEPEST or not all(_PART.fullmatch(part) for part in parts):
            raise NoFiles("a name that no build gives")
        if not (0 <= one[1] < 1 << 62 and 0 <= one[2] <= size):
            raise NoFiles("a time or size out of bounds")
    if sum(one[2] for one in told) != size:
        raise NoFiles("sizes that do not add up")
    names = [one[0] for one in told]
    folders = {str(parent) for name in names for parent in Path(name).parents}
    if len(set(names)) < len(names) or folders & set(names):
        raise NoFiles("a name that stands twice")
    return [(name, changed_ns, count) for name, changed_ns, count in told]


# Kernels for problems in KernelBench's format, whose entry is a class to be built.

COMPILED = "torch.compile"


def loaded_by(loader: str, kernel: Kernel, **given: object) -> Kernel:
    """Return a kernel whose entry `loader`, a `module:function`, makes in the sandbox."""
    module, _, function = loader.partition(":")
    call = f"{function}(entry={kernel.entry!r}, **{given!r})"
    source = f"from {module} import {function}\n\n{kernel.entry} = {call}\n"
    return replace(kernel, source=source)


def runnable(
    kernel: Kernel, problem: Problem, device: str | None = None, case: Case | None = None
) -> Kernel:
    """Return the kernel as the worker calls it, f(*tensors, scalars), for any form of problem.

    A model is built on `device` (torch's name), or on the machine's cores if it is None. Sizes that
    its file repeats follow those of the problem, which may have been shrunk, and the rows of `case`
    if it is given.
    """
    if problem.model is None or kernel.language not in WITH_TORCH or not problem.cases:
        return kernel
    form = problem.model
    specs = problem.cases[0].inputs[: len(form.state)]
    given: dict[str, object] = {
        "init": form.init,
        "arguments": form.arguments,
        "state": [
            (name, spec.shape, spec.dtype) for name, spec in zip(form.state, specs, strict=True)
        ],
        "attributes": form.attributes,
        "training": form.training,
        "drawn": form.drawn,
        "frozen": form.frozen,
        "alone": form.alone,
    }
    if device is not None:
        given["device"] = device
    if is_compiled_reference(kernel, problem):
        inputs = problem.cases[0].inputs[len(form.state) :]
        given["warm_up"] = [(spec.shape, spec.dtype) for spec in inputs]
    given["source"] = followed(kernel, problem, case).source
    return loaded_by("ratchet.judge.workers.candidate.model_class:load_model", kernel, **given)


def followed(kernel: Kernel, problem: Problem, case: Case | None = None) -> Kernel:
    """Return a kernel whose own sizes follow those of a model's problem, and a case's rows."""
    form = problem.model
    if form is None or kernel.language not in WITH_TORCH or is_compiled_reference(kernel, problem):
        return kernel
    text = Followed.of_shrunk(problem.text, form.shrunk).applied(kernel.source)
    if case is not None:
        count, given = len(form.state), problem.cases[0].inputs
        pairs = zip(given[count:], case.inputs[count:], strict=True)
        rows = {(one.shape[0], two.shape[0]) for one, two in pairs if one.shape != two.shape}
        if len(rows) == 1:
            ((old, new),) = rows
            others = {size for spec in given[:count] for size in spec.shape}
            others |= {size for spec in given[count:] for size in spec.shape[1:]}
            text = Followed.of_rows(problem.text, old, new, others).applied(text)
    return replace(kernel, source=text)


def is_compiled_reference(kernel: Kernel, problem: Problem) -> bool:
    named = kernel.name == COMPILED  # cheap: its hash reads many files
    return named and kernel == built_in_kernel(problem, COMPILED)
