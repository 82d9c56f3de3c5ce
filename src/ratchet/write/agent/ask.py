"""Ask a model: requests and replies, retries, and a budget of tokens, money and time."""

from __future__ import annotations

import itertools
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from ratchet.base.errors import RatchetError
from ratchet.base.ledger.books import Message, Usage
from ratchet.base.ledger.connect import utc_now

Status = Literal[
    "answered",
    "empty",
    "refused",
    "cut",
    "overlong",
    "malformed",
    "garbled",
    "rate_limited",
    "timed_out",
    "unreachable",
    "server_error",
    "denied",
    "rejected",
    "too_long",
    "no_budget",
    "ended",
]
"""answered: a whole answer. empty: no text. refused: the model or a filter declined. cut: the
stream ended early. overlong: the answer is longer than allowed. malformed: it holds no usable
kernel. garbled: not the protocol. rate_limited, timed_out, unreachable, server_error: the state of
the endpoint. denied: the key. rejected: the request. too_long: the prompt. no_budget: nothing was
left to ask with. ended: a replayed run holds no further answer."""
ATTEMPTS: Final[Mapping[Status, int]] = {
    "rate_limited": 6,
    "server_error": 4,
    "unreachable": 3,
    "timed_out": 2,
    "cut": 2,
    "garbled": 2,
    "empty": 2,
}
"""The number of times that a question with this ending is asked; others are asked once."""
MODELS_FAULT: Final = frozenset(("answered", "empty", "refused", "cut", "overlong", "malformed"))
"""Statuses about which the model is told in its next turn, if they brought no kernel."""
NEVER_ASKED: Final = frozenset(
    ("rate_limited", "timed_out", "unreachable", "server_error", "denied", "rejected", "garbled")
)
"""Statuses with which the endpoint or the model said nothing of use."""
HEARD: Final = frozenset((*MODELS_FAULT, "too_long"))
"""Statuses that show that the model can be asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    messages: tuple[Message, ...]
    problem_hash: str
    turn: int
    sample: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest(Prompt):
    """One attempt to have a prompt answered."""

    most_tokens: int
    temperature: float
    time_limit_s: float
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    status: Status
    text: str = ""
    reason: str = ""  # The fault, in a line
    usage: Usage = field(default_factory=Usage)
    retry_after_s: float | None = None  # The endpoint's own wish


class Client(Protocol):
    """Answers questions, in several threads at once."""

    @property
    def model(self) -> str: ...

    def ask(self, question: ChatRequest) -> Reply:
        """Answer one question; never raises for what the endpoint does."""
        ...


LEAST_COMPLETION_TOKENS: Final = 256  # No kernel is shorter; with less left, nothing more is asked
CHARACTERS_PER_TOKEN: Final = 3.0
"""A figure for source code; low on purpose, so that estimates err upwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentBudget:
    """Limits of one run; None is no limit."""

    tokens: int | None = None  # Limit of prompts and completions together
    usd: float | None = None
    seconds: float | None = None  # From the author's first question
    usd_per_million_prompt: float = 0.0
    usd_per_million_completion: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tokens", "usd", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RatchetError(f"a budget of {value} {name} asks nothing: give more than 0")
        prices = (self.usd_per_million_prompt, self.usd_per_million_completion)
        if not all(0 <= price < 1e9 for price in prices):
            raise RatchetError(f"prices of {prices} USD per million tokens: give 0 or more")
        if self.usd is not None and not any(prices):
            raise RatchetError(
                f"a budget of {self.usd:g} USD needs the endpoint's prices: give USD per million "
                "tokens, of prompts and of completions"
            )

    def usd_of(self, prompt_tokens: int, completion_tokens: int) -> float:
        prompt = prompt_tokens * self.usd_per_million_prompt
        return (prompt + completion_tokens * self.usd_per_million_completion) / 1e6


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, where the endpoint does not say."""
    return int(len(text) / CHARACTERS_PER_TOKEN) + 1


class Purse:
    """A budget with what was spent of it. Several threads may ask at once."""

    def __init__(self, budget: AgentBudget) -> None:
        self.budget = budget
        self.tokens, self.usd = 0, 0.0
        self.asked = False  # True once a question went out
        self._held_tokens, self._held_usd = 0, 0.0
        self._began_s: float | None = None
        self._until_s = math.inf
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the clock, unless it runs."""
        if self._began_s is None:
            self._began_s = time.monotonic()

    def turn(self, left_s: float) -> None:
        """Let what is asked from now on take so many seconds, whatever the budget has left."""
        self._until_s = time.monotonic() + left_s

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, of the budget and of the turn; infinity without both.

        No request, and no rest before one, may take longer.
        """
        now_s = time.monotonic()
        left_s = self._until_s - now_s
        if self.budget.seconds is None:
            return left_s
        gone_s = 0.0 if self._began_s is None else now_s - self._began_s
        return min(left_s, self.budget.seconds - gone_s)

    def hold(self, prompt_tokens: int, wanted: int) -> int:
        """Set aside one answer; return how many tokens its completion may have, 0 for none."""
        with self._lock:
            granted = min(wanted, self._room(prompt_tokens))
            if granted < min(wanted, LEAST_COMPLETION_TOKENS):
                return 0
            self._held_tokens += prompt_tokens + granted
            self._held_usd += self.budget.usd_of(prompt_tokens, granted)
            return granted

    def settle(self, prompt_tokens: int, granted: int, usage: Usage) -> None:
        """Replace what was set aside, nothing for an earlier process's answer, by what was used."""
        with self._lock:
            self._held_tokens -= prompt_tokens + granted
            self._held_usd -= self.budget.usd_of(prompt_tokens, granted)
            self.tokens += usage.tokens
            self.usd += usage.usd

    def spent(self, prompt_tokens: int = 0) -> str:
        """Return which limit is reached, as a word; empty while a prompt has room for an answer."""
        if self.left_s <= 0:
            return "time"
        with self._lock:
            if self._room(prompt_tokens) >= LEAST_COMPLETION_TOKENS:
                return ""
            left = (self.budget.tokens or 0) - self.tokens - self._held_tokens - prompt_tokens
            by_tokens = self.budget.tokens is not None and left < LEAST_COMPLETION_TOKENS
            return "tokens" if by_tokens else "money"

    def why_over(self, limit: str) -> str:
        """Return a limit that is reached as a line; it says so if no question ever went out."""
        if self.asked:
            return f"its budget of {limit} is used up"
        if limit == "time":
            return "it was never asked: the run had no time left for a question"
        return f"it was never asked: no question fits its budget of {limit}"

    def _room(self, prompt_tokens: int) -> int:
        """Return the completion tokens that fit beside a prompt."""
        room, most = float("inf"), self.budget
        if most.tokens is not None:
            room = most.tokens - self.tokens - self._held_tokens - prompt_tokens
        if most.usd is not None and most.usd_per_million_completion:
            left = most.usd - self.usd - self._held_usd - most.usd_of(prompt_tokens, 0)
            room = min(room, left * 1e6 / most.usd_per_million_completion)
        elif most.usd is not None and self.usd + most.usd_of(prompt_tokens, 0) > most.usd:
            room = 0
        return int(min(max(room, 0), 1 << 30))


