"""`ratchet learn`: train an author on the judge's verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.cli.app import Debug, Json, LedgerUrl, app, print_json
from ratchet.cli.learn_options import (
    AgainstCompile,
    AnswerName,
    Batch,
    Context,
    CorpusFolder,
    Dataset,
    DeviceOf,
    Discount,
    Families,
    Fleet,
    Group,
    Kl,
    LanguageName,
    Lora,
    MaxForgetting,
    Minutes,
    ModelName,
    OnForgetting,
    Out,
    PerFamily,
    Rate,
    Repeats,
    Replay,
    RewardName,
    RolloutMemory,
    RolloutName,
    Seed,
    Size,
    Soup,
    Steps,
    Target,
    Text,
    Turns,
    Unseen,
)
from ratchet.cli.learn_stage import (
    corpus_tasks,
    deadline,
    finish,
    open_bench_and_engine,
    opened,
    start_policies,
)
from ratchet.cli.options import finite

if TYPE_CHECKING:
    from ratchet.learn.config import LearnConfig
    from ratchet.learn.result import LearnReport
    from ratchet.learn.tasks import Names

OUT = Path("ratchet-learn")

commands = typer.Typer()
app.add_typer(commands, name="learn")


@commands.callback(invoke_without_command=True)
def learn(context: typer.Context) -> None:
    """Train an author on the judge's verdicts: corpus, pretrain, sft, grpo, eval, serve, loop."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command()
def corpus(
    out: Out = OUT / "corpus",
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 6,
    text: Text = None,
    dataset: Dataset = None,
    answers: AnswerName = "schedule",
    language: LanguageName = "cpp",
    draws: Annotated[int, typer.Option(min=0, help="Triples to draw for each problem.")] = 24,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Device whose verdicts count.")
    ] = "cpu",
    seed: Seed = 0,
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Collect what to learn from: the ledger's kernels, the generator's triples, and text."""
    config = _config(answers=answers, language=language, seed=seed)
    train, held = _split(families, unseen, per_family, seed)
    from ratchet.learn.checkpoint import check_out

    check_out(out)
    import msgspec

    from ratchet.devices.probe import probe
    from ratchet.learn.corpus import build_corpus, write_corpus
    from ratchet.learn.languages import language_of
    from ratchet.learn.tasks import make_tasks
    from ratchet.ledger.store import Ledger

    with Ledger.open(ledger) as book:
        found = build_corpus(
            make_tasks(train, language=language),
            held,
            language_of(config.answers, config.language),
            ledger=book,
            here=book.here(probe(device)),
            texts=text or (),
            datasets=dataset or (),
            draws=draws,
            seed=seed,
        )
    write_corpus(out, found)
    if as_json:
        return print_json({"folder": str(out), **msgspec.to_builtins(found.card)})
    print(f"corpus {found.card.hash[:12]} in {out}")
    for name, count in found.card.counts.items():
        print(f"  {name:<12} {count:,}")
    print(f"  {'duplicates':<12} {found.card.duplicates:,} left out")
    print(f"  text         {found.card.bytes:,} bytes to replay")


@commands.command()
def pretrain(
    out: Out = OUT / "base",
    corpus: CorpusFolder = None,
    model: ModelName = "",
    size: Size = "1m",
    steps: Steps = 500,
    batch: Batch = 16,
    context: Context = 128,
    rate: Rate = 2e-3,
    minutes: Minutes = None,
    device: DeviceOf = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train the small Llama on the corpus's text, or take a model as it is."""
    config = _config(
        model=model, size=size, steps=steps, batch=batch, context=context, rate=rate, seed=seed,
        device=device,
    )  # fmt: skip
    material, follow = opened(out, corpus, config, "pretrain")
    from ratchet.learn.stages import pretrain as run

    finish(
        run(config, material, out, deadline=deadline(minutes), follow=follow), config, out, as_json
    )


