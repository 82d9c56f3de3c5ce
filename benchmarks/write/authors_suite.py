"""How good are kernels that nobody wrote: authors on problems drawn over all kinds of the suite.

    python benchmarks/write/authors_suite.py [--problems 24] [--seed 0] [--budget 60s]
    python benchmarks/write/authors_suite.py --held-out   # KernelBench's kinds, seen by no author
    python benchmarks/write/authors_suite.py --curve 6         # only the curve beside random search

Each problem is written for from an empty ledger, without a language model. Its row is printed as
soon as it is known: covered by the generator, the verdict, the ratios to torch.compile and to eager
(torch.compile is timed in the same rounds), and the candidates. A problem without a right kernel
counts as a failure: with ratio 0.1 in the means, and as not fast. The figures are those of one more
verdict on the kernel that the run ended with, so they do not come from the samples that chose it.
The curve is the speed-up of the best so far at equal candidates, for the search and for random
search, on a few of the problems: the kernel that each would confirm first. All of them are screened
anew and beside each other at the end, three times, so that no lucky estimate counts. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).parents[1] / "judge"))
from kernelbench_kinds import KINDS

from ratchet.base.errors import RatchetError
from ratchet.judge.api import as_problem
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites import NAMES, find_problem
from ratchet.judge.terms import Terms
from ratchet.write.author import FAILED, Answer, Progress, Proposal, Schedule, Space
from ratchet.write.effort import Rungs
from ratchet.write.problem_run import ProblemRun
from ratchet.write.search import SearchAuthor, new_draws
from ratchet.write.write import write
from ratchet.write.writing_result import WritingRequest, WritingResult, make_request

FAILED_RATIO = 0.1
"""Counts for a problem without a right and timed kernel."""
COMPARED_S = 240.0
"""Time limit of the verdict beside torch.compile, which has to compile."""
CURVE_AT = (1, 2, 4, 8, 16, 32, 64)
"""Candidates at which the searches are compared."""
ANEW = 3
"""Screenings of each kernel of a curve, once the searches have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One problem."""

    name: str
    covered: bool
    """The generator has all of its operations."""
    status: str
    vs_compile: float | None
    vs_eager: float | None
    candidates: int
    author: str
    note: str


def drawn(count: int, seed: int) -> list[str]:
    """Names of problems over all families: families in turns, problems at random."""
    source = random.Random(seed)
    left = {family: source.sample(names, len(names)) for family, names in NAMES.items()}
    order = source.sample(sorted(left), len(left))
    found: list[str] = []
    while len(found) < count and any(left.values()):
        for family in order:
            if left[family] and len(found) < count:
                found.append(left[family].pop())
    return found


def held_out(folder: Path) -> list[Path]:
    """Files of problems in KernelBench's kinds."""
    paths = []
    for name, kind in KINDS.items():
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(kind.text(), encoding="utf-8")
    return paths


def is_covered(problem: Problem) -> tuple[bool, str]:
    """Whether the generator has a space for a problem, and why not."""
    from ratchet.write.generator import space_for

    try:
        space_for(problem, device="cpu")
    except RatchetError as error:
        return False, str(error)
    return True, ""


def write_one(problem: Problem, request: WritingRequest, ledger: str) -> Row:
    """Write for one problem, from an empty ledger; then judge the result beside torch.compile.

    That verdict is one more, on new samples, and outside of the budget: its figures count.
    """
    with Court(ledger) as court:
        try:
            result = write(problem, request, court=court, command="authors_suite.py")
        except RatchetError as error:
            return row_of(problem, None, {}, str(error))
        if result.best is None:
            return row_of(problem, result, {}, "; ".join(result.notes))
        kernel = next(
            Kernel.from_json(found)
            for found in [court.ledger.kernel(result.best.kernel_hash)]
            if found is not None
        )
        terms = Terms(time_limit_s=COMPARED_S, against_compile=True)
        verdict = msgspec.to_builtins(court.judge(kernel, problem, terms, fresh=True).verdict)
    return row_of(problem, result, verdict, verdict["reason"])


def row_of(
    problem: Problem, result: WritingResult | None, verdict: Mapping[str, Any], note: str
) -> Row:
    """The row of one problem; `verdict` is the one beside torch.compile."""
    covered, why = is_covered(problem)
    best = None if result is None else result.best
    speedup = verdict.get("speedup") or {}

    def ratio(rival: str) -> float | None:
        return speedup[rival]["ratio"] if speedup.get(rival) else None

    return Row(
        name=problem.name,
        covered=covered,
        status="none" if result is None else result.status,
        vs_compile=ratio("vs_compile"),
        vs_eager=ratio("vs_reference"),
        candidates=0 if result is None else result.screened,
        author="" if best is None else best.author,
        note=why or note,
    )


