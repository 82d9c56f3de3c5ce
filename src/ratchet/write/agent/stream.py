"""An answer as it arrives: server-sent events, or one piece, within limits on size and time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from ratchet.base import Json
from ratchet.base.ledger.books import Usage
from ratchet.write.agent.reply import Reply, Status

MOST_CHARACTERS: Final = 1 << 20
MOST_BYTES: Final = 32 << 20
"""Limit of an answer with its framing: each piece of a few letters takes some 200 bytes."""
MOST_REASON: Final = 300


class EventError(Exception):
    """An error that the endpoint sent in its stream."""

    def __init__(self, message: str, code: object) -> None:
        super().__init__(message)
        self.code = code


class Response(Protocol):
    """The part of an HTTP response that reading needs."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers; their names may have any case."""
        ...

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        ...


@dataclass(slots=True)
class Answering:
    """An answer as it arrives."""

    deadline_s: float
    """On the monotonic clock."""
    most_tokens: int
    parts: list[str] = field(default_factory=list)
    size: int = 0
    refusal: str = ""
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    begun: bool = False
    """The endpoint began to answer."""
    late: bool = False
    """It did not end in time."""
    overlong: bool = False

    def read(self, response: Response) -> None:
        """Read a response to its end, or to a limit.

        Raises:
            EventError: the endpoint sent an error in its stream.
            ValueError, TypeError, KeyError, AttributeError, IndexError: it is not the protocol.
        """
        self.begun = True
        if "event-stream" not in response.headers.get("content-type", "event-stream"):
            body = b"".join(self._limited(response))
            if not (self.late or self.overlong):
                self._take_whole(json.loads(body))
            return
        for line in self._lines(response):
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:") and data:
                self._take(json.loads(data))

    def reply(self) -> Reply:
        """Return what there is, with its status."""
        text = "".join(self.parts)
        status: Status = "answered"
        reason = ""
        if self.late:
            status, reason = "timed_out", "the answer did not end within its time"
        elif self.overlong:
            status = "overlong"
            reason = f"the answer is longer than the {self.most_tokens} tokens it may have"
        elif self.refusal or self.finish == "content_filter":
            status, reason = "refused", self.refusal or "a content filter stopped the answer"
        elif self.finish == "length":
            status = "overlong"
            reason = f"the answer was cut off at {self.most_tokens} tokens: think and write less"
        elif self.finish is None:
            status, reason = "cut", "the stream ended before the answer did"
            if not text:
                status, reason = "garbled", "the stream holds no answer"
        elif not text.strip():
            status, reason = "empty", "the answer is empty"
        return Reply(status=status, text=text, reason=reason, usage=self.usage)

    def _limited(self, response: Response) -> Iterator[bytes]:
        """Yield the body up to the limits; even a stream of comments ends at the deadline."""
        size = 0
        for piece in response.iter_bytes():
            size += len(piece)
            self.late = time.monotonic() > self.deadline_s
            self.overlong = self.overlong or size > MOST_BYTES
            if self.late or self.overlong:
                return
            yield piece

    def _lines(self, response: Response) -> Iterator[bytes]:
        rest = b""
        for piece in self._limited(response):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield line
                if self.overlong:
                    return
        if rest and not self.late:
            yield rest

    def _take(self, chunk: Json) -> None:
        if chunk.get("error"):
            error = chunk["error"]
            said = error if isinstance(error, str) else error.get("message")
            code = None if isinstance(error, str) else error.get("code")
            raise EventError(str(said or "the endpoint failed"), code)
        if chunk.get("usage"):
            self._count(chunk["usage"])
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            self._add(delta.get("content"), delta.get("refusal"), choice.get("finish_reason"))

    def _take_whole(self, document: Json) -> None:
        """Take an answer that came in one piece, from an endpoint that does not stream."""
        [choice, *_] = document["choices"]
        message = choice["message"]
        finish = choice.get("finish_reason") or "stop"
        self._add(message.get("content"), message.get("refusal"), finish)
        self._count(document.get("usage") or {})

    def _add(self, content: object, refusal: object, finish: object) -> None:
        if content:
            self.parts.append(str(content))
            self.size += len(self.parts[-1])
            most = min(MOST_CHARACTERS, 4096 + 16 * self.most_tokens)
            self.overlong = self.overlong or self.size > most
        if refusal:
            self.refusal = (self.refusal + str(refusal))[:MOST_REASON]
        self.finish = str(finish) if finish else self.finish

    def _count(self, usage: Json) -> None:
        """Take an endpoint's own figures; 0 where they are no counts."""
        given = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        counts = [one if type(one) is int and 0 <= one < 1 << 40 else 0 for one in given]
        self.usage = Usage(prompt_tokens=counts[0], completion_tokens=counts[1])