@commands.command()
def sft(
    start: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the base model.")],
    out: Out = OUT / "sft",
    corpus: CorpusFolder = None,
    answers: AnswerName = "schedule",
    language: LanguageName = "cpp",
    lora: Lora = 0,
    steps: Steps = 200,
    soup: Soup = 1,
    batch: Batch = 16,
    context: Context = 128,
    rate: Rate = 2e-3,
    replay: Replay = "1%",
    max_forgetting: MaxForgetting = 0.05,
    on_forgetting: OnForgetting = "raise",
    minutes: Minutes = None,
    rollouts: RolloutName = "auto",
    rollout_memory: RolloutMemory = 0.4,
    device: DeviceOf = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Teach a model the corpus's answers, and replay pretraining text meanwhile."""
    config = _config(
        answers=answers, language=language, lora=lora, steps=steps, soup=soup, batch=batch,
        context=context, rate=rate, replay=_share(replay), max_forgetting=max_forgetting,
        on_forgetting=on_forgetting, rollouts=rollouts, rollout_memory=rollout_memory,
        device=device, seed=seed,
    )  # fmt: skip
    material, follow = opened(out, corpus, config, "sft", start)
    from contextlib import closing

    from ratchet.learn.rollouts import open_rollouts
    from ratchet.learn.stages import sft as run

    policy, base = start_policies(start, start, config)
    tasks = corpus_tasks(material, config)
    with closing(open_rollouts(config)) as engine:
        done = run(
            config, material, policy, base, tasks, out, deadline=deadline(minutes),
            follow=follow, rollouts=engine,
        )  # fmt: skip
    finish(done, config, out, as_json)


@commands.command()
def grpo(
    start: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the policy.")],
    base: Annotated[
        Path | None, typer.Option(help="Folder of the base model; default: POLICY.")
    ] = None,
    out: Out = OUT / "grpo",
    corpus: CorpusFolder = None,
    lora: Lora = 0,
    steps: Steps = 50,
    problems: Annotated[int, typer.Option(min=1, help="Problems in a step.")] = 2,
    group: Group = 8,
    rate: Rate = 3e-4,
    turns: Turns = 1,
    discount: Discount = 0.4,
    repeats: Repeats = 0.25,
    reward: RewardName = "log",
    against_compile: AgainstCompile = None,
    target: Target = None,
    kl: Kl = 0.1,
    context: Context = 128,
    replay: Replay = "1%",
    max_forgetting: MaxForgetting = 0.05,
    on_forgetting: OnForgetting = "raise",
    minutes: Minutes = None,
    rollouts: RolloutName = "auto",
    rollout_memory: RolloutMemory = 0.4,
    device: DeviceOf = "cpu",
    fleet: Fleet = "local",
    seed: Seed = 0,
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a policy on the judge's answers on its own kernels."""
    config = _config(
        lora=lora, steps=steps, problems=problems, group=group, rate=rate, reward=reward,
        turns=turns, discount=discount, repeats=repeats,
        rival=_rival(against_compile, target), kl=kl,
        context=context, replay=_share(replay), max_forgetting=max_forgetting,
        on_forgetting=on_forgetting, rollouts=rollouts, rollout_memory=rollout_memory,
        device=device, seed=seed, **_emulated(target),
    )  # fmt: skip
    material, follow = opened(out, corpus, config, "grpo", start)
    from ratchet.learn.stages import grpo as run

    policy, known = start_policies(start, base or start, config)
    config = config.changed(answers=policy.card.answers, language=policy.card.language)
    tasks = corpus_tasks(material, config)
    with open_bench_and_engine(ledger, fleet, config) as (bench, engine):
        done = run(
            config, material, policy, known, tasks, bench, out, deadline=deadline(minutes),
            follow=follow, rollouts=engine,
        )  # fmt: skip
        finish(done, config, out, as_json)


@commands.command(name="eval")
def evaluate(
    start: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the policy.")],
    corpus: CorpusFolder = None,
    unseen: Unseen = None,
    per_family: PerFamily = 6,
    answers: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 6,
    random: Annotated[bool, typer.Option("--random", help="Also judge random schedules.")] = False,
    against_compile: AgainstCompile = None,
    target: Target = None,
    rollouts: RolloutName = "auto",
    device: DeviceOf = "cpu",
    fleet: Fleet = "local",
    seed: Seed = 0,
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show how good a policy's answers are on unseen families."""
    config = _config(
        seed=seed, device=device, rival=_rival(against_compile, target), rollouts=rollouts,
        **_emulated(target),
    )  # fmt: skip
    _, held = _split(None, unseen, per_family, seed)
    import msgspec

    from ratchet.learn import evaluate as judged
    from ratchet.learn.models import load_policy
    from ratchet.learn.tasks import make_tasks

    policy = load_policy(start, device=device)
    config = config.changed(answers=policy.card.answers, language=policy.card.language)
    tasks = make_tasks(held, language=config.language)
    wanted = judged.Wanted(answers=answers, seed=seed)
    with open_bench_and_engine(ledger, fleet, config) as (bench, engine):
        drawers = {"policy": judged.policy_drawer(policy, rollouts=engine)}
        if random:
            drawers["random"] = judged.random_drawer
        found = {
            name: judged.evaluate(one, tasks, bench, config, wanted)
            for name, one in drawers.items()
        }
        if as_json:
            return print_json({name: msgspec.to_builtins(one) for name, one in found.items()})
        for name, one in found.items():
            print(
                f"{name}: {one.answers} answers to {len(one.problems)} problems; "
                f"valid {one.valid:.0%}, right {one.right:.0%}, fast (1.2x) {one.fast:.0%} "
                f"({one.fast_low:.0%} to {one.fast_high:.0%}), reward {one.reward:.3f} "
                f"({one.reward_low:.3f} to {one.reward_high:.3f}), {_measured(config)}"
            )


@commands.command()
def serve(
    start: Annotated[Path, typer.Argument(metavar="POLICY", help="Folder of the policy.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8111,
    device: DeviceOf = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Serve a policy as an OpenAI-compatible endpoint on 127.0.0.1."""
    from ratchet.learn.models import load_policy
    from ratchet.learn.serve import PolicyServer

    server = PolicyServer(
        load_policy(start, device=device), port=port, name=start.resolve().name, seed=seed
    )
    if as_json:
        print_json({"base_url": server.url, "model": start.resolve().name})
    else:
        print(f"serving {start} at {server.url} as model {start.resolve().name}; Ctrl-C stops")
    import sys

    sys.stdout.flush()
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close_socket()


@commands.command()
def loop(
    rounds: Annotated[int, typer.Option(help="Rounds after the first policy.")] = 3,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for everything.")] = "60m",
    out: Out = OUT,
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 16,
    text: Text = None,
    dataset: Dataset = None,
    model: ModelName = "",
    size: Size = "1m",
    answers: AnswerName = "schedule",
    language: LanguageName = "cpp",
    lora: Lora = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of SFT, at most.")] = 100,
    soup: Soup = 4,
    batch: Batch = 16,
    context: Context = 128,
    rate: Annotated[
        float,
        typer.Option(
            parser=finite(),
            metavar="NUMBER",
            help="Learning rate; SFT takes half of it and GRPO a twentieth.",
        ),
    ] = 2e-3,
    problems: Annotated[int, typer.Option(min=1, help="Problems in a step of GRPO.")] = 4,
    group: Group = 4,
    kl: Kl = 0.3,
    turns: Turns = 1,
    discount: Discount = 0.4,
    repeats: Repeats = 0.25,
    reward: RewardName = "log",
    against_compile: AgainstCompile = None,
    target: Target = None,
    replay: Replay = "10%",
    max_forgetting: MaxForgetting = 0.05,
    rollouts: RolloutName = "auto",
    rollout_memory: RolloutMemory = 0.4,
    device: DeviceOf = "cpu",
    fleet: Fleet = "local",
    seed: Seed = 0,
    ledger: LedgerUrl = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train, judge and train again; a policy is kept only if it is better and forgot little."""
    from ratchet.authors.choices import parse_budget_s, parse_fleet
    from ratchet.learn.config import check_rounds

    check_rounds(rounds)
    budget_s = parse_budget_s(budget)
    machines = parse_fleet(fleet)
    config = _config(
        model=model, size=size, answers=answers, lora=lora, steps=steps, soup=soup, batch=batch,
        context=context, rate=rate, problems=problems, group=group, kl=kl, turns=turns,
        discount=discount, repeats=repeats, reward=reward,
        rival=_rival(against_compile, target),
        replay=_share(replay), max_forgetting=max_forgetting, rollouts=rollouts,
        rollout_memory=rollout_memory, device=device, seed=seed,
        **({"language": language} | _emulated(target)),
    )  # fmt: skip
    train, held = _split(families, unseen, per_family, seed)
    from ratchet.learn.checkpoint import check_out
    from ratchet.learn.files import refresh_page, write_report

    check_out(out)
    from ratchet.authors.fleet import check_ledger, open_judge
    from ratchet.cli.write import _command
    from ratchet.learn.loop import Loop, LoopOptions
    from ratchet.report.learn import print_learning, render_learn_page
    from ratchet.report.progress import BudgetLine

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
    with open_judge(ledger, machines) as judge, BudgetLine(budget_s) as progress:

        def show(report: LearnReport, words: str) -> None:
            progress.spend(words)
            refresh_page(report, out, render_learn_page)

        result = Loop(config=config, options=options, judge=judge, out=out, show=show).run()
    paths = write_report(result, out, render_learn_page)
    if as_json:
        return print_json(result.to_json() | {"paths": paths})
    print_learning(result, paths)


def _config(**values: Any) -> LearnConfig:
    from ratchet.learn.config import LearnConfig

    return LearnConfig(**values)


def _rival(against_compile: bool | None, target: str | None) -> str:
    if against_compile is None:
        return "eager" if target else "compile"
    return "compile" if against_compile else "eager"


def _emulated(target: str | None) -> dict[str, str]:
    """Return the settings of a run whose rewards are emulated; none if they are measured."""
    if target is None:
        return {}
    from ratchet.judge.options import parse_target

    return {"target": parse_target(target), "language": "triton"}


def _measured(config: LearnConfig) -> str:
    return f"estimated by emulating {config.target}" if config.target else "by screening"


def _share(text: str) -> float:
    from ratchet.base.durations import parse_share

    return parse_share(text, "replay", below=0.9)


def _split(
    families: str | None, unseen: str | None, per_family: int, seed: int
) -> tuple[Names, Names]:
    from ratchet.learn.tasks import TRAINED, UNSEEN, split_names
    from ratchet.problems.suites.names import NAMES

    held = UNSEEN if unseen is None else tuple(one for one in unseen.split(",") if one)
    if families == "all":
        trained = tuple(one for one in NAMES if one not in held)
    else:
        given = TRAINED if families is None else tuple(one for one in families.split(",") if one)
        trained = tuple(one for one in given if families is not None or one not in held)
    return split_names(trained, held, per_family, seed)