FIRST_WAIT_S: Final = 1.0
MOST_WAIT_S: Final = 60.0
LONGEST_WISH_S: Final = 600.0  # An endpoint that wishes for more rest than this is not asked again
LEAST_ASK_S: Final = 2.0  # With less time than this after a rest, a question is not asked again
GRACE_S: Final = 5.0
"""Time that an answer may take beyond its limit until it is given up, if there is that much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskTerms:
    most_tokens: int = 16_384  # Limit of one answer, thoughts included
    temperature: float = 0.8
    time_limit_s: float = 600.0  # For one answer
    first_wait_s: float = FIRST_WAIT_S
    """Before the second attempt, doubled for each later one, unless the endpoint says how long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
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
        self._waits = waits  # False for a replay: nobody needs a rest

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
            reply = Reply(status="no_budget", reason=self._purse.why_over(limit))
        else:
            self._purse.asked = True
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
        prompt = sum(estimate_tokens(one.content) for one in question.messages)
        try:
            reply = found.get(timeout=min(max(limit_s, 0.0), threading.TIMEOUT_MAX))
        except queue.Empty:
            return Reply(
                status="timed_out",
                reason=f"no whole answer within {question.time_limit_s:.0f} s",
                usage=Usage(
                    prompt_tokens=prompt, completion_tokens=question.most_tokens, estimated=True
                ),
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
