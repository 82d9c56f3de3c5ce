"""Turns against a real endpoint: what the prompts show, what the ledger holds, when it ends."""

from __future__ import annotations

import importlib.util
import logging
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import openai_server as server
import pytest
from agent_runs import KEY, NAME, fine, make_author, run_turns, said, small_problem, source, wrong

from ratchet.base.errors import EndpointError, LedgerError, RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Exchange, ExchangeBook
from ratchet.judge.problems.card import card_of
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.problems.templates import template
from ratchet.write.agent import AgentBudget, agent_author
from ratchet.write.agent.author import BARREN_TURNS
from ratchet.write.author import Progress
from ratchet.write.knowledge.index import index_path, open_index


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_TEST_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def progress() -> Iterator[Progress]:
    yield Progress(problem=small_problem())


def exchanges(ledger: Path, run: str = "run-1") -> list[Exchange]:
    with Ledger.open(ledger) as opened:
        return ExchangeBook(opened, {"device": "", "software": ""}).of_run(run)


def prompt_of(served: server.OpenAIServer, number: int) -> str:
    return str(served.requests[number]["messages"][1]["content"])


def test_a_turn_becomes_a_proposal_and_a_row(ledger: Path, progress: Progress) -> None:
    with server.serving(server.answer(said(1, "fuse"), usage=(900, 70))) as served:
        author = make_author(served.url, ledger)
        [[proposal]] = run_turns(author, progress, [fine(1.0)])
    assert author.name == proposal.author == "agent:tiny"
    assert (proposal.kernel.source, proposal.kernel.entry) == (source(1), NAME)
    assert (proposal.note, proposal.parents) == ("fuse", ())
    [row] = exchanges(ledger)
    assert (row.status, row.kind, row.turn, row.sample, row.attempt) == (
        "answered",
        "draft",
        0,
        0,
        0,
    )
    assert row.answer == said(1, "fuse") and row.model == "tiny"
    assert (row.usage.prompt_tokens, row.usage.completion_tokens) == (900, 70)
    assert [one.role for one in row.messages] == ["system", "user"]
    assert row.messages[1].content == prompt_of(served, 0)
    assert row.problem_hash == progress.problem.hash and len(row.prompt_hash) == 64


def test_the_first_prompt_shows_problem_device_interface_and_notes(
    ledger: Path, progress: Progress
) -> None:
    with server.serving(server.answer(said(1))) as served:
        run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    prompt = prompt_of(served, 0)
    for words in (
        "# The problem: squared_relu",
        "float32 [",
        "(timed)",
        "def squared_relu",
        "Tolerance: the larger of 3 times",
        "threads may be used",
        "RATCHET_ENTRY squared_relu(const ratchet_tensor* t",
        "From ratchet/",
        "x86 CPUs",
        "# A file to start from",
        "Define `squared_relu`",
    ):
        assert words in prompt, words
    assert "AMD GPUs" not in prompt
    assert "{{" not in prompt and "{%" not in prompt


def test_the_next_prompt_shows_the_best_kernel_with_its_verdict(
    ledger: Path, progress: Progress
) -> None:
    script = (server.answer(said(1, "fuse")), server.answer(said(2)))
    with server.serving(*script) as served:
        turns = run_turns(make_author(served.url, ledger), progress, [fine(1.3)] * 2)
    prompt = prompt_of(served, 1)
    assert "screened, 1.30x the reference's speed (1.25 to 1.55); fuse" in prompt
    assert source(1).rstrip() in prompt and "Make this kernel faster." in prompt
    assert turns[1][0].parents == (turns[0][0].kernel.hash,)
    assert exchanges(ledger)[1].parents == turns[1][0].parents


def test_a_failure_is_shown_with_the_judges_evidence(ledger: Path, progress: Progress) -> None:
    script = (server.answer(said(1)), server.answer(said(2)))
    evidence = "case gaps: 12 of 231 elements are off\nby up to 3"
    with server.serving(*script) as served:
        turns = run_turns(make_author(served.url, ledger), progress, [wrong(evidence)] * 2)
    prompt = prompt_of(served, 1)
    assert (
        "# Your last try" in prompt and "case gaps: 12 of 231 elements are off by up to 3" in prompt
    )
    assert turns[1][0].parents == (turns[0][0].kernel.hash,)
    assert exchanges(ledger)[1].kind == "fix"


