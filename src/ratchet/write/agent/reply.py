"""Questions to a model and their replies: one status for everything that an endpoint may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from ratchet.base.ledger.books import Message, Usage

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
class ChatRequest:
    """A question to a model."""

    messages: tuple[Message, ...]
    most_tokens: int
    temperature: float
    time_limit_s: float
    problem_hash: str
    turn: int
    sample: int
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The outcome of a question."""

    status: Status
    text: str = ""
    reason: str = ""
    """The fault, in a line."""
    usage: Usage = field(default_factory=Usage)
    retry_after_s: float | None = None
    """The endpoint's own wish."""


class Client(Protocol):
    """Answers questions, in several threads at once."""

    @property
    def model(self) -> str:
        """Return the model's name."""
        ...

    def ask(self, question: ChatRequest) -> Reply:
        """Answer one question; never raises for what the endpoint does."""
        ...
