"""Run the main function of a compiled CUDA or HIP program, with its kernels emulated.

    python -m ratchet.amd.emulator.hip_program FOLDER SOURCE [ARGUMENT ...]

The program is the user's own: its host code runs in this process as it is.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ratchet.amd.emulator.extension_build import PROGRAM
from ratchet.amd.emulator.hip_runtime import CLOSED, GpuMemory, HipRuntime
from ratchet.amd.emulator.launch import NOT_EMULATED, FailedLaunch
from ratchet.amd.emulator.linking import plain_name
from ratchet.amd.emulator.loading import EmulatedLaunch, with_source_line
from ratchet.amd.emulator.program import VARIABLE, ProgramSettings, pretended_device
from ratchet.amd.emulator.start import RecordingDriver
from ratchet.base.errors import KernelError

HOST: Final = "host code"
_libc: Final = ctypes.CDLL(None)


class ProgramRuntime(HipRuntime):
    """HIP's runtime for a whole program: what goes wrong is told at once, as HIP's error."""

    def __init__(self, folder: Path, source: str, settings: ProgramSettings) -> None:
        device = pretended_device(settings.target)
        self._driver = RecordingDriver(settings, device)
        self.exit = self._exit
        count = len(list(folder.glob("*.s")))
        texts = [(folder / f"{at}.s").read_text() for at in range(count)]
        super().__init__(texts, self._driver.emulator, GpuMemory(), device)
        self.file, self.limit = source, settings.limit

    def run(self, library: Any, words: list[str]) -> None:
        """Call main and end this process with its exit code."""
        self.install(library)
        library.ratchet_hip_begin()
        given = [one.encode() for one in words]
        self.memory.protect(CLOSED)
        self._exit(library.main(len(given), (ctypes.c_char_p * (len(given) + 1))(*given)))

    def _exit(self, code: int) -> None:
        _libc.fflush(None)
        complaint = self._library.ratchet_hip_complaint()
        if complaint:
            self._fail(HOST, complaint.decode())
        self._driver.write()
        sys.stdout.flush()
        os._exit(code & 255)

    def launched(self, launch: EmulatedLaunch) -> None:
        """Count a launch."""
        self._driver.add(launch)

    def _launch(self, name: bytes, sizes: Any, arguments: Any, shared_bytes: int) -> int:
        try:
            return super()._launch(name, sizes, arguments, shared_bytes)
        except KernelError as error:
            told = with_source_line(str(error), self.file)
            self._fail(plain_name(name.decode(errors="replace")), told)
            raise _Told from error

    def _print(self) -> None:
        _libc.fflush(None)  # the host's own words came first
        super()._print()

    def _guarded(self, function: Callable[..., int], failed: int) -> Callable[..., int]:
        ask = super()._guarded(function, failed)

        def asked(*given: object) -> int:
            before, code = self.error, ask(*given)
            if before is None and self.error is not None and not isinstance(self.error, _Told):
                self._fail(HOST, str(self.error))
            return code

        return asked

    def _fail(self, kernel: str, reason: str) -> None:
        refused = any(words in reason for words in NOT_EMULATED)
        self._driver.fail(
            FailedLaunch(kernel=kernel, reason=reason, kind="refused" if refused else "fault")
        )
        print(f"ratchet: {kernel}: {reason}", file=sys.stderr, flush=True)


class _Told(KernelError):
    """An error that was told already."""


def main() -> None:
    """Load a program and run it."""
    folder, *words = sys.argv[1:]
    settings = msgspec.json.decode(os.environ[VARIABLE], type=ProgramSettings)
    runtime = ProgramRuntime(Path(folder), words[0], settings)
    try:
        library = ctypes.CDLL(str(Path(folder) / PROGRAM))
    except OSError as error:
        missing = str(error).partition("undefined symbol: ")[2] or str(error)
        print(
            f"ratchet: {words[0]} calls {plain_name(missing)}, which is not here", file=sys.stderr
        )
        raise SystemExit(1) from None
    runtime.run(library, words)


if __name__ == "__main__":
    main()
