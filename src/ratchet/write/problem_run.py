"""One problem's run: authors propose, screenings filter, verdicts decide."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ratchet.base.errors import EndpointError, LedgerError, RatchetError
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel, Terms
from ratchet.write.author import (
    AGENT,
    COMPILER,
    FAILED,
    RIGHT,
    SEARCH,
    Answer,
    Author,
    Progress,
    Proposal,
)
from ratchet.write.effort import LARGEST_SHARE, NEAR, Rungs, kept_s, planned_verdicts
from ratchet.write.writing_result import Stopped, WritingRequest

SMALLEST_BATCH, LARGEST_BATCH = 6, 16
BATCH_SHARE: Final = 0.15
"""Share of the search's time that one batch may take, as far as its size decides."""
FIRST_S: Final = 2.0  # Guess of what a kernel's first screening takes, until one has
COMPILED_S: Final = 10.0  # The same for a kernel that torch compiles when it is first called
COMPILER_WEIGHT: Final = 1 / 3  # The compiler's share of the time, beside 1 for every other author
HEAD_START: Final = 0.25  # Part of the search's time that the search is ahead of the compiler
START_S: Final = 6.0  # Time that a screening may take on top, to open the problem and compile
SLACK: Final = 2.0  # A screening may take this many times what the last one took for each kernel
SHORTEST_SCREEN_S: Final = 2.0
MOST_BARREN: Final = 16
"""Turns in a row that may bring nothing but kernels that are known or not wanted."""
SHORTEST_VERDICT_S: Final = 8.0
"""With less time than this no further verdict begins, but the first always does."""
LEAST_VERDICT_S: Final = 15.0  # Time limit that the first verdict has, as far as OVERRUN allows it
OVERRUN: Final = 0.1  # Share of the budget that a run may take beyond it
END_S: Final = 2.0  # Time for the result and its page after the last verdict
TURN_SHARE: Final = 0.75
"""Share of the search's remaining time in which one author may propose beside others."""
STARTS: Final = 4  # Processes of a verdict that each compile a kernel of the compiler's anew
UNTIMED: Final = ("unmeasured", "timed_out")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """A moment of a run, for a progress line and a page that follow it."""

    kind: str  # `proposing`, `dropped`, `screening`, `screened`, `judging` or `judged`
    detail: str
    spent_s: float
    screened: int
    best_ratio: float | None  # The best of the screenings: an estimate that is too high


Listener = Callable[[RunEvent], None]
Keep = Callable[[Answer], None]


