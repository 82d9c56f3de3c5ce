"""A suite's run: nothing is left out, nothing is judged twice, an interruption keeps its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ratchet.base.errors import CompilerMissing, KernelError, RatchetError
from ratchet.base.measure import Ratio
from ratchet.judge.court import machines
from ratchet.judge.court.court import LEAST_S, Court
from ratchet.judge.court.show_suite import check_out, write_suite, write_verdict
from ratchet.judge.court.suite import (
    Question,
    Suite,
    SuiteRow,
    SuiteRun,
    all_right,
    check_candidate,
    kernel_of,
    kernelbench_suite,
    level_folder,
)
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.problem_file import Describe
from ratchet.judge.revision import revision
from ratchet.judge.terms import JudgedKernel, Terms, parse_time_limit_s
from ratchet.judge.verdict import Speedups, Status, Verdict

REFERENCE = "judge_problems:silu"


class FakeJudge:
    """Says what it was told to say, and counts."""

    said: Status = "proven"
    asked: ClassVar[list[str]] = []
    raises: BaseException | None = None
    revision = revision()
    not_timed = ""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads

    def judge(self, kernel: Kernel, problem: Problem, **_: Any) -> Verdict:
        if FakeJudge.raises is not None:
            raise FakeJudge.raises
        FakeJudge.asked.append(problem.name)
        ratio = Ratio(ratio=2.0, low=1.9, high=2.1)
        return Verdict(
            status=FakeJudge.said,
            reason=f"it is {FakeJudge.said}",
            not_timed=FakeJudge.not_timed,
            speedup=Speedups(vs_reference=ratio),
            isolation="none",
            environment={"judge": FakeJudge.revision},
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )

    def close(self) -> None:
        pass


@pytest.fixture
def court(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Court]]:
    """Opens a court over one ledger, with a judge of straw behind it."""
    monkeypatch.setattr(machines, "KernelJudge", FakeJudge)
    monkeypatch.setattr(Problem, "hash", property(lambda self: f"hash of {self.name}"))
    monkeypatch.setattr(FakeJudge, "said", "proven")
    monkeypatch.setattr(FakeJudge, "asked", [])
    monkeypatch.setattr(FakeJudge, "raises", None)
    opened: list[Court] = []

    def open_court() -> Court:
        opened.append(Court(str(tmp_path / "ledger.db")))
        return opened[-1]

    yield open_court
    for one in opened:
        one.__exit__(None, None, None)


def problem(name: str) -> Problem:
    case = Case(name="only", inputs=(TensorSpec(shape=(4,), dtype="float32"),), timed=True)
    return Problem(name=name, reference=REFERENCE, cases=(case,))


def kernel(name: str) -> Kernel:
    return Kernel(name=name, language="cpp", source=f"// {name}", entry=name)


def suite(*names: str, unanswered: tuple[str, ...] = ()) -> Suite:
    def question(name: str) -> Question:
        answer = None if name in unanswered else kernel(name)
        return Question(name=name, read=lambda _: (problem(name), answer))

    questions = tuple(question(name) for name in (*names, *unanswered))
    return Suite(name="ours", candidate="library", tier="ci", questions=questions)


def run(court: Court, asked: Suite, *, fresh: bool = False, **terms: Any) -> SuiteRun:
    made = SuiteRun(suite=asked, court=court, terms=Terms(**terms), fresh=fresh)
    made.run(lambda row, judged: None)
    return made


def test_every_problem_has_a_row(court: Callable[[], Court]) -> None:
    rows = run(court(), suite("a", "b", unanswered=("c",))).result().rows
    assert [(row.name, row.status) for row in rows] == [
        ("a", "proven"),
        ("b", "proven"),
        ("c", "unanswered"),
    ]
    assert all_right(rows)


def test_a_second_run_finds_the_verdicts_of_the_first(court: Callable[[], Court]) -> None:
    first = run(court(), suite("a", "b")).result()
    second = run(court(), suite("a", "b", "c")).result()
    assert FakeJudge.asked == ["a", "b", "c"]
    assert [row.recalled for row in second.rows] == [True, True, False]
    assert second.rows[0].speedup == first.rows[0].speedup


def test_what_another_judge_said_is_asked_again(
    court: Callable[[], Court], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(FakeJudge, "revision", "an older one")
        run(court(), suite("a"))
    again = run(court(), suite("a")).result()
    assert FakeJudge.asked == ["a", "a"]
    assert not again.rows[0].recalled


def test_what_noise_left_open_is_asked_again(
    court: Callable[[], Court], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeJudge, "said", "correct")
    with monkeypatch.context() as noisy:
        noisy.setattr(FakeJudge, "not_timed", "the machine was too noisy (A/A 0.15 to 6.7)")
        run(court(), suite("a"))
    again = run(court(), suite("a")).result()
    assert FakeJudge.asked == ["a", "a"] and not again.rows[0].recalled
    third = run(court(), suite("a")).result()  # now its speed is known
    assert FakeJudge.asked == ["a", "a"] and third.rows[0].recalled


def test_how_long_a_verdict_took_is_remembered_for_the_next(
    court: Callable[[], Court],
) -> None:
    judge, terms = court(), Terms()
    assert judge.expected_s(kernel("a"), problem("a"), terms) == LEAST_S["cpp"]
    judge.judge(kernel("a"), problem("a"), replace(terms, spent_s=300.0))
    assert judge.expected_s(kernel("other"), problem("a"), terms) >= 300.0
    assert judge.expected_s(kernel("a"), problem("b"), terms) == LEAST_S["cpp"]


def test_fresh_judges_anew(court: Callable[[], Court]) -> None:
    run(court(), suite("a"))
    again = run(court(), suite("a"), fresh=True).result()
    assert FakeJudge.asked == ["a", "a"]
    assert not again.rows[0].recalled


def test_a_verdict_on_other_terms_is_not_recalled(court: Callable[[], Court]) -> None:
    run(court(), suite("a"))
    run(court(), suite("a"), against_compile=True)
    assert FakeJudge.asked == ["a", "a"]


@pytest.mark.parametrize(
    ("said", "limit_s", "judged"),
    [
        ("unmeasured", 60.0, 2),
        ("timed_out", 60.0, 1),
        ("timed_out", 120.0, 2),
        ("wrong", 120.0, 1),
    ],
)
def test_what_is_no_answer_on_the_kernel_is_asked_again(
    court: Callable[[], Court],
    monkeypatch: pytest.MonkeyPatch,
    said: Status,
    limit_s: float,
    judged: int,
) -> None:
    monkeypatch.setattr(FakeJudge, "said", said)
    run(court(), suite("a"))
    run(court(), suite("a"), time_limit_s=limit_s)
    assert len(FakeJudge.asked) == judged


def test_an_interruption_keeps_what_is_there(
    court: Callable[[], Court],
) -> None:
    judge = court()
    made = SuiteRun(suite=suite("a", "b", "c"), court=judge, terms=Terms())

    def interrupt(row: SuiteRow, judged: JudgedKernel | None) -> None:
        if row.name == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(interrupt)
    result = made.result()
    assert result.interrupted
    assert [row.status for row in result.rows] == ["proven", "proven", "not_reached"]
    assert result.summary["all"].problems == 3
    made.run(lambda row, judged: None)
    assert not made.result().interrupted
    assert FakeJudge.asked == ["a", "b", "c"]


def test_a_problem_that_cannot_be_read_is_refused_and_the_rest_goes_on(
    court: Callable[[], Court],
) -> None:
    def unreadable(_: Describe) -> tuple[Problem, Kernel | None]:
        raise KernelError("the file has no Model")

    questions = (Question(name="bad", read=unreadable), *suite("a").questions)
    mixed = Suite(name="ours", candidate="eager", tier="cpu", questions=questions)
    rows = run(court(), mixed).result().rows
    assert [row.status for row in rows] == ["refused", "proven"]
    assert rows[0].reason == "the file has no Model"
    assert not all_right(rows)


def test_a_judge_that_cannot_work_is_no_verdict_on_the_kernel(
    court: Callable[[], Court], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeJudge, "raises", CompilerMissing("there is no C++ compiler"))
    rows = run(court(), suite("a")).result().rows
    assert rows[0].status == "unmeasured" and "compiler" in rows[0].reason


def test_the_files_of_a_run(court: Callable[[], Court], tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_out(out)
    links: dict[str, str] = {}
    made = SuiteRun(suite=suite("a/../b"), court=court(), terms=Terms())

    def keep(row: SuiteRow, judged: JudgedKernel | None) -> None:
        assert judged is not None
        links[row.name] = write_verdict(judged, out)["page"]

    made.run(keep)
    paths = write_suite(made.result(), links, out)
    page = Path(links["a/../b"])
    assert page.parent == out / "verdicts" and "it is proven" in page.read_text()
    assert f'href="verdicts/{page.name}"' in Path(paths["page"]).read_text()


def test_an_output_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RatchetError, match="--out"):
        check_out(tmp_path / "file")


def test_an_unknown_candidate_lists_the_known() -> None:
    known = r"library, library-triton, eager, torch\.compile"
    with pytest.raises(RatchetError, match=rf"'magic'.*{known}"):
        check_candidate("magic")


def test_a_folder_answers_by_the_problems_names(tmp_path: Path) -> None:
    (tmp_path / "softmax.cpp").write_text('extern "C" long softmax() { return 0; }\n')
    found = kernel_of(str(tmp_path), "softmax", problem("softmax"))[1]
    assert found is not None and (found.language, found.entry) == ("cpp", "softmax")
    assert kernel_of(str(tmp_path), "other", problem("other"))[1] is None


@pytest.mark.parametrize("inner", ["", "KernelBench"])
def test_kernelbench_in_any_folder(tmp_path: Path, inner: str) -> None:
    folder = tmp_path / inner / "level1"
    folder.mkdir(parents=True)
    for name in ("10_b.py", "9_a.py", "notes.txt"):
        (folder / name).write_text("")
    found = kernelbench_suite(tmp_path, Terms(), level=1, candidate="torch.compile")
    assert [question.name for question in found.questions] == ["9_a", "10_b"]
    with pytest.raises(RatchetError, match="it has level1"):
        level_folder(tmp_path, 2)


def test_a_folder_that_is_no_kernelbench(tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match="give a clone of KernelBench"):
        level_folder(tmp_path, 1)
    with pytest.raises(RatchetError, match="library has no kernels for KernelBench"):
        kernelbench_suite(tmp_path, Terms(), level=1, candidate="library")


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("90s", 90.0), (" 2m", 120.0)])
def test_time_limits(text: str, seconds: float) -> None:
    assert parse_time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0s", "-3", "1e9x", ""])
def test_time_limits_that_are_none(text: str) -> None:
    with pytest.raises(RatchetError, match="time limit"):
        parse_time_limit_s(text)
