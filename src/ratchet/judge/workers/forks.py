"""The loop of a zygote: a process that holds torch, runs no thread, and forks when it is told to.

A fork starts in milliseconds where a new process imports torch for over a second. `rival` forks the
reference so, and `zygote` the candidates.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from ratchet.base.process import families
from ratchet.base.process.channel import Channel, ChannelClosed, close_descriptors

Run = Callable[[dict[str, Any], list[int]], None]
"""Does the work of a fork, given its order and the descriptors that came with that."""


def serve_forks(channel: Channel, run: Run) -> NoReturn:
    """Fork for each order, and report how forks ended, until the judge closes the channel.

    Objects that exist by now are left out of garbage collections, in every fork.
    """
    gc.collect()
    gc.freeze()
    while True:
        try:
            message, descriptors = channel.receive()
        except ChannelClosed:
            os._exit(0)
        if message["do"] == "fork":
            _fork(channel, run, message, descriptors)
        else:
            channel.send({"code": _exit_code(message["pid"], wait=message["do"] == "reap")})
        close_descriptors(descriptors)


def _fork(channel: Channel, run: Run, order: dict[str, Any], descriptors: list[int]) -> None:
    """Fork; the child itself answers, so that the kernel tells the judge which process it is."""
    zygote = os.getpid()
    if os.fork():
        return
    try:
        families.die_with_parent(zygote)
        channel.send({"pid": os.getpid()})
        channel.close()
        run(order, descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _exit_code(pid: int, *, wait: bool) -> int | None:
    """The exit code of a fork (negative: the signal), or None while it lives."""
    if wait:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return families.exit_code(pid)
