"""Answers as the ledger keeps them, and back."""

from __future__ import annotations

from ratchet.authors.author import Answer, Proposal
from ratchet.ledger.writing import WritingBook, WrittenAnswer


def written(answer: Answer, problem_hash: str) -> WrittenAnswer:
    """Return an answer as the ledger keeps it."""
    proposal = answer.proposal
    return WrittenAnswer(
        problem_hash=problem_hash,
        kernel_hash=proposal.kernel.hash,
        author=proposal.author,
        stage=answer.stage,
        status=answer.status,
        reason=answer.reason,
        ratio=answer.ratio,
        low=answer.low,
        high=answer.high,
        time_s=answer.time_s,
        evidence=answer.evidence,
        after_s=answer.after_s,
        rung=answer.rung,
        static_rank=answer.static_rank,
        parents=proposal.parents,
        note=proposal.note,
        schedule=proposal.schedule,
        features=proposal.features,
        opener=proposal.opener,
    )


def read_back(written: WrittenAnswer, book: WritingBook) -> Answer:
    """Return an answer as the ledger kept it, with its kernel."""
    return Answer(
        proposal=Proposal(
            kernel=book.kernel(written.kernel_hash),
            author=written.author,
            parents=written.parents,
            note=written.note,
            schedule=written.schedule,
            features=written.features,
            opener=written.opener,
        ),
        stage="judged" if written.stage == "judged" else "screened",
        status=written.status,
        reason=written.reason,
        ratio=written.ratio,
        low=written.low,
        high=written.high,
        evidence=written.evidence,
        after_s=written.after_s,
        time_s=written.time_s,
        rung=written.rung,
        static_rank=written.static_rank,
    )
