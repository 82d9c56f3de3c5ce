"""A user's own command, run to its end."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Final

GRACE_S: Final = 10.0
"""Seconds that an interrupted command has to end by itself."""


def run_command(
    command: Sequence[str], environment: Mapping[str, str], stdout: IO[str] | IO[bytes] | None
) -> int:
    """Run the command and return its exit code; one that is interrupted ends the command too."""
    with subprocess.Popen(list(command), env=environment, stdout=stdout) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # a signal to this process alone has not reached the command
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
            raise
        finally:
            process.kill()
