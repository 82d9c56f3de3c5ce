"""An agent's budget: tokens, money and time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.base.ledger.books import Usage

LEAST_COMPLETION_TOKENS: Final = 256
"""No kernel is shorter; with less left, nothing more is asked."""
CHARACTERS_PER_TOKEN: Final = 3.0
"""A figure for source code; low on purpose, so that estimates err upwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentBudget:
    """Limits of one run; None is no limit."""

    tokens: int | None = None
    """Limit of prompts and completions together."""
    usd: float | None = None
    seconds: float | None = None
    """From the author's first question."""
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
        """Return the price of an answer."""
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
        """Replace what was set aside by what was used."""
        with self._lock:
            self._held_tokens -= prompt_tokens + granted
            self._held_usd -= self.budget.usd_of(prompt_tokens, granted)
            self._spend(usage)

    def spend(self, usage: Usage) -> None:
        """Count an answer of an earlier process of this run."""
        with self._lock:
            self._spend(usage)

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

    def _spend(self, usage: Usage) -> None:
        self.tokens += usage.tokens
        self.usd += usage.usd

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
