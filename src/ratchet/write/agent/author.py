"""The agent: turns of questions to a model, a population of kernels, everything in the ledger."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, cast

from ratchet.amd.architectures import find_architectures
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import EndpointError, LedgerError, RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import ExchangeBook
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.problems.problem import Problem
from ratchet.write.agent.ask import (
    HEARD,
    NEVER_ASKED,
    AgentBudget,
    Asker,
    AskTerms,
    Client,
    Purse,
    Reply,
)
from ratchet.write.agent.brief import AMD_TARGET, Context, Profiles
from ratchet.write.agent.client import OpenAIClient, Replayed, endpoint_url, read_key, shown_url
from ratchet.write.agent.session import Session
from ratchet.write.agent.strategy import parse_strategy
from ratchet.write.author import Author, Progress, Proposal
from ratchet.write.knowledge.index import index_path

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

        No question outlasts the seconds that the progress leaves.

        Raises:
            EndpointError: the model could not be asked even once.
            LedgerError: the ledger failed.
        """
        self._purse.turn(progress.left_s)
        if count < 1 or self._over or progress.problem.fault:
            return []
        session = self._session(progress.problem)
        if session is None or session.ended:
            return []
        found = session.left_over(progress)
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
        return found

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
    `knowledge=False` leaves passages out.

    Raises:
        EndpointError: no key, or no URL.
        LedgerError: the ledger cannot be opened, or holds no such run.
        RatchetError: an unknown strategy, target or device, or a number of samples out of range.
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
