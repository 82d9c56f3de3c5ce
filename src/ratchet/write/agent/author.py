"""The agent: turns of questions to a model, a population of kernels, everything in the ledger."""

from __future__ import annotations

import logging
import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from ratchet.amd.architectures import find_architectures
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import EndpointError, LedgerError, RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Exchange, ExchangeBook, Message
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.problems.problem import Problem
from ratchet.write.agent.ask import (
    HEARD,
    MODELS_FAULT,
    NEVER_ASKED,
    AgentBudget,
    Asker,
    AskTerms,
    Attempt,
    Client,
    Prompt,
    Purse,
    Reply,
)
from ratchet.write.agent.brief import AMD_TARGET, Context, Profiles, brief_of
from ratchet.write.agent.client import OpenAIClient, Replayed, endpoint_url, read_key, shown_url
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
from ratchet.write.agent.strategy import Assignment, Planner, Population, parse_strategy
from ratchet.write.author import Author, Progress, Proposal
from ratchet.write.knowledge.index import index_path

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
        self.held: list[Proposal] = []  # Read kernels beyond what was wanted: the next ones
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


LOG = logging.getLogger(__name__)
KEY_ENVIRONMENT: Final = "OPENAI_API_KEY"
SAMPLES: Final = 4
MOST_SAMPLES: Final = 64
BARREN_TURNS: Final = 5
"""Turns in a row without a new kernel after which the agent has nothing left to say."""


_REMEDIES: Final[Mapping[str, str]] = {
    "rate_limited": "wait, or ask for fewer --samples",
    "timed_out": "check the endpoint, or give it more time with --budget",
    "unreachable": "start the server, or check --base-url",
    "server_error": "check the endpoint",
    "denied": "check the key and what it may do",
    "rejected": "check --model and --base-url",
    "garbled": "check that --base-url names an OpenAI-compatible endpoint (it often ends in /v1)",
}


