"""The zygote of compiled candidates: it forks a worker that compiles, or loads and calls, a kernel.

It stands in the sandbox, without torch and without candidate code (`enclosed_forks`). A fork takes
milliseconds; a new process in a new sandbox starts an interpreter as well.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from ratchet.base.errors import CompilerMissing
from ratchet.base.process.channel import Channel
from ratchet.judge.workers.candidate.cpp import CppWorker
from ratchet.judge.workers.enclosed_forks import serve_enclosed
from ratchet.judge.workers.serving import serve_candidate
from ratchet.kernels.languages import cpp


def main() -> None:
    """Ask the compiler for its version, then fork a worker for each order: argument is the channel.

    Each fork knows the answer, and so asks nobody.
    """
    with contextlib.suppress(CompilerMissing, OSError):
        cpp.headers_key((), cpp.find_compiler())
    serve_enclosed(_work)


def _work(_: dict[str, Any], channel: int) -> None:
    if channel >= 0:
        serve_candidate(Channel(socket.socket(fileno=channel)), CppWorker().answer)


if __name__ == "__main__":
    main()
