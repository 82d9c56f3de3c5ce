"""Report a user's mistake as one line that names their file and line."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from ratchet.base import FOLDER
from ratchet.base.errors import DeviceError, DeviceLost, RatchetError, WorkloadError
from ratchet.base.files import cache_folder
from ratchet.train.workloads.device import available_bytes
from ratchet.train.workloads.workload import Batch, Workload

OWN_REMEDY = "correct it there"
MODEL_REMEDY = "this model cannot be trained with these settings; change them or choose another"
NO_OPTIONS = (
    "Ratchet runs it without options: give each a default, or set sys.argv before it is parsed"
)
OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "hipErrorOutOfMemory", "ALLOC_FAILED")
SMALLER = "use a smaller batch or sequence, activation checkpointing, or a larger device"


@contextmanager
def blamed_on(what: str, *, file: Path | None = None) -> Iterator[None]:
    """Turn any exception from `what`'s code into one line with its place; RatchetErrors pass.

    If no frame belongs to the user (a file that does not parse), `file` is named instead.
    """
    try:
        yield
    except RatchetError:
        raise
    # User code may raise anything, including SystemExit. KeyboardInterrupt passes.
    except (Exception, SystemExit) as error:
        _raise_lost(error, what)
        place = user_place(error, file)
        if (refused := _refused_options(error)) is not None:
            raise WorkloadError(
                f"{what} could not parse its command line: {refused} ({place}); {NO_OPTIONS}"
            ) from error
        if place:
            raise WorkloadError(_raised(what, error, place, OWN_REMEDY)) from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}:{last.lineno}"
        raise WorkloadError(_raised(what, error, place, MODEL_REMEDY)) from error


@contextmanager
def blamed_step(workload: Workload) -> Iterator[None]:
    """Report exceptions of a running step, like `blamed_on`; those with no user frame pass.

    An allocation failure becomes a DeviceError, and a GPU that stops answering a DeviceLost.
    """
    try:
        yield
    except RatchetError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise DeviceError(does_not_fit(workload)) from error
        _raise_lost(error, f"a step of {workload.name!r}")
        place = user_place(error)
        if place is None:
            raise
        what = f"workload {workload.name!r}"
        raise WorkloadError(_raised(what, error, place, OWN_REMEDY)) from error


def _raised(what: str, error: BaseException, place: str, remedy: str) -> str:
    said = str(error) or "no message"
    if remedy == OWN_REMEDY and isinstance(error, ModuleNotFoundError):
        remedy = "install it, or import it only if needed"
    return f"{what} raised {type(error).__name__}: {said} ({place}); {remedy}"


def batch_of(workload: Workload, index: int) -> Batch:
    """Return what step number `index` takes: one batch, or the list of those it accumulates.

    An exception in the user's function names its file and line.
    """
    count = workload.accumulate
    with blamed_step(workload):
        if count == 1:
            return workload.batch(index)
        return [workload.batch(index * count + place) for place in range(count)]


def user_place(error: BaseException, file: Path | None = None) -> str | None:
    """Return file:line of the innermost frame in the user's code, or `file` if there is none."""
    if isinstance(error, SyntaxError) and error.filename and is_users_file(error.filename):
        return f"{error.filename}:{error.lineno}"
    own = [f for f in traceback.extract_tb(error.__traceback__) if is_users_file(f.filename)]
    if own:
        return f"{own[-1].filename}:{own[-1].lineno}"
    return str(file) if file else None


def does_not_fit(workload: Workload) -> str:
    """Return the error message for a step that needs more memory than the device has."""
    title = f"a step of {workload.name!r} does not fit in the memory of {workload.device}"
    return f"{title}; {SMALLER}; {planned_by(workload)}"


def planned_by(workload: Workload) -> str:
    """Return the command that plans a step which fits."""
    size = f"{max(available_bytes(torch.device(workload.device)) >> 20, 1)}MiB"
    # A workload that is an object of a script has no name that another process could load.
    spec = workload.source if " " not in workload.source else ""
    return f"`ratchet memory {spec or 'WORKLOAD'} --fit {size}` plans what fits"


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation, on the CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # The CPU's allocator, CUDA's and HIP's drivers and cuBLAS raise a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def _raise_lost(error: BaseException, what: str) -> None:
    """Raise DeviceLost if a GPU stopped answering: nobody's code is to blame."""
    lost = DeviceLost.told_by(str(error), what) if isinstance(error, RuntimeError) else None
    if lost is not None:
        raise lost from error


def _refused_options(error: BaseException) -> str | None:
    """Return what argparse told the user before it ended the program; None for other errors."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "argparse" and frame.f_code.co_name == "error":
            return str(frame.f_locals.get("message"))
    return None


def is_users_file(filename: str) -> bool:
    """Return False for files of Python, installed packages or Ratchet, and for generated code."""
    if filename.startswith("<") or "torchinductor_" in filename:
        return False
    return not any(filename.startswith(folder) for folder in others_folders())


@cache
def others_folders() -> tuple[str, ...]:
    """Return the folders of code that is not the user's, each ending in a separator."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    folders |= {str(FOLDER), str(cache_folder("kernels"))}
    return tuple(sorted(f"{folder}/" for folder in folders if folder))
