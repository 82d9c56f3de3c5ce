"""Rewards without a GPU: the emulator's answers, kept apart from measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening, ScreeningStatus
from ratchet.write.author import Proposal
from ratchet.write.learn.bench import EmulatedBench, ScreeningBench
from ratchet.write.learn.tasks import LearnTask, make_tasks


class Formula:
    """Screens: the n-th kernel it is asked about takes n microseconds at least."""

    def __init__(self, *, status: ScreeningStatus = "screened") -> None:
        self.asked: list[str] = []
        self.status = status

    def screen(
        self, kernels: Sequence[Kernel], problem: object, terms: Terms
    ) -> Sequence[Screening]:
        found = []
        for one in kernels:
            self.asked.append(one.hash)
            place = len(self.asked)
            right = self.status == "screened"
            found.append(
                Screening(
                    kernel_hash=one.hash,
                    status=self.status,
                    reason="emulated",
                    static_rank=(1e-6 * place, 0.0, 0.5) if right else (),
                )
            )
        return found


@pytest.fixture(scope="module")
def task() -> LearnTask:
    return make_tasks({"activations": ["gelu"]}, language="triton")[0]


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    with Court(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


def bench_of(court: Court, formula: Formula, target: str = "gfx942") -> EmulatedBench:
    court.screen = formula.screen  # type: ignore[assignment, method-assign]
    return EmulatedBench(court, target=target)


def candidates(task: LearnTask) -> list[Proposal]:
    return [
        Proposal(kernel=task.space.kernel(one), author="policy", schedule=one)
        for one in task.space.first()[:3]
    ]


def test_a_ratio_is_against_the_generators_first_schedule(court: Court, task: LearnTask) -> None:
    bench = bench_of(court, Formula())
    _, second, third = candidates(task)
    found = bench.outcomes(task, [third, second])
    assert [one.ratio for one in found] == pytest.approx([1 / 2, 1 / 3])
    assert bench.judged == 3
    bench.close()


def test_the_ledger_keeps_the_answers_apart_by_target(court: Court, task: LearnTask) -> None:
    first = bench_of(court, Formula())
    said = first.outcomes(task, candidates(task))
    first.close()
    again = bench_of(court, Formula(status="crashed"))
    assert again.outcomes(task, candidates(task)) == said
    assert again.judged == 0
    again.close()
    other = bench_of(court, Formula(status="wrong"), target="gfx950")
    assert {one.status for one in other.outcomes(task, candidates(task))} == {"wrong"}
    other.close()
    measured = ScreeningBench(court)
    assert measured.best() == {}
    measured.close()


def test_what_could_not_be_emulated_is_asked_again(court: Court, task: LearnTask) -> None:
    for _ in range(2):
        formula = Formula(status="unmeasured")
        bench = bench_of(court, formula)
        found = bench.outcomes(task, candidates(task)[1:2])
        assert [one.status for one in found] == ["unmeasured"]
        assert len(formula.asked) == 2
        bench.close()


@pytest.mark.thorough
@pytest.mark.compiler
def test_real_kernels_are_rewarded_by_their_machine_code(court: Court, task: LearnTask) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    bench = EmulatedBench(court, target="gfx942")
    wrong = candidates(task)[0]
    spoiled = Kernel(
        **{
            **{name: getattr(wrong.kernel, name) for name in wrong.kernel.__dataclass_fields__},
            "source": wrong.kernel.source.replace("0.5", "0.25"),
        }
    )
    found = bench.outcomes(task, [*candidates(task), Proposal(kernel=spoiled, author="policy")])
    assert [one.status for one in found] == ["screened"] * 3 + ["wrong"]
    assert found[0].ratio == 1.0 and all(one.ratio for one in found[:3])
    bench.close()
