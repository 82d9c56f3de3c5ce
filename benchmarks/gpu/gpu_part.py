"""Run one part of gpu_check.sh: cut it at its limit, and end every process that it leaves behind.

    python benchmarks/gpu/gpu_part.py SECONDS FILE COMMAND...

What the command prints goes to FILE, and on from there: JSON objects to this program's output,
other lines to stderr. All its processes are killed once it ends, since one that lives on holds the
GPU's memory. The exit code is the command's, 124 if it was cut, 128 and the signal's number if that
ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from ratchet.base.process import families

GRACE_S = 5.0
"""Seconds between the interrupt at the limit and the end."""
CUT = 124
"""As timeout(1) has it."""
LOOK_S = 0.1


def main() -> int:
    """Run it."""
    limit_s, file, *command = sys.argv[1:]
    families.adopt_orphans()
    with Path(file).open("wb") as output, Path(file).open("rb") as printed:
        # A file and no pipe: a process that lives on would keep a pipe open.
        child = subprocess.Popen(command, stdout=output, start_new_session=True)
        try:
            code = ended_within(child, float(limit_s), printed)
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGINT)
                ended_within(child, GRACE_S, printed)
                code = CUT
        finally:
            families.end_below(os.getpid())
            pass_on(printed)
    return code if code >= 0 else 128 - code


def ended_within(child: subprocess.Popen[bytes], limit_s: float, printed: BinaryIO) -> int | None:
    """Wait and pass on what is printed; return the exit code, None if it still runs."""
    end_s = time.monotonic() + limit_s
    while child.poll() is None and time.monotonic() < end_s:
        pass_on(printed)
        time.sleep(LOOK_S)
    return child.poll()


def pass_on(printed: BinaryIO) -> None:
    """Print the lines that are new in the file: JSON objects as they are, others on stderr."""
    for line in printed.read().splitlines(keepends=True):
        is_object = line.startswith(b"{") and line.endswith(b"}\n")
        to = (sys.stdout if is_object else sys.stderr).buffer
        to.write(line)
        to.flush()


if __name__ == "__main__":
    sys.exit(main())
