"""Serve a policy as an OpenAI-compatible endpoint on this machine, so that the agent can ask it.

transformers' own server needs fastapi and uvicorn and expands no schedules, so this is a small one
of the standard library's.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import uuid
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from ratchet.base.errors import LearnError, RatchetError
from ratchet.judge.api import as_problem
from ratchet.learn.evaluate import policy_drawer
from ratchet.learn.models import Policy
from ratchet.learn.sampling import DrawRequest, sample
from ratchet.learn.tasks import LearnTask, task_of

HOST: Final = "127.0.0.1"
LARGEST_REQUEST: Final = 4 << 20
TRIES: Final = 8
_PROBLEM: Final = re.compile(r"^# The problem: (\S+)$", re.MULTILINE)
"""The line of the agent's prompt that names the problem."""


class ChatMessage(msgspec.Struct):
    """One message of a request."""

    role: str
    content: str


class ChatCall(msgspec.Struct):
    """A request, as far as it is read."""

    messages: list[ChatMessage]
    model: str = ""
    stream: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """An answer, with its tokens."""

    text: str
    prompt_tokens: int
    completion_tokens: int


class Answerer:
    """Answers a chat: a schedule policy with the kernel that its schedule gives."""

    def __init__(self, policy: Policy, *, seed: int = 0) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._source = random.Random(seed)
        self._tasks: dict[str, LearnTask] = {}

    def answer(self, call: ChatCall) -> ChatAnswer:
        """Return the answer to a request.

        Raises:
            RatchetError: a schedule policy was asked about a problem that it cannot look up.
        """
        with self._lock:
            if self._policy.card.answers == "schedule":
                return self._scheduled(call)
            return self._written(call)

    def _scheduled(self, call: ChatCall) -> ChatAnswer:
        prompt = "\n".join(one.content for one in call.messages)
        task = self._task(prompt)
        asked = sum(len(one.content) for one in call.messages) // 4
        temperature = 1.0 if call.temperature is None else call.temperature
        draw = policy_drawer(self._policy, temperature=temperature)
        for _ in range(TRIES):
            (found,) = draw(task, 1, self._source.getrandbits(31))
            if found is not None and found.kernel.source not in prompt:
                tag = "cpp" if found.kernel.language == "cpp" else "python"
                choices = ", ".join(f"{name} {value}" for name, value in found.schedule)
                text = f"Change: {choices}\n\n```{tag}\n{found.kernel.source}```\n"
                return ChatAnswer(text=text, prompt_tokens=asked, completion_tokens=len(choices))
        return ChatAnswer(
            text="The policy has no new kernel.", prompt_tokens=asked, completion_tokens=6
        )

    def _task(self, prompt: str) -> LearnTask:
        """Return the task of the problem that a prompt names."""
        found = _PROBLEM.findall(prompt)
        if not found:
            raise LearnError(
                "the prompt names no problem: a policy that writes schedules answers the agent's "
                "prompts, which have a line '# The problem: NAME'"
            )
        name = found[0]
        if name not in self._tasks:
            self._tasks[name] = task_of(as_problem(name), language=self._policy.card.language)
        return self._tasks[name]

    def _written(self, call: ChatCall) -> ChatAnswer:
        tokenizer = self._policy.tokenizer
        if tokenizer.chat_template:
            prompt = tokenizer.apply_chat_template(
                [{"role": one.role, "content": one.content} for one in call.messages],
                tokenize=False,
                add_generation_prompt=True,
            )
        else:
            prompt = "\n".join(one.content for one in call.messages) + "\n"
        request = DrawRequest(
            prompt=prompt,
            count=1,
            most_tokens=min(call.max_tokens or 2048, 8192),
            temperature=1.0 if call.temperature is None else call.temperature,
            seed=self._source.getrandbits(31) if call.seed is None else call.seed,
        )
        (found,) = sample(self._policy.model, tokenizer, request)
        return ChatAnswer(
            text=found.text,
            prompt_tokens=len(found.prompt),
            completion_tokens=len(found.answer),
        )


class PolicyServer:
    """The endpoint: `/v1/models` and `/v1/chat/completions`, on 127.0.0.1 alone."""

    def __init__(self, policy: Policy, *, port: int, name: str = "policy", seed: int = 0) -> None:
        """Bind the port; 0 takes a free one.

        Raises:
            LearnError: the port is in use, or may not be bound.
        """
        answerer = Answerer(policy, seed=seed)

        class Handler(_Requests):
            served = (answerer, name)

        try:
            self._server = ThreadingHTTPServer((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise LearnError(
                f"port {port} cannot be bound ({reason}): give another --port"
            ) from error
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Return the base URL, as `--base-url` takes it."""
        return f"http://{HOST}:{self._server.server_address[1]}/v1"

    def run(self) -> None:
        """Serve until interrupted."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def close_socket(self) -> None:
        """Free the port, once `run` has returned."""
        self._server.server_close()


class _Requests(BaseHTTPRequestHandler):
    """One request."""

    served: tuple[Answerer, str]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the ledger has what the agent asked."""

    def do_GET(self) -> None:
        """List the one model."""
        if self.path.rstrip("/") != "/v1/models":
            return self._failed(404, f"unknown path {self.path!r:.80}")
        model = {"id": self.served[1], "object": "model", "created": 0, "owned_by": "ratchet"}
        self._json(200, {"object": "list", "data": [model]})

    def do_POST(self) -> None:
        """Answer a chat."""
        if self.path.rstrip("/") != "/v1/chat/completions":
            return self._failed(404, f"unknown path {self.path!r:.80}")
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > LARGEST_REQUEST:
            self.close_connection = True
            return self._failed(413, f"a request has at most {LARGEST_REQUEST} bytes")
        try:
            call = msgspec.json.decode(self.rfile.read(int(length)), type=ChatCall)
        except msgspec.DecodeError as error:
            return self._failed(400, f"the request is no chat completion: {error}")
        try:
            answer = self.served[0].answer(call)
        except RatchetError as error:
            return self._failed(400, str(error))
        except Exception as error:  # the request's boundary: the server goes on
            return self._failed(500, f"{type(error).__name__}: {error}")
        self._answered(call, answer)

    def _answered(self, call: ChatCall, answer: ChatAnswer) -> None:
        head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.served[1],
        }
        usage = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
        message = {"role": "assistant", "content": answer.text}
        if not call.stream:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            document = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return self._json(200, document)
        kind = {**head, "object": "chat.completion.chunk"}
        events = [
            {**kind, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {**kind, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**kind, "choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(one)}\n\n" for one in events] + ["data: [DONE]\n\n"]
        self._send(200, "text/event-stream", "".join(lines).encode())

    def _failed(self, code: int, why: str) -> None:
        self._json(code, {"error": {"message": why, "type": "invalid_request_error"}})

    def _json(self, code: int, document: dict[str, Any]) -> None:
        self._send(code, "application/json", json.dumps(document).encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
