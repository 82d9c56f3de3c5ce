"""The worker that runs a stranger's compiled program in the sandbox, with its kernels emulated."""

from __future__ import annotations

import base64
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

import msgspec

from ratchet.amd.emulator.extension_build import PROGRAM
from ratchet.amd.emulator.hip_program import run_main
from ratchet.amd.emulator.program import ProcessRecord, ProgramSettings, read_records
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.serving import Reply, serve

MOST_SAID: Final = 4000  # last bytes of a program's output that are told


class ProgramOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled program, and what it is given."""

    settings: ProgramSettings  # its paths are replaced
    source: str  # the name that its main is called by
    machine: bytes  # the compiled emulator
    assemblies: list[str]
    host: bytes
    files: dict[str, bytes]  # what lies in its folder


class ProgramEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A program's end: its exit code, its last words and its launches."""

    exit_code: int
    said: str
    records: list[ProcessRecord]


def answer(message: Message, _: list[int]) -> Reply:
    """Run a program and tell how it ended."""
    order = msgspec.json.decode(base64.b64decode(message["order"]), type=ProgramOrder)
    folder = Path(tempfile.mkdtemp(prefix="program-"))
    built, own, told = (folder / name for name in ("built", "own", "told"))
    for one in (built, own, told):
        one.mkdir()
    (built / PROGRAM).write_bytes(order.host)
    (built / "machine.so").write_bytes(order.machine)
    for at, text in enumerate(order.assemblies):
        (built / f"{at}.s").write_text(text)
    for name, data in order.files.items():
        place = own / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    settings = msgspec.structs.replace(
        order.settings, library=str(built / "machine.so"), folder=str(told)
    )
    said = folder / "said"
    child = os.fork()
    if child == 0:
        try:
            _redirect(said)
            os.chdir(own)
            run_main(built, [order.source], settings)
        except BaseException:  # the fork's own boundary
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end = ProgramEnd(
        exit_code=code if code >= 0 else 128 - code,
        said=said.read_bytes()[-MOST_SAID:].decode(errors="replace"),
        records=read_records(told),
    )
    return {"end": msgspec.to_builtins(end)}, []


def _redirect(said: Path) -> None:
    """Give this process no input, and one file for what it prints."""
    ends = (os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_CREAT, 0o600))
    for own, at in ((0, 0), (1, 1), (2, 1)):
        os.dup2(ends[at], own)


def main() -> None:
    """Confine this process, then serve; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    serve(channel, answer)
    os._exit(0)


if __name__ == "__main__":
    main()
