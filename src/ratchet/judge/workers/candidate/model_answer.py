"""Kernels for problems in KernelBench's format, whose entry is a class to be built."""

from __future__ import annotations

from dataclasses import replace

from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.assigned_sizes import Followed
from ratchet.judge.problems.problem import Case, Problem

COMPILED = "torch.compile"


def loaded_by(loader: str, kernel: Kernel, **given: object) -> Kernel:
    """Return a kernel whose entry `loader`, a `module:function`, makes in the sandbox.

    The loader gets the entry's name, and these arguments as literals.
    """
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
    """Return True if a kernel is torch.compile of the problem's own reference."""
    named = kernel.name == COMPILED  # cheap: its hash reads many files
    return named and kernel == built_in_kernel(problem, COMPILED)
