"""The zygote of compiled candidates, in the sandbox (`sandbox.serving`), without candidate code.

A fork compiles a kernel, or loads and calls one. It starts in milliseconds; a new process in a new
sandbox also starts an interpreter.
"""

from __future__ import annotations

import contextlib
import socket

from ratchet.base.errors import CompilerMissing
from ratchet.base.process.channel import Channel, Message
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.sandbox.serving import serve_candidate, serve_enclosed
from ratchet.judge.workers.candidate.cpp import CppWorker


def main() -> None:
    """Ask the compiler for its version, then fork a worker for each order; argv holds the channel.

    The forks know the version then.
    """
    with contextlib.suppress(CompilerMissing, OSError):
        cpp.cache_key(cpp.find_compiler())
    serve_enclosed(_work)


def _work(_: Message, channel: int) -> None:
    if channel >= 0:
        serve_candidate(Channel(socket.socket(fileno=channel)), CppWorker().answer)


if __name__ == "__main__":
    main()
