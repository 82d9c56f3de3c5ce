"""A small server that speaks OpenAI's chat protocol, streaming, and misbehaves on request."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Behaviour = Callable[["Handler", dict[str, Any]], None]


@dataclass
class OpenAIServer:
    """The server's script and its record. Each request takes the next behaviour, then the last."""

    script: list[Behaviour]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> Behaviour:
        with self.lock:
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: OpenAIServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.served.lock:
            self.served.requests.append(body)
            self.served.keys.append(self.headers.get("authorization", ""))
            self.served.times.append(time.monotonic())
        try:
            self.served.next()(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass

    def start(self, code: int = 200, content_type: str = "text/event-stream", **more: str) -> None:
        self.send_response(code)
        self.send_header("content-type", content_type)
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def whole(self, code: int, body: bytes, content_type: str, **more: str) -> None:
        self.start(code, content_type, content_length=str(len(body)), **more)
        self.wfile.write(body)

    def piece(self, text: str) -> None:
        raw = text.encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.wfile.flush()

    def event(self, document: Any) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        self.piece(f"data: {text}\n\n")


class QuietServer(ThreadingHTTPServer):
    """Wait for the threads that answer at the end, so that no socket outlives a test."""

    daemon_threads = False

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up: some tests do."""


@contextmanager
def serving(*script: Behaviour) -> Iterator[OpenAIServer]:
    """Serve on a free port of this machine until the end of the context."""
    served = OpenAIServer(script=list(script))
    handler = type("Served", (Handler,), {"served": served})
    server = QuietServer(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            # A client takes 40 ms to read the machine's certificates, and needs none here.
            patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
            yield served
    finally:
        served.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _chunk(delta: dict[str, Any], finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "test",
        "choices": choices if usage is None else [],
        "usage": usage,
    }


def answer(
    text: str,
    *,
    finish: str | None = "stop",
    usage: tuple[int, int] | None = (100, 50),
    refusal: str = "",
    size: int = 40,
) -> Behaviour:
    """Stream a text in pieces, with its usage at the end."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(transfer_encoding="chunked")
        handler.event(_chunk({"role": "assistant", "content": ""}))
        for at in range(0, len(text), size):
            handler.event(_chunk({"content": text[at : at + size]}))
        if refusal:
            handler.event(_chunk({"refusal": refusal}))
        if finish is not None:
            handler.event(_chunk({}, finish))
        if usage is not None:
            counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
            handler.event(_chunk({}, usage=counts | {"total_tokens": sum(usage)}))
        handler.event("[DONE]")
        handler.piece("")

    return behave


def cut(text: str) -> Behaviour:
    """Stream a part, then close the connection in the middle of a chunk."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(transfer_encoding="chunked")
        handler.event(_chunk({"content": text}))
        handler.wfile.write(b"ffff\r\ndata: {")
        handler.wfile.flush()
        handler.close_connection = True

    return behave


def error(code: int, message: str, *, kind: str = "", **headers: str) -> Behaviour:
    """Answer with an HTTP error in OpenAI's form."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        document = {"error": {"message": message, "type": kind, "code": kind or None}}
        handler.whole(code, json.dumps(document).encode(), "application/json", **headers)

    return behave


def error_in_stream(message: str) -> Behaviour:
    """Begin to answer, then send an error event."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(transfer_encoding="chunked")
        handler.event(_chunk({"content": "Well, "}))
        handler.event({"error": {"message": message, "code": 500}})
        handler.piece("")

    return behave


def raw(body: str, content_type: str = "text/event-stream") -> Behaviour:
    """Answer with any body."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.whole(200, body.encode(), content_type)

    return behave


def in_one_piece(text: str) -> Behaviour:
    """Answer as an endpoint that does not stream."""
    message = {"role": "assistant", "content": text}
    document = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
    return raw(json.dumps(document), "application/json")


def silent() -> Behaviour:
    """Send the headers, then nothing until the server ends."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(transfer_encoding="chunked")
        handler.served.over.wait(60)
        handler.close_connection = True

    return behave


def in_pieces(body: str, size: int) -> Behaviour:
    """Answer with a stream's bytes, a few at a time."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(connection="close")
        for at in range(0, len(body.encode()), size):
            handler.wfile.write(body.encode()[at : at + size])
            handler.wfile.flush()
        handler.close_connection = True

    return behave


def dripping(text: str = "", line: str = "") -> Behaviour:
    """Send `text`, part of an endless line, or a comment ten times a second until the end."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        handler.start(transfer_encoding="chunked")
        while not handler.served.over.wait(0.1):
            if text:
                handler.event(_chunk({"content": text}))
            else:
                handler.piece(line or ": still here\n\n")
        handler.close_connection = True

    return behave


def picky(parameter: str, then: Behaviour) -> Behaviour:
    """Reject requests that have a parameter; answer others."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        if parameter in request:
            error(400, f"Unsupported parameter: '{parameter}'")(handler, request)
        else:
            then(handler, request)

    return behave


def telling_the_key(code: int) -> Behaviour:
    """Answer with an error that quotes the key."""

    def behave(handler: Handler, request: dict[str, Any]) -> None:
        error(code, f"bad header: {handler.headers['authorization']}")(handler, request)

    return behave
