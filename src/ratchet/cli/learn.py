"""`ratchet learn`: train an author on the judge's verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.base.serialise import document_of
from ratchet.cli.app import AsJson, Debug, LedgerUrl, app, print_json, print_result
from ratchet.cli.learn_options import (
    CorpusFolder,
    Dataset,
    Families,
    Fleet,
    Minutes,
    Out,
    PerFamily,
    PolicyFolder,
    Text,
    Unseen,
    with_config,
)
from ratchet.cli.learn_stage import open_bench_and_engine, run_stage
from ratchet.write.learn.config import LearnConfig, check_range

if TYPE_CHECKING:
    from ratchet.write.learn.report import LearnReport
    from ratchet.write.learn.tasks import Names

OUT = Path("ratchet-learn")

commands = typer.Typer()
app.add_typer(commands, name="learn")


@commands.callback(invoke_without_command=True)
def learn(context: typer.Context) -> None:
    """Train an author on the judge's verdicts: corpus, pretrain, sft, grpo, eval, loop."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command()
@with_config("answers language seed")
def corpus(
    *,
    out: Out = OUT / "corpus",
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 6,
    text: Text = None,
    dataset: Dataset = None,
    config: LearnConfig,
    draws: Annotated[int, typer.Option(min=0, help="Triples to draw for each problem.")] = 24,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Device whose verdicts count.")
    ] = "cpu",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Collect what to learn from: the ledger's kernels, the generator's triples, and text."""
    train, held = _split(families, unseen, per_family, config.seed)
    from ratchet.base.files import make_folder

    make_folder(out, "--out")

    from ratchet.base.devices.probe import probe
    from ratchet.base.ledger.store import Ledger
    from ratchet.write.learn.corpus import build_corpus, write_corpus
    from ratchet.write.learn.languages import language_of
    from ratchet.write.learn.tasks import make_tasks

    with Ledger.open(ledger) as book:
        found = build_corpus(
            make_tasks(train, language=config.language),
            held,
            language_of(config.answers, config.language),
            ledger=book,
            here=book.here(probe(device)),
            texts=text or (),
            datasets=dataset or (),
            draws=draws,
            seed=config.seed,
        )
    write_corpus(out, found)
    if as_json:
        return print_json({"folder": str(out), **document_of(found.card)})
    print(f"corpus {found.card.hash[:12]} in {out}")
    for name, count in found.card.counts.items():
        print(f"  {name:<12} {count:,}")
    print(f"  {'duplicates':<12} {found.card.duplicates:,} left out")
    print(f"  text         {found.card.bytes:,} bytes to replay")


@commands.command()
@with_config("model size steps batch context rate device seed", steps=500, rate=2e-3)
def pretrain(
    *,
    out: Out = OUT / "base",
    corpus: CorpusFolder = None,
    config: LearnConfig,
    minutes: Minutes = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train the small Llama on the corpus's text, or take a model as it is."""
    run_stage("pretrain", config, out, corpus=corpus, minutes=minutes, as_json=as_json)


