"""Who answers: an OpenAI-compatible endpoint (the `openai` package, streaming), or the ledger.

A client never raises for what an endpoint does: whatever happens is a `Reply` with a status.
"""

from __future__ import annotations

import email.utils
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, cast, get_args
from urllib.parse import quote, urlsplit, urlunsplit

from ratchet.base import Json
from ratchet.base.errors import EndpointError
from ratchet.base.ledger.books import Exchange, Usage
from ratchet.write.agent.ask import ChatRequest, Reply, Status, estimate_tokens

if TYPE_CHECKING:
    from openai import OpenAI


HIDDEN: Final = "[key]"
NO_KEY: Final = "none"  # The key for a server that asks for none: the protocol needs some word
DEFAULT_URL: Final = "https://api.openai.com/v1"
URL_ENVIRONMENT: Final = "OPENAI_BASE_URL"
LEAST_SECRET: Final = 6
"""Shorter words, such as the keys of local servers, are no secrets and stand in ordinary text."""


class Secret:
    """A key that no `repr`, `str` or pickle shows."""

    __slots__ = ("_also", "_value")

    def __init__(self, value: str, also: tuple[str, ...] = ()) -> None:
        self._value = value
        self._also = also

    def __repr__(self) -> str:
        return "Secret()"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")

    def reveal(self) -> str:
        """Return the key, for the client's header alone."""
        return self._value

    def hide(self, text: str) -> str:
        """Return a text without the key, in any of the forms that an endpoint may echo."""
        for word in (self._value, *self._also):
            if len(word) >= LEAST_SECRET:
                for form in {word, quote(word, safe=""), word.encode("unicode_escape").decode()}:
                    text = text.replace(form, HIDDEN)
        return text


def read_key(environment: str, base_url: str | None) -> Secret:
    """Return the key of an environment variable; a word that says none for an own server.

    Raises EndpointError: the variable is not set, and the endpoint is the hosted default.
    """
    value = os.environ.get(environment, "").strip()
    if value and not (value.isascii() and value.isprintable()):
        raise EndpointError(
            f"the key in {environment} has characters that no HTTP header can carry: set it again"
        )
    url = base_url or os.environ.get(URL_ENVIRONMENT, "")
    if not value and not url:
        raise EndpointError(
            f"no key in {environment}: set it (export {environment}=...), or give the --base-url "
            "of an endpoint that needs none"
        )
    parts = urlsplit(url)
    return Secret(value or NO_KEY, tuple(one for one in (parts.password, parts.query) if one))


def endpoint_url(base_url: str | None) -> str:
    """Return the endpoint's URL: what was given, OPENAI_BASE_URL, or the hosted default.

    Raises EndpointError: it is not an http or https URL.
    """
    url = (base_url or os.environ.get(URL_ENVIRONMENT, "") or DEFAULT_URL).strip()
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or re.search(r"\s", url):
        raise EndpointError(
            f"{shown_url(url)!r} is no endpoint: give a URL such as http://localhost:8000/v1"
        )
    return url


def shown_url(url: str) -> str:
    """Return a URL for a message, without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", "")) or url[:80]
    except ValueError:
        return "the given URL"


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

    def iter_bytes(self) -> Iterator[bytes]: ...


@dataclass(slots=True)
class Answering:
    deadline_s: float  # On the monotonic clock
    most_tokens: int
    parts: list[str] = field(default_factory=list)
    size: int = 0
    refusal: str = ""
    finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    begun: bool = False  # The endpoint began to answer
    late: bool = False  # It did not end in time
    overlong: bool = False

    def read(self, response: Response) -> None:
        """Read a response to its end, or to a limit.

        Raises EventError (the endpoint sent an error in its stream); ValueError, TypeError,
        KeyError, AttributeError, IndexError (it is not the protocol).
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


CONNECT_LIMIT_S: Final = 10.0
SILENCE_LIMIT_S: Final = 120.0
"""Longest wait for the next piece of an answer; models think before they begin."""


