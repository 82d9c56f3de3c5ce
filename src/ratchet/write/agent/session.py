"""One problem's conversation with a model: its turns, its strategy, and what comes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ratchet.base.ledger.books import Exchange, Message
from ratchet.judge.problems.problem import Problem
from ratchet.write.agent.ask import MODELS_FAULT, Asker, Attempt, Prompt, Reply
from ratchet.write.agent.brief import Context, brief_of
from ratchet.write.agent.client import Replayed
from ratchet.write.agent.prompt import (
    TurnFacts,
    Usable,
    answer_line,
    parent_of,
    prompt_hash,
    prompt_version,
    read_answer,
    render,
)
from ratchet.write.agent.strategy import Assignment, Planner, Population
from ratchet.write.author import Progress, Proposal

SHOWN_BEST: Final = 5
SHOWN_FAILED: Final = 4


class Session:
    """The turns on one problem. A killed run goes on after its last recorded turn."""

    def __init__(self, problem: Problem, context: Context, author: str) -> None:
        """Prepare what every prompt says; raises a RatchetError if the problem cannot be shown."""
        self._problem = problem
        self._context = context
        self._author = author
        self._brief = brief_of(problem, context.language)
        self._device = context.facts()
        self._passages = context.passages(self._brief)
        self._planner = Planner(context.language, set(), context.strategy)
        self._unusable: list[str] = []
        self._proposed: set[str] = set()
        self.earlier: list[Exchange] = (
            [] if context.replays else context.book.of_run(context.run, problem.hash)
        )
        """Exchanges of this run from before this process."""
        self.ended = ""  # Why there is nothing left to ask; empty while there is
        self.turn = 1 + max((one.turn for one in self.earlier), default=-1)

    def left_over(self, progress: Progress) -> list[Proposal]:
        """Return kernels of earlier answers that were never judged, since the run was killed."""
        known = Population.of(progress, self._context.language).hashes | self._proposed
        found: dict[str, Proposal] = {}
        for exchange in self.earlier:
            read = self._read(exchange.answer, exchange.turn, exchange.sample)
            if isinstance(read, Usable) and read.kernel.hash not in known:
                found[read.kernel.hash] = self._proposal(read, exchange.kind, exchange.parents)
        self.earlier = []
        self._proposed |= set(found)
        return list(found.values())

    def take(
        self, progress: Progress, samples: int, asker: Asker, replay: Replayed | None = None
    ) -> tuple[list[Proposal], list[Reply]]:
        """Ask one turn of `samples` questions; return the new kernels and the last replies."""
        population = Population.of(progress, self._context.language)
        answers = progress.answers
        # A run that is repeated or goes on draws the same numbers.
        source = random.Random(f"{self._context.run} {self._problem.hash} {self.turn}")
        self._planner.own |= {one.kernel_hash for one in answers if one.author == self._author}
        planned = self._planner.plan(population, samples, source)
        prompts = list(self._prompts(population, planned))
        replies = asker.ask(prompts, lambda one: self._record(one, planned), self._suffices)
        self._unusable = []
        if any(one.status == "too_long" for one in replies):  # shorter prompts from now on
            self._passages, self._brief = (), replace(self._brief, start="")
        found: list[Proposal] = []
        for sample, (reply, asked) in enumerate(zip(replies, planned, strict=True)):
            parents = _hashes(asked)
            if replay is not None:
                parents = replay.parents_of(self._problem.hash, self.turn, sample)
            read = self._new(reply, sample, population)
            if read is not None:
                self._planner.note(read.kernel.hash, asked.kind, parents)
                found.append(self._proposal(read, asked.kind, parents))
        self.turn += 1
        return found, replies

    def _new(self, reply: Reply, sample: int, population: Population) -> Usable | None:
        """Return a reply's kernel if it is new; else note what to tell the model."""
        if reply.status not in MODELS_FAULT:
            return None
        read = self._read(reply.text, self.turn, sample)
        if isinstance(read, str):
            why = reply.reason or read
        elif read.kernel.hash in population.hashes | self._proposed:
            why = "it is a kernel that was judged before: write another"
        else:
            self._proposed.add(read.kernel.hash)
            return read
        self._unusable.append(f"answer {sample + 1}: {why}")
        return None

    def _prompts(self, population: Population, planned: Sequence[Assignment]) -> Iterator[Prompt]:
        facts = TurnFacts(
            brief=self._brief,
            device=self._device,
            passages=self._passages,
            best=tuple(map(answer_line, population.best[:SHOWN_BEST])),
            failed=tuple(map(answer_line, population.failed[:SHOWN_FAILED])),
            unusable=tuple(self._unusable),
        )
        for sample, asked in enumerate(planned):
            parents = [
                parent_of(one, self._context.profiles.lines(one.kernel, self._problem))
                for one in asked.parents
            ]
            yield Prompt(
                messages=render(self._context.language, facts, asked, parents),
                problem_hash=self._problem.hash,
                turn=self.turn,
                sample=sample,
            )

    def _record(self, attempt: Attempt, planned: Sequence[Assignment]) -> None:
        """Append one attempt to the ledger, unless it came from there."""
        if self._context.replays:
            return
        question, reply = attempt.question, attempt.reply
        asked = planned[question.sample]
        status, reason = str(reply.status), reply.reason
        if reply.status == "answered":
            read = self._read(reply.text, question.turn, question.sample)
            if isinstance(read, str):
                status, reason = "malformed", read
        messages = tuple(
            Message(role=one.role, content=self._context.hide(one.content))
            for one in question.messages
        )
        exchange = Exchange(
            run=self._context.run,
            problem_hash=self._problem.hash,
            turn=question.turn,
            sample=question.sample,
            attempt=question.attempt,
            started_at=attempt.started_at,
            time_s=attempt.time_s,
            model=self._context.model,
            status=status,
            reason=reason,
            language=self._context.language,
            kind=asked.kind,
            parents=_hashes(asked),
            prompt_version=prompt_version(self._context.language),
            prompt_hash=prompt_hash(messages),
            messages=messages,
            answer=reply.text,
            usage=reply.usage,
        )
        self._context.book.record([exchange])

    def _suffices(self, reply: Reply) -> bool:
        """Return whether a reply holds a kernel, even if its stream was cut after it."""
        return reply.status in MODELS_FAULT and isinstance(self._read(reply.text, 0, 0), Usable)

    def _read(self, text: str, turn: int, sample: int) -> Usable | str:
        return read_answer(
            text,
            language=self._context.language,
            entry=self._brief.entry,
            name=f"{self._brief.entry}-t{turn}s{sample}",
        )

    def _proposal(self, read: Usable, kind: str, parents: tuple[str, ...]) -> Proposal:
        return Proposal(
            kernel=read.kernel, author=self._author, parents=parents, note=read.note or kind
        )


def _hashes(asked: Assignment) -> tuple[str, ...]:
    return tuple(one.kernel.hash for one in asked.parents)
