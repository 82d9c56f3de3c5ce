"""The loop: authors write, the judge decides, the policy learns, and is kept only if it is better.

Round 0 trains the first policy. Each later one has to beat the policy before it on held-out
problems, and must not forget more than the bound.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from ratchet.base.errors import LearnError
from ratchet.base.files import write_whole
from ratchet.base.serialise import document_of
from ratchet.judge.court.court import Court
from ratchet.write.author import Answer, Progress
from ratchet.write.learn.bench import ScreeningBench, open_bench
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus, build_corpus, write_corpus
from ratchet.write.learn.evaluate import (
    Drawer,
    Evaluation,
    evaluate,
    least_rise,
    policy_drawer,
    random_drawer,
    with_headroom,
)
from ratchet.write.learn.languages import language_of
from ratchet.write.learn.models import Policy, load_policy, read_card
from ratchet.write.learn.objectives import NoReward
from ratchet.write.learn.rollouts import Rollouts, open_rollouts
from ratchet.write.learn.show import LearnReport, RoundRow
from ratchet.write.learn.stages import (
    LearnStage,
    StageResult,
    finished,
    grpo,
    is_whole,
    moved_back,
    pretrain,
    save_with,
    sft,
)
from ratchet.write.learn.tasks import LearnTask, Names, by_family, first_tasks, make_tasks
from ratchet.write.learn.training import MOST_REPLAY, Row
from ratchet.write.learn.training import STATE as CHECKPOINT
from ratchet.write.search import SearchAuthor

STATE, PROBLEMS, FRESH = "loop.json", "problems.json", "policy.new"
READING: Final = 0.15  # Share of the budget that reading the problems may take
ROUND: Final = "learn_round"  # Kind of the evidence that the ledger keeps of each round
FIRST: Final[dict[str, float]] = {"pretrain": 0.1, "sft": 0.05, "eval": 0.1}
"""Shares of the whole budget of the first policy's stages."""
EACH: Final[dict[str, float]] = {"write": 0.5, "sft": 0.15}
"""Shares of a round's budget; GRPO takes what is left but for the evaluation."""
RATES: Final[dict[str, float]] = {"base": 1.0, "sft": 0.5, "grpo": 0.05}
"""Learning rate of each stage, in shares of the loop's."""
LAST: Final = 0.95  # Share of a round's budget by which its evaluation should end
WRITTEN: Final = 2
"""Kernels that each author writes for a problem in a turn: the policy, the search, and chance."""
HELD_OUT: Final = (12, 96)  # Answers to held-out problems, at least and at most
TURN: Final = 1000  # Distance between the seeds of a round's turns of writing
MOST_HELD_OUT: Final = 10  # Held-out problems
CHOOSING: Final = 0.08  # Share of the budget that choosing them may take
ANSWERED_S: Final = 2.0
"""Guess of the time that judging an answer takes, to decide how many there are."""
TOLD_EVERY_S: Final = 2.0


Show = Callable[[LearnReport, str], None]
"""Called with the report so far, and a line on what is being done."""


