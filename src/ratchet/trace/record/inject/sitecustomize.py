"""Profiles a training script without an edit: Python runs this file before the script.

Profiling does not import Ratchet, because the script may run in another environment. A step ends
when the first optimizer that stepped steps again. If that optimizer is gone by then, as after a
trial run of the script, recording begins anew.

Another command of Ratchet that needs the moment after torch's import names a function, and one that
asks where a run's modules came from names a folder.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

FOLDER = "RATCHET_TRACE_FOLDER"
SCHEDULE = "RATCHET_TRACE_SCHEDULE"
AFTER_TORCH = "RATCHET_AFTER_TORCH"
"""A function of Ratchet as `module:function`, called once torch is imported."""
IMPORTS = "RATCHET_IMPORTS"
"""A folder: each process writes there, as it ends, the files of the modules that it imported."""


class Recorder:
    """One process's profiler, advanced by the optimizer's steps."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.optimizer: weakref.ref[object] | None = None
        self.done = False
        self.active = False
        wait, warmup, active, self.memory = map(int, os.environ[SCHEDULE].split(","))
        self.steps_left = wait + warmup + active
        self.profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=self.write,
            record_shapes=True,
            with_stack=True,
            with_modules=True,
            profile_memory=bool(self.memory),
            acc_events=True,  # else torch 2.11 warns of cycles, although there is one
        )

    def after_step(self, optimizer: object, *_: object) -> None:
        """Count a step; the profiler starts with the first."""
        if self.done or (self.optimizer is not None and self.optimizer() is not optimizer):
            return
        if self.optimizer is None:
            self.optimizer = weakref.ref(optimizer)
            self.profiler.start()
            self.active = True
            atexit.register(self.finish)
            return
        self.steps_left -= 1
        if self.steps_left == 0:
            self.keep_reasons()
        self.profiler.step()
        if self.steps_left == 0:
            self.finish()

    def is_orphaned(self) -> bool:
        """Return True if the optimizer went away while its steps were still counted."""
        return not self.done and self.optimizer is not None and self.optimizer() is None

    def keep_reasons(self) -> None:
        """Store graph-break reasons, which the trace itself lacks."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None:
            breaks = {str(k): int(v) for k, v in dynamo.counters["graph_break"].items()}
            self.profiler.add_metadata_json("ratchet_compile", json.dumps({"graph_break": breaks}))

    def write(self, profiler: Any) -> None:
        rank = os.environ.get("RANK", "0")
        folder = Path(os.environ[FOLDER])
        profiler.export_chrome_trace(str(folder / f"rank{rank}-{os.getpid()}.json.gz"))

    def finish(self) -> None:
        if self.active and not self.done:
            self.done = True
            self.profiler.stop()


class AfterTorch(importlib.abc.MetaPathFinder):
    """Lets the usual finders import torch, then begins what the environment asks for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_then_begin(module: ModuleType) -> None:
            run(module)
            if RECORDS:
                hook(module)
            if AFTER_TORCH in os.environ:
                call(os.environ[AFTER_TORCH])

        spec.loader.exec_module = run_then_begin  # type: ignore[method-assign]
        return spec


def call(function: str) -> None:
    """Call a function of Ratchet; without Ratchet, end the process."""
    module, _, name = function.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        sys.exit(
            f"ratchet: {sys.executable} cannot import Ratchet ({error}): run the command with the "
            "Python that Ratchet is installed in"
        )
    getattr(found, name)()


def hook(torch: ModuleType) -> None:
    """Make the recorder when the first optimizer steps, to delay its imports until then."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    recorders: list[Recorder] = []

    def after_step(optimizer: object, *rest: object) -> None:
        if recorders and recorders[0].is_orphaned():
            recorders.pop().finish()
        if not recorders:
            recorders.append(Recorder(torch))
        recorders[0].after_step(optimizer, *rest)

    register_optimizer_step_post_hook(after_step)


def tell_imports(folder: str) -> None:
    """Write the names of this process's modules with their files."""
    files = {}
    for name, module in list(sys.modules.items()):
        own = getattr(module, "__dict__", {})  # not by attribute: a lazy module would import more
        if isinstance(file := own.get("__file__"), str):
            run = own.get("__spec__") if name == "__main__" else None  # by `python -m`
            files[run.name if run else name] = os.path.abspath(file)
    with contextlib.suppress(OSError):
        descriptor, _ = tempfile.mkstemp(suffix=".json", dir=folder)
        with os.fdopen(descriptor, "w") as out:
            json.dump(files, out)


def tell_imports_at_the_end() -> None:
    """Tell them however the process ends, unless by a signal."""
    folder = os.environ[IMPORTS]  # a script may clear it
    atexit.register(tell_imports, folder)
    leave = os._exit  # ends forks, and some scripts, without what was registered

    def tell_and_leave(status: int) -> NoReturn:
        tell_imports(folder)
        leave(status)

    os._exit = tell_and_leave


def run_the_hidden_one() -> None:
    """Run the environment's own sitecustomize, which this file hides."""
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != own]
    this = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if this is not None:  # Python looks it up once more when this import ends
        sys.modules.setdefault("sitecustomize", this)


RECORDS = FOLDER in os.environ and SCHEDULE in os.environ
if RECORDS or AFTER_TORCH in os.environ:
    sys.meta_path.insert(0, AfterTorch())
if IMPORTS in os.environ:
    tell_imports_at_the_end()
if RECORDS or AFTER_TORCH in os.environ or IMPORTS in os.environ:
    run_the_hidden_one()
