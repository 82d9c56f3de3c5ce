"""The zygote of candidates in Python, in the sandbox (`sandbox.serving`).

It has imported torch, runs one thread, holds no candidate code, and opens no GPU. If its forks use
one, it has imported Triton too and built what Triton needs to call the driver. Each fork finds that
in a cache of its own, which no other candidate sees.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from pathlib import Path
from typing import Final

import torch

from ratchet.base.process.channel import Channel, Message
from ratchet.judge.sandbox.serving import quiet_fork, serve_candidate, serve_enclosed
from ratchet.judge.workers.candidate.with_torch import TorchWorker
from ratchet.judge.workers.device import open_device
from ratchet.judge.workers.first_calls import make_first_calls

CACHE: Final = "TRITON_CACHE_DIR"
HELPERS: Final = {"cuda": ("nvidia", "CudaUtils"), "hip": ("amd", "HIPUtils")}
"""Triton's back end and its class that builds a module in C for the driver, by dialect."""

_built: dict[str, bytes] = {}  # Files of Triton's cache, by their places


def main() -> None:
    """Fork a worker for each order; argv holds the channel."""
    make_first_calls()
    serve_enclosed(_work, _prepare)


def _prepare(order: Message) -> None:
    """Import Triton and build its module for the GPU's driver. A failure costs forks time only."""
    if order["device"] is None:
        return
    with contextlib.suppress(ImportError):  # torch can do without it
        import triton  # noqa: F401

        _built.update(_helper_files(order["device"]["dialect"], Path(os.environ[CACHE])))


def _helper_files(dialect: str, cache: Path) -> dict[str, bytes]:
    """Build the module in a process of its own, which may load the driver; return its files."""
    child = quiet_fork()
    if not child:
        try:
            module, name = HELPERS[dialect]
            getattr(importlib.import_module(f"triton.backends.{module}.driver"), name)()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    found = [one for one in cache.rglob("*") if one.is_file() and one.suffix == ".so"]
    return {str(one.relative_to(cache)): one.read_bytes() for one in found}


def _work(order: Message, channel: int) -> None:
    torch.default_generator.seed()  # from the system's entropy, as in a new process
    torch.set_num_threads(order["threads"])
    if channel < 0:
        open_device(order["device"]).try_sharing()
        return
    for place, content in _built.items():
        path = Path(os.environ[CACHE], place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    serve_candidate(Channel(socket.socket(fileno=channel)), TorchWorker().answer)


if __name__ == "__main__":
    main()