@commands.command()
@with_config(
    "answers language lora steps soup batch context rate replay max_forgetting on_forgetting "
    "rollouts rollout_memory device seed",
    rate=2e-3,
)
def sft(
    start: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the base model.")],
    *,
    out: Out = OUT / "sft",
    corpus: CorpusFolder = None,
    config: LearnConfig,
    minutes: Minutes = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Teach a model the corpus's answers, and replay pretraining text meanwhile."""
    run_stage("sft", config, out, corpus=corpus, minutes=minutes, as_json=as_json, start=start)


@commands.command()
@with_config(
    "lora steps problems group rate turns discount repeats reward rival target kl context replay "
    "max_forgetting on_forgetting rollouts rollout_memory device seed",
    steps=50,
    rate=3e-4,
)
def grpo(
    start: PolicyFolder,
    *,
    base: Annotated[
        Path | None, typer.Option(help="Folder of the base model; default: POLICY.")
    ] = None,
    out: Out = OUT / "grpo",
    corpus: CorpusFolder = None,
    config: LearnConfig,
    minutes: Minutes = None,
    fleet: Fleet = "local",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a policy on the judge's answers on its own kernels."""
    run_stage(
        "grpo", config, out, corpus=corpus, minutes=minutes, as_json=as_json, start=start,
        base=base, judge=(ledger, fleet),
    )  # fmt: skip


@commands.command(name="eval")
@with_config("rival target rollouts device seed")
def evaluate(
    start: PolicyFolder,
    *,
    corpus: CorpusFolder = None,
    unseen: Unseen = None,
    per_family: PerFamily = 6,
    answers: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 6,
    random: Annotated[bool, typer.Option("--random", help="Also judge random schedules.")] = False,
    config: LearnConfig,
    fleet: Fleet = "local",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show how good a policy's answers are on unseen families."""
    _, held = _split(None, unseen, per_family, config.seed)

    from ratchet.write.learn import evaluate as judged
    from ratchet.write.learn.models import load_policy
    from ratchet.write.learn.tasks import make_tasks

    policy = load_policy(start, device=config.device)
    config = config.changed(answers=policy.card.answers, language=policy.card.language)
    tasks = make_tasks(held, language=config.language)
    measured = f"estimated by emulating {config.target}" if config.target else "by screening"
    with open_bench_and_engine(ledger, fleet, config) as (bench, engine):
        drawers = {"policy": judged.policy_drawer(policy, rollouts=engine)}
        if random:
            drawers["random"] = judged.random_drawer
        found = {
            name: judged.evaluate(one, tasks, bench, config, answers=answers, seed=config.seed)
            for name, one in drawers.items()
        }
        if as_json:
            return print_json(found)
        for name, one in found.items():
            print(
                f"{name}: {one.answers} answers to {len(one.problems)} problems; "
                f"valid {one.valid:.0%}, right {one.right:.0%}, fast (1.2x) {one.fast:.0%} "
                f"({one.fast_low:.0%} to {one.fast_high:.0%}), reward {one.reward:.3f} "
                f"({one.reward_low:.3f} to {one.reward_high:.3f}), {measured}"
            )


@commands.command()
@with_config(
    "model size answers language lora steps soup batch context rate problems group kl turns "
    "discount repeats reward rival target replay max_forgetting rollouts rollout_memory device "
    "seed",
    steps=100, soup=4, rate=2e-3, problems=4, group=4, kl=0.3, replay=0.1,
)  # fmt: skip
def loop(
    *,
    rounds: Annotated[int, typer.Option(help="Rounds after the first policy.")] = 3,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for everything.")] = "60m",
    out: Out = OUT,
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 16,
    text: Text = None,
    dataset: Dataset = None,
    config: LearnConfig,
    fleet: Fleet = "local",
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train, judge and train again; a policy is kept only if it is better and forgot little."""
    from ratchet.write.choices import parse_budget_s, parse_fleet

    check_range(1 <= rounds <= 1000, "rounds", rounds, "1 to 1000")
    budget_s = parse_budget_s(budget)
    machines = parse_fleet(fleet)
    train, held = _split(families, unseen, per_family, config.seed)
    from ratchet.base.files import make_folder
    from ratchet.write.learn.report import refresh_page, write_report

    make_folder(out, "--out")
    from ratchet.base.show.terminal import BudgetLine
    from ratchet.cli.write import _command
    from ratchet.judge.court.court import check_ledger, open_court
    from ratchet.write.learn.loop import Loop, LoopOptions
    from ratchet.write.learn.show import learn_report, render_learn_page

    check_ledger(machines, ledger)
    options = LoopOptions(
        rounds=rounds,
        budget_s=budget_s,
        train=train,
        unseen=held,
        texts=tuple(text or ()),
        datasets=tuple(dataset or ()),
        command=_command(),
    )
    with open_court(ledger, machines) as court, BudgetLine(budget_s) as progress:

        def show(report: LearnReport, words: str) -> None:
            progress.spend(words)
            refresh_page(report, out, render_learn_page)

        result = Loop(config=config, options=options, court=court, out=out, show=show).run()
    paths = write_report(result, out, render_learn_page)
    if as_json:
        return print_json(document_of(result) | {"paths": paths})
    print_result(learn_report(result, paths))


def _split(
    families: str | None, unseen: str | None, per_family: int, seed: int
) -> tuple[Names, Names]:
    from ratchet.judge.problems.suites import NAMES
    from ratchet.write.learn.tasks import TRAINED, UNSEEN, split_names

    held = UNSEEN if unseen is None else tuple(one for one in unseen.split(",") if one)
    if families == "all":
        trained = tuple(one for one in NAMES if one not in held)
    else:
        given = TRAINED if families is None else tuple(one for one in families.split(",") if one)
        trained = tuple(one for one in given if families is not None or one not in held)
    return split_names(trained, held, per_family, seed)
