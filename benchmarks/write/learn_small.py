"""Measure `ratchet learn` at a small scale: what each stage reaches, and what replay keeps.

python benchmarks/write/learn_small.py --minutes 60
    python benchmarks/write/learn_small.py --minutes 20 --forgetting tiny,1m,2m --replay-seeds 3
    python benchmarks/write/learn_small.py --minutes 20 --policy ratchet-learn/policy

Every ratio is a screening's estimate on this machine's cores, against the faster of eager and
torch.compile. The unseen problems are those on which random schedules differ most. SFT learns
random schedules, GRPO goes on from it, and `verdicts` is SFT from the base model on what the judge
said of GRPO's kernels and of random ones, as in each round of the loop.
`--forgetting SIZES` judges nothing: it shows what 120 steps of SFT forget at each share of replay,
by size of the model, and needs no idle machine. `--policy FOLDER` trains nothing: it measures that
policy beside random schedules and the search. The last line is JSON.

How soon a search comes near its own result is told by fresh screenings: three more of each kernel
that was the best so far. The screening that made a kernel the best of many was partly luck.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ratchet.judge.court.court import Court
from ratchet.judge.verdict import Screening
from ratchet.write.author import Answer, Progress, Proposal, Schedule
from ratchet.write.learn.bench import Bench, ScreeningBench, judge_answers, reward_of
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus, build_corpus
from ratchet.write.learn.evaluate import (
    Evaluation,
    evaluate,
    policy_drawer,
    random_drawer,
    with_headroom,
)
from ratchet.write.learn.languages import ScheduleLanguage
from ratchet.write.learn.models import Policy, load_policy
from ratchet.write.learn.stages import LearnStage, grpo, pretrain, sft
from ratchet.write.learn.tasks import TRAINED, UNSEEN, LearnTask, make_tasks, split_names
from ratchet.write.search import SearchAuthor

SHARES = {
    "pretrain": 0.09,
    "sft": 0.04,
    "grpo": 0.16,
    "write": 0.2,
    "verdicts": 0.07,
    "eval": 0.2,
    "search": 0.1,
    "replay": 0.14,
    "all": 1.0,
}
REPLAYS = (0.0, 0.01, 0.05)
SEARCHED = 18
"""Kernels of a search."""
FRESH = 3
"""Screenings that tell how fast a search's best kernels are."""


