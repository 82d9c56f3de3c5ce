"""Save a Workload object in a file so that other processes can load it.

The file is torch's own pickle. Functions and classes are stored by module name, except those of a
script (`__main__`), which are stored by the script's path. The new process imports the script under
another name, as multiprocessing does, so code under `if __name__ == "__main__":` does not run.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import torch

from ratchet.base import scratch
from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.blame import blamed_on, is_users_file
from ratchet.train.workloads.names import SAVED_SUFFIX, title_of
from ratchet.train.workloads.user import accepted, import_file
from ratchet.train.workloads.workload import Request, Workload

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
    document = {"workload": workload, "sources": _source_hashes()}
    try:
        _write(document, path)
    except (pickle.PicklingError, AttributeError, TypeError, WorkloadError) as error:
        raise WorkloadError(_why_not(workload) or str(error)) from error


def load_saved(spec: str, request: Request) -> Workload:
    """Load a workload that `save` wrote, with its weights."""
    path = Path(spec)
    if not path.is_file():
        raise WorkloadError(f"workload {spec!r}: there is no file {spec!r}; check the path")
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


def _write(value: object, file: Path | io.BytesIO) -> None:
    module = SimpleNamespace(Pickler=_Pickler, __name__="pickle")
    torch.save(value, file, pickle_module=module, pickle_protocol=PROTOCOL)


def _why_not(workload: Workload) -> str | None:
    """Return a message that names the first field that cannot be written, and the reason."""
    for field in fields(workload):
        try:
            _write(getattr(workload, field.name), io.BytesIO())
        except (pickle.PicklingError, AttributeError, TypeError, WorkloadError) as error:
            return (
                f"workload {workload.name!r}: its {field.name} cannot be sent to another process "
                f"({error}): define it at the top level of a file, {REMEDY}"
            )
    return None


def _described(value: type | FunctionType) -> str:
    name = value.__qualname__.rpartition(".")[2]
    kind = "the class" if isinstance(value, type) else "the function"
    words = "a lambda" if name == "<lambda>" else f"{kind} {name!r} inside another function"
    code = getattr(value, "__code__", None)
    return f"{words} ({code.co_filename}:{code.co_firstlineno})" if code else words


def _script(value: type | FunctionType) -> tuple[str, str]:
    """Return the running script's module name (`python -m NAME`) and path; one may be empty."""
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


def _source_hashes() -> dict[str, str]:
    """Hash the user's imported files, so that an edit makes a new workload."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = sorted(file for file in files if file and is_users_file(file) and Path(file).is_file())
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in own}
