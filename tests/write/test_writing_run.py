"""A writing run and the ledger: answers as they come, resuming, Ctrl-C, kernels found again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import needs_judge
from made_up_space import MadeUpCourt, MadeUpSpace, made_up_problem

from ratchet.base.errors import EndpointError, KernelError, LedgerError, RatchetError
from ratchet.judge.court.court import Court
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.revision import revision
from ratchet.write import roster, write
from ratchet.write.author import Author, Progress, Proposal
from ratchet.write.form import UnsupportedOp
from ratchet.write.outcome import failed_result
from ratchet.write.problem_run import TURN_SHARE, ProblemRun, RunEvent
from ratchet.write.roster import Setting
from ratchet.write.search import SearchAuthor
from ratchet.write.write import Asked, write_all
from ratchet.write.writing_book import WritingBook
from ratchet.write.writing_result import AgentChoice, WritingRequest, WritingResult

REQUEST = WritingRequest(budget_s=60.0, candidates=32, authors=("search",), seed=3)


class Killed(BaseException):
    """Ends a run as a kill does: nothing is noted after it."""


@pytest.fixture
def court(tmp_path: Path) -> Any:
    with Court(str(tmp_path / "ledger.db")) as opened:
        yield opened


@pytest.fixture
def made_up(court: Court, monkeypatch: pytest.MonkeyPatch) -> MadeUpCourt:
    """All problems are made up, and judged on a simulated machine."""
    straw = MadeUpCourt(MadeUpSpace(), monkeypatch, seed=1)
    given = straw.judge_all

    def keep(kernels: Any, problem: Any, terms: Any, *, fresh: bool = False) -> Iterator[Any]:
        """Keep the verdicts, as the real court does."""
        for judged in given(kernels, problem, terms):
            own = msgspec.structs.replace(judged.verdict, environment={"judge": revision()})
            yield court._kept(judged.kernel, problem, terms, own)

    monkeypatch.setattr(straw, "judge_all", keep)
    monkeypatch.setattr(court, "judge_all", lambda *given, **more: straw.judge_all(*given, **more))
    monkeypatch.setattr(court, "screen", lambda *given, **more: straw.screen(*given, **more))

    def make(setting: Setting) -> Author:
        return SearchAuthor(straw.space, seed=setting.request.seed)

    monkeypatch.setattr(roster, "MAKERS", dict.fromkeys(roster.MAKERS, make))
    return straw


def book(court: Court) -> WritingBook:
    return WritingBook(court.ledger, court.fingerprint)


def stop_after(events: int, error: type[BaseException]) -> Callable[[RunEvent, Any], None]:
    left = [events]

    def follow(event: RunEvent, result: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    return follow


def test_a_run_ends_with_a_confirmed_kernel_and_all_answers_in_the_ledger(
    made_up: MadeUpCourt, court: Court
) -> None:
    result = write.write(made_up_problem(), REQUEST, court=court)
    assert result.status == "proven" and result.best is not None
    assert not result.running and result.stopped == "candidates"
    assert result.screened == 32 and result.judged == 1
    kept = book(court).answers(result.run)
    assert len(kept) == len(result.rows)
    assert [one.stage for one in kept].count("judged") == 1
    assert {one.kernel_hash for one in kept if one.features} == {one.kernel_hash for one in kept}
    assert book(court).kernel(result.best.kernel_hash).source == result.best.source
    assert book(court).run(result.run[:8]).ended == "finished"
    assert result.best.kernel_hash in result.sources


def test_a_budget_that_ends_before_a_verdict_keeps_the_kernel_that_was_screened_best(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProblemRun, "confirm", lambda self: None)  # as if no time were left
    result = write.write(made_up_problem(), REQUEST, court=court)
    right = [one for one in result.rows if one.status == "screened"]
    assert (result.status, result.best, result.judged) == ("not_judged", None, 0)
    newest = {one.kernel_hash: one for one in right}
    assert result.unjudged == max(newest.values(), key=lambda one: one.ratio or 0.0).kernel_hash
    assert result.unjudged in result.sources
    assert "the run ended before a verdict" in result.notes[0]


def test_a_wide_fleet_screens_more_at_once_and_gives_planned_verdicts_together(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(court.fleet, "width", 3)
    screened, judged = [], []
    screen, give = made_up.screen, made_up.judge_all

    def screening(kernels: Any, *rest: Any, **options: Any) -> Any:
        screened.append(len(kernels))
        return screen(kernels, *rest, **options)

    def judging(kernels: Any, *rest: Any, **options: Any) -> Any:
        judged.append([one.hash for one in kernels])
        made_up.wrong |= {judged[0][0]}  # the leader is wrong: one more takes its place, no more
        return give(kernels, *rest, **options)

    monkeypatch.setattr(made_up, "screen", screening)
    monkeypatch.setattr(made_up, "judge_all", judging)
    monkeypatch.setattr(made_up.space, "log_ratio", lambda schedule: 0.0)
    request = WritingRequest(budget_s=1000.0, candidates=60, authors=("search",), seed=3)
    result = write.write(made_up_problem(), request, court=court)
    assert max(screened) > 16 and result.screened == 60
    assert [len(one) for one in judged] == [3, 1]
    assert result.planned_verdicts == 3 and set(made_up.levels) == {3}
    assert len({one for batch in judged for one in batch}) == result.judged == 4


def test_a_killed_run_is_resumed_and_judges_nothing_twice(
    made_up: MadeUpCourt, court: Court
) -> None:
    with pytest.raises(Killed):
        write.write(made_up_problem(), REQUEST, court=court, follow=stop_after(7, Killed))
    before = list(made_up.screened)
    assert 0 < len(before) < 32
    resume = WritingRequest(budget_s=60.0, candidates=32, authors=("search",), resume=True)
    result = write.write(made_up_problem(), resume, court=court)
    assert result.status == "proven" and result.screened == 32
    kept = book(court).answers(result.run)
    places = [(one.kernel_hash, one.stage, one.rung) for one in kept]
    assert len(places) == len(set(places))
    assert {one.kernel_hash for one in kept[: len(before)]} <= set(before)


def test_a_run_killed_in_its_verdict_confirms_when_it_is_resumed(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(made_up, "judge_all", die)
        write.write(made_up_problem(), REQUEST, court=court)
    screened = len(made_up.screened)
    resume = WritingRequest(budget_s=60.0, candidates=32, authors=("search",), resume=True)
    result = write.write(made_up_problem(), resume, court=court)
    assert result.status == "proven"
    assert len(made_up.screened) == screened


def test_ctrl_c_ends_with_what_is_known(made_up: MadeUpCourt, court: Court) -> None:
    follow = stop_after(7, KeyboardInterrupt)
    result = write.write(made_up_problem(), REQUEST, court=court, follow=follow)
    assert result.stopped == "interrupted" and result.best is None
    assert result.status == "not_judged" and "--resume" in result.notes[0]
    assert 0 < result.screened < 32
    assert book(court).run(result.run).ended == "interrupted"
    found = book(court).unfinished(result.problem_hash)
    assert found is not None and found.run == result.run


def test_without_an_unfinished_run_there_is_nothing_to_resume(
    made_up: MadeUpCourt, court: Court
) -> None:
    resume = WritingRequest(resume=True)
    with pytest.raises(LedgerError, match="no unfinished run on 'made_up'"):
        write.write(made_up_problem(), resume, court=court)
    write.write(made_up_problem(), REQUEST, court=court)
    with pytest.raises(LedgerError, match="leave --resume out"):
        write.write(made_up_problem(), resume, court=court)


def test_a_proven_kernel_is_found_again_unless_the_budget_is_larger(
    made_up: MadeUpCourt, court: Court
) -> None:
    first = write.write(made_up_problem(), REQUEST, court=court)
    assert first.best is not None
    screened = len(made_up.screened)
    again = write.write(made_up_problem(), REQUEST, court=court)
    assert again.stopped == "recalled" and again.status == "proven"
    assert again.best is not None and again.best.kernel_hash == first.best.kernel_hash
    assert len(made_up.screened) == screened

    larger = WritingRequest(budget_s=120.0, candidates=16, authors=("search",))
    more = write.write(made_up_problem(), larger, court=court)
    assert more.stopped == "candidates"
    assert more.rows[0].author == "ledger" and more.rows[0].kernel_hash == first.best.kernel_hash

    fresh = WritingRequest(candidates=16, authors=("search",), reuse="never")
    anew = write.write(made_up_problem(), fresh, court=court)
    assert all(row.author == "search" for row in anew.rows)


def test_an_author_that_cannot_write_for_a_problem_is_told(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        name = "agent"

        def propose(self, progress: Progress, count: int) -> list[Proposal]:
            raise RatchetError("the endpoint is down: start it")

    def no_kernel(setting: Setting) -> Author:
        raise KernelError("no kernel for aten.fft: leave the problem to others")

    makers = {"search": lambda setting: SearchAuthor(made_up.space), "compiler": no_kernel}
    monkeypatch.setattr(roster, "MAKERS", {**makers, "agent": lambda setting: Broken()})
    request = WritingRequest(candidates=16, authors=("compiler", "search", "agent"))
    result = write.write(made_up_problem(), request, court=court)
    notes = {one.name: one.note for one in result.authors}
    assert "aten.fft" in notes["compiler"] and "endpoint is down" in notes["agent"]
    assert result.screened == 16


def test_an_author_that_repeats_itself_ends_the_run(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parrot:
        name = "agent"

        def propose(self, progress: Progress, count: int) -> list[Proposal]:
            kernel = made_up.space.kernel(made_up.space.first()[0])
            return [Proposal(kernel=kernel, author=self.name, schedule=kernel.schedule)]

    monkeypatch.setattr(roster, "MAKERS", {"agent": lambda setting: Parrot()})
    result = write.write(made_up_problem(), WritingRequest(authors=("agent",)), court=court)
    assert result.stopped == "no more proposals" and result.screened == 1


class Unreachable:
    """An agent whose model cannot be asked."""

    name = "agent:tiny"

    def __init__(self) -> None:
        self.left_s: list[float] = []

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        self.left_s.append(progress.left_s)
        raise EndpointError("the model 'tiny' cannot be asked: nobody answers")


def with_agent(monkeypatch: pytest.MonkeyPatch, court: MadeUpCourt) -> Unreachable:
    """Have the roster make an agent that fails, beside the made-up search."""
    agent = Unreachable()

    search = dict.fromkeys(roster.MAKERS, lambda setting: SearchAuthor(court.space))
    monkeypatch.setattr(roster, "MAKERS", {**search, "agent": lambda setting: agent})
    return agent


def test_a_run_goes_on_without_a_model_that_cannot_be_asked(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, events = with_agent(monkeypatch, made_up), []
    request = msgspec.structs.replace(REQUEST, authors=("search", "agent"), candidates=8)
    result = write.write(
        made_up_problem(), request, court=court, follow=lambda event, _: events.append(event)
    )
    assert result.status == "proven" and result.screened == 8 and result.notes == ()
    [told] = [one.detail for one in events if one.kind == "dropped"]
    assert told == "agent:tiny: the model 'tiny' cannot be asked: nobody answers"
    assert [one.note for one in result.authors if one.name == "agent:tiny"] == [
        "the model 'tiny' cannot be asked: nobody answers"
    ]
    [left_s] = agent.left_s
    assert 0 < left_s <= TURN_SHARE * 40.0, "the others need time too"


def test_the_only_author_s_model_that_cannot_be_asked_ends_the_command(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = with_agent(monkeypatch, made_up)
    request = msgspec.structs.replace(REQUEST, authors=("agent",))
    with pytest.raises(EndpointError, match="nobody answers"):
        write.write(made_up_problem(), request, court=court, spent_s=7.0)
    [left_s] = agent.left_s
    assert 0 < left_s <= 33.0, "of 60 s, 20 are kept for the verdict and 7 are gone"
    asked = [Asked(problem=made_up_problem(f"p{at}"), gain_s=1.0) for at in range(3)]
    with pytest.raises(EndpointError, match="nobody answers"):
        write_all(
            "made-up",
            asked,
            request,
            court=court,
            follow=lambda problem: lambda event, result: None,
            done=lambda result: None,
        )
    assert len(agent.left_s) == 2, "no other problem asks it again"


def test_an_agent_that_cannot_be_made_is_a_mistake_in_the_call(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    request = msgspec.structs.replace(
        REQUEST, authors=("search", "agent"), agent=AgentChoice(model="tiny")
    )
    with pytest.raises(EndpointError, match="no key in OPENAI_API_KEY"):
        write.write(made_up_problem(), request, court=court)


@pytest.mark.parametrize(("budget_s", "spent_s"), [(20.0, 19.0), (60.0, 50.0), (60.0, 300.0)])
def test_a_run_that_screened_nothing_says_why_and_which_budget_would_do(
    budget_s: float, spent_s: float, made_up: MadeUpCourt, court: Court
) -> None:
    request = msgspec.structs.replace(REQUEST, budget_s=budget_s)
    result = write.write(made_up_problem(), request, court=court, spent_s=spent_s)
    assert result.status == "none" and result.screened == 0 and result.stopped == "budget"
    [why] = result.notes
    assert f"within the budget of {budget_s:.0f} s: {spent_s:.0f} s went into starting" in why
    enough = re.search(r"--budget (\d+)s should do", why)
    assert enough is not None
    assert [one.note for one in result.authors] == ["the budget ended before its turn"]
    request = msgspec.structs.replace(REQUEST, budget_s=float(enough[1]))
    again = write.write(made_up_problem(), request, court=court, spent_s=spent_s)
    assert again.screened > 0 and again.notes == ()


def test_a_run_whose_authors_propose_nothing_says_why(
    made_up: MadeUpCourt, court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tired:
        name, ended = "search", "it has said it all"

        def propose(self, progress: Progress, count: int) -> list[Proposal]:
            return []

    makers = dict.fromkeys(roster.MAKERS, lambda setting: Tired())
    monkeypatch.setattr(roster, "MAKERS", makers)
    result = write.write(made_up_problem(), REQUEST, court=court)
    assert result.stopped == "no more proposals"
    assert result.notes == (
        "no kernel was screened: nobody proposed one (search: it has said it all)",
    )


def test_only_the_wanted_language_is_screened(made_up: MadeUpCourt, court: Court) -> None:
    request = WritingRequest(authors=("search",), language="triton")
    result = write.write(made_up_problem(), request, court=court)
    assert result.stopped == "no more proposals" and result.screened == 0
    assert result.status == "none" and result.best is None


def test_a_problem_with_a_fault_is_one_line(court: Court) -> None:
    problem = Problem(name="bad", reference="file:", cases=(), text="x", fault="it raises")
    with pytest.raises(RatchetError, match="'bad' cannot be judged: it raises"):
        write.write(problem, REQUEST, court=court)


def test_a_workload_s_problems_share_the_budget_by_gain(made_up: MadeUpCourt, court: Court) -> None:
    problems = [made_up_problem(name) for name in ("small", "large", "middle")]
    asked = [
        Asked(problem=problem, gain_s=gain)
        for problem, gain in zip(problems, (1e-3, 8e-3, 3e-3), strict=True)
    ]
    done: list[WritingResult] = []
    request = WritingRequest(budget_s=240.0, candidates=16, authors=("search",))

    def all_of_it() -> Any:
        return write_all(
            "made-up",
            asked,
            request,
            court=court,
            follow=lambda problem: lambda event, result: None,
            done=done.append,
        )

    first = all_of_it()
    assert [row.problem for row in first.rows] == ["large", "middle", "small"]
    budgets = [one.budget_s for one in done]
    assert budgets[0] == pytest.approx(240 / 3, rel=0.05), "8 of 12, but nobody gets more"
    assert {row.status for row in first.rows} == {"proven"}
    screened = len(made_up.screened)
    again = all_of_it()
    assert all(row.recalled for row in again.rows) and len(made_up.screened) == screened


def test_what_is_likely_won_comes_first(made_up: MadeUpCourt, court: Court) -> None:
    product = Asked(problem=made_up_problem("product"), gain_s=4e-3, likely_s=1e-3)
    fused = Asked(problem=made_up_problem("fused"), gain_s=2e-3)
    found = write_all(
        "made-up",
        [product, fused],
        WritingRequest(budget_s=60.0, candidates=8, authors=("search",)),
        court=court,
        follow=lambda problem: lambda event, result: None,
        done=lambda result: None,
    )
    assert [row.problem for row in found.rows] == ["fused", "product"]


def test_what_does_not_fit_the_budget_is_told(made_up: MadeUpCourt, court: Court) -> None:
    asked = [Asked(problem=made_up_problem(f"p{i}"), gain_s=1.0) for i in range(3)]
    found = write_all(
        "made-up",
        asked,
        WritingRequest(budget_s=45.0, candidates=8, authors=("search",)),
        court=court,
        follow=lambda problem: lambda event, result: None,
        done=lambda result: None,
        spent_s=33.0,
    )
    assert [row.status for row in found.rows[1:]] == ["not_reached", "not_reached"]


def test_what_only_the_compiler_writes_for_comes_last(
    court: Court, monkeypatch: pytest.MonkeyPatch
) -> None:
    def space_for(problem: Problem, *, device: str) -> None:
        if problem.name == "large":
            raise UnsupportedOp("attention")

    def written(one: Asked, request: WritingRequest, *_: Any) -> WritingResult:
        return failed_result(one.problem, request, "nothing", command="")

    monkeypatch.setattr("ratchet.write.generator.space_for", space_for)
    monkeypatch.setattr(write, "_written", written)
    gains = {"small": 1e-3, "large": 8e-3, "middle": 3e-3}
    asked = [Asked(problem=made_up_problem(name), gain_s=one) for name, one in gains.items()]

    def order(*authors: str) -> list[str]:
        found = write_all(
            "made-up",
            asked,
            WritingRequest(budget_s=240.0, authors=authors),
            court=court,
            follow=lambda problem: lambda event, result: None,
            done=lambda result: None,
        )
        return [row.problem for row in found.rows]

    assert order("compiler", "search") == ["middle", "small", "large"]
    assert order("search") == ["large", "middle", "small"]
    assert order("compiler", "agent") == ["large", "middle", "small"]


@needs_judge
@pytest.mark.compiler
def test_the_library_s_kernel_is_screened_and_judged(court: Court) -> None:
    problem = find_problem("gated_activation_forward").at("ci")
    request = WritingRequest(budget_s=30.0, authors=("library",), language="cpp")
    result = write.write(problem, request, court=court)
    assert result.status in ("proven", "correct") and result.best is not None
    assert result.best.author == "library" and result.screened == 1
    assert result.stopped in ("no more proposals", "floor")
    assert [row.stage for row in result.rows][-1] == "judged"
