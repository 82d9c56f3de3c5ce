"""A client of an OpenAI-compatible endpoint: the `openai` package, streaming, nothing fatal.

It never raises for what an endpoint does: whatever happens is a `Reply` with a status.
"""

from __future__ import annotations

import email.utils
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ratchet.base import Json
from ratchet.base.errors import EndpointError
from ratchet.base.ledger.books import Usage
from ratchet.write.agent.budget import estimate_tokens
from ratchet.write.agent.reply import ChatRequest, Reply, Status
from ratchet.write.agent.secret import Secret, shown_url
from ratchet.write.agent.stream import MOST_REASON, Answering, EventError

if TYPE_CHECKING:
    import openai
    from openai import OpenAI

CONNECT_LIMIT_S: Final = 10.0
SILENCE_LIMIT_S: Final = 120.0
"""Longest wait for the next piece of an answer; models think before they begin."""


class OpenAIClient:
    """A client of an OpenAI-compatible endpoint."""

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
            said = _message(error.body) or error.message
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
        wait_s = max(0.1, min(SILENCE_LIMIT_S, left_s))
        request: dict[str, Json] = {
            "model": self.model,
            "messages": [{"role": one.role, "content": one.content} for one in question.messages],
            "stream": True,
            "timeout": _timeout(wait_s),
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


def _message(body: object) -> str:
    """Return the message of an error's body, in OpenAI's form or as plain text."""
    if isinstance(body, Mapping):
        return str(body.get("message") or "")
    return body if isinstance(body, str) else ""


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


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _first_cause(error: BaseException) -> str:
    """Return the innermost error's words: `Connection refused`."""
    *_, last = _causes(error)
    return str(last) or type(last).__name__


def _storable(text: str) -> str:
    """Replace NUL and lone surrogates, which databases refuse."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _timeout(wait_s: float) -> openai.Timeout:
    import openai

    return openai.Timeout(wait_s, connect=min(CONNECT_LIMIT_S, wait_s))


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
