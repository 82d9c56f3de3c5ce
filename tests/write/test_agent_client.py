"""One question over real HTTP: whatever the endpoint does is a reply, and the key stays hidden."""

from __future__ import annotations

import logging
import pickle
import queue
import socket
import threading
import time

import openai_server as server
import pytest

from ratchet.base.errors import EndpointError
from ratchet.base.ledger.books import Message, Usage
from ratchet.write.agent.ask import (
    ATTEMPTS,
    AgentBudget,
    Asker,
    AskTerms,
    Attempt,
    ChatRequest,
    Prompt,
    Purse,
    Reply,
)
from ratchet.write.agent.client import OpenAIClient, Secret, endpoint_url, read_key, shown_url

KEY = "sk-test-0123456789abcdef"
MESSAGES = (Message(role="system", content="Be brief."), Message(role="user", content="Hello?"))


def client(url: str, key: str = KEY) -> OpenAIClient:
    return OpenAIClient(model="tiny", base_url=url, key=Secret(key))


def question(**changes: object) -> ChatRequest:
    values: dict[str, object] = {
        "messages": MESSAGES,
        "most_tokens": 1000,
        "temperature": 0.5,
        "time_limit_s": 20.0,
        "problem_hash": "p",
        "turn": 0,
        "sample": 0,
        "attempt": 0,
    }
    return ChatRequest(**values | changes)  # type: ignore[arg-type]


def test_an_answer_is_streamed_with_its_usage() -> None:
    text = "Grüße\n```cpp\nint x;\n```\n" * 20
    with server.serving(server.answer(text, usage=(321, 123))) as served:
        reply = client(served.url).ask(question())
    assert (reply.status, reply.text, reply.reason) == ("answered", text, "")
    assert reply.usage == Usage(prompt_tokens=321, completion_tokens=123)
    [request] = served.requests
    assert request["stream"] is True and request["model"] == "tiny"
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
    ]
    assert (request["max_tokens"], request["temperature"]) == (1000, 0.5)
    assert served.keys == [f"Bearer {KEY}"]


def test_tokens_are_estimated_where_the_endpoint_names_none() -> None:
    with server.serving(server.answer("x" * 300, usage=None)) as served:
        reply = client(served.url).ask(question())
    assert reply.usage.estimated
    assert 75 <= reply.usage.completion_tokens <= 150 and reply.usage.prompt_tokens > 0


def test_an_endpoint_that_does_not_stream_is_read_too() -> None:
    with server.serving(server.in_one_piece("whole")) as served:
        reply = client(served.url).ask(question())
    assert (reply.status, reply.text, reply.usage.tokens) == ("answered", "whole", 10)