def test_a_kernel_is_not_repaired_for_ever(ledger: Path, progress: Progress) -> None:
    script = [server.answer(said(number)) for number in range(6)]
    with server.serving(*script) as served:
        run_turns(make_author(served.url, ledger), progress, [wrong("no")] * 6)
    kinds = [one.kind for one in exchanges(ledger)]
    assert kinds == ["draft", "fix", "fix", "draft", "fix", "fix"]


def test_an_answer_without_a_kernel_is_recorded_and_told(ledger: Path, progress: Progress) -> None:
    script = (server.answer("I would fuse the loops."), server.answer(said(1)))
    with server.serving(*script) as served:
        [[proposal]] = run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    assert proposal.kernel.source == source(1)
    first, second = exchanges(ledger)
    assert (first.status, first.reason) == ("malformed", "the answer holds no fenced code block")
    assert second.turn == 1
    assert "answer 1: the answer holds no fenced code block" in prompt_of(served, 1)


def test_a_kernel_that_was_judged_is_not_proposed_again(ledger: Path, progress: Progress) -> None:
    script = (server.answer(said(1)), server.answer(said(1)), server.answer(said(2)))
    with server.serving(*script) as served:
        turns = run_turns(make_author(served.url, ledger), progress, [fine(1.0)] * 2)
    assert turns[1][0].kernel.source == source(2)
    assert "it is a kernel that was judged before" in prompt_of(served, 2)


def test_samples_of_a_turn_are_asked_with_different_directions(
    ledger: Path, progress: Progress
) -> None:
    script = [server.answer(said(number)) for number in range(8)]
    with server.serving(*script) as served:
        author = make_author(served.url, ledger, samples=4)
        turns = run_turns(author, progress, [fine(1.0)] * 2)
    assert [len(turn) for turn in turns] == [4, 4]
    assert len({prompt_of(served, number) for number in range(4)}) == 4
    assert [one.sample for one in exchanges(ledger)] == [0, 1, 2, 3] * 2


def test_no_more_is_asked_than_is_wanted(ledger: Path, progress: Progress) -> None:
    with server.serving(server.answer(said(1))) as served:
        author = make_author(served.url, ledger, samples=4)
        assert len(author.propose(progress, 1)) == 1
        assert author.propose(progress, 0) == []
    assert len(served.requests) == 1


@pytest.mark.parametrize(
    "strategy", ["beam", pytest.param("evolve", marks=pytest.mark.thorough), "evolution"]
)
def test_both_strategies_run_many_turns(strategy: str, ledger: Path, progress: Progress) -> None:
    script = [server.answer(said(number)) for number in range(30)]
    with server.serving(*script) as served:
        author = make_author(served.url, ledger, strategy=strategy, samples=5)
        turns = run_turns(author, progress, [fine(1.0), wrong("no"), *[fine(1.5)] * 4])
    assert [len(turn) for turn in turns] == [5] * 6
    kinds = {one.kind for one in exchanges(ledger)}
    assert kinds == (
        {"draft", "fix", "improve"} if strategy == "beam" else {"draft", "fix", "mutate", "cross"}
    )
    crossed = [one for one in exchanges(ledger) if one.kind == "cross"]
    assert all(len(set(one.parents)) == 2 for one in crossed)


# Ends.


def test_nonsense_ends_after_a_few_turns(ledger: Path, progress: Progress) -> None:
    with server.serving(server.answer("42 " * 50)) as served:
        author = make_author(served.url, ledger, samples=2)
        assert author.propose(progress, 4) == []
        assert author.propose(progress, 4) == []
    assert "no new kernel" in author.ended
    assert len(served.requests) == 2 * BARREN_TURNS
    assert {one.status for one in exchanges(ledger)} == {"malformed"}


