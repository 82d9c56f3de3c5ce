"""A client that answers from the ledger: a run again, without its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

from ratchet.base.ledger.books import Exchange
from ratchet.write.agent.reply import ChatRequest, Reply, Status


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
