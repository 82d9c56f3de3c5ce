"""The zygote of candidates in Python: torch is imported, no thread runs, no candidate code is here.

It stands in the sandbox, and forks for each candidate's process (`enclosed_forks`).
"""

from __future__ import annotations

import socket
from typing import Any

import torch

from ratchet.base.process.channel import Channel
from ratchet.judge.workers.candidate.with_torch import TorchWorker
from ratchet.judge.workers.enclosed_forks import serve_enclosed
from ratchet.judge.workers.serving import serve_candidate


def main() -> None:
    """Fork a worker for each order: argument is the channel."""
    serve_enclosed(_work)


def _work(order: dict[str, Any], channel: int) -> None:
    torch.default_generator.seed()  # by the system's entropy, as in a new process
    torch.set_num_threads(order["threads"])
    if channel >= 0:
        serve_candidate(Channel(socket.socket(fileno=channel)), TorchWorker().answer)


if __name__ == "__main__":
    main()
