"""Load a user's own workload: `file.py:function`.

The function returns a ratchet.Workload, a transformers.Trainer, or a script's own `(model,
optimizer, step, batch)`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.blame import blamed_on
from ratchet.train.workloads.names import user_file, user_function
from ratchet.train.workloads.own_step import ScriptStep
from ratchet.train.workloads.trainer import is_trainer, trainer_workload
from ratchet.train.workloads.workload import ALONE, Request, Workload

_importing: list[str] = []
"""Files that are being imported, innermost last."""


def load_user(spec: str, request: Request) -> Workload:
    """Import the file, call the function, and check the result.

    The seed is set before the call, so the same seed gives the same weights. Raises WorkloadError,
    in one line, for a missing file or function, an exception in the user's code (with its file and
    line), or a result that is not a Workload.
    """
    path, function_name = user_file(spec), user_function(spec)
    make = _function(path, function_name, spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        with blamed_on(f"workload {spec!r}", file=path), _without_options(path):
            result = make()
            if is_trainer(result):
                result = trainer_workload(result, spec, request)
    return replace(accepted(result, spec, request), source=spec)


def _function(path: Path, name: str, spec: str) -> Callable[[], object]:
    module = import_file(path, spec)
    function = getattr(module, name, None)
    if callable(function):
        result: Callable[[], object] = function
        return result
    own = sorted(
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    )
    raise WorkloadError(
        f"workload {spec!r}: {path} has no function {name!r}; it has {', '.join(own) or 'none'}"
    )


def importing() -> str | None:
    """Return the file that `import_file` is importing now, or None."""
    return _importing[-1] if _importing else None


def import_file(path: Path, spec: str) -> ModuleType:
    """Import a file as a module under its own name, with its folder on sys.path as in a script."""
    name = path.stem
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise WorkloadError(f"workload {spec!r}: {path} is not a Python file; name it FILE.py")
    module = importlib.util.module_from_spec(module_spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    # Pickling and dataclasses look a module up by name. Never replace another module.
    if known is None or getattr(known, "__file__", None) == str(path):
        sys.modules[name] = module
    _importing.append(str(path))
    try:
        with blamed_on(f"workload {spec!r}", file=path), _without_options(path):
            module_spec.loader.exec_module(module)
    finally:
        _importing.pop()
    return module


@contextmanager
def _without_options(path: Path) -> Iterator[None]:
    """Show the user's code the command line of `python FILE`: Ratchet's own words are not its."""
    own = sys.argv
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = own


def accepted(result: object, spec: str, request: Request) -> Workload:
    """Return the workload at the requested precision; raise WorkloadError if it is unsuitable.

    A function of a plain script may return `(model, optimizer, step, batch)` instead.
    """
    workload = from_script(result, spec) if isinstance(result, tuple) else result
    if not isinstance(workload, Workload):
        raise WorkloadError(
            f"workload {spec!r} returned {type(result).__name__}, not a ratchet.Workload; "
            "return ratchet.Workload(name=..., model=..., loss=..., batch=...), a "
            "transformers.Trainer, or (model, optimizer, step, batch)"
        )
    place = str(request.device)
    if workload.device.split(":")[0] != request.device.type:
        raise WorkloadError(
            f"workload {spec!r} puts its model on {workload.device!r}, but {place!r} was "
            "requested; change one of the two"
        )
    return replace(workload, precision=request.precision or workload.precision)


def from_script(parts: tuple[Any, ...], spec: str) -> Workload:
    """Return the workload of a script's own model, optimizer, step and batches.

    `optimizer` may be several, in a list or a dict. `step(batch)` runs a whole step and returns
    its loss. `batch(index)` returns a batch.
    """
    if len(parts) != 4 or not isinstance(parts[0], nn.Module) or not all(map(callable, parts[2:])):
        found = ", ".join(type(part).__name__ for part in parts)
        raise WorkloadError(
            f"workload {spec!r} returned ({found}); return (model, optimizer, step, batch), where "
            "step(batch) trains on a batch and returns the loss, and batch(index) makes one"
        )
    model, given, step, batch = parts
    if given is None or given in ([], (), {}):
        raise WorkloadError(
            f"workload {spec!r} returned the optimizer {given!r}; let a torch.optim.Optimizer make "
            "the updates that its step makes by hand: Ratchet compares the gradients that it reads"
        )
    optimizers = given if isinstance(given, Mapping) else {ALONE: given}
    if isinstance(given, list | tuple):
        optimizers = {str(place): one for place, one in enumerate(given)}
    devices = [parameter.device for parameter in model.parameters()]
    return Workload(
        name=Path(spec).name,
        model=model,
        batch=batch,
        train_step=ScriptStep(step),
        optimizers={name: partial(_same, one) for name, one in optimizers.items()},
        device=str(devices[0]) if devices else "cpu",
    )


def _same(optimizer: Optimizer, model: nn.Module) -> Optimizer:
    return optimizer