@pytest.mark.parametrize(
    ("budget", "left_s", "said"),
    [
        (AgentBudget(seconds=60.0), 0.0, "it was never asked: the run had no time left"),
        (AgentBudget(tokens=300), 60.0, "it was never asked: no question fits its budget of tok"),
    ],
)
def test_an_agent_that_was_never_asked_says_so(
    budget: AgentBudget, left_s: float, said: str, ledger: Path, progress: Progress
) -> None:
    with server.serving(server.answer("")) as served:
        author = make_author(served.url, ledger, budget=budget)
        progress.left_s = left_s
        assert author.propose(progress, 4) == [] and author.ended.startswith(said)
    assert served.requests == []


def test_nonsense_for_the_whole_budget_ends_with_it(ledger: Path, progress: Progress) -> None:
    budget = AgentBudget(tokens=20_000)
    with server.serving(server.answer("42 " * 50, usage=(3000, 3000))) as served:
        author = make_author(served.url, ledger, budget=budget)
        assert author.propose(progress, 4) == []
    assert "tokens" in author.ended and 1 <= len(served.requests) <= 4


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (server.error(401, "who are you"), "who are you; check the key"),
        (server.error(404, "no model tiny"), "no model tiny; check --model and --base-url"),
        (server.raw("<html></html>", "text/html"), "OpenAI-compatible endpoint"),
        (server.error(500, "oops"), "HTTP 500: oops; check the endpoint"),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_one_line(
    behaviour: server.Behaviour, words: str, ledger: Path, progress: Progress
) -> None:
    with server.serving(behaviour) as served:
        author = make_author(served.url, ledger, samples=2)
        with pytest.raises(EndpointError) as caught:
            author.propose(progress, 4)
    line = str(caught.value)
    assert line.startswith(f"the model 'tiny' cannot be asked at {served.url}: ")
    assert words in line and "\n" not in line
    assert exchanges(ledger), "what was tried is recorded"


def test_an_endpoint_that_is_down_is_one_line(ledger: Path, progress: Progress) -> None:
    with server.serving(server.silent()) as served:
        url = served.url
    with pytest.raises(EndpointError, match=r"nobody answers .*; start the server"):
        make_author(url, ledger).propose(progress, 4)


def test_an_endpoint_that_goes_away_later_ends_the_author(ledger: Path, progress: Progress) -> None:
    script = (server.answer(said(1)), server.error(401, "expired"))
    with server.serving(*script) as served:
        author = make_author(served.url, ledger)
        turns = run_turns(author, progress, [fine(1.0)] * 3)
    assert [len(turn) for turn in turns] == [1, 0, 0]
    assert "expired" in author.ended and len(served.requests) == 2


def test_one_author_serves_several_problems_from_one_budget(
    ledger: Path, progress: Progress
) -> None:
    other = Progress(problem=find_problem("softmax").at("ci"))
    nonsense = [server.answer("no", usage=(100, 1))] * BARREN_TURNS
    softmax = said(1).replace("squared_relu", "softmax")
    with server.serving(*nonsense, server.answer(softmax, usage=(100, 1))) as served:
        author = make_author(served.url, ledger, budget=AgentBudget(tokens=100_000))
        assert author.propose(progress, 1) == [] and "no new kernel" in author.ended
        [found] = author.propose(other, 1)
        assert author.propose(progress, 1) == []
    assert (found.kernel.entry, author._purse.tokens) == ("softmax", 101 * (BARREN_TURNS + 1))
    again = make_author(served.url, ledger, budget=AgentBudget(tokens=100_000))
    assert again._purse.tokens == author._purse.tokens


def test_a_prompt_that_is_too_long_becomes_shorter(ledger: Path, progress: Progress) -> None:
    script = (server.error(400, "too long", kind="context_length_exceeded"), server.answer(said(1)))
    with server.serving(*script) as served:
        [[_]] = run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    assert len(prompt_of(served, 1)) < 0.8 * len(prompt_of(served, 0))