class OpenAIClient:
    def __init__(self, *, model: str, base_url: str, key: Secret) -> None:
        self.model = model
        self.place = shown_url(base_url)
        self._key = key
        self._base_url = base_url
        _openai(base_url, key).close()  # a URL that is no URL is told now
        self._options: dict[str, str] = {"stream_options": "", "temperature": "", "max_tokens": ""}
        """The optional parameters that this endpoint takes, and their other names."""

    def ask(self, question: ChatRequest) -> Reply:
        """Stream one answer, over connections of its own: turns are minutes apart."""
        began_s = time.monotonic()
        reply = self._asked(question, began_s)
        for _ in range(len(self._options)):
            if reply.status != "rejected" or not self._gave_up_option(reply.reason):
                break
            reply = self._asked(question, began_s)
        return self._clean(reply, question)

    def _asked(self, question: ChatRequest, began_s: float) -> Reply:
        import openai

        text = Answering(began_s + question.time_limit_s, question.most_tokens)
        status: Status
        wish: float | None = None
        try:
            with _openai(self._base_url, self._key) as client:
                streaming = client.chat.completions.with_streaming_response
                left_s = began_s + question.time_limit_s - time.monotonic()
                with streaming.create(**self._request(question, left_s)) as response:
                    text.read(response)
            return text.reply()
        except openai.APITimeoutError:
            status, reason = "timed_out", f"no answer within {question.time_limit_s:.0f} s"
        except openai.APIConnectionError as error:
            status, reason = _lost(text, _first_cause(error))
        except openai.APIStatusError as error:
            body = error.body  # in OpenAI's form or as plain text
            said = str(body.get("message") or "") if isinstance(body, Mapping) else body
            said = said if said and isinstance(said, str) else error.message
            if 300 <= error.status_code < 400:
                said = f"a redirect to {error.response.headers.get('location', 'nowhere')}"
            status, reason = _status_of(error.status_code, error.code, said)
            wish = _retry_after(error.response.headers.get("retry-after"))
        except EventError as error:
            status, reason = _status_of(500, error.code, str(error))
        except _transport_errors("TimeoutException"):
            status, reason = "timed_out", "the stream fell silent"
        except _transport_errors("HTTPError") as error:
            status, reason = _lost(text, _first_cause(error))
        except (openai.OpenAIError, LookupError, ValueError, TypeError, AttributeError) as error:
            status, reason = "garbled", f"the answer breaks the protocol ({type(error).__name__})"
        return replace(text.reply(), status=status, reason=reason, retry_after_s=wish)

    def _request(self, question: ChatRequest, left_s: float) -> dict[str, Json]:
        import openai

        wait_s = max(0.1, min(SILENCE_LIMIT_S, left_s))
        request: dict[str, Json] = {
            "model": self.model,
            "messages": [{"role": one.role, "content": one.content} for one in question.messages],
            "stream": True,
            "timeout": openai.Timeout(wait_s, connect=min(CONNECT_LIMIT_S, wait_s)),
        }
        options: dict[str, Json] = {
            "stream_options": {"include_usage": True},
            "temperature": question.temperature,
            "max_tokens": question.most_tokens,
        }
        for name, other in list(self._options.items()):
            request[other or name] = options[name]
        return request

    def _gave_up_option(self, reason: str) -> bool:
        """Leave out, or rename, the optional parameter that an endpoint complained about."""
        for name in list(self._options):
            if name not in reason:
                continue
            if name == "max_tokens" and not self._options[name]:
                self._options[name] = "max_completion_tokens"
            else:
                self._options.pop(name, None)
            return True
        return False

    def _clean(self, reply: Reply, question: ChatRequest) -> Reply:
        """Hide the key, replace what no database stores, and count what the endpoint did not."""
        text = _storable(self._key.hide(reply.text))
        reason = _storable(self._key.hide(" ".join(reply.reason.split())))[:MOST_REASON]
        usage = reply.usage
        if not usage.tokens and (text or reply.status in ("answered", "refused", "empty", "cut")):
            prompt = sum(estimate_tokens(one.content) for one in question.messages)
            usage = Usage(
                prompt_tokens=prompt,
                completion_tokens=estimate_tokens(text) if text else 0,
                estimated=True,
            )
        return replace(reply, text=text, reason=reason, usage=usage)


