"""The loop of a worker that answers the judge."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

from ratchet.base.errors import RatchetError
from ratchet.base.process.channel import Channel, ChannelClosed, close_descriptors

READY: Final = {"ready": True}
Reply = tuple[dict[str, Any], list[int]]
"""An answer, and the descriptors that go with it."""


def serve(channel: Channel, answer: Callable[[dict[str, Any], list[int]], Reply]) -> None:
    """Answer messages until the judge closes the channel."""
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


def serve_candidate(channel: Channel, answer: Callable[[dict[str, Any], list[int]], Reply]) -> None:
    """Tell the judge that the worker stands, before any candidate code, then answer messages.

    What goes wrong before is the machine's fault, and no kernel's.
    """
    channel.send(READY)
    serve(channel, answer)


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error as the judge reads it; `known` are Ratchet's own one-line messages."""
    known = isinstance(error, RatchetError)
    return {"kind": type(error).__name__, "message": str(error)[:1000], "known": known}
