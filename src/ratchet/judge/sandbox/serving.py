"""The loops of a worker that answers the judge, and of a zygote that forks workers.

A zygote holds torch and runs no thread. A fork starts in milliseconds; a new process imports torch
for over a second.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from ratchet.base.errors import RatchetError
from ratchet.base.process import families
from ratchet.base.process.channel import Channel, ChannelClosed, Message, close_descriptors

READY: Final = {"ready": True}
UNPLACED: Final = "unplaced"
"""In the answer to `load`, and an attribute of an entry: the names of a problem's state that a
model has no place for."""
CHANGED: Final = "changed"
"""In the answer to `prepare`: what earlier calls left changed in their process, in words."""
Reply = tuple[Message, list[int]]
"""An answer, and the descriptors that go with it."""
Answer = Callable[[Message, list[int]], Reply]
Run = Callable[[Message, list[int]], None]
"""Does the work of a fork, given its order and the descriptors that came with it."""


_serving: Channel | None = None


def ask_judge(question: Message) -> Reply:
    """Ask the judge in the middle of an order; return its answer and descriptors.

    Raises ChannelClosed if the judge is gone.
    """
    assert _serving is not None, "no order is being carried out"
    _serving.send(question)
    return _serving.receive()


def serve(channel: Channel, answer: Answer) -> None:
    """Answer messages until the judge closes the channel."""
    global _serving
    _serving = channel
    while True:
        try:
            message, descriptors = channel.receive()
        except ChannelClosed:
            return
        try:
            reply, handed = answer(message, descriptors)
        except (Exception, SystemExit) as error:  # the process boundary: the judge decides
            traceback.print_exc()
            reply, handed = {"error": describe_error(error)}, []
        try:
            channel.send(reply, handed)
        except (TypeError, ValueError) as error:  # the answer is not JSON
            channel.send({"error": describe_error(error)})
        close_descriptors(handed)
        if message["do"] != "load":  # a loaded library may be looked up again by its descriptor
            close_descriptors(descriptors)


def serve_candidate(channel: Channel, answer: Answer) -> None:
    """Report to the judge before any candidate code runs, then answer messages.

    A failure before that report is the machine's fault, not the kernel's.
    """
    channel.send(READY)
    serve(channel, answer)


def describe_error(error: BaseException) -> Message:
    """Return an error as the judge reads it; `known` marks Ratchet's own one-line messages."""
    known = isinstance(error, RatchetError)
    return {"kind": type(error).__name__, "message": str(error)[:1000], "known": known}


def serve_forks(channel: Channel, run: Run) -> NoReturn:
    """Fork for each order, and report how forks ended, until the judge closes the channel.

    No fork's garbage collection looks at objects that exist by now.
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


def _fork(channel: Channel, run: Run, order: Message, descriptors: list[int]) -> None:
    """Fork. The child answers, so the kernel tells the judge which process it is."""
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
    """Return a fork's exit code (negative: the signal), or None while it lives."""
    if wait:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return families.exit_code(pid)
