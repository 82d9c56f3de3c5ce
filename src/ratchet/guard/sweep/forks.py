"""A program that tries model types, each in a fork with a time and a memory limit.

Importing torch and transformers takes longer than a tiny model's eager step, so it is done once,
before any thread is started. The program reads a `SweepRequest` as JSON from its first argument and
prints one `TypeRow` a line as JSON. A type that crashes or hangs gets a row too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import AbstractContextManager
from typing import IO

import msgspec
import torch
import torch._dynamo
import torch._inductor.compile_fx
import transformers.modeling_utils  # noqa: F401  the greater part of what each model imports

from ratchet.base.process import families
from ratchet.guard.sweep.row import SweepRequest, TypeRow
from ratchet.guard.sweep.trial import QUICK, run_arm, try_type
from ratchet.train.workloads.hf_config import trained_types

LAST_WORDS = 200
WARM_FROM, WARM_TYPE = 6, "qwen3"
"""Types from which on it pays to compile this small one before all others."""


def main() -> None:
    """Try the types of the request in order."""
    request = msgspec.json.decode(sys.argv[1], type=SweepRequest)
    began_s = time.monotonic()
    if len(request.types) >= WARM_FROM:
        warm_up(request)
    gc.freeze()  # no fork's collector walks, and thereby copies, what was imported
    for name in request.types:
        if request.budget_s is not None and time.monotonic() - began_s > request.budget_s:
            return
        row = in_a_fork(name, request)
        sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        sys.stdout.flush()


def warm_up(request: SweepRequest) -> None:
    """Compile a small type, so that every fork finds what torch builds at its first compilation.

    It runs on one thread: a fork must not miss those of a pool.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.suppress(Exception), inductor_settings(request):  # its row will tell
        for arm in ("kernels", "bf16"):
            run_arm(WARM_TYPE, arm, device=torch.device(request.device))
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def inductor_settings(request: SweepRequest) -> AbstractContextManager[object]:
    """Return a context in which eager torch and Inductor draw the same random numbers."""
    patch = {"fallback_random": True, **(QUICK if request.quick else {})}
    return torch._inductor.config.patch(patch)  # type: ignore[no-any-return]


def in_a_fork(name: str, request: SweepRequest) -> TypeRow:
    """Return the row of one type, whatever becomes of the process that tries it."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as rows, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _in_the_child(name, request, rows, said)
        late = not families.has_ended_within(child, request.limit_s)
        families.end_session(child)
        _, status = os.waitpid(child, 0)
        row = _last_row(name, rows)
        if row.doing or not row.type:
            why = f"it took more than {request.limit_s:g} s" if late else _how(status, said)
            row = _unfinished(row, why)
    return msgspec.structs.replace(
        row, quick=request.quick, versions=request.versions, time_s=time.monotonic() - began_s
    )


def _in_the_child(name: str, request: SweepRequest, rows: IO[bytes], said: IO[bytes]) -> None:
    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes, request.memory_bytes))

        def keep(row: TypeRow) -> None:
            rows.write(msgspec.json.encode(row) + b"\n")
            rows.flush()

        with inductor_settings(request):
            device = torch.device(request.device)
            keep(try_type(name, trained_types()[name], device=device, keep=keep))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _last_row(name: str, rows: IO[bytes]) -> TypeRow:
    rows.seek(0)
    for line in reversed(rows.read().split(b"\n")):
        with contextlib.suppress(msgspec.DecodeError):  # a child that was killed left a part
            return msgspec.json.decode(line, type=TypeRow)
    return TypeRow(type=name, status="does not train as written", doing="the import")


def _unfinished(row: TypeRow, why: str) -> TypeRow:
    """Return the row of a type whose process ended too early; a script repeats its last arm."""
    arm = row.arm or (row.doing if row.status == "fails" else "")
    return msgspec.structs.replace(row, why=f"{row.doing}: {why}", arm=arm)


def _how(status: int, said: IO[bytes]) -> str:
    code = os.waitstatus_to_exitcode(status)
    said.seek(0)
    words = " ".join(said.read().decode(errors="replace").split())[-LAST_WORDS:]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the process was {how}: {words}" if code < 0 else f"{how}: {words}"


if __name__ == "__main__":
    main()
