"""The start and the end of one stage of `ratchet learn`: its corpus, judge, page and policy."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.base.errors import LearnError
from ratchet.cli.app import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratchet.learn.bench import ScreeningBench
    from ratchet.learn.config import LearnConfig
    from ratchet.learn.corpus import Corpus
    from ratchet.learn.models import Policy
    from ratchet.learn.result import LearnReport
    from ratchet.learn.rollouts import Rollouts
    from ratchet.learn.stages import StageResult
    from ratchet.learn.tasks import LearnTask

MAKES_MODEL = ("pretrain", "base")
"""Stages that begin with a new model, unless one is named."""


def opened(
    out: Path, corpus: Path | None, config: LearnConfig, stage: str, start: Path | None = None
) -> tuple[Corpus, Callable[[str, dict[str, float | str]], None]]:
    """Return the corpus, and what follows the run: a line, and a page that is written again.

    `start` is the folder of the policy that is trained on; without one a model is made.
    """
    from ratchet.learn.checkpoint import check_out, check_place
    from ratchet.learn.corpus import read_corpus

    check_place(out)
    found = read_corpus(corpus or out.parent / "corpus")
    check_out(out)
    from ratchet.learn.files import refresh_page
    from ratchet.report.learn import render_learn_page
    from ratchet.report.progress import StageProgress

    size = f"size {config.size}"
    if start is not None:
        from ratchet.learn.models import read_card

        size = show_parameters(read_card(start).parameters)
    rows: list[dict[str, float | str]] = []
    progress = StageProgress(
        f"{stage} ({size})", config.steps * (config.soup if stage == "sft" else 1)
    )

    def follow(name: str, row: dict[str, float | str]) -> None:
        rows.append(row)
        if progress.show(row):
            report = _report(name, config, rows, running=True)
            refresh_page(report, out, render_learn_page)

    return found, follow


def _report(
    stage: str,
    config: LearnConfig,
    rows: list[dict[str, float | str]],
    *,
    running: bool,
    parameters: int | None = None,
) -> LearnReport:
    from ratchet.cli.write import _command
    from ratchet.learn.result import LearnReport

    return LearnReport(
        title=f"learn {stage}",
        command=_command(),
        running=running,
        config=config.rows(makes_model=stage in MAKES_MODEL),
        curves={stage: rows},
        figures=[] if parameters is None else [("model", show_parameters(parameters))],
    )


def show_parameters(count: int) -> str:
    """Return the size of a model: `1,115,648 parameters`."""
    return f"{count:,} parameters"


def finish(done: StageResult, config: LearnConfig, out: Path, as_json: bool) -> None:
    from ratchet.learn.checkpoint import read_curve
    from ratchet.learn.files import write_report
    from ratchet.report.learn import render_learn_page

    stage, trained = done.policy.card.stage, done.trained
    parameters = done.policy.card.parameters
    report = _report(stage, config, read_curve(out), running=False, parameters=parameters)
    paths = write_report(report, out, render_learn_page)
    if as_json:
        from dataclasses import asdict

        return print_json(
            {"policy": str(out), "stage": stage, "parameters": parameters, **asdict(trained),
             "paths": paths, "config": dict(report.config)}
        )  # fmt: skip
    print(" ".join(f"{name}={value}" for name, value in report.config))
    ended = {"done": "all steps done", "budget": "its time is over"}
    why = ended.get(trained.stopped, "it forgot too much")
    print(
        f"{stage}: {show_parameters(parameters)}, {trained.steps} steps, {why}; "
        f"forgot {trained.forgetting:.3f} nats, replay {trained.replay:.1%}\n"
        f"policy: {out}\npage:   {paths['page']}"
    )


def start_policies(start: Path, base: Path, config: LearnConfig) -> tuple[Policy, Policy]:
    from ratchet.learn.models import load_policy

    return (
        load_policy(start, device=config.device, training=True, lora=config.lora),
        load_policy(base, device=config.device),
    )


def corpus_tasks(material: Corpus, config: LearnConfig) -> list[LearnTask]:
    from ratchet.learn.tasks import make_tasks

    return make_tasks(material.card.train, language=config.language)


@contextmanager
def open_bench_and_engine(
    ledger: str | None, fleet: str, config: LearnConfig
) -> Iterator[tuple[ScreeningBench, Rollouts]]:
    """Yield the judge as a source of rewards and what draws answers, once, and close both."""
    from ratchet.authors.choices import parse_fleet
    from ratchet.authors.fleet import check_ledger, open_judge
    from ratchet.learn.emulated import open_bench
    from ratchet.learn.rollouts import open_rollouts

    machines = parse_fleet(fleet)
    check_ledger(machines, ledger)
    with (
        open_judge(ledger, machines) as judge,
        closing(open_rollouts(config)) as engine,
        closing(open_bench(judge, config)) as bench,
    ):
        yield bench, engine


def deadline(minutes: float | None) -> float | None:
    import time

    if minutes is None:
        return None
    if minutes <= 0:
        raise LearnError(f"--minutes {minutes:g} is no time: give more than 0")
    return time.monotonic() + 60 * minutes