@dataclass(kw_only=True, slots=True)
class Loop:
    config: LearnConfig
    court: Court
    out: Path
    show: Show
    rounds: int
    budget_s: float
    train: Names
    unseen: Names
    texts: tuple[Path, ...] = ()
    datasets: tuple[str, ...] = ()
    command: str = ""
    rows: list[RoundRow] = field(default_factory=list)
    curves: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _before_s: float = 0.0  # Time of the budget that killed runs took
    _told: float = 0.0
    _bench: ScreeningBench = field(init=False)
    _rollouts: Rollouts = field(init=False)
    _train: list[LearnTask] = field(default_factory=list)
    _unseen: list[LearnTask] = field(default_factory=list)
    _answers: int = 4  # To each held-out problem
    _parameters: int = 0  # Parameters of the model that is trained; 0 until it is there
    _eval_s: float = 0.0  # Seconds that the last evaluation took
    _round: tuple[float, int] = (0.0, 0)  # Time spent and kernels judged before this round

    @property
    def spent_s(self) -> float:
        return self._before_s + time.monotonic() - self._began

    def run(self) -> LearnReport:
        self._restore()
        self._rollouts = open_rollouts(self.config)
        self._bench = open_bench(self.court, self.config)
        try:
            self._say("reading the problems")
            self._read()
            if not self._train or not self._unseen:
                raise LearnError(
                    "the generator writes none of these problems: give other --families or --unseen"
                )
            if not self.config.target:
                # A factor that all answers to a problem share cancels in a group, and timing
                # torch.compile takes as long as some ten kernels.
                self._bench.against_eager = frozenset(one.key for one in self._train)
            base = self._base()
            self._parameters = base.card.parameters
            for number in range(len(self.rows), self.rounds + 1):
                if self.spent_s > 0.95 * self.budget_s and len(self.rows) > 1:
                    self.notes.append(f"the budget ended before round {number}")
                    break
                self._round = (self.spent_s, self._bench.judged)
                self._run_round(number, base)
        finally:
            self._bench.close()
            self._rollouts.close()
        return self.report(running=False)

    def report(self, *, running: bool) -> LearnReport:
        return LearnReport(
            title="learn loop",
            command=self.command,
            running=running,
            config=self.config.rows(),
            curves=self.curves,
            rounds=tuple(self.rows),
            figures=[("model", f"{self._parameters:,} parameters")] if self._parameters else [],
            notes=tuple(self.notes),
            policy=str(self.out / "policy"),
        )

    # --- the parts of a round

    def _read(self) -> None:
        """Read the problems within a share of the budget; a resumed loop reads the same ones."""
        path, language = self.out / PROBLEMS, self.config.language
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Names])
            self._unseen = make_tasks(kept["unseen"], language=language)
            self._train = make_tasks(kept["train"], language=language)
        else:
            until = time.monotonic() + READING * self.budget_s
            unseen = first_tasks(self.unseen, language, least=2, until=until)
            self._unseen = self._held_out(unseen)
            self._train = first_tasks(self.train, language, least=4, until=until)
            names = {"train": by_family(self._train), "unseen": by_family(self._unseen)}
            write_whole(path, msgspec.json.encode(names))
        asked = sum(map(len, self.train.values()))
        if len(self._train) < asked:
            self.notes.append(
                f"trained on {len(self._train)} of {asked} problems: the others take "
                "longer to read than the budget allows, or have nothing to choose"
            )
        kernels, least = self._evaluated()
        self._answers = max(least, kernels // max(1, len(self._unseen)))

    def _evaluated(self) -> tuple[int, int]:
        """Return how many answers an evaluation judges, and the fewest to each problem."""
        room = FIRST["eval"] * self.budget_s / ANSWERED_S
        kernels = int(min(max(room, HELD_OUT[0]), HELD_OUT[1]))
        return kernels, 4 if kernels < 24 else 6

    def _held_out(self, unseen: list[LearnTask]) -> list[LearnTask]:
        """Choose the held-out problems of all rounds: as many as the budget can judge."""
        kernels, least = self._evaluated()
        most = min(MOST_HELD_OUT, max(2, kernels // least))
        self._say("choosing held-out problems on which most can be won")
        until = time.monotonic() + CHOOSING * self.budget_s
        seed = self.config.seed
        return with_headroom(unseen, self._bench, self.config, most=most, seed=seed, until=until)

    def _base(self) -> Policy:
        folder = self.out / "base"
        if is_whole(folder):
            return load_policy(folder, device=self.config.device)
        done = pretrain(
            self._within("base", steps=20_000),
            self._corpus(),
            folder,
            deadline=time.monotonic() + FIRST["pretrain"] * self.budget_s,
            follow=self._follow("base"),
        )
        return done.policy

    def _run_round(self, number: int, base: Policy) -> None:
        if number == 0:
            corpus = self._corpus()
            done = self._sft(0, base, corpus, FIRST["sft"] * self.budget_s)
            return self._keep(done, "the first policy", self._evaluate(done.policy), corpus)
        left = self.rounds + 1 - number
        share_s = max(1.0, self.budget_s - self.spent_s) / left
        self._write(share_s * EACH["write"], number)
        corpus = self._corpus()
        folder = self.out / f"round-{number}"
        if (folder / "grpo" / CHECKPOINT).exists() and is_whole(folder / "sft"):
            # A loop that was killed in GRPO goes on from the policy that GRPO began with.
            taught = finished(folder / "sft", device=self.config.device)
        else:
            taught = self._sft(number, base, corpus, share_s * EACH["sft"])
        left_s = LAST * share_s - (self.spent_s - self._round[0]) - self._eval_s
        stage = self._stage("grpo", number, taught.policy, base, corpus, left_s)
        try:
            done = grpo(stage, self._bench)
        except NoReward as error:
            # GRPO has changed that model: take it as SFT wrote it.
            done = finished(folder / "sft", device=self.config.device)
            self.notes.append(f"round {number}: GRPO stopped, {error}")
        done = self._moved_back(number, done, base, corpus)
        found = self._evaluate(done.policy)
        standing = next(one.evaluation for one in reversed(self.rows) if one.kept)
        kept, why = self._is_better(found, standing, done.trained.forgetting)
        self._keep(done, why, found, corpus, kept=kept)

    def _is_better(
        self, found: Evaluation, standing: Evaluation, forgot: float
    ) -> tuple[bool, str]:
        """Return whether a policy takes the standing one's place, and why or why not."""
        if forgot > self.config.max_forgetting:
            return False, f"it forgot {forgot:.3f} nats, more than {self.config.max_forgetting:g}"
        if found.reward <= standing.reward:
            return False, f"reward {found.reward:.3f} is not above {standing.reward:.3f}"
        above = f"reward {found.reward:.3f} is above {standing.reward:.3f}"
        if least_rise(standing, found) <= 0.0:
            return False, f"{above}, but not on enough of the problems to be sure"
        return True, above

    def _sft(self, number: int, base: Policy, corpus: Corpus, seconds: float) -> StageResult:
        """Teach the base model the corpus. Forgetting is measured against `base`."""
        own, config = self.out / "base", self.config
        start = load_policy(own, device=config.device, training=True, lora=config.lora)
        return sft(self._stage("sft", number, start, base, corpus, seconds))

    def _stage(
        self, name: str, number: int, start: Policy, base: Policy, corpus: Corpus, seconds: float
    ) -> LearnStage:
        if name == "grpo":
            config = self._within("grpo", steps=10_000, number=number, replay=self._replayed())
        else:
            config = self._within("sft", steps=self.config.steps, number=number)
        return LearnStage(
            config,
            corpus,
            start,
            base,
            self._train,
            self.out / f"round-{number}" / name,
            deadline=time.monotonic() + seconds,
            follow=self._follow(f"round {number}: {name}"),
            rollouts=self._rollouts,
        )

    def _moved_back(
        self, number: int, done: StageResult, base: Policy, corpus: Corpus
    ) -> StageResult:
        """Move the weights of a policy that forgot too much towards the base model's."""
        if done.trained.forgetting <= self.config.max_forgetting:
            return done
        nearer, share = moved_back(done, base, corpus, self.config)
        if share < 1.0:
            self.notes.append(
                f"round {number}: it had forgotten {done.trained.forgetting:.3f} nats, so it takes "
                f"{share:.0%} of its change from the base model's weights"
            )
        return nearer

    def _write(self, seconds: float, number: int) -> None:
        """Let the policy, the search and chance write for the problems where most can be won.

        Kernels of the policy and the search become alike, and alike kernels teach little. Random
        schedules stay different.
        """
        until = time.monotonic() + seconds
        policy = load_policy(self.out / "policy", device=self.config.device)
        draw = policy_drawer(policy, rollouts=self._rollouts)
        for turn in itertools.count():
            before, known = self._bench.judged, self._bench.best()
            # Those with the slowest best kernel, or none, come first; each round begins further on.
            order = sorted(self._train, key=lambda one: known.get(one.key, 0.0))
            first = (number - 1) * 3 % max(1, len(order))
            for task in [*order[first:], *order[:first]]:
                if time.monotonic() > until:
                    return
                self._say(f"round {number}: writing for {task.name}")
                self._write_for(task, draw, self.config.seed + number + TURN * turn)
            if self._bench.judged == before:  # the ledger knows all that the authors can write
                return

    def _write_for(self, task: LearnTask, draw: Drawer, seed: int) -> None:
        drawn = [*draw(task, WRITTEN, seed), *random_drawer(task, WRITTEN, seed)]
        own = [one for one in drawn if one is not None]
        first = self._bench.outcomes(task, own) if own else []
        progress = Progress(problem=task.problem)
        author = SearchAuthor(task.space, seed=seed)
        progress.answers += [
            Answer.by_screening(replace(one, author=author.name), said)
            for one, said in zip(own, first, strict=True)
        ]
        proposals = author.propose(progress, WRITTEN)
        self._bench.outcomes(task, proposals)

    def _evaluate(self, policy: Policy) -> Evaluation:
        """Evaluate a policy on the held-out problems, which are the same in all rounds."""
        self._say("evaluating on held-out problems")
        began = time.monotonic()
        draw = policy_drawer(policy, rollouts=self._rollouts)
        found = evaluate(
            draw,
            self._unseen,
            self._bench,
            self.config,
            answers=self._answers,
            seed=self.config.seed,
        )
        self._eval_s = time.monotonic() - began
        return found

    def _keep(
        self,
        done: StageResult,
        why: str,
        found: Evaluation,
        corpus: Corpus,
        *,
        kept: bool = True,
    ) -> None:
        """Record a round, and put its policy in place if it is kept."""
        trained = done.trained
        row = RoundRow(
            number=len(self.rows),
            kept=kept,
            why=why,
            evaluation=found,
            forgetting=trained.forgetting,
            replay=trained.replay,
            corpus=len(corpus.examples),
            judged=self._bench.judged - self._round[1],
            spent_s=self.spent_s - self._round[0],
        )
        if kept:
            figures = {"round": float(row.number), "reward": found.reward, "fast": found.fast}
            shutil.rmtree(self.out / FRESH, ignore_errors=True)
            save_with(self.out / FRESH, done.policy, figures)
        self.rows.append(row)
        self.court.ledger.remember(
            ROUND,
            str(self.out.resolve()),
            document_of(row),
            fingerprint=self.court.fingerprint,
        )
        self._save()
        self._put_in_place()
        self._say(f"round {row.number}: {'kept' if kept else 'not kept'}, {why}", always=True)

    def _put_in_place(self) -> None:
        """Replace the kept policy by the new one, once the loop's state holds its round.

        A loop that is killed before that repeats the round from the policy before it.
        """
        fresh, last = self.out / FRESH, self.rows[-1]
        if is_whole(fresh) and last.kept and read_card(fresh).figures["round"] == last.number:
            shutil.rmtree(self.out / "policy", ignore_errors=True)
            fresh.rename(self.out / "policy")
        shutil.rmtree(fresh, ignore_errors=True)

    # --- what the parts share

    def _corpus(self) -> Corpus:
        found = build_corpus(
            self._train,
            by_family(self._unseen),
            language_of(self.config.answers, self.config.language),
            ledger=self.court.ledger,
            here=self.court.fingerprint,
            texts=self.texts,
            datasets=self.datasets,
            seed=self.config.seed,
        )
        write_corpus(self.out / "corpus", found)
        return found

    def _replayed(self) -> float:
        """Return the last GRPO's share of replay, doubled if it still forgot too much."""
        last = self.rows[-1]
        if last.number == 0:
            return self.config.replay
        more = 2 if last.forgetting > self.config.max_forgetting else 1
        return min(MOST_REPLAY, max(self.config.replay, more * last.replay))

    def _within(
        self, stage: str, *, steps: int, number: int = 0, replay: float | None = None
    ) -> LearnConfig:
        """Return a stage's config, with the stage's rate and the round's seed."""
        config = self.config.in_training() if stage == "grpo" else self.config
        rate = self.config.rate * RATES[stage]
        share = self.config.replay if replay is None else replay
        return config.changed(steps=steps, rate=rate, seed=self.config.seed + number, replay=share)

    def _follow(self, name: str) -> Callable[[str, Row], None]:
        rows = self.curves.setdefault(name, [])

        def follow(stage: str, row: Row) -> None:
            rows.append(row)
            reward = f", reward {float(row['reward']):.3f}" if "reward" in row else ""
            self._say(f"{name}, step {int(float(row['step'])) + 1}{reward}")

        return follow

    def _say(self, words: str, *, always: bool = False) -> None:
        if always or time.monotonic() - self._told > TOLD_EVERY_S:
            self._told = time.monotonic()
            self.show(self.report(running=True), words)

    def _save(self) -> None:
        state = {
            "rows": document_of(self.rows),
            "spent_s": self.spent_s,
            "curves": self.curves,
            "config": document_of(self.config),
        }
        write_whole(self.out / STATE, msgspec.json.encode(state))

    def _restore(self) -> None:
        """Restore the finished rounds of a loop that was killed or ended."""
        path = self.out / STATE
        if not path.exists():
            return
        try:
            state = msgspec.json.decode(path.read_bytes())
            config = msgspec.convert(state["config"], LearnConfig)
            self.rows = msgspec.convert(state["rows"], list[RoundRow])
            self.curves = state["curves"]
            self._before_s = float(state["spent_s"])
        except (OSError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise LearnError(
                f"{str(path)!r} is damaged: remove it, or give another --out"
            ) from error
        if not config.is_same_run(self.config):
            raise LearnError(
                f"the loop in {str(self.out)!r} was begun with other options: give the same, or "
                "another --out"
            )
        self._put_in_place()
