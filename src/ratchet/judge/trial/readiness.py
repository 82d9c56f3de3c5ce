"""Find out whether kernels can be tried on this machine at all, before anything waits for it."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Final

from ratchet.base.errors import JudgeError, RatchetError
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.verdict import CandidateFault

LIMIT_S: Final = 60.0
MEMORY_BYTES: Final = 8 << 30
TRIED: Final = Kernel(
    name="readiness",
    language="cpp",
    source='#include "ratchet_abi.h"\nextern "C" int64_t answer(...) { return 0; }\n',
    entry="answer",
)


@functools.cache
def why_no_kernels() -> str | None:
    """Return why no kernel can be tried here, with the remedy, in one line; None if one can.

    Compiles and loads a kernel of one line in a candidate's sandbox, once for each process. This
    takes a fraction of a second.
    """
    try:
        with contextlib.closing(_started()) as process:
            process.start_compiling(TRIED)
            library = process.library()
        try:
            with contextlib.closing(_started()) as process:
                process.load(TRIED, library)
        finally:
            os.close(library)
    except (CandidateFault, RatchetError, OSError) as error:
        return f"no kernel can be tried on this machine: {error}"
    return None


def check_kernels() -> None:
    """Raise JudgeError with that line if no kernel can be tried here."""
    reason = why_no_kernels()
    if reason is not None:
        raise JudgeError(reason)


def _started() -> CandidateProcess:
    return CandidateProcess(TRIED, threads=1, memory_bytes=MEMORY_BYTES, clock=Clock.of(LIMIT_S))
