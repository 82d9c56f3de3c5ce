"""Load a user's own workload, `file.py:function`, and save one for other processes.

The function returns a ratchet.Workload, a transformers.Trainer, or a script's own `(model,
optimizer, step, batch)`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.base import scratch
from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.blame import blamed_on, is_users_file
from ratchet.train.workloads.names import SAVED_SUFFIX, title_of, user_file, user_function
from ratchet.train.workloads.own_step import ScriptStep
from ratchet.train.workloads.trainer import is_trainer, trainer_workload
from ratchet.train.workloads.workload import ALONE, Request, Workload

_importing: list[str] = []  # Files that are being imported, innermost last


def load_user(spec: str, request: Request) -> Workload:
    """Import the file, call the function, and check the result.

    The seed is set before the call, so the same seed gives the same weights. Raises WorkloadError,
    in one line, for a missing file or function, an exception in the user's code (with its file and
    line), or a result that is not a Workload.
    """
    path, name = user_file(spec), user_function(spec)
    module = import_file(path, spec)
    make: Any = getattr(module, name, None)
    if not callable(make):
        own = sorted(
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        )
        raise WorkloadError.of(
            spec, f"{path} has no function {name!r}; it has {', '.join(own) or 'none'}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        with blamed_on(f"workload {spec!r}", file=path), _without_options(path):
            result = make()
            if is_trainer(result):
                result = trainer_workload(result, spec, request)
    return replace(accepted(result, spec, request), source=spec)


def importing() -> str | None:
    """Return the file that `import_file` is importing now, or None."""
    return _importing[-1] if _importing else None


def import_file(path: Path, spec: str) -> ModuleType:
    """Import a file as a module under its own name, with its folder on sys.path as in a script."""
    name = path.stem
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise WorkloadError.of(spec, f"{path} is not a Python file; name it FILE.py")
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
    kind, _, index = workload.device.partition(":")
    # Two GPUs may differ: the one that is measured must be the one that is described.
    other_gpu = index and int(index) != (request.device.index or 0)
    if kind != request.device.type or other_gpu:
        raise WorkloadError(
            f"workload {spec!r} puts its model on {workload.device!r}, but "
            f"{str(request.device)!r} was requested; change one of the two"
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


# A saved Workload is a file of torch's own pickle. Functions and classes are stored by module name,
# except those of a script (`__main__`), which are stored by the script's path. The new process
# imports the script under another name, as multiprocessing does, so code under
# `if __name__ == "__main__":` does not run.

PROTOCOL = 4
REMEDY = 'or pass the function that makes the workload, or "file.py:function"'


@contextmanager
def as_spec(workload: Workload | Callable[[], Workload] | str) -> Iterator[str]:
    """Yield text that names the workload in any process: a name, `file.py:function`, or a file.

    A Workload object is saved in a temporary folder, which is removed at the end. Raises
    WorkloadError, in one line, if no other process could load it.
    """
    if isinstance(workload, str):
        yield workload
    elif isinstance(workload, Workload):
        with scratch.folder("workload") as folder:
            path = folder / (quote(workload.name, safe="") + SAVED_SUFFIX)
            save(workload, path)
            yield str(path)
    elif isinstance(workload, FunctionType):
        yield _function_spec(workload)
    else:
        raise WorkloadError(
            f"workload is {type(workload).__name__}, not a ratchet.Workload; pass one, the "
            'function that makes one, a name such as "llama-60m", or "file.py:function"'
        )


def save(workload: Workload, path: Path) -> None:
    """Write the workload to `path`; a WorkloadError names the field that cannot be written."""
    # An edit of the user's files makes a new workload.
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = sorted(file for file in files if file and is_users_file(file) and Path(file).is_file())
    hashes = {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in own}
    whole = _write({"workload": workload, "sources": hashes}, path)
    for field in fields(workload) if whole is not None else ():
        if (error := _write(getattr(workload, field.name), io.BytesIO())) is not None:
            raise WorkloadError.of(
                workload.name,
                f"its {field.name} cannot be sent to another process ({error}): define it at the "
                f"top level of a file, {REMEDY}",
            ) from error
    if whole is not None:
        raise WorkloadError(str(whole)) from whole


def load_saved(spec: str, request: Request) -> Workload:
    """Load a workload that `save` wrote, with its weights."""
    path = Path(spec)
    if not path.is_file():
        raise WorkloadError.of(spec, f"there is no file {spec!r}; check the path")
    title = title_of(spec)
    with blamed_on(f"workload {title!r}"):
        result = torch.load(path, weights_only=False)["workload"]
    source = result.source or f"a Workload object named {result.name!r}"
    return replace(accepted(result, title, request), source=source)


class _Pickler(pickle.Pickler):
    """Store a script's functions and classes by its path; refuse those without a name."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, type | FunctionType):
            return NotImplemented
        if "<" in value.__qualname__:
            raise WorkloadError(f"{_described(value)} has no name that another process can find")
        if value.__module__ != "__main__":
            return NotImplemented
        return _from_script, (*_script(value), value.__qualname__)


def _write(value: object, file: Path | io.BytesIO) -> Exception | None:
    """Write a value, or return why it cannot be written."""
    module = SimpleNamespace(Pickler=_Pickler, __name__="pickle")
    try:
        torch.save(value, file, pickle_module=module, pickle_protocol=PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError, WorkloadError) as error:
        return error
    return None


def _described(value: type | FunctionType) -> str:
    name = value.__qualname__.rpartition(".")[2]
    kind = "the class" if isinstance(value, type) else "the function"
    words = "a lambda" if name == "<lambda>" else f"{kind} {name!r} inside another function"
    code = getattr(value, "__code__", None)
    return f"{words} ({code.co_filename}:{code.co_firstlineno})" if code else words


def _script(value: type | FunctionType) -> tuple[str, str]:
    """Return the running script's module (`python -m NAME`) and path; one is empty."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return main.__spec__.name, ""
    path = getattr(main, "__file__", None)
    if not path:
        raise WorkloadError(
            f"{value.__qualname__!r} is defined in an interactive session, where no other process "
            'can find it: put it in a file and pass "file.py:function"'
        )
    return "", os.path.abspath(path)


def _from_script(module_name: str, path: str, qualified_name: str) -> object:
    """Return a function or class of the script that saved the workload."""
    return attrgetter(qualified_name)(_script_module(module_name, path))


@cache
def _script_module(module_name: str, path: str) -> ModuleType:
    return importlib.import_module(module_name) if module_name else import_file(Path(path), path)


def _function_spec(function: FunctionType) -> str:
    if "<" in function.__qualname__:
        raise WorkloadError(
            f"workload is {_described(function)}: define it at the top level of a file, or pass "
            '"file.py:function"'
        )
    path = function.__code__.co_filename
    if not Path(path).is_file():
        raise WorkloadError(
            f"workload {function.__name__!r} is defined in an interactive session: put it in a "
            'file and pass "file.py:function"'
        )
    return f"{os.path.abspath(path)}:{function.__qualname__}"
