"""The zygote of candidates in Python, in the sandbox (`enclosed_forks`).

It has imported torch, runs one thread, and holds no candidate code.
"""

from __future__ import annotations

import socket

import torch

from ratchet.base.process.channel import Channel, Message
from ratchet.judge.workers.candidate.with_torch import TorchWorker
from ratchet.judge.workers.enclosed_forks import serve_enclosed
from ratchet.judge.workers.serving import serve_candidate


def main() -> None:
    """Fork a worker for each order; argv holds the channel."""
    serve_enclosed(_work)


def _work(order: Message, channel: int) -> None:
    torch.default_generator.seed()  # from the system's entropy, as in a new process
    torch.set_num_threads(order["threads"])
    if channel >= 0:
        serve_candidate(Channel(socket.socket(fileno=channel)), TorchWorker().answer)


if __name__ == "__main__":
    main()