class AgentAuthor:
    """Asks a language model for kernels. One object serves all problems of a run."""

    def __init__(
        self,
        *,
        client: Client,
        context: Context,
        purse: Purse,
        terms: AskTerms,
        samples: int = SAMPLES,
        place: str = "",
    ) -> None:
        self._client = client
        self._context = context
        self._purse = purse
        self._samples = samples
        self._place = place
        self._replay = client if isinstance(client, Replayed) else None
        self._asker = Asker(client, purse, terms, waits=self._replay is None)
        self._sessions: dict[str, Session | None] = {}
        self._reached = False
        self._over = self._fault = ""
        self.ended = ""  # Why it has nothing left to say on the last problem; empty while it has
        if self._replay is None:
            for exchange in context.book.of_run(context.run):  # before this process
                self._reached = self._reached or exchange.status in HEARD
                purse.settle(0, 0, exchange.usage)
                purse.asked = True

    @property
    def name(self) -> str:
        return f"agent:{self._client.model}"

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` new kernels of the next turn that brings any.

        None if the budget is used up, the endpoint went away, or several turns in a row brought
        nothing new; `ended` then says why.

        No question outlasts the seconds that the progress leaves. Raises EndpointError (the model
        could not be asked even once); LedgerError (the ledger failed).
        """
        self._purse.turn(progress.left_s)
        if count < 1 or progress.problem.fault:
            return []
        session = self._session(progress.problem)
        if session is None:
            return []
        found = session.held or session.left_over(progress)
        for barren in range(1, BARREN_TURNS + 1):
            if found or self._over or session.ended:
                break
            if limit := self._purse.spent():
                self._over = self._purse.why_over(limit)
                break
            found = self._turn(session, progress, min(count, self._samples))
            if barren == BARREN_TURNS and not found:
                why = f": {self._fault}" if self._fault else ""
                session.ended = f"{barren} turns in a row brought no new kernel{why}"
        self.ended = self._over or session.ended
        if self.ended and not found:
            LOG.info("%s stops: %s", self.name, self.ended)
        session.held = found[count:]
        return found[:count]

    def _session(self, problem: Problem) -> Session | None:
        """Return a problem's session; None if the problem cannot be shown to a model."""
        if problem.hash in self._sessions:
            return self._sessions[problem.hash]
        session: Session | None = None
        try:
            session = Session(problem, self._context, self.name)
        except LedgerError:
            raise
        except RatchetError as error:
            LOG.warning("%s leaves out %s: %s", self.name, problem.name, error)
        self._sessions[problem.hash] = session
        return session

    def _turn(self, session: Session, progress: Progress, samples: int) -> list[Proposal]:
        if self._replay is not None:
            samples = self._replay.samples_of(progress.problem.hash, session.turn)
            if not samples:
                session.ended = "the recorded run holds no further answer"
                return []
        found, replies = session.take(progress, samples, self._asker, self._replay)
        self._check(replies)
        return found

    def _check(self, replies: Sequence[Reply]) -> None:
        """Stop where going on is of no use; raise where the model was never reached."""
        heard = any(one.status in HEARD for one in replies)
        self._reached = self._reached or heard
        if all(one.status == "no_budget" for one in replies):
            self._over = replies[0].reason
        unheard = [one for one in replies if one.status in NEVER_ASKED]
        self._fault = "" if heard or not unheard else unheard[0].reason
        if heard or not unheard:
            return
        worst = min(unheard, key=lambda one: (one.status != "denied", one.status == "timed_out"))
        if not self._reached and self._replay is None:
            raise EndpointError(
                f"the model {self._client.model!r} cannot be asked at {self._place}: "
                f"{worst.reason}; {_REMEDIES[worst.status]}"
            )
        if worst.status == "denied":
            self._over = f"the endpoint denies access: {worst.reason}"


def agent_author(
    *,
    model: str,
    base_url: str | None = None,
    api_key_env: str = KEY_ENVIRONMENT,
    strategy: str = "beam",
    samples: int = SAMPLES,
    budget: AgentBudget | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    run_id: str = "",
    replay: str | None = None,
    language: Language | None = None,
    device: str | Device = "auto",
    target: str | None = None,
    knowledge: bool = True,
    terms: AskTerms | None = None,
) -> Author:
    """Return an author that asks a language model for kernels.

    `base_url` is any OpenAI-compatible endpoint: by default OPENAI_BASE_URL, then OpenAI's own. The
    key is read from the environment variable `api_key_env`, and stored nowhere. `strategy` is
    `beam` or `evolve`; `samples` answers are asked for in a turn. Every prompt and answer goes into
    the `ledger` (open, or a path or URL; by default the user's) under `run_id`; a run that goes on
    under its old id asks nothing twice. With `replay`, the id of a recorded run, the answers come
    from the ledger: no endpoint, no key, no budget. `language` is by default triton on a GPU, else
    cpp, and for a replay the recorded one; `target` is a GPU that is not here to write for.
    `knowledge=False` leaves passages out. Raises EndpointError (no key, or no URL); LedgerError
    (the ledger cannot be opened, or holds no such run); RatchetError (an unknown strategy, target
    or device, or a number of samples out of range).
    """
    chosen, replay, base_url = parse_strategy(strategy), replay or None, base_url or None
    if not 1 <= samples <= MOST_SAMPLES:
        raise RatchetError(f"{samples} samples a turn: give 1 to {MOST_SAMPLES}")
    if target is not None:
        find_architectures([target])
    if replay is None and not model.strip():
        raise EndpointError("no model is named: give --model, as the endpoint calls it")
    url, key = (
        (endpoint_url(base_url), read_key(api_key_env, base_url)) if replay is None else ("", None)
    )
    book_ledger = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    found = device if isinstance(device, Device) else probe(device)
    fingerprint = book_ledger.here(found)
    book = ExchangeBook(book_ledger, fingerprint)
    client: Client
    spoken: Language = language or ("triton" if found.kind == "cuda" else "cpp")
    if key is None:
        assert replay is not None
        client = replayed = Replayed(book.to_replay(replay))
        spoken = cast(Language, replayed.language)
    else:
        client = OpenAIClient(model=model, base_url=url, key=key)
    elsewhere = spoken in ("triton", "hip") and found.kind == "cpu"
    aim = target or (AMD_TARGET if elsewhere else None)
    context = Context(
        run=replay or run_id or uuid.uuid4().hex,
        model=client.model,
        language=spoken,
        strategy=chosen,
        device=found,
        target=aim,
        book=book,
        replays=replay is not None,
        profiles=Profiles(book_ledger, fingerprint, aim),
        knowledge=index_path(book_ledger.engine.url) if knowledge else None,
        hide=key.hide if key is not None else str,
    )
    return AgentAuthor(
        client=client,
        context=context,
        purse=Purse(AgentBudget() if budget is None or replay is not None else budget),
        terms=terms or AskTerms(),
        samples=samples,
        place=shown_url(url),
    )