class SeededSpace:
    """A space whose first schedules are a policy's and its own in turn."""

    def __init__(self, space: Any, first: Sequence[Schedule]) -> None:
        self._space, self._first = space, list(first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)

    def first(self) -> list[Schedule]:
        turns = itertools.zip_longest(self._first, self._space.first())
        return list(dict.fromkeys(one for pair in turns for one in pair if one is not None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--size", default="1m")
    parser.add_argument("--per-family", type=int, default=16)
    parser.add_argument("--unseen", type=int, default=8, help="problems of unseen families")
    parser.add_argument("--answers", type=int, default=8, help="answers to each unseen problem")
    parser.add_argument("--replay-seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--ledger", default=None)
    parser.add_argument("--forgetting", metavar="SIZES", help="only this, for models like 1m,2m")
    parser.add_argument("--policy", type=Path, metavar="FOLDER", help="measure this one alone")
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="learn-small-"))
    total_s, began = 60 * given.minutes, time.monotonic()

    def until(name: str, parts: int = 1) -> float:
        return time.monotonic() + total_s * SHARES[name] / parts

    def say(words: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {words}", flush=True)

    if given.forgetting:
        sizes = given.forgetting.split(",")
        print(
            json.dumps(_forgetting(sizes, given.per_family, given.replay_seeds, total_s, out, say))
        )
        return
    found: dict[str, Any] = {"minutes": given.minutes, "size": given.size, "seed": given.seed}
    with Court(given.ledger or str(out / "ledger.db")) as court:
        bench = ScreeningBench(court, rival="compile")
        try:
            train, held = split_names(TRAINED, UNSEEN, given.per_family, given.seed)
            config = LearnConfig(
                seed=given.seed, size=given.size, measure_every=20, rival="compile", replay=0.1
            )
            tasks = make_tasks(train)
            unseen = with_headroom(
                make_tasks(held), bench, config, most=given.unseen, seed=given.seed
            )
            if given.policy is not None:
                wanted = {"answers": given.answers, "seed": given.seed + 7}
                policy = load_policy(given.policy)
                for name, draw in (("policy", policy_drawer(policy)), ("random", random_drawer)):
                    _tell(say, found, name, evaluate(draw, unseen, bench, config, **wanted))
                with _fresh(out) as others:
                    found["search"] = _searches(policy, unseen, bench, config, others, until("all"))
                say(f"search: {found['search']}")
                print(json.dumps(found))
                return
            bench.against_eager = frozenset(one.key for one in tasks)
            say(f"{len(tasks)} problems to train on, {len(unseen)} unseen")
            corpus = build_corpus(tasks, held, ScheduleLanguage(), ledger=None, seed=given.seed)
            base = pretrain(
                config.changed(rate=2e-3, steps=20_000),
                corpus,
                out / "base",
                deadline=until("pretrain"),
            ).policy
            found["parameters"] = base.card.parameters
            found["pretrain_steps"] = base.card.figures["steps"]
            say(f"pretrained {base.card.parameters:,} parameters, {base.card.figures}")

            def start(folder: str) -> Policy:
                return load_policy(out / folder, training=True)

            sft_config = config.changed(steps=100, rate=1e-3)
            begun = LearnStage(
                sft_config, corpus, start("base"), base, tasks, out / "sft", deadline=until("sft")
            )
            taught = sft(begun)
            say(f"SFT: {msgspec.to_builtins(taught.policy.card.figures)}")
            wanted = {"answers": given.answers, "seed": given.seed}
            after_sft = evaluate(policy_drawer(taught.policy), unseen, bench, config, **wanted)
            _tell(say, found, "sft", after_sft)
            before = bench.judged
            own = config.in_training().changed(rate=1e-4, steps=10_000, group=4, problems=4, kl=0.3)
            begun = LearnStage(
                own, corpus, start("sft"), base, tasks, out / "grpo", deadline=until("grpo")
            )
            done = grpo(begun, bench)
            found["grpo_steps"], found["grpo_judged"] = done.trained.steps, bench.judged - before
            found["grpo_forgetting"] = done.trained.forgetting
            say(f"GRPO: {done.trained.steps} steps, {bench.judged - before} kernels judged")
            _tell(
                say,
                found,
                "grpo",
                evaluate(policy_drawer(done.policy), unseen, bench, config, **wanted),
            )
            before = bench.judged
            _write(tasks, bench, given.seed, until("write"))
            found["written"] = bench.judged - before
            verdicts = build_corpus(
                tasks, held, ScheduleLanguage(), ledger=court.ledger, here=court.fingerprint
            )
            say(f"verdicts to learn: {verdicts.card.counts}")
            own, place = sft_config.changed(soup=4), out / "verdicts"
            begun = LearnStage(
                own, verdicts, start("base"), base, tasks, place, deadline=until("verdicts")
            )
            learned = sft(begun)
            found["verdicts_forgetting"] = learned.trained.forgetting
            _tell(
                say,
                found,
                "verdicts",
                evaluate(policy_drawer(learned.policy), unseen, bench, config, **wanted),
            )
            # Other schedules than those that chose the problems: they were partly luck.
            other = {"answers": given.answers, "seed": given.seed + 7}
            _tell(say, found, "random", evaluate(random_drawer, unseen, bench, config, **other))
            with _fresh(out) as others:
                found["search"] = _searches(
                    learned.policy, unseen, bench, config, others, until("search")
                )
            say(f"search: {found['search']}")

            def rewarded(policy: Policy) -> float:
                return evaluate(policy_drawer(policy), unseen, bench, config, **wanted).reward

            found["replay"] = _replays(
                base, verdicts, tasks, sft_config, out, given.replay_seeds, total_s, say, rewarded
            )
        finally:
            bench.close()
    found["spent_s"] = round(time.monotonic() - began, 1)
    print(json.dumps(found))


def _tell(say: Any, found: dict[str, Any], name: str, one: Evaluation) -> None:
    found[name] = {
        key: value for key, value in msgspec.to_builtins(one).items() if key != "problems"
    }
    found[name]["best"] = {row.problem: row.best for row in one.problems}
    say(
        f"{name} on unseen families: valid {one.valid:.0%}, right {one.right:.0%}, "
        f"fast {one.fast:.0%} ({one.fast_low:.0%} to {one.fast_high:.0%}), "
        f"reward {one.reward:.3f} ({one.reward_low:.3f} to {one.reward_high:.3f})"
    )


def _write(tasks: Sequence[LearnTask], bench: Bench, seed: int, deadline: float) -> None:
    """Have the judge screen random schedules of each problem in turn."""
    for turn in itertools.count(1):
        for task in tasks:
            if time.monotonic() > deadline:
                return
            judge_answers(bench, task, random_drawer(task, 4, seed + 100 * turn))


def _forgetting(
    sizes: Sequence[str], per_family: int, seeds: int, total_s: float, out: Path, say: Any
) -> dict[str, Any]:
    """Return what SFT forgets at each share of replay, for models of several sizes."""
    train, held = split_names(TRAINED, UNSEEN, per_family, 0)
    tasks = make_tasks(train)
    corpus = build_corpus(tasks, held, ScheduleLanguage(), ledger=None, seed=0)
    found: dict[str, Any] = {}
    for size in sizes:
        config = LearnConfig(size=size, measure_every=20)
        own_s = total_s / len(sizes)
        base = pretrain(
            config.changed(rate=2e-3, steps=20_000),
            corpus,
            out / size / "base",
            deadline=time.monotonic() + 0.4 * own_s,
        ).policy
        say(f"{size}: {base.card.parameters:,} parameters, {base.card.figures}")
        row: dict[str, Any] = {"parameters": base.card.parameters, **base.card.figures}
        taught = config.changed(rate=2e-3)
        all_s = 0.6 * own_s / SHARES["replay"]
        row["replay"] = _replays(base, corpus, tasks, taught, out / size, seeds, all_s, say)
        found[size] = row
    return found


def _replays(
    base: Policy,
    corpus: Corpus,
    tasks: Sequence[LearnTask],
    config: LearnConfig,
    out: Path,
    seeds: int,
    total_s: float,
    say: Any,
    rewarded: Callable[[Policy], float] | None = None,
) -> dict[str, Any]:
    """Return what equal steps of SFT forget and earn at each share of replay, seed by seed."""
    steps = 120
    found: dict[str, Any] = {}
    limit = time.monotonic() + total_s * SHARES["replay"]
    for seed in range(seeds):
        if seed and time.monotonic() > limit:
            say("no time for more seeds of replay")
            break
        for share in REPLAYS:  # a seed is whole or not there
            own = config.changed(steps=steps, seed=seed, replay=share, max_forgetting=1e9)
            start = load_policy(out / "base", training=True)
            done = sft(LearnStage(own, corpus, start, base, tasks, out / f"replay-{share}-{seed}"))
            row = found.setdefault(f"{share:.0%}", {"forgetting": []})
            row["forgetting"].append(round(done.trained.forgetting, 4))
            if rewarded is not None:
                row.setdefault("reward", []).append(round(rewarded(done.policy), 4))
    for share, row in found.items():
        say(f"replay {share}: forgot {statistics.fmean(row['forgetting']):.3f} nats, {row}")
    return found


def _searches(
    policy: Policy,
    unseen: Sequence[LearnTask],
    bench: Bench,
    config: LearnConfig,
    benches: Sequence[Bench],
    deadline: float,
) -> dict[str, Any]:
    """Return how many kernels the search needs for its own result, alone and with seeds."""
    rows = []
    draw = policy_drawer(policy, temperature=0.7)  # its likeliest answers
    for task in unseen:
        if time.monotonic() > deadline:
            break
        alone = _climb(SearchAuthor(task.space, seed=config.seed), task, bench)
        first = [one.schedule for one in draw(task, 6, config.seed) if one is not None]
        space: Any = SeededSpace(task.space, list(dict.fromkeys(first)))
        seeded = _climb(SearchAuthor(space, seed=config.seed), task, bench)
        if not _leaders(alone) or not _leaders(seeded):
            continue
        known = _again(task, [*_leaders(alone), *_leaders(seeded)], benches)
        result = known[_leaders(alone)[-1][1].kernel.hash]
        if not result:  # no screening of it gave a time
            continue
        goal = 0.98 * result
        rewards = [reward_of(said, config) for _, said in alone]
        rows.append(
            {
                "problem": task.name,
                "alone": _reached(alone, known, goal),
                "seeded": _reached(seeded, known, goal),
                "result_alone": result,
                "result_seeded": known[_leaders(seeded)[-1][1].kernel.hash],
                "mean_reward_alone": statistics.fmean([one for one in rewards if one is not None]),
            }
        )
    return {"most": SEARCHED, "problems": rows}


Climb = list[tuple[Proposal, Screening]]


def _climb(author: SearchAuthor, task: LearnTask, bench: Bench) -> Climb:
    """Return the kernels of a search in their order, with the judge's answers."""
    progress, found = Progress(problem=task.problem), Climb()
    while len(found) < SEARCHED:
        proposals = author.propose(progress, 6)
        if not proposals:
            break
        said = bench.outcomes(task, proposals)
        progress.answers += map(Answer.by_screening, proposals, said)
        found += zip(proposals, said, strict=True)
    return found


def _leaders(climb: Climb) -> list[tuple[int, Proposal]]:
    """Return the place and the kernel of each that was the best so far."""
    found, best = list[tuple[int, Proposal]](), 0.0
    for place, (one, said) in enumerate(climb):
        if said.is_right and said.ratio and said.ratio > best:
            best = said.ratio
            found.append((place, one))
    return found


def _again(
    task: LearnTask, leaders: Sequence[tuple[int, Proposal]], benches: Sequence[Bench]
) -> dict[str, float]:
    """Return each kernel's geometric mean ratio over fresh screenings, by its hash."""
    kernels = list({one.kernel.hash: one for _, one in leaders}.values())
    logs: dict[str, list[float]] = {one.kernel.hash: [] for one in kernels}
    for bench in benches:
        for one, said in zip(kernels, bench.outcomes(task, kernels), strict=True):
            if said.is_right and said.ratio:
                logs[one.kernel.hash].append(math.log(said.ratio))
    return {key: math.exp(statistics.fmean(own)) if own else 0.0 for key, own in logs.items()}


@contextmanager
def _fresh(out: Path) -> Iterator[list[ScreeningBench]]:
    """Yield benches that remember nothing of a kernel."""
    with ExitStack() as stack:
        found = []
        for turn in range(FRESH):
            court = stack.enter_context(Court(str(out / f"again-{turn}.db")))
            found.append(stack.enter_context(closing(ScreeningBench(court))))
        yield found


def _reached(climb: Climb, known: dict[str, float], goal: float) -> int | None:
    """Return after how many kernels the best so far was as fast as `goal`."""
    return next(
        (place + 1 for place, one in _leaders(climb) if known[one.kernel.hash] >= goal), None
    )


if __name__ == "__main__":
    main()