@dataclass(slots=True)
class ProblemRun:
    """The state of one problem's run; `search` and then `confirm` carry it on."""

    problem: Problem
    request: WritingRequest
    authors: list[Author]
    court: Court
    keep: Keep
    listen: Listener
    floor_s: float | None = None  # Least time of a call by the roofline
    floor_below: Callable[[float], float | None] = lambda _: None
    """Returns that time after the ceilings were measured anew, since a call took less."""
    on_gpu: bool = False
    target: str | None = None  # A GPU that is not here, whose machine code is emulated
    before_s: float = 0.0
    """Seconds of the budget that were spent before: by a run that is resumed, by reading."""
    clock: Callable[[], float] = time.monotonic
    progress: Progress = field(init=False)
    dropped: dict[str, str] = field(default_factory=dict)
    """Authors that failed or ended, with the reason, where they tell one (`ended`)."""
    verdicts: list[JudgedKernel] = field(default_factory=list)
    stopped: Stopped | None = None
    spent_by: dict[str, float] = field(default_factory=dict)
    """Seconds that went to each author's turns, their screenings among them."""
    _known: dict[str, Proposal] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _rungs: Rungs = field(default_factory=Rungs)
    _again: list[Proposal] = field(default_factory=list)
    _retried: set[str] = field(default_factory=set)
    _barren: dict[str, int] = field(default_factory=dict)
    _climbed: set[tuple[str, int]] = field(default_factory=set)
    _began: float = field(init=False)
    _asked: str = ""  # The author of the batch that is screened
    _cost_s: dict[str, float] = field(default_factory=dict)
    """Seconds that a kernel of an author took to screen, the last time."""

    def __post_init__(self) -> None:
        self.progress = Progress(problem=self.problem)
        self._began = self.clock()

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are gone."""
        return self.before_s + self.clock() - self._began

    @property
    def screened(self) -> int:
        """Kernels that were screened, each counted once."""
        return len(self._seen)

    def restore(self, answers: Sequence[Answer], verdicts: Sequence[JudgedKernel]) -> None:
        """Go on from the answers and the verdicts of an earlier part of this run."""
        self.verdicts += verdicts
        for answer in answers:
            self._known[answer.kernel_hash] = answer
            self._take(answer)

    def search(self) -> None:
        """Propose and screen until time, proposals or room for gains run out."""
        while self.stopped is None:
            self.stopped = self._why_stop()
            if self.stopped is not None:
                return
            climbing = self._climbing()
            batch = self._batch(room_for=len(climbing))
            if not batch and not climbing:
                self.stopped = "budget" if self.authors else "no more proposals"
                return
            self._screen([*climbing, *batch])

    def confirm(self) -> None:
        """Give the chosen kernels verdicts of their own; see `search.confirmation`."""
        planned = planned_verdicts(self.request.budget_s)
        judged = {a.kernel_hash: a for a in self.progress.answers if a.stage == "judged"}
        if any(one.status == "proven" for one in judged.values()):
            return
        counted = sum(one.ratio is not None for one in judged.values())
        while counted < planned:
            left_s = self.request.budget_s - self.spent_s
            if judged and left_s < SHORTEST_VERDICT_S:
                return
            together = min(self.court.fleet.width, planned - counted)
            # Those of the compiler's go last if there is no time for a verdict on them.
            outlasts = self._compiled_verdict_s > left_s
            order = sorted(self._order(), key=lambda one: outlasts and self._is_compiled(one))
            batch = [one for one in order if one not in judged][:together]
            if not batch:
                return
            limit_s = LEAST_VERDICT_S if all(map(self._is_no_gain, batch)) else left_s
            most_s = left_s + OVERRUN * self.request.budget_s - END_S
            if most_s < SHORTEST_SCREEN_S:
                return
            answers = self._judge(batch, min(max(limit_s, LEAST_VERDICT_S), most_s), planned)
            judged |= {one.kernel_hash: one for one in answers}
            counted += sum(one.ratio is not None for one in answers)
            found = {one.status for one in answers}
            timed = any(one.ratio is not None for one in self.progress.answers)
            if "proven" in found or ("correct" in found and not timed):
                return

    def _why_stop(self) -> Stopped | None:
        if self._left_s() < SHORTEST_SCREEN_S:
            return "budget"
        if self.request.candidates is not None and self.screened >= self.request.candidates:
            return "candidates"
        best = next(iter(self._order()), None)
        times = [
            one.time_s
            for one in self.progress.answers
            if one.kernel_hash == best and one.time_s is not None
        ]
        if self.floor_s is None or len(times) < 2:
            return None
        time_s = statistics.median_high(times)
        if time_s < self.floor_s:
            self.floor_s = self.floor_below(time_s) or self.floor_s
        return "floor" if time_s <= NEAR * self.floor_s else None

    @property
    def _search_s(self) -> float:
        compiled = self.request.against_compile
        return self.request.budget_s - kept_s(self.request.budget_s, against_compile=compiled)

    def _left_s(self) -> float:
        """Return the seconds that the search still has: fewer if its best takes long to judge."""
        leader = next(iter(self._order()), None)
        left_s = self._search_s - self.spent_s
        if leader is None or not self._is_compiled(leader):
            return left_s
        kept_s = min(self._compiled_verdict_s, LARGEST_SHARE * self.request.budget_s)
        return min(left_s, self.request.budget_s - kept_s - self.spent_s)

    @property
    def _compiled_verdict_s(self) -> float:
        """Return what a verdict on a kernel of the compiler's takes here, by its screening."""
        return STARTS * self._cost_s.get(COMPILER, 0.0)

    def _is_compiled(self, kernel_hash: str) -> bool:
        return self._known[kernel_hash].author == COMPILER

    def _is_no_gain(self, kernel_hash: str) -> bool:
        """Return whether a kernel of the compiler's was screened as slower: it proves nothing."""
        scores = self._rungs.scores.get(kernel_hash, ())
        return self._is_compiled(kernel_hash) and bool(scores) and max(scores) < 0

    def _weigh_compiler(self, untimed: bool) -> None:
        """Ask the compiler no more if its kernels have no time here, or a verdict takes too long.

        The first one tells: its kernels all take about as long to compile.
        """
        why = ""
        room_s = LARGEST_SHARE * self.request.budget_s
        if untimed:
            why = "its first kernel could not be timed here in the time that there is"
        elif self._compiled_verdict_s > room_s:
            why = (
                f"a verdict on a kernel of its takes about {self._compiled_verdict_s:.0f} s here, "
                f"and this budget has {room_s:.0f} s for it: it proposes no more"
            )
        if why:
            self.dropped[COMPILER] = why
            self.authors[:] = [one for one in self.authors if one.name != COMPILER]

    def _climbing(self) -> list[Proposal]:
        """Return the kernels that are screened again, beside the next new ones."""
        ready = [one for one in self._rungs.climbing() if one not in self._climbed]
        ready = [one for one in ready if not self._is_late(self._known[one[0]].author)]
        ready = ready[: LARGEST_BATCH // 2]
        self._climbed.update(ready)
        return [self._known[kernel_hash] for kernel_hash, _ in ready]

    def _batch(self, *, room_for: int) -> list[Proposal]:
        """Return new proposals of the author whose turn it is; those without any are dropped."""
        while self.authors and self._left_s() > 0:
            timely = [one for one in self.authors if not self._is_late(one.name)]
            if not timely:
                break
            author = min(timely, key=self._debt)
            began = self.clock()
            self._say("proposing", author.name)
            self._asked = author.name
            alone = len(self.authors) == 1
            self.progress.left_s = self._left_s() * (1.0 if alone else TURN_SHARE)
            found = self._propose(author, self._count(author.name, room_for))
            self._charge(author.name, self.clock() - began)
            if found is None:
                self.authors.remove(author)
            elif found:
                return found
        again, self._again = self._again, []
        return again

    def _count(self, author: str, room_for: int) -> int:
        """Return how many kernels an author may propose: as many as a part of the time screens."""
        if author == COMPILER and COMPILER not in self._cost_s:
            return 1  # it tells what the others cost
        width = self.court.fleet.width
        least = 1 if author == COMPILER else SMALLEST_BATCH
        fitting = int(BATCH_SHARE * self._search_s / self._each_s(author))
        count = max(least * width, min(LARGEST_BATCH * width, fitting) - room_for)
        if self.request.candidates is not None:
            count = min(count, self.request.candidates - self.screened)
        return count

    def _note_cost(self, batch: Sequence[Proposal], took_s: float, *, was_cut: bool) -> None:
        """Note what a kernel of the author in turn took, beside those that were screened again."""
        others_s = sum(self._each_s(one.author) for one in batch if one.author != self._asked)
        count = sum(one.author == self._asked for one in batch)
        if count:
            cost_s = max(0.05, (took_s - others_s) / count)
            known_s = self._cost_s.get(self._asked, 0.0) if was_cut else 0.0
            self._cost_s[self._asked] = max(cost_s, known_s)

    def _is_late(self, author: str) -> bool:
        """Return whether a kernel of the compiler's no longer fits the search's time.

        Alone it tries its first one anyway: what that takes is only a guess.
        """
        if author != COMPILER or (COMPILER not in self._cost_s and len(self.authors) == 1):
            return False
        return self._left_s() < self._each_s(author)

    def _each_s(self, author: str) -> float:
        """Return what a kernel of an author takes to screen: as the last one, or a guess."""
        guess_s = COMPILED_S if author == COMPILER else FIRST_S
        return self._cost_s.get(author, guess_s / self.court.fleet.width)

    def _debt(self, author: Author) -> float:
        """Return what an author's turns took, by its weight: the next turn is the lowest one's.

        The compiler's kernels take long to screen, so it waits for the search's first ones.
        """
        waits = author.name == COMPILER and any(one.name == SEARCH for one in self.authors)
        head_start_s = HEAD_START * self._search_s if waits else 0.0
        weight = COMPILER_WEIGHT if author.name == COMPILER else 1.0
        return (self.spent_by.get(author.name, 0.0) + head_start_s) / weight

    def _charge(self, author: str, time_s: float) -> None:
        self.spent_by[author] = self.spent_by.get(author, 0.0) + max(time_s, 1e-6)

    def _propose(self, author: Author, count: int) -> list[Proposal] | None:
        """Return an author's new proposals; None if it has nothing left to say, or failed.

        Raises EndpointError: the model of the only author cannot be asked.
        """
        try:
            proposed = author.propose(self.progress, count)
        except LedgerError:
            raise
        except RatchetError as error:
            alone = self.request.authors == (AGENT,) and not self._known
            if alone and isinstance(error, EndpointError):
                raise
            self.dropped[author.name] = str(error)
            self._say("dropped", f"{author.name}: {error}")
            return None
        if not proposed or self._barren.get(author.name, 0) >= MOST_BARREN:
            why = str(getattr(author, "ended", ""))
            if why:
                self.dropped[author.name] = why
            return None
        new = []
        for one in proposed[:count]:
            if self.request.language is None:  # Triton is not timed on cores: only who asks gets it
                wanted = self.on_gpu or one.kernel.language != "triton"
            else:
                wanted = one.kernel.language == self.request.language
            if wanted and one.kernel.hash not in self._known:
                self._known[one.kernel.hash] = one
                new.append(one)
        self._barren[author.name] = 0 if new else self._barren.get(author.name, 0) + 1
        return new

    def _screen(self, batch: Sequence[Proposal]) -> None:
        """Screen kernels together, and take what is said of each."""
        self._say("screening", f"{len(batch)} kernel{'' if len(batch) == 1 else 's'}")
        began = self.clock()
        limit_s = START_S + SLACK * sum(self._each_s(one.author) for one in batch)
        left_s = max(SHORTEST_SCREEN_S, self._left_s())
        first = self._asked == COMPILER and COMPILER not in self._cost_s
        if first and len(self.authors) == 1:  # nobody else needs the time
            limit_s = max(limit_s, left_s / 2)
        limit_s = min(limit_s, left_s)
        leader = next(
            (one for one in self._order() if one not in {p.kernel.hash for p in batch}), None
        )
        found = self.court.screen(
            [one.kernel for one in batch],
            self.problem,
            Terms(time_limit_s=limit_s, device=self.request.device, target=self.target),
            best=None if leader is None else self._known[leader].kernel,
        )
        by_hash = {one.kernel_hash: one for one in found}
        took_s = self.clock() - began
        self._note_cost(batch, took_s, was_cut=took_s >= limit_s)
        self._charge(self._asked, took_s)
        for proposal in batch:
            said = by_hash.get(proposal.kernel.hash)
            rung = len(self._rungs.scores.get(proposal.kernel.hash, ()))
            if said is None:
                continue
            again = said.status == "unmeasured" and not first and rung == 0
            if again and proposal.kernel.hash not in self._retried:  # it is screened once more
                self._retried.add(proposal.kernel.hash)
                self._again.append(proposal)
                continue
            answer = Answer.by_screening(proposal, said, after_s=self.spent_s, rung=rung)
            self._take(answer)
            self.keep(answer)
        if self._asked == COMPILER:
            told = [by_hash.get(one.kernel.hash) for one in batch if one.author == COMPILER]
            untimed = all(one is None or one.status in UNTIMED for one in told)
            self._weigh_compiler(first and untimed)
        self._say("screened", f"{len(batch)} kernels")

    def _take(self, answer: Answer) -> None:
        """Note an answer in the progress and on the rungs."""
        self.progress.answers.append(answer)
        kernel_hash = answer.kernel_hash
        if answer.stage == "screened":
            self._seen.add(kernel_hash)
        if answer.status in FAILED:
            self._rungs.record(kernel_hash, None)
        elif answer.stage == "screened" and answer.ratio is not None and answer.ratio > 0:
            score, opener = math.log(answer.ratio), answer.opener
            self._rungs.record(kernel_hash, score, opener=opener)

    def _order(self) -> list[str]:
        """Return the kernels to confirm, the most promising first: timed ones, then right ones."""
        failed = {a.kernel_hash for a in self.progress.answers if a.status in FAILED}
        untimed = [
            one
            for one in self.progress.answers
            if one.stage == "screened" and one.status in RIGHT and one.ratio is None
        ]
        untimed.sort(key=lambda one: one.static_rank or (math.inf,))
        ranked = [one.kernel_hash for one in untimed]
        return [one for one in dict.fromkeys([*self._rungs.order(), *ranked]) if one not in failed]

    def _judge(self, hashes: Sequence[str], limit_s: float, among: int) -> list[Answer]:
        """Return the answers that verdicts on several kernels are; a fleet gives them at once."""
        kernels = [self._known[one].kernel for one in hashes]
        self._say("judging", ", ".join(one.name for one in kernels))
        terms = Terms(
            time_limit_s=limit_s,
            against_compile=self.request.against_compile,
            device=self.request.device,
            among=among,
            target=self.target,
            profiled=TARGETS,
            compared=True,
        )
        fresh = self.request.reuse == "never"
        found = self.court.judge_all(kernels, self.problem, terms, fresh=fresh)
        answers = []
        for judged in found:
            self.verdicts.append(judged)
            proposal = self._known[judged.verdict.kernel_hash]
            answer = Answer.by_verdict(proposal, judged.verdict, after_s=self.spent_s)
            self._take(answer)
            self.keep(answer)
            self._say("judged", f"{proposal.kernel.name}: {answer.status}")
            answers.append(answer)
        return answers

    def _say(self, kind: str, detail: str) -> None:
        screened = [a for a in self.progress.answers if a.stage == "screened" and a.ratio]
        right = [a.ratio or 0.0 for a in screened if a.status in RIGHT]
        self.listen(
            RunEvent(
                kind=kind,
                detail=detail,
                spent_s=self.spent_s,
                screened=self.screened,
                best_ratio=max(right, default=None),
            )
        )