def _lost(text: Answering, cause: str) -> tuple[Status, str]:
    """Return the status of a connection that failed: before the answer, or in it."""
    if text.begun:
        return "cut", f"the stream broke off ({cause})"
    return "unreachable", f"nobody answers ({cause})"


def _status_of(code: int, kind: object, message: object) -> tuple[Status, str]:
    """Return the status of an HTTP error, and its reason."""
    words = f"{message}"
    said = f"HTTP {code}: {words}"
    low = f"{kind} {words}".lower()
    if code in (401, 403) or "insufficient_quota" in low or "invalid_api_key" in low:
        return "denied", said
    if code == 429 or "rate_limit" in low:
        return "rate_limited", said
    if code in (408, 409, 425) or code >= 500:
        return "server_error", said
    if code == 413 or "context_length" in low or "context length" in low or "too long" in low:
        return "too_long", said
    return "rejected", said


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(value)
        return max(0.0, then.timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return None


def _first_cause(error: BaseException) -> str:
    """Return the innermost error's words: `Connection refused`."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return str(error) or type(error).__name__


def _storable(text: str) -> str:
    """Replace NUL and lone surrogates, which databases refuse."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _transport_errors(name: str) -> tuple[type[Exception], ...]:
    """Return an error class of the HTTP package below openai: httpx2 since openai 3, else httpx."""
    found = (sys.modules.get(package) for package in ("httpx2", "httpx"))
    return tuple(getattr(package, name) for package in found if package is not None)


def _openai(base_url: str, key: Secret) -> OpenAI:
    try:
        import openai
    except ModuleNotFoundError:
        raise EndpointError(
            "a language model's endpoint needs openai: pip install 'torch-ratchet[write]'"
        ) from None
    faults: tuple[type[Exception], ...] = _transport_errors("InvalidURL")
    faults += (openai.OpenAIError, ValueError)
    try:
        return openai.OpenAI(
            api_key=key.reveal(),
            base_url=base_url,
            max_retries=0,
            organization="",
            project="",
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )
    except faults as error:
        said = key.hide(" ".join(str(error).split()))
    raise EndpointError(
        f"no client for {shown_url(base_url)}: {said}; check --base-url and the proxy's settings"
    )


class Replayed:
    """Answers each question as the recorded run's was answered, by turn, sample and attempt.

    The verdicts of a replay may differ, and with them the prompts: the answers stay.
    """

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._found = {
            (one.problem_hash, one.turn, one.sample, one.attempt): one for one in exchanges
        }
        self.model = exchanges[0].model if exchanges else ""
        self.language = exchanges[0].language if exchanges else ""

    def samples_of(self, problem_hash: str, turn: int) -> int:
        """Return how many samples a turn on a problem has; 0 after the last."""
        asked = [one[2] for one in self._found if one[:2] == (problem_hash, turn)]
        return 1 + max(asked, default=-1)

    def parents_of(self, problem_hash: str, turn: int, sample: int) -> tuple[str, ...]:
        """Return the hashes of the kernels that a recorded prompt showed to start from."""
        found = self._found.get((problem_hash, turn, sample, 0))
        return () if found is None else found.parents

    def ask(self, question: ChatRequest) -> Reply:
        """Return the recorded reply; `ended` if there is none."""
        key = (question.problem_hash, question.turn, question.sample, question.attempt)
        found = self._found.get(key)
        if found is None:
            return Reply(status="ended", reason="the recorded run holds no further answer")
        known = found.status if found.status in get_args(Status) else "garbled"
        status = cast(Status, "answered" if known == "malformed" else known)
        return Reply(status=status, text=found.answer, reason=found.reason)