def show(row: Row) -> str:
    """A row as one line."""

    def ratio(value: float | None) -> str:
        return "     -" if value is None else f"{value:5.2f}x"

    return (
        f"{row.name:40} {'covered' if row.covered else 'no ops':8} {row.status:11} "
        f"compile {ratio(row.vs_compile)}  eager {ratio(row.vs_eager)}  "
        f"{row.candidates:4d} candidates  {row.author:9} {row.note[:80]}"
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of all problems; failures count as failures."""
    right = [row for row in rows if row.status in ("proven", "correct")]

    def geomean(ratio: Callable[[Row], float | None]) -> float | None:
        values = [(ratio(row) or FAILED_RATIO) if row in right else FAILED_RATIO for row in rows]
        return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None

    fast = [row for row in right if row.vs_compile is not None and row.vs_compile > 1]
    return {
        "problems": len(rows),
        "covered": sum(row.covered for row in rows),
        "proven_or_correct": len(right),
        "fast_1_vs_compile": len(fast) / len(rows) if rows else None,
        "geomean_vs_compile": geomean(lambda row: row.vs_compile),
        "geomean_vs_eager": geomean(lambda row: row.vs_eager),
        "candidates_per_problem": sum(row.candidates for row in rows) / len(rows) if rows else None,
    }


def curve(problems: Sequence[Problem], seed: int) -> dict[str, dict[str, float]]:
    """Geometric mean speed-up of the best so far after some candidates, by kind of search.

    The kernels that each search had as its best at each count are screened once more, all of one
    problem beside each other.
    """
    logs: dict[str, dict[int, list[float]]] = {
        name: {count: [] for count in CURVE_AT} for name in ("evolution", "random")
    }
    for problem in problems:
        chosen = {name: bests(problem, name, seed) for name in logs}
        kernels = {one.hash: one for own in chosen.values() for one in own.values()}
        ratios = screened_anew(problem, list(kernels.values()))
        for name, own in chosen.items():
            for count in CURVE_AT:
                ratio = ratios.get(own[count].hash) if count in own else None
                logs[name][count].append(math.log(ratio or FAILED_RATIO))
        words = "  ".join(
            f"{name} {', '.join(f'{math.exp(logs[name][at][-1]):.2f}x' for at in CURVE_AT)}"
            for name in logs
        )
        print(f"curve {problem.name:34} at {CURVE_AT}: {words}", flush=True)
    return {
        name: {
            str(count): math.exp(math.fsum(values) / len(values))
            for count, values in own.items()
            if values
        }
        for name, own in logs.items()
    }


def screened_anew(problem: Problem, kernels: Sequence[Kernel]) -> dict[str, float]:
    """The geometric mean of some screenings of each kernel; one that failed has none."""
    logs: dict[str, list[float]] = {}
    for _ in range(ANEW):
        with tempfile.TemporaryDirectory() as folder, Court(f"{folder}/l.db") as court:
            told = court.screen(kernels, problem, Terms(time_limit_s=120.0, device="cpu"))
        for one in told:
            if one.ratio:
                logs.setdefault(one.kernel_hash, []).append(math.log(one.ratio))
    return {name: math.exp(math.fsum(own) / len(own)) for name, own in logs.items()}


class RandomAuthor:
    """Proposes schedules drawn at random: the baseline of the search."""

    name = "random"

    def __init__(self, space: Space, *, seed: int) -> None:
        self._space, self._source = space, random.Random(seed)
        self._seen: set[Schedule] = set()

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        drawn = itertools.islice(new_draws(self._space, self._seen, self._source), count)
        return [
            Proposal(kernel=self._space.kernel(one), author=self.name, schedule=one)
            for one in drawn
        ]


def bests(problem: Problem, strategy: str, seed: int) -> dict[int, Kernel]:
    """The kernel that a search would have confirmed first after each count of CURVE_AT."""
    from ratchet.write.generator import space_for

    space = space_for(problem, device="cpu")
    author = (SearchAuthor if strategy == "evolution" else RandomAuthor)(space, seed=seed)
    with tempfile.TemporaryDirectory() as folder, Court(f"{folder}/l.db") as court:
        run = ProblemRun(
            problem=problem,
            request=WritingRequest(budget_s=1200.0, candidates=CURVE_AT[-1], seed=seed),
            authors=[author],
            court=court,
            keep=lambda answer: None,
            listen=lambda event: None,
        )
        run.search()
    leaders = {count: leader(run.progress.answers, count) for count in CURVE_AT}
    return {count: kernel for count, kernel in leaders.items() if kernel is not None}


def leader(answers: Sequence[Answer], count: int) -> Kernel | None:
    """Return the kernel that a run would confirm first after its first `count` candidates."""
    rungs, kernels, seen = Rungs(), {}, 0
    for answer in answers:
        if answer.stage != "screened":
            continue
        seen += answer.rung == 0
        if seen > count:
            break
        kernel = answer.kernel
        kernels[kernel.hash] = kernel
        if answer.ratio or answer.status in FAILED:
            score = math.log(answer.ratio) if answer.ratio else None
            rungs.record(kernel.hash, score, opener=answer.opener)
    return kernels[rungs.order()[0]] if rungs.scores else None


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--authors", default="library,compiler,search")
    parser.add_argument("--tier", default="cpu")
    parser.add_argument("--only", nargs="*", help="names of problems in place of drawn ones")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--curve", type=int, default=None, help="problems of the curve alone")
    parser.add_argument("--curve-problems", type=int, default=4)
    given = parser.parse_args()
    request = make_request(
        budget=given.budget,
        authors=given.authors,
        seed=given.seed,
        fresh=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        if given.held_out:
            problems = [as_problem(path) for path in held_out(Path(folder))]
            random.Random(given.seed).shuffle(problems)
            problems = problems[: given.problems]
        else:
            names = given.only or drawn(given.problems, given.seed)
            problems = [find_problem(name).at(given.tier, "cpu", "ci", "gpu") for name in names]
        rows: list[Row] = []
        began = time.monotonic()
        if given.curve is None:
            for index, problem in enumerate(problems):
                ledger = str(Path(folder) / f"{index}.db")
                rows.append(write_one(problem, request, ledger))
                print(show(rows[-1]), flush=True)
        wanted = given.curve_problems if given.curve is None else given.curve
        covered = [one for one in problems if is_covered(one)[0]]
        curves = curve(covered[:wanted], given.seed) if wanted else {}
    document = summary(rows) | {
        "curve": curves,
        "seed": given.seed,
        "budget_s": request.budget_s,
        "authors": list(request.authors),
        "took_s": round(time.monotonic() - began),
        "rows": [asdict(row) for row in rows],
    }
    print(json.dumps(msgspec.to_builtins(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
