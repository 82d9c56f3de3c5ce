"""Recording: run a training command under the profiler, without an edit of its script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ratchet.base.errors import TraceError
from ratchet.base.files import make_folder
from ratchet.base.process.child import run_command

INJECTED = Path(__file__).with_name("inject")
SUFFIX = ".json.gz"
FOLDER, SCHEDULE = "RATCHET_TRACE_FOLDER", "RATCHET_TRACE_SCHEDULE"


def injected(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python runs the sitecustomize of `inject` first."""
    path = os.pathsep.join(filter(None, (str(INJECTED), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path}


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The steps to record: `wait` and `warmup` pass, `active` are kept."""

    wait: int = 3
    warmup: int = 2
    active: int = 3
    memory: bool = True  # Record allocations too

    def __post_init__(self) -> None:
        if self.wait < 0 or self.warmup < 0 or self.active < 1:
            raise TraceError(
                f"a schedule of {self.wait} waiting, {self.warmup} warm-up and {self.active} "
                "recorded steps: record at least 1, and let 0 or more pass"
            )


class CommandFailed(TraceError):
    """The recorded command failed: `code` is its exit code, or minus the signal that ended it."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(f"{said} ended with code {code}: check that it runs without the profiler")
        self.code = code

    @property
    def exit_code(self) -> int:
        """Return our own exit code: the command's, or 128 + the signal that ended it."""
        return self.code if self.code > 0 else 128 - self.code


def record(
    command: Sequence[str],
    folder: Path,
    schedule: Schedule | None = None,
    environment: Mapping[str, str] | None = None,
    stdout: IO[str] | IO[bytes] | None = None,
) -> tuple[Path, ...]:
    """Run a command, and return the traces that it left in `folder`, one for each rank.

    The command may be `python train.py` or torchrun: every Python process that steps an optimizer
    is profiled, with shapes, stacks and memory. Its output goes where ours goes, or its stdout to
    the open file `stdout`. TraceError if the command cannot start, fails (CommandFailed) or takes
    too few steps, and if the folder already holds traces or cannot be made.
    """
    schedule = schedule or Schedule()
    make_folder(folder, "--out")
    if any(path.name.endswith(SUFFIX) for path in folder.iterdir()):
        # They would be taken for ranks of this run.
        raise TraceError(f"{folder} already holds traces: name another folder, or remove them")
    own = injected(os.environ if environment is None else environment)
    own[FOLDER] = str(folder.resolve())
    own[SCHEDULE] = f"{schedule.wait},{schedule.warmup},{schedule.active},{int(schedule.memory)}"
    said = shlex.join(command)
    try:
        code = run_command(command, own, stdout)
    except OSError as error:
        raise TraceError(f"{said} cannot start ({error.strerror}): check the command") from None
    if code != 0:
        raise CommandFailed(said, code)
    made = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    if not made:
        steps = 1 + schedule.wait + schedule.warmup
        raise TraceError(
            f"{said} left no trace: step an optimizer more than {steps} times, or lower --wait"
        )
    return tuple(made)


__all__ = ["CommandFailed", "Schedule", "injected", "record"]