CASES = {
    "429": (server.error(429, "slow down", retry_after="7"), "rate_limited", "slow down"),
    "quota": (server.error(429, "pay", kind="insufficient_quota"), "denied", "pay"),
    "500": (server.error(500, "oops"), "server_error", "oops"),
    "503": (server.error(503, "overloaded"), "server_error", "overloaded"),
    "401": (server.error(401, "who are you"), "denied", "who are you"),
    "403": (server.error(403, "not you"), "denied", "not you"),
    "404": (server.error(404, "no model tiny"), "rejected", "no model tiny"),
    "400": (server.error(400, "bad"), "rejected", "bad"),
    "long": (server.error(400, "x", kind="context_length_exceeded"), "too_long", "x"),
    "event": (server.error_in_stream("broke"), "server_error", "broke"),
    "cut": (server.cut("Well, "), "cut", "broke off"),
    "early": (server.answer("Well, ", finish=None), "cut", "ended before"),
    "length": (server.answer("Well, ", finish="length"), "overlong", "1000 tokens"),
    "empty": (server.answer(""), "empty", "empty"),
    "blank": (server.answer("  \n"), "empty", "empty"),
    "refusal": (server.answer("", refusal="I will not"), "refused", "I will not"),
    "filter": (server.answer("Well", finish="content_filter"), "refused", "filter"),
    "no JSON": (server.raw("data: {oops\n\n"), "garbled", "protocol"),
    "a number": (server.raw("data: 17\n\n"), "garbled", "protocol"),
    "no choices": (server.raw('data: {"choices": [17]}\n\n'), "garbled", "protocol"),
    "nothing": (server.raw("data: [DONE]\n\n"), "garbled", "no answer"),
    "a page": (server.raw("<html>hello</html>", "text/html"), "garbled", "protocol"),
    "JSON of another kind": (server.raw('{"a": 1}', "application/json"), "garbled", "protocol"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_goes_wrong_is_a_status(name: str) -> None:
    behaviour, status, words = CASES[name]
    with server.serving(behaviour) as served:
        reply = client(served.url).ask(question())
    assert reply.status == status, reply
    assert words in reply.reason and "\n" not in reply.reason
    assert len(served.requests) == 1, "the client itself must not retry: the agent does"
    assert reply.retry_after_s == (7.0 if name == "429" else None)


def test_nobody_there_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    reply = client(url).ask(question())
    assert reply.status == "unreachable" and "refused" in reply.reason.lower()


def test_a_silent_stream_and_an_endless_one_end_at_the_limit() -> None:
    endless = (server.dripping("word "), server.dripping(), server.dripping(line="x" * 999))
    for behaviour in (server.silent(), *endless):
        with server.serving(behaviour) as served:
            began = time.monotonic()
            reply = client(served.url).ask(question(time_limit_s=0.6))
            assert reply.status == "timed_out", reply
            assert time.monotonic() - began < 30


def test_a_stream_may_come_in_any_pieces() -> None:
    event = '{"choices": [{"delta": {"content": "größer"}, "finish_reason": "stop"}]}'
    body = f": hello\r\nevent: x\r\ndata: {event}\r\n\r\ndata:{event}\n\ndata: [DONE]"
    for size in (1, 7, 1000):
        with server.serving(server.in_pieces(body, size)) as served:
            reply = client(served.url).ask(question())
        assert (reply.status, reply.text) == ("answered", "größergrößer")


def test_an_answer_beyond_any_measure_is_not_read_to_its_end() -> None:
    with server.serving(server.answer("y" * 400_000, size=10_000)) as served:
        reply = client(served.url).ask(question(most_tokens=1000))
    assert reply.status == "overlong" and len(reply.text) < 60_000


@pytest.mark.parametrize("parameter", ["stream_options", "temperature", "max_tokens"])
def test_a_parameter_that_the_endpoint_does_not_know_is_left_out(parameter: str) -> None:
    with server.serving(server.picky(parameter, server.answer("fine"))) as served:
        asked = client(served.url)
        assert asked.ask(question()).status == "answered"
        assert asked.ask(question()).status == "answered"
    assert len(served.requests) == 3, "learned once"
    assert ("max_completion_tokens" in served.requests[-1]) == (parameter == "max_tokens")


def test_text_that_no_database_stores_is_replaced() -> None:
    with server.serving(server.answer("a\0b\ud800c")) as served:
        reply = client(served.url).ask(question())
    assert "\0" not in reply.text and reply.text.startswith("a") and reply.text.encode()


# The key.


@pytest.mark.parametrize("code", [400, 401, 500])
def test_a_key_that_the_endpoint_quotes_is_hidden(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with server.serving(server.telling_the_key(code)) as served:
        reply = client(served.url).ask(question())
    assert "[key]" in reply.reason and KEY not in repr(reply)
    assert KEY not in caplog.text


def test_a_key_in_an_answer_is_hidden() -> None:
    with server.serving(server.answer(f"your key is {KEY}!")) as served:
        reply = client(served.url).ask(question())
    assert reply.text == "your key is [key]!"


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "SOME_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EndpointError, match="no key in SOME_KEY: set it"):
        read_key("SOME_KEY", None)
    assert read_key("SOME_KEY", "http://localhost:1/v1").reveal() == "none"
    monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
    assert read_key("SOME_KEY", None).reveal() == KEY
    monkeypatch.setenv("SOME_KEY", "schlüssel")
    with pytest.raises(EndpointError) as caught:
        read_key("SOME_KEY", None)
    assert "schl" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://a b/", "http://x:99999/"]
)
def test_what_is_no_url_is_one_line(url: str) -> None:
    with pytest.raises(EndpointError, match="is no endpoint"):
        endpoint_url(url)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert shown_url("https://me:pass@host:8/v1?key=abc#x") == "https://host:8/v1"


def test_a_redirect_is_not_followed_and_told() -> None:
    with server.serving(server.error(302, "", location="http://127.0.0.1:1/")) as served:
        reply = client(served.url).ask(question())
    assert reply.status == "rejected" and len(served.requests) == 1
    assert reply.reason == "HTTP 302: a redirect to http://127.0.0.1:1/"


# Asking again.


def ask(
    url: str, *, samples: int = 1, budget: AgentBudget | None = None, terms: AskTerms | None = None
) -> tuple[list[Reply], list[Attempt], Purse]:
    purse = Purse(budget or AgentBudget())
    asker = Asker(client(url), purse, terms or AskTerms(first_wait_s=0.01, most_tokens=1000))
    prompts = [
        Prompt(messages=MESSAGES, problem_hash="p", turn=3, sample=one) for one in range(samples)
    ]
    told: list[Attempt] = []
    replies = asker.ask(prompts, told.append, lambda reply: reply.text == "enough")
    return replies, told, purse


def test_a_rate_limit_is_waited_for_as_the_endpoint_wishes() -> None:
    script = (server.error(429, "slow", retry_after="0.5"), server.answer("now"))
    with server.serving(*script) as served:
        replies, told, _ = ask(served.url)
        assert served.times[1] - served.times[0] >= 0.5
    assert [one.reply.status for one in told] == ["rate_limited", "answered"]
    assert [one.question.attempt for one in told] == [0, 1]
    assert replies[0].text == "now"


@pytest.mark.parametrize("wish", ["601", "100000"])
def test_an_endpoint_that_wishes_for_too_long_a_rest_is_not_asked_again(wish: str) -> None:
    with server.serving(server.error(429, "slow", retry_after=wish)) as served:
        replies, told, _ = ask(served.url)
    assert [one.reply.status for one in told] == ["rate_limited"] and len(served.requests) == 1
    assert replies[0].reason == "HTTP 429: slow"


def test_a_rest_that_the_budget_has_no_room_for_is_not_taken() -> None:
    with server.serving(server.error(429, "slow", retry_after="60")) as served:
        _, told, _ = ask(served.url, budget=AgentBudget(seconds=30.0))
    assert len(told) == len(served.requests) == 1


class Timed:
    """A client that takes down the time that each question has."""

    model = "m"

    def __init__(self) -> None:
        self.limits_s: list[float] = []

    def ask(self, question: ChatRequest) -> Reply:
        self.limits_s.append(question.time_limit_s)
        return Reply(status="server_error", reason="oops")


@pytest.mark.parametrize(("budget_s", "turn_s"), [(600.0, 40.0), (40.0, 600.0), (None, 40.0)])
def test_no_question_has_more_time_than_budget_and_turn(
    budget_s: float | None, turn_s: float
) -> None:
    timed, purse = Timed(), Purse(AgentBudget(seconds=budget_s))
    purse.turn(turn_s)
    prompt = Prompt(messages=MESSAGES, problem_hash="p", turn=0, sample=0)
    Asker(timed, purse, AskTerms(first_wait_s=0.01)).ask([prompt], lambda _: None, lambda _: False)
    assert len(timed.limits_s) == ATTEMPTS["server_error"]
    assert all(0 < one <= 40.0 for one in timed.limits_s)


def test_an_answer_that_never_ends_is_given_up_when_the_turn_does() -> None:
    """The grace that an answer has beyond its limit does not reach beyond the turn."""
    over = threading.Event()

    class Stuck:
        model = "m"

        def ask(self, question: ChatRequest) -> Reply:
            over.wait(120)
            return Reply(status="answered")

    purse = Purse(AgentBudget())
    purse.turn(0.2)
    prompt = Prompt(messages=MESSAGES, problem_hash="p", turn=0, sample=0)
    waits: list[float | None] = []
    got = queue.Queue.get

    def get(self: queue.Queue[object], block: bool = True, timeout: float | None = None) -> object:
        if timeout is not None:
            waits.append(timeout)
        return got(self, block, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue.Queue, "get", get)
        [reply] = Asker(Stuck(), purse, AskTerms()).ask([prompt], lambda _: None, lambda _: False)
    over.set()
    assert reply.status == "timed_out"
    assert waits and all(one is not None and one <= 0.2 for one in waits)


@pytest.mark.parametrize("name", ["429", "500", "cut", "empty", "nothing", "401", "400", "refusal"])
def test_retries_are_bounded_and_every_attempt_is_told(name: str) -> None:
    behaviour, status, _ = CASES[name]
    if name == "429":
        behaviour = server.error(429, "slow", retry_after="0")
    with server.serving(behaviour) as served:
        replies, told, _ = ask(served.url)
    wanted = ATTEMPTS.get(status, 1)  # type: ignore[call-overload]
    assert [one.reply.status for one in told] == [status] * wanted
    assert replies[0].status == status and len(served.requests) == wanted


def test_a_cut_answer_that_suffices_is_not_asked_for_again() -> None:
    with server.serving(server.cut("enough")) as served:
        replies, _, _ = ask(served.url)
    assert replies[0].text == "enough" and len(served.requests) == 1


def test_samples_are_asked_at_once() -> None:
    with server.serving(server.silent()) as served:
        began = time.monotonic()
        replies, _, _ = ask(
            served.url, samples=8, terms=AskTerms(time_limit_s=1.0, first_wait_s=0.01)
        )
        assert time.monotonic() - began < 30
    assert [one.status for one in replies] == ["timed_out"] * 8


def test_a_connection_that_is_only_kept_alive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.write.agent.ask.GRACE_S", 0.2)
    monkeypatch.setattr("ratchet.write.agent.ask.ATTEMPTS", {})
    with server.serving(server.dripping()) as served:
        began = time.monotonic()
        replies, _, _ = ask(served.url, terms=AskTerms(time_limit_s=0.5))
        assert time.monotonic() - began < 30
    assert replies[0].status == "timed_out"


def test_a_fault_of_the_clients_own_is_not_taken_for_the_endpoints() -> None:
    class Broken:
        model = "m"

        def ask(self, question: ChatRequest) -> Reply:
            raise ZeroDivisionError("ours")

    prompt = Prompt(messages=MESSAGES, problem_hash="p", turn=0, sample=0)
    asker = Asker(Broken(), Purse(AgentBudget()), AskTerms())
    with pytest.raises(ZeroDivisionError, match="ours"):
        asker.ask([prompt], lambda _: None, lambda _: False)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_that_is_none_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "nonsense://x y")
    with pytest.raises(EndpointError, match="the proxy's settings") as caught:
        client("http://example.invalid/v1")
    assert "\n" not in str(caught.value)


def test_tokens_are_a_limit_that_is_not_passed() -> None:
    with server.serving(server.answer("hi", usage=(40, 300))) as served:
        _, told, purse = ask(served.url, samples=9, budget=AgentBudget(tokens=1500))
    asked = [one for one in told if one.reply.status == "answered"]
    assert 1 <= len(asked) < 9 and purse.tokens == 340 * len(asked) <= 1500
    assert all(one["max_tokens"] <= 1500 for one in served.requests)
    assert {one.reply.status for one in told} == {"answered", "no_budget"}


def test_money_is_a_limit_that_is_not_passed() -> None:
    budget = AgentBudget(usd=0.01, usd_per_million_prompt=5, usd_per_million_completion=10)
    with server.serving(server.answer("hi", usage=(40, 900))) as served:
        _, told, purse = ask(served.url, samples=4, budget=budget)
    asked = [one for one in told if one.reply.status == "answered"]
    assert asked and purse.usd == pytest.approx(len(asked) * (40 * 5 + 900 * 10) / 1e6)
    assert purse.usd <= 0.01


def test_time_is_a_limit() -> None:
    with server.serving(server.silent()) as served:
        began = time.monotonic()
        replies, _, purse = ask(served.url, budget=AgentBudget(seconds=0.7))
        assert time.monotonic() - began < 30
    assert replies[0].status in ("timed_out", "no_budget") and purse.spent() == "time"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens": 0}, "0 tokens"),
        ({"seconds": -1.0}, "-1.0 seconds"),
        ({"usd": 1.0}, "prices"),
        ({"usd": float("nan"), "usd_per_million_prompt": 1.0}, "nan usd"),
        ({"usd_per_million_prompt": -1.0}, "0 or more"),
    ],
)
def test_a_budget_that_makes_no_sense_is_one_line(values: dict[str, float], words: str) -> None:
    from ratchet.base.errors import RatchetError

    with pytest.raises(RatchetError, match=words):
        AgentBudget(**values)  # type: ignore[arg-type]
