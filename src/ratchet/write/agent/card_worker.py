"""Makes the card of a problem's file, in the process that runs such files."""

from __future__ import annotations

from ratchet.base.process.channel import Message
from ratchet.judge.problems.card import card_of
from ratchet.judge.problems.problem import Problem


def answer(request: Message) -> dict[str, object]:
    """Return the `card` of the request's problem, for a kernel named `entry`."""
    problem = Problem.from_json(request["problem"])
    return {"card": card_of(problem, given=problem.name, entry=request["entry"]).as_json()}
