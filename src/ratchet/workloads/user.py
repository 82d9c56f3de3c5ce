"""A user's own workload: `file.py:function`, where the function returns a ratchet.Workload."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ratchet.errors import RatchetError, WorkloadError
from ratchet.workloads.names import user_file, user_function
from ratchet.workloads.request import Request
from ratchet.workloads.workload import Workload

OWN_REMEDY = "correct it there"
MODEL_REMEDY = "this model cannot be trained with these settings; change them or choose another"


def load_user(spec: str, request: Request) -> Workload:
    """Import the file, call the function, and check what it returned.

    The seed is set before the call, so that the same seed gives the same weights. Raises
    WorkloadError, in one line, for a missing file or function, an exception in the user's code
    (with its file and line), or a result that is not a Workload.
    """
    path, function_name = user_file(spec), user_function(spec)
    make = _function(path, function_name, spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        with blamed_on(path, spec):
            result = make()
    return _accepted(result, spec, request)


@contextmanager
def blamed_on(path: Path | None, spec: str) -> Iterator[None]:
    """Turn whatever a model's code raises into one line that names the place in the user's file.

    Without a file the place is the innermost frame.
    """
    try:
        yield
    except RatchetError:
        raise
    # The user's code may raise anything at all, SystemExit included; Ctrl-C is not theirs.
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"workload {spec!r} raised {type(error).__name__}: {error or 'no message'} "
            f"({_place(error, path)}); {OWN_REMEDY if path else MODEL_REMEDY}"
        ) from error


def _place(error: BaseException, path: Path | None) -> str:
    """file:line of the innermost frame in the user's file, or of the syntax error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is None or frame.filename == str(path)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(path)


def _function(path: Path, name: str, spec: str) -> Callable[[], Any]:
    module = _module(path, spec)
    function = getattr(module, name, None)
    if callable(function):
        result: Callable[[], Any] = function
        return result
    own = sorted(
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    )
    raise WorkloadError(
        f"workload {spec!r}: {path} has no function {name!r}; it has {', '.join(own) or 'none'}"
    )


def _module(path: Path, spec: str) -> ModuleType:
    """The user's file as a module under its own name, with its folder importable as in a script."""
    name = path.stem
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise WorkloadError(f"workload {spec!r}: {path} is not a Python file; name it FILE.py")
    module = importlib.util.module_from_spec(module_spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    # Pickling and dataclasses look a module up by name; another module's place is never taken.
    if known is None or getattr(known, "__file__", None) == str(path):
        sys.modules[name] = module
    with blamed_on(path, spec):
        module_spec.loader.exec_module(module)
    return module


def _accepted(result: Any, spec: str, request: Request) -> Workload:
    if not isinstance(result, Workload):
        raise WorkloadError(
            f"workload {spec!r} returned {type(result).__name__}, not a ratchet.Workload; "
            "return ratchet.Workload(name=..., model=..., loss=..., batch=..., "
            "tokens_per_batch=...)"
        )
    place = str(request.device)
    if result.device.split(":")[0] != request.device.type:
        raise WorkloadError(
            f"workload {spec!r} puts its model on {result.device!r}, and {place!r} was asked for; "
            "change the device in that file or in the call"
        )
    return replace(result, precision=request.precision or result.precision, source=spec)
