"""One stage of `ratchet learn`, from its corpus to its page and policy."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.base.errors import LearnError
from ratchet.cli.app import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratchet.write.learn.bench import ScreeningBench
    from ratchet.write.learn.config import LearnConfig
    from ratchet.write.learn.report import LearnReport
    from ratchet.write.learn.rollouts import Rollouts
    from ratchet.write.learn.stages import StageResult
    from ratchet.write.learn.training import Follow

MAKES_MODEL = ("pretrain", "base")
"""Stages that begin with a new model, unless one is named."""
ENDED = {"done": "all steps done", "budget": "its time is over", "forgetting": "it forgot too much"}


def run_stage(
    name: str,
    config: LearnConfig,
    out: Path,
    *,
    corpus: Path | None,
    minutes: float | None,
    as_json: bool,
    start: Path | None = None,
    base: Path | None = None,
    judge: tuple[str | None, str] = (None, "local"),
) -> None:
    """Run a stage in its folder, show how it goes, and print its end.

    `start` is the folder of the policy that is trained on; without one a model is made. `judge`:
    the ledger and the fleet that GRPO's rewards come from.
    """
    from ratchet.base.files import check_new_folder, make_folder
    from ratchet.write.learn.corpus import read_corpus

    check_new_folder(out)
    material = read_corpus(corpus or out.parent / "corpus")
    make_folder(out, "--out")
    follow = _follow(name, config, out, start)
    from ratchet.write.learn import stages
    from ratchet.write.learn.models import load_policy
    from ratchet.write.learn.rollouts import open_rollouts
    from ratchet.write.learn.tasks import make_tasks

    if start is None:
        done = stages.pretrain(config, material, out, deadline=_deadline(minutes), follow=follow)
        return _finish(done, config, out, as_json)
    policy = load_policy(start, device=config.device, training=True, lora=config.lora)
    known = load_policy(base or start, device=config.device)
    if name == "grpo":
        config = config.changed(answers=policy.card.answers, language=policy.card.language)
    tasks = make_tasks(material.card.train, language=config.language)
    with ExitStack() as stack:
        if name == "grpo":
            bench, engine = stack.enter_context(open_bench_and_engine(*judge, config))
        else:
            engine = stack.enter_context(closing(open_rollouts(config)))
        stage = stages.LearnStage(
            config, material, policy, known, tasks, out, deadline=_deadline(minutes),
            follow=follow, rollouts=engine,
        )  # fmt: skip
        done = stages.grpo(stage, bench) if name == "grpo" else stages.sft(stage)
        _finish(done, config, out, as_json)


def _follow(name: str, config: LearnConfig, out: Path, start: Path | None) -> Follow:
    """Return what follows a run: a line on the terminal, and a page that is written again."""
    from ratchet.write.learn.models import read_card
    from ratchet.write.learn.report import refresh_page
    from ratchet.write.learn.show import StageProgress, render_learn_page

    size = f"size {config.size}" if start is None else _size(read_card(start).parameters)
    rows: list[dict[str, float | str]] = []
    steps = config.steps * (config.soup if name == "sft" else 1)
    progress = StageProgress(f"{name} ({size})", steps)

    def follow(stage: str, row: dict[str, float | str]) -> None:
        rows.append(row)
        if progress.show(row):
            refresh_page(_report(stage, config, rows, running=True), out, render_learn_page)

    return follow


def _report(
    stage: str,
    config: LearnConfig,
    rows: list[dict[str, float | str]],
    *,
    running: bool,
    parameters: int | None = None,
) -> LearnReport:
    from ratchet.cli.write import _command
    from ratchet.write.learn.report import LearnReport

    return LearnReport(
        title=f"learn {stage}",
        command=_command(),
        running=running,
        config=config.rows(makes_model=stage in MAKES_MODEL),
        curves={stage: rows},
        figures=[] if parameters is None else [("model", _size(parameters))],
    )


def _size(parameters: int) -> str:
    return f"{parameters:,} parameters"


def _finish(done: StageResult, config: LearnConfig, out: Path, as_json: bool) -> None:
    from ratchet.write.learn.checkpoint import read_curve
    from ratchet.write.learn.report import write_report
    from ratchet.write.learn.show import render_learn_page

    card, trained = done.policy.card, done.trained
    rows = read_curve(out)
    report = _report(card.stage, config, rows, running=False, parameters=card.parameters)
    paths = write_report(report, out, render_learn_page)
    if as_json:
        from dataclasses import asdict

        return print_json(
            {"policy": str(out), "stage": card.stage, "parameters": card.parameters,
             **asdict(trained), "paths": paths, "config": dict(report.config)}
        )  # fmt: skip
    print(" ".join(f"{name}={value}" for name, value in report.config))
    print(
        f"{card.stage}: {_size(card.parameters)}, {trained.steps} steps, {ENDED[trained.stopped]}; "
        f"forgot {trained.forgetting:.3f} nats, replay {trained.replay:.1%}\n"
        f"policy: {out}\npage:   {paths['page']}"
    )


@contextmanager
def open_bench_and_engine(
    ledger: str | None, fleet: str, config: LearnConfig
) -> Iterator[tuple[ScreeningBench, Rollouts]]:
    """Yield the judge as a source of rewards and what draws answers, once, and close both."""
    from ratchet.judge.court.court import check_ledger, open_court
    from ratchet.write.choices import parse_fleet
    from ratchet.write.learn.emulated import open_bench
    from ratchet.write.learn.rollouts import open_rollouts

    machines = parse_fleet(fleet)
    check_ledger(machines, ledger)
    with (
        open_court(ledger, machines) as court,
        closing(open_rollouts(config)) as engine,
        closing(open_bench(court, config)) as bench,
    ):
        yield bench, engine


def _deadline(minutes: float | None) -> float | None:
    if minutes is None:
        return None
    if minutes <= 0:
        raise LearnError(f"--minutes {minutes:g} is no time: give more than 0")
    return time.monotonic() + 60 * minutes
