"""The start and the end of one stage of `ratchet learn`: its corpus, judge, page and policy."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.cli.app import print_json
from ratchet.errors import LearnError

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


def opened(
    out: Path, corpus: Path | None, config: LearnConfig, stage: str
) -> tuple[Corpus, Callable[[str, dict[str, float | str]], None]]:
    """Return the corpus, and what follows the run: a line, and a page that is written again."""
    from ratchet.learn.checkpoint import check_out, check_place
    from ratchet.learn.corpus import read_corpus

    check_place(out)
    found = read_corpus(corpus or out.parent / "corpus")
    check_out(out)
    from ratchet.learn.files import refresh_page
    from ratchet.report.learn_page import render_learn_page
    from ratchet.report.learn_progress import told

    rows: list[dict[str, float | str]] = []
    tell = told(stage, config.steps * (config.soup if stage == "sft" else 1))

    def follow(name: str, row: dict[str, float | str]) -> None:
        rows.append(row)
        if tell(row):
            report = _report(name, config, rows, running=True)
            refresh_page(report, out, render_learn_page)

    return found, follow


def _report(
    stage: str, config: LearnConfig, rows: list[dict[str, float | str]], *, running: bool
) -> LearnReport:
    from ratchet.cli.write import _command
    from ratchet.learn.result import LearnReport

    return LearnReport(
        title=f"learn {stage}",
        command=_command(),
        running=running,
        config=config.rows(),
        curves={stage: rows},
    )


def finish(done: StageResult, config: LearnConfig, out: Path, as_json: bool) -> None:
    from ratchet.learn.checkpoint import read_curve
    from ratchet.learn.files import write_report
    from ratchet.report.learn_page import render_learn_page

    stage, trained = done.policy.card.stage, done.trained
    report = _report(stage, config, read_curve(out), running=False)
    paths = write_report(report, out, render_learn_page)
    if as_json:
        from dataclasses import asdict

        return print_json(
            {"policy": str(out), "stage": stage, **asdict(trained), "paths": paths,
             "config": dict(config.rows())}
        )  # fmt: skip
    print(" ".join(f"{name}={value}" for name, value in config.rows()))
    ended = {"done": "all steps done", "budget": "its time is over"}
    print(
        f"{stage}: {trained.steps} steps, {ended.get(trained.stopped, 'it forgot too much')}; "
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