def test_mistakes_are_one_line(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**changes: object) -> None:
        values: dict[str, object] = {"model": "m", "base_url": "http://localhost:1/v1"}
        agent_author(**values | {"ledger": ledger} | changes)  # type: ignore[arg-type]

    for changes, words in (
        ({"strategy": "luck"}, "no strategy 'luck'"),
        ({"samples": 0}, "0 samples"),
        ({"samples": 1000}, "1000 samples"),
        ({"model": " "}, "no model is named"),
        ({"base_url": "nowhere"}, "no endpoint"),
        ({"target": "gfx1"}, "gfx1"),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"replay": "nothing"}, "no exchanges of run 'nothing'"),
    ):
        with pytest.raises(RatchetError, match=words):
            make(**changes)


# Again.


def test_a_run_is_replayed_without_its_endpoint(ledger: Path, progress: Progress) -> None:
    script = (
        *(server.answer(said(1)), server.answer("nothing"), server.error(500, "oops")),
        *(server.answer(said(2)), server.answer(said(3)), server.answer(said(4))),
    )
    verdicts = [fine(1.0), wrong("no"), fine(1.5)]
    with server.serving(*script) as served:
        first = run_turns(make_author(served.url, ledger, samples=2), progress, verdicts)
    asked = exchanges(ledger)
    again = Progress(problem=progress.problem)
    author = make_author(served.url, ledger, samples=5, replay="run-1", language="torch")
    second = run_turns(author, again, [*verdicts, fine(1.0)])
    assert [
        [(one.kernel, one.parents, one.note, one.author) for one in turn] for turn in second
    ] == [
        *([(one.kernel, one.parents, one.note, one.author) for one in turn] for turn in first),
        [],
    ]
    assert "no further answer" in author.ended
    assert exchanges(ledger) == asked, "a replay asks nothing, so it records nothing"


def test_a_replay_of_another_problem_says_nothing(ledger: Path, progress: Progress) -> None:
    with server.serving(server.answer(said(1))) as served:
        run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    author = make_author(served.url, ledger, replay="run-1")
    assert author.propose(Progress(problem=find_problem("softmax").at("ci")), 4) == []


def test_a_run_that_was_killed_goes_on(ledger: Path, progress: Progress) -> None:
    """The second answer was recorded, but never judged."""
    script = [server.answer(said(number), usage=(1000, 100)) for number in (1, 2, 3)]
    budget = AgentBudget(tokens=30_000)
    with server.serving(*script) as served:
        author = make_author(served.url, ledger, budget=budget)
        [[_]] = run_turns(author, progress, [fine(1.0)])
        [lost] = author.propose(progress, 1)
        again = make_author(served.url, ledger, budget=budget)
        [found] = again.propose(progress, 1)
        assert (found.kernel, found.parents) == (lost.kernel, lost.parents)
        assert len(served.requests) == 2, "nothing is asked twice"
        progress.answers.append(fine(1.2)(found, 0))
        [third] = again.propose(progress, 1)
        assert third.kernel.source == source(3)
        assert again._purse.tokens == 3300, "earlier answers count"
    assert [one.turn for one in exchanges(ledger)] == [0, 1, 2]


