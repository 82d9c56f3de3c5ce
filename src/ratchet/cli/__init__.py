"""The command line: each command parses, calls the library and prints."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from ratchet.base import scratch
from ratchet.cli.process import (
    Ending,
    LostOutput,
    ending_by_signal,
    fill_closed,
    forget_stdout,
    has_written,
    kept_for_the_document,
    standing_in,
)

__all__ = ["main", "run"]

INTERNAL, MISTAKE, INTERRUPTED, PIPE_CLOSED = 70, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `--debug` shows tracebacks.

    `--debug` may stand anywhere before a `--`; words after `--` belong to the recorded command.

    Exit codes: 0 done, 2 a mistake in the call or a stdout that cannot be written (one line says
    which), 70 an internal error, 130 interrupted, 141 the reader of stdout went away, 128 + N
    ended by signal N (143 is SIGTERM). With `--json`, the line is also an error object on stdout.
    """
    began_s = time.monotonic()
    if not fill_closed():
        return _say("ratchet: stdout is closed: leave it open, or send it to a file", MISTAKE)
    with standing_in(), ending_by_signal() as ending:
        scratch.clear_abandoned()
        try:
            code = _main(list(sys.argv[1:] if arguments is None else arguments), began_s, ending)
            sys.stdout.flush()
        except LostOutput as lost:
            return _lost(lost)
        return ending.code(code)


def _main(words: list[str], began_s: float, ending: Ending) -> int:
    ours = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:ours]
    as_json = "--json" in words[:ours]
    helps = not {"--help", "-h"}.isdisjoint(words[:ours])
    words = [word for word in words[:ours] if word != "--debug"] + words[ours:]
    try:
        with kept_for_the_document() if as_json and not helps else nullcontext():
            return _command(words, began_s, as_json)
    except LostOutput:
        raise
    except KeyboardInterrupt:
        return _ended(_interrupted(words, ending), INTERRUPTED, as_json)
    except Exception as error:  # the outermost boundary: one line for whatever went wrong
        if debug:
            raise
        return _ended(*_explained(error), as_json)


def _command(words: list[str], began_s: float, as_json: bool) -> int:
    import typer

    from ratchet.cli.commands import commands

    # typer may carry its own copy of click, so its base class is reached through what it exports.
    usage_error: Any = typer.BadParameter.__mro__[1]
    if unreadable := next((one for one in words if not _is_utf8(one)), None):
        return _ended(_unreadable(unreadable), MISTAKE, as_json)
    try:
        code = commands()(
            args=words or ["--help"], prog_name="ratchet", standalone_mode=False, obj=began_s
        )
    except typer.Abort:
        raise KeyboardInterrupt from None
    except usage_error as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "ratchet"
        text = " ".join(error.format_message().split())
        return _ended(f"{text} ({command} --help shows the options)", MISTAKE, as_json)
    if code == INTERRUPTED:  # newer versions of typer make an interrupt this exit code
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> tuple[str, int]:
    """Return the line and the exit code for an error that ended a command.

    A disk, a folder or a permission is nobody's fault in here, even where no room explained it.
    """
    from ratchet.base.errors import OF_THE_WORLD, FileError, RatchetError

    if isinstance(error, RatchetError):
        return str(error), MISTAKE
    if isinstance(error, OSError) and error.errno in OF_THE_WORLD:
        return str(FileError.of(error)), MISTAKE
    if isinstance(error, UnicodeEncodeError) and not _is_utf8(error.object):
        return _unreadable(error.object[max(0, error.start - 40) : error.end + 40]), MISTAKE
    text = " ".join(str(error).split())[:300]
    return (
        f"internal error, {type(error).__name__}: {text} (--debug shows where)",
        INTERNAL,
    )


def _is_utf8(text: str) -> bool:
    """Return whether a text can be written; a file's name that is not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(name: str) -> str:
    """Return the mistake of a name that cannot be written: the file's, or the locale's."""
    raw = name.encode(sys.getfilesystemencoding(), "surrogateescape")
    shown = " ".join(raw.decode(errors="backslashreplace").split())
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"the name {shown!r} is not UTF-8: rename the file or folder"
    return (
        f"the name {shown!r} has letters that this locale lacks ({sys.getfilesystemencoding()}): "
        "set LC_ALL=C.UTF-8 or PYTHONUTF8=1"
    )


def run() -> None:
    """Run one command and exit with its code: the console script."""
    sys.exit(main())


def _interrupted(words: Sequence[str], ending: Ending) -> str:
    """Return how the command ended, and what it has kept."""
    left = {
        "optimize": "; the ledger holds its results so far (--resume continues)",
        "bench": "; the ledger holds its results so far",
        "bisect": "; its pairs and builds are kept (the same call continues)",
        "compare": "; the ledger holds its samples so far",
        "judge": "; the ledger holds its verdicts so far",
        "learn": "; the same command goes on from its last checkpoint",
        "write": "; the ledger holds its answers so far (--resume continues)",
    }
    how = "interrupted" if ending.by is None else f"ended by {ending.by.name}"
    return f"{how}{left.get(words[0], '') if words else ''}"


def _lost(lost: LostOutput) -> int:
    """Exit quietly, as `cat` does, if the reader went away (128 + SIGPIPE); else say why."""
    forget_stdout()
    if lost.number == errno.EPIPE:
        return PIPE_CLOSED
    return _say(f"ratchet: stdout cannot be written ({lost}): send it elsewhere", MISTAKE)


def _ended(message: str, code: int, as_json: bool) -> int:
    """Print why a command ended, with `--json` also as its one document; return the exit code."""
    _say(f"ratchet: {message}", code)
    if as_json and not has_written():
        from ratchet.cli.app import print_error

        print_error(message, code)
    return code


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
