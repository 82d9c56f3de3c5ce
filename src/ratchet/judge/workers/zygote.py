"""The zygote of candidates in Python, in the sandbox (`enclosed_forks`).

It has imported torch, and Triton too if its forks use a GPU. It runs one thread, holds no candidate
code, and opens no GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import socket

import torch

from ratchet.base.process.channel import Channel
from ratchet.judge.workers.candidate.with_torch import TorchWorker
from ratchet.judge.workers.enclosed_forks import serve_enclosed
from ratchet.judge.workers.memory.device import open_device
from ratchet.judge.workers.serving import Message, serve_candidate


def main() -> None:
    """Fork a worker for each order; argv holds the channel."""
    serve_enclosed(_work, _prepare)


def _prepare(order: Message) -> None:
    if order["device"] is not None:
        with contextlib.suppress(ImportError):  # torch can do without it
            importlib.import_module("triton")


def _work(order: Message, channel: int) -> None:
    torch.default_generator.seed()  # from the system's entropy, as in a new process
    torch.set_num_threads(order["threads"])
    if channel < 0:
        open_device(order["device"]).try_sharing()
    else:
        serve_candidate(Channel(socket.socket(fileno=channel)), TorchWorker().answer)


if __name__ == "__main__":
    main()