def test_a_killed_turn_is_judged_whole_whatever_is_wanted_at_once(
    ledger: Path, progress: Progress
) -> None:
    script = [server.answer(said(number)) for number in (1, 2, 3)]
    with server.serving(*script) as served:
        make_author(served.url, ledger, samples=3).propose(progress, 3)
        again = make_author(served.url, ledger, samples=3)
        found = [again.propose(progress, 2), again.propose(progress, 2)]
        assert len(served.requests) == 3, "nothing is asked twice"
    assert [len(one) for one in found] == [2, 1]
    assert {one.kernel.source for turn in found for one in turn} == set(map(source, (1, 2, 3)))


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from agent_runs import make_author, small_problem
from ratchet.write.author import Progress
author = make_author({url!r}, Path({ledger!r}), samples=2)
author.propose(Progress(problem=small_problem()), 2)
"""


@pytest.mark.thorough
def test_an_answer_outlives_a_kill_in_the_middle_of_its_turn(
    ledger: Path, progress: Progress
) -> None:
    """The other sample of the turn never ends."""
    with server.serving(server.answer(said(1)), server.silent()) as served:
        code = KILLED.format(here=str(Path(__file__).parent), url=served.url, ledger=str(ledger))
        child = subprocess.Popen([sys.executable, "-c", code])
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and not (ledger.exists() and exchanges(ledger)):
                assert child.poll() is None, "it ended by itself"
                time.sleep(0.2)
        finally:
            child.kill()
            child.wait()
        [found] = make_author(served.url, ledger).propose(progress, 2)
        assert len(served.requests) == 2, "nothing more was asked"
    assert found.kernel.source == source(1)
    assert [one.status for one in exchanges(ledger)] == ["answered"]


def test_an_unknown_run_cannot_be_replayed(ledger: Path, progress: Progress) -> None:
    with server.serving(server.answer(said(1))) as served:
        run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    with pytest.raises(LedgerError, match=r"no exchanges of run 'x'.*the newest: run-1"):
        make_author(served.url, ledger, replay="x")


# The key, and what is not ours.


def test_the_key_is_in_no_ledger_log_or_error(
    ledger: Path, progress: Progress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script = (server.answer(said(f"knows {KEY}")), server.telling_the_key(400))
    with server.serving(*script) as served:
        author = make_author(served.url, ledger)
        run_turns(author, progress, [wrong(f"it printed {KEY}")])
        author.propose(progress, 1)
        with pytest.raises(EndpointError) as caught:
            make_author(served.url, ledger, run="run-2").propose(progress, 1)
    told = "".join(traceback.format_exception(caught.value, chain=True))
    assert KEY not in told and "[key]" in str(caught.value)
    assert KEY not in caplog.text
    assert set(served.keys) == {f"Bearer {KEY}"}
    with Ledger.open(ledger):  # checkpointed
        pass
    for file in ledger.parent.iterdir():
        assert KEY.encode() not in file.read_bytes(), file
    found = sqlite3.connect(ledger).execute(
        "SELECT count(*) FROM exchanges WHERE answer LIKE '%[key]%'"
    )
    assert found.fetchone() == (1,)


def test_the_users_documents_go_into_the_prompt_with_their_source(
    ledger: Path, progress: Progress, tmp_path: Path
) -> None:
    note = tmp_path / "tricks.md"
    note.write_text(
        "# Tricks\n\n## Squared relu on this machine\n\nUse zebra blocking of 96 rows.\n"
    )
    with open_index(index_path(str(ledger)), create=True) as index:
        list(index.add(note))
    with server.serving(server.answer(said(1))) as served:
        run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    prompt = prompt_of(served, 0)
    assert f"From {note}, Tricks > Squared relu on this machine:" in prompt
    assert "Use zebra blocking of 96 rows." in prompt


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_triton_kernel_is_shown_with_its_profile_for_a_gpu_that_is_not_here(
    ledger: Path, progress: Progress
) -> None:
    kernel = template(progress.problem, card_of(progress.problem, given=NAME, entry=NAME), "triton")
    script = (server.answer(f"```python\n{kernel}\n```"), server.answer("done"))
    with server.serving(*script) as served:
        author = make_author(served.url, ledger, language="triton")
        [[proposal], []] = run_turns(author, progress, [fine(1.0)] * 2)
    assert proposal.kernel.language == "triton"
    assert "target gfx942, not on this machine" in prompt_of(served, 0)
    assert "AMD GPUs: CDNA and RDNA kernels" in prompt_of(served, 0)
    assert "x86 CPUs" not in prompt_of(served, 0)
    prompt = prompt_of(served, 1)
    assert "compiled for gfx942:" in prompt and "vector registers, 0 spills" in prompt
    assert "no faster than" in prompt


def test_a_damaged_index_costs_the_passages_alone(
    ledger: Path, progress: Progress, caplog: pytest.LogCaptureFixture
) -> None:
    index_path(str(ledger)).write_bytes(b"not a database at all" * 100)
    with server.serving(server.answer(said(1))) as served:
        [[_]] = run_turns(make_author(served.url, ledger), progress, [fine(1.0)])
    assert "no passages" in caplog.text and "# Passages" not in prompt_of(served, 0)
