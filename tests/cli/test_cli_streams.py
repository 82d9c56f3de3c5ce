"""Terminals and pipes: a poor encoding, a full disk, a reader that has gone, a closed stream."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import made_traces as mt
import made_up_trace as made
import pytest

from ratchet.cli import main
from ratchet.cli.process import StandardStream

FULL = Path("/dev/full")
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return mt.write(tmp_path / "trace.json.gz", made.steps(), **made.H100)


def shell(line: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command through a shell, which sets up its streams: `"$@" > /dev/full`."""
    command = [sys.executable, "-m", "ratchet.cli", *map(str, words)]
    return subprocess.run(
        ["sh", "-c", line, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


class Failing(io.RawIOBase):
    """A file that takes nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return len(bytes(data))  # type: ignore[call-overload]


COMMANDS = (
    ("--version",),
    ("--help",),
    ("trace",),
    ("trace", "report"),
    ("trace", "report", "--json"),
)


@pytest.mark.parametrize(("number", "code"), [(errno.EPIPE, 141), (errno.ENOSPC, 2)])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("through", [False, True], ids=["buffered", "at once"])
def test_a_stdout_that_fails_ends_every_command_alike(
    number: int,
    code: int,
    words: tuple[str, ...],
    through: bool,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = Failing(number)
    stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", write_through=through)
    monkeypatch.setattr(sys, "stdout", stdout)
    path = [str(trace)] if "report" in words else []
    assert main([*words, *path]) == code
    raw.number = 0  # what is buffered goes when the file does
    said = capsys.readouterr().err
    assert said.count("\n") == (number != errno.EPIPE), said
    assert "No space left" in said or number == errno.EPIPE


def test_a_report_in_ascii_is_whole(trace: Path) -> None:
    done = shell('"$@"', "trace", "report", trace, **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii() and "Where the time goes" in done.stdout
    assert "?" not in done.stdout and "\\u" not in done.stdout


def test_no_encoding_is_too_poor() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    StandardStream(stream, needed=True).write("a · b × 3 µs … ─│█ é \udcff")
    assert raw.getvalue() == rb"a - b x 3 us ... -|# \xe9 \udcff"


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(trace: Path) -> None:
    done = shell('"$@" > /dev/full', "trace", "report", trace)
    assert done.returncode == 2
    assert done.stderr.startswith("ratchet: stdout cannot be written (No space left on device)")
    assert done.stderr.count("\n") == 1


def test_a_stderr_that_fails_stops_nothing(trace: Path) -> None:
    done = shell('"$@" 2> /dev/full', "trace", "report", trace)
    assert done.returncode == 0 and "Where the time goes" in done.stdout


def test_without_stderr_a_mistake_is_silent() -> None:
    done = shell('"$@" 2>&-', "trace", "report", "missing.json")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_without_stdout_nothing_is_begun(trace: Path) -> None:
    done = shell('"$@" >&-', "trace", "report", trace, "--json")
    assert done.returncode == 2
    assert done.stderr == "ratchet: stdout is closed: leave it open, or send it to a file\n"


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["report", "json"])
def test_a_reader_that_has_gone_ends_the_command_quietly(trace: Path, more: tuple[str]) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    command = [sys.executable, "-m", "ratchet.cli", "trace", "report", str(trace), *more]
    done = subprocess.run(command, stdout=writable, stderr=subprocess.PIPE, check=False)
    os.close(writable)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    streams = sys.stdout, sys.stderr
    assert main(["--version"]) == 0
    assert (sys.stdout, sys.stderr) == streams
    assert capsys.readouterr().out.startswith("ratchet ")
