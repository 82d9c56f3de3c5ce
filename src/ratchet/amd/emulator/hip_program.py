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
from typing import Any, Final, NoReturn

import msgspec

from ratchet.amd.emulator.extension_build import PROGRAM
from ratchet.amd.emulator.hip_products import multiply
from ratchet.amd.emulator.hip_runtime import CLOSED, GpuMemory, HipRuntime
from ratchet.amd.emulator.launch import NOT_EMULATED, FailedLaunch
from ratchet.amd.emulator.linking import plain_name
from ratchet.amd.emulator.loading import EmulatedLaunch, with_source_line
from ratchet.amd.emulator.program import VARIABLE, ProgramSettings
from ratchet.amd.emulator.start import RecordingDriver
from ratchet.base.errors import KernelError

HOST: Final = "host code"
CALLS: Final = "ratchet: {source} calls "
NOT_HERE: Final = ", which is not here"
_libc: Final = ctypes.CDLL(None)


class ProgramRuntime(HipRuntime):
    """HIP's runtime for a whole program: what goes wrong is told at once, as HIP's error."""

    def __init__(self, folder: Path, source: str, settings: ProgramSettings) -> None:
        self._driver = RecordingDriver(settings)
        self.exit = self._exit
        count = len(list(folder.glob("*.s")))
        texts = [(folder / f"{at}.s").read_text() for at in range(count)]
        super().__init__(texts, self._driver.emulator, GpuMemory(), settings.pretended())
        self.file, self.limit = source, settings.limit

    def run(self, library: Any, words: list[str]) -> NoReturn:
        """Call main and end this process with its exit code."""
        self.install(library)
        library.ratchet_hip_begin()
        given = [one.encode() for one in words]
        self.memory.protect(CLOSED)
        self._exit(library.main(len(given), (ctypes.c_char_p * (len(given) + 1))(*given)))

    def _exit(self, code: int) -> NoReturn:
        _libc.fflush(None)
        complaint = self._library.ratchet_hip_complaint()
        if complaint:
            self._fail(HOST, complaint.decode())
        self._driver.write()
        sys.stdout.flush()
        os._exit(code & 255)

    def launched(self, launch: EmulatedLaunch) -> None:
        self._driver.add(launch)

    def _launch(self, name: bytes, sizes: Any, arguments: Any, shared_bytes: int) -> int:
        try:
            return super()._launch(name, sizes, arguments, shared_bytes)
        except KernelError as error:
            told = with_source_line(str(error), self.file)
            self._fail(plain_name(name.decode(errors="replace")), told)
            raise _Told from error

    def _product(self, asked: Any) -> int:
        with self.memory.opened():
            return multiply(asked.contents, self._check)

    def _check(self, place: int, size: int) -> None:
        if self.memory.find(place, size) is None:
            raise KernelError("hipBLAS reads or writes outside of the GPU's memory")

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


def run_main(folder: Path, words: list[str], settings: ProgramSettings) -> NoReturn:
    """Run a compiled program's main with its words, the source's name first; end this process."""
    runtime = ProgramRuntime(folder, words[0], settings)
    try:
        library = ctypes.CDLL(str(folder / PROGRAM))
    except OSError as error:
        missing = str(error).partition("undefined symbol: ")[2] or str(error)
        print(f"{CALLS.format(source=words[0])}{plain_name(missing)}{NOT_HERE}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    runtime.run(library, words)


def main() -> None:
    folder, *words = sys.argv[1:]
    run_main(Path(folder), words, msgspec.json.decode(os.environ[VARIABLE], type=ProgramSettings))


if __name__ == "__main__":
    main()
