"""Run a command whose Python processes meet an emulated GPU.

The command is the user's own and is trusted as such: it is not confined.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from ratchet.amd.emulator.build import compiled_machine
from ratchet.amd.emulator.launch import INSTRUCTION_LIMIT
from ratchet.amd.emulator.program.counted import ProgramResult, read_result
from ratchet.amd.emulator.program.settings import (
    VARIABLE,
    Autotune,
    ProgramSettings,
    check_target,
    inject_folder,
    pretended_device,
)
from ratchet.base.errors import KernelError
from ratchet.base.process.child import run_command

NO_TRITON: Final = "triton is not installed: pip install triton==3.7.1"


def settings_for(
    target: str, folder: str, autotune: Autotune = "first", limit: int = INSTRUCTION_LIMIT
) -> ProgramSettings:
    """Return the settings of a program, with the emulator compiled.

    Raises KernelError for an unknown target, or without Triton or a C++ compiler.
    """
    check_target(target)
    if importlib.util.find_spec("triton") is None:
        raise KernelError(NO_TRITON)
    library = str(compiled_machine(target))
    return ProgramSettings(
        target=target, library=library, folder=folder, autotune=autotune, limit=limit
    )


def emulate(
    command: Sequence[str],
    target: str,
    *,
    autotune: Autotune = "first",
    limit: int = INSTRUCTION_LIMIT,
    stdout: IO[bytes] | IO[str] | None = None,
) -> ProgramResult:
    """Run a command and return what its processes launched on the emulated GPU.

    Its output goes where ours goes, or its stdout to the open file `stdout`.

    Raises KernelError if the command cannot start, and as `settings_for` does.
    """
    if not command:
        raise KernelError("no COMMAND: write ratchet emulate --target gfx942 -- pytest test_it.py")
    with tempfile.TemporaryDirectory(prefix="ratchet-emulate-") as folder:
        settings = settings_for(target, folder, autotune, limit)
        environment = dict(os.environ)
        own = (str(inject_folder()), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, own))
        environment[VARIABLE] = settings.text()
        try:
            code = run_command(command, environment, stdout)
        except OSError as error:
            said = shlex.join(command)
            raise KernelError(
                f"{said} cannot start ({error.strerror}): check the command"
            ) from None
        return read_result(
            Path(folder),
            target=target,
            device=pretended_device(target).name,
            command=tuple(command),
            exit_code=code if code >= 0 else 128 - code,
        )
