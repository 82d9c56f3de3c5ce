"""Asking: several questions at once, each with retries, within a budget, and every attempt told."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ratchet.base.ledger.books import Message, Usage
from ratchet.base.ledger.connect import utc_now
from ratchet.write.agent.budget import Purse, estimate_tokens
from ratchet.write.agent.reply import ATTEMPTS, ChatRequest, Client, Reply

FIRST_WAIT_S: Final = 1.0
MOST_WAIT_S: Final = 60.0
LONGEST_WISH_S: Final = 600.0
"""An endpoint that wishes for more rest than this is not asked again."""
LEAST_ASK_S: Final = 2.0
"""With less time than this after a rest, a question is not asked again."""
GRACE_S: Final = 5.0
"""Time that an answer may take beyond its limit until it is given up, if there is that much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskTerms:
    """The settings of a request to a model."""

    most_tokens: int = 16_384
    """Limit of one answer, thoughts included."""
    temperature: float = 0.8
    time_limit_s: float = 600.0
    """For one answer."""
    first_wait_s: float = FIRST_WAIT_S
    """Before the second attempt, doubled for each later one, unless the endpoint says how long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The messages of one sample."""

    messages: tuple[Message, ...]
    problem_hash: str
    turn: int
    sample: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One question as it was asked, with its reply."""

    question: ChatRequest
    reply: Reply
    started_at: str
    time_s: float


Tell = Callable[[Attempt], None]
Suffices = Callable[[Reply], bool]


class Asker:
    """Asks the questions of a turn in threads of their own."""

    def __init__(
        self, client: Client, purse: Purse, terms: AskTerms, *, waits: bool = True
    ) -> None:
        self._client = client
        self._purse = purse
        self._terms = terms
        self._waits = waits
        """False for a replay: nobody needs a rest."""

    def ask(self, prompts: Sequence[Prompt], tell: Tell, suffices: Suffices) -> list[Reply]:
        """Return the last reply to each prompt, in order; `tell` hears every attempt, one by one.

        A reply that `suffices` is not asked for again, even if its stream was cut. An answer that
        outlasts its time is given up, whatever its connection does.
        """
        self._purse.start()
        told: queue.Queue[tuple[int, Attempt | Exception | None]] = queue.Queue()
        over = threading.Event()
        for place, prompt in enumerate(prompts):
            work = (place, prompt, suffices, told, over)
            threading.Thread(target=self._one, args=work, daemon=True).start()
        last: dict[int, Reply] = {}
        waiting = set(range(len(prompts)))
        try:
            while waiting:
                place, attempt = told.get()
                if isinstance(attempt, Exception):
                    raise attempt
                if attempt is None:
                    waiting.discard(place)
                    continue
                last[place] = attempt.reply
                tell(attempt)
        finally:
            over.set()
        nothing = Reply(status="no_budget", reason="the budget was used up")
        return [last.get(place, nothing) for place in range(len(prompts))]

    def _one(
        self,
        place: int,
        prompt: Prompt,
        suffices: Suffices,
        told: queue.Queue[tuple[int, Attempt | Exception | None]],
        over: threading.Event,
    ) -> None:
        """Ask one prompt until there is an answer; puts every attempt, and None at the end."""
        try:
            for number in itertools.count():
                attempt = self._attempt(prompt, number)
                told.put((place, attempt))
                reply = attempt.reply
                if number + 1 >= ATTEMPTS.get(reply.status, 1) or suffices(reply):
                    return
                wait_s = self._wait_s(number, reply)
                late = wait_s + LEAST_ASK_S > self._purse.left_s
                if late or wait_s > LONGEST_WISH_S or over.wait(wait_s):
                    return
        except Exception as error:  # the thread's boundary: `ask` raises it
            told.put((place, error))
        finally:
            told.put((place, None))

    def _attempt(self, asked: Prompt, number: int) -> Attempt:
        prompt = sum(estimate_tokens(one.content) for one in asked.messages)
        granted = self._purse.hold(prompt, self._terms.most_tokens)
        limit_s = min(self._terms.time_limit_s, self._purse.left_s)
        question = ChatRequest(
            messages=asked.messages,
            most_tokens=granted,
            temperature=self._terms.temperature,
            time_limit_s=limit_s,
            problem_hash=asked.problem_hash,
            turn=asked.turn,
            sample=asked.sample,
            attempt=number,
        )
        started_at, began_s = utc_now(), time.monotonic()
        if not granted or limit_s <= 0:
            limit = self._purse.spent(prompt) or "time"
            reply = Reply(status="no_budget", reason=f"its budget of {limit} is used up")
        else:
            reply = self._within(question)
        usage = reply.usage
        price = self._purse.budget.usd_of(usage.prompt_tokens, usage.completion_tokens)
        reply = replace(reply, usage=replace(usage, usd=price))
        self._purse.settle(prompt if granted else 0, granted, reply.usage)
        return Attempt(
            question=question,
            reply=reply,
            started_at=started_at,
            time_s=time.monotonic() - began_s,
        )

    def _within(self, question: ChatRequest) -> Reply:
        """Return the client's reply, or `timed_out` if it keeps its connection open too long."""
        found: queue.Queue[Reply | Exception] = queue.Queue()

        def work() -> None:
            try:
                found.put(self._client.ask(question))
            except Exception as error:  # the thread's boundary
                found.put(error)

        threading.Thread(target=work, daemon=True).start()
        limit_s = min(question.time_limit_s + GRACE_S, self._purse.left_s)
        try:
            reply = found.get(timeout=min(max(limit_s, 0.0), threading.TIMEOUT_MAX))
        except queue.Empty:
            return Reply(
                status="timed_out",
                reason=f"no whole answer within {question.time_limit_s:.0f} s",
                usage=_estimated(question),
            )
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _wait_s(self, number: int, reply: Reply) -> float:
        """Return how long to rest: what the endpoint wishes, else twice as long each time."""
        if not self._waits:
            return 0.0
        if reply.retry_after_s is not None:
            return reply.retry_after_s
        return min(self._terms.first_wait_s * 2.0**number, MOST_WAIT_S) * random.uniform(0.75, 1.25)


def _estimated(question: ChatRequest) -> Usage:
    prompt = sum(estimate_tokens(one.content) for one in question.messages)
    return Usage(prompt_tokens=prompt, completion_tokens=question.most_tokens, estimated=True)
