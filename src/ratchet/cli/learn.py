"""`ratchet learn`: train an author on the judge's verdicts."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ratchet.base.errors import LearnError
from ratchet.base.serialise import document_of
from ratchet.base.show.words import parse_share
from ratchet.cli import app as cli
from ratchet.cli.app import argument, group, option
from ratchet.cli.outputs import CORPUS, PAGE, POLICY, RUN, OutFolder
from ratchet.write.learn.config import LearnConfig, LearnSetting, check_range, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratchet.write.learn.bench import ScreeningBench
    from ratchet.write.learn.rollouts import Rollouts
    from ratchet.write.learn.show import LearnReport
    from ratchet.write.learn.stages import StageResult
    from ratchet.write.learn.tasks import Names
    from ratchet.write.learn.training import Follow


MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", "tokenizer*")
RUN_FILES = (
    *("config.learn.json", "checkpoint.pt", "curve.jsonl", "policy.json", "result.json"),
    *("report.html", "loop.json", "problems.json"),
)
Out = Annotated[
    Path,
    option(
        ...,
        "Folder of the run.",
        "FOLDER",
        parser=OutFolder(names=(*RUN_FILES, *MODEL_FILES), signs=(PAGE, POLICY, RUN), apart=True),
    ),
]
CorpusOut = Annotated[
    Path,
    option(
        ...,
        "Folder of the corpus.",
        "FOLDER",
        parser=OutFolder(names=("examples.jsonl", "replay.jsonl", "card.json"), signs=(CORPUS,)),
    ),
]
CorpusFolder = Annotated[
    Path | None, option(..., "The corpus. Default: the folder corpus beside --out.")
]
PolicyFolder = Annotated[Path, argument("Folder of the policy.", "POLICY")]
Families = Annotated[str | None, option(..., "Families of problems to train on, or all.", "NAMES")]
Unseen = Annotated[str | None, option(..., "Families that are never trained on.", "NAMES")]
PerFamily = Annotated[
    int, option(..., "Problems of each family, at most 6 of an unseen one.", min=1)
]
Text = Annotated[
    list[Path] | None, option(..., "Pretraining text to replay; may be repeated.", "PATH")
]
Dataset = Annotated[
    list[str] | None,
    option(..., "Hugging Face dataset whose text to replay; may be repeated.", "NAME[:COLUMN]"),
]
Minutes = Annotated[float | None, option(..., "Stop after this time.", "NUMBER")]
Command = Callable[..., None]


def with_config(names: str, **defaults: object) -> Callable[[Command], Command]:
    """Give a command an option for each of these settings, in place of its parameter `config`.

    `defaults` replace the settings' own. A target's kernels are in Triton, and nothing is timed.
    """

    def decorate(command: Command) -> Command:
        own = [settings()[name] for name in names.split()]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {one.name: values.pop(one.name) for one in own}
            if "rival" in given and given["rival"] is None:
                given["rival"] = not given["target"]
            if "rival" in given:
                given["rival"] = "compile" if given["rival"] else "eager"
            if given.get("target"):
                given["language"] = "triton"
            command(**values, config=LearnConfig(**given))

        found: list[inspect.Parameter] = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            if one.name == "config":
                found += [_option(setting, defaults) for setting in own]
            else:
                found.append(one)
        run.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in found}
        return run

    return decorate


def _option(setting: LearnSetting, defaults: dict[str, object]) -> inspect.Parameter:
    """Return the parameter that typer reads a setting's option from."""
    default = defaults.get(setting.name, setting.default)
    kind: Any = type(setting.default)
    flag, more = "", dict[str, Any]()
    if setting.name == "rival":
        flag, kind, default = "--against-compile/--against-eager", bool | None, None
    elif setting.choices:
        more = {"metavar": "|".join(setting.choices)}
    elif setting.name == "replay":
        parser = functools.partial(parse_share, what="replay", below=0.9)
        more, default = {"parser": parser}, f"{default:.0%}"
    elif kind is float:
        more = {"metavar": "NUMBER"}
    words = setting.meta.description or ""
    if setting.rule and not setting.choices:
        words = f"{words.removesuffix('.')} ({setting.rule})."
    more |= setting.meta.extra or {}
    annotation = Annotated[kind, option(..., words, flag=flag, **more)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(setting.name, keyword, default=default, annotation=annotation)


MAKES_MODEL = ("pretrain", "base")  # Stages that begin with a new model, unless one is named
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
    from ratchet.base.files import make_folder
    from ratchet.write.learn.corpus import read_corpus

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
    from ratchet.write.learn.show import StageProgress, refresh_page

    size = f"size {config.size}" if start is None else _size(read_card(start).parameters)
    rows: list[dict[str, float | str]] = []
    steps = config.steps * (config.soup if name == "sft" else 1)
    progress = StageProgress(f"{name} ({size})", steps)

    def follow(stage: str, row: dict[str, float | str]) -> None:
        rows.append(row)
        if progress.show(row):
            refresh_page(_report(stage, config, rows, running=True), out)

    return follow


def _report(
    stage: str,
    config: LearnConfig,
    rows: list[dict[str, float | str]],
    *,
    running: bool,
    parameters: int | None = None,
) -> LearnReport:
    from ratchet.write.learn.show import LearnReport

    return LearnReport(
        title=f"learn {stage}",
        command=cli.command_line(),
        running=running,
        config=config.rows(makes_model=stage in MAKES_MODEL),
        curves={stage: rows},
        figures=[] if parameters is None else [("model", _size(parameters))],
    )


def _size(parameters: int) -> str:
    return f"{parameters:,} parameters"


def _finish(done: StageResult, config: LearnConfig, out: Path, as_json: bool) -> None:
    from ratchet.write.learn.show import write_report
    from ratchet.write.learn.training import read_curve

    card, trained = done.policy.card, done.trained
    rows = read_curve(out)
    report = _report(card.stage, config, rows, running=False, parameters=card.parameters)
    paths = write_report(report, out)
    if as_json:
        from dataclasses import asdict

        return cli.print_json(
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
    from ratchet.write.learn.bench import open_bench
    from ratchet.write.learn.rollouts import open_rollouts
    from ratchet.write.writing_result import parse_fleet

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


OUT = Path("ratchet-learn")

commands = group(
    "learn", "Train an author on the judge's verdicts: corpus, pretrain, sft, grpo, eval, loop."
)


@commands.command()
@with_config("answers language seed")
def corpus(
    *,
    out: CorpusOut = OUT / "corpus",
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 6,
    text: Text = None,
    dataset: Dataset = None,
    config: LearnConfig,
    draws: int = option(24, "Triples to draw for each problem.", min=0),
    device: str = option("cpu", "Device whose verdicts count.", "NAME"),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Collect what to learn from: the ledger's kernels, the generator's triples, and text."""
    train, held = _split(families, unseen, per_family, config.seed)
    from ratchet.base.files import make_folder

    make_folder(out, "--out")

    from ratchet.write.learn.corpus import build_corpus, check_texts, write_corpus

    check_texts(text or ())
    from ratchet.base.devices.probe import probe
    from ratchet.base.ledger.store import Ledger
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
        return cli.print_json({"folder": str(out), **document_of(found.card)})
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
    as_json: cli.AsJson = False,
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
    start: Path = argument("Folder of the base model.", "POLICY"),
    *,
    out: Out = OUT / "sft",
    corpus: CorpusFolder = None,
    config: LearnConfig,
    minutes: Minutes = None,
    as_json: cli.AsJson = False,
) -> None:
    """Teach a model the corpus's answers, and replay pretraining text meanwhile."""
    run_stage("sft", config, out, corpus=corpus, minutes=minutes, as_json=as_json, start=start)


@commands.command()
@with_config(
    "lora steps problems group rate turns discount repeats rival target kl context replay "
    "max_forgetting on_forgetting rollouts rollout_memory device seed",
    steps=50,
    rate=3e-4,
)
def grpo(
    start: PolicyFolder,
    *,
    base: Path | None = option(None, "Folder of the base model; default: POLICY."),
    out: Out = OUT / "grpo",
    corpus: CorpusFolder = None,
    config: LearnConfig,
    minutes: Minutes = None,
    fleet: cli.Fleet = "local",
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
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
    answers: int = option(6, "Answers to each problem.", min=1),
    random: bool = option(False, "Also judge random schedules."),
    config: LearnConfig,
    fleet: cli.Fleet = "local",
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
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
            return cli.print_json(found)
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
    "discount repeats rival target replay max_forgetting rollouts rollout_memory device "
    "seed",
    steps=100, soup=4, rate=2e-3, problems=4, group=4, kl=0.3, replay=0.1,
)  # fmt: skip
def loop(
    *,
    rounds: int = option(3, "Rounds after the first policy."),
    budget: str = option("60m", "Time for everything.", "TIME"),
    out: Out = OUT,
    families: Families = None,
    unseen: Unseen = None,
    per_family: PerFamily = 16,
    text: Text = None,
    dataset: Dataset = None,
    config: LearnConfig,
    fleet: cli.Fleet = "local",
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Train, judge and train again; a policy is kept only if it is better and forgot little."""
    from ratchet.write.writing_result import parse_budget_s, parse_fleet

    check_range(1 <= rounds <= 1000, "rounds", rounds, "1 to 1000")
    budget_s = parse_budget_s(budget)
    machines = parse_fleet(fleet)
    train, held = _split(families, unseen, per_family, config.seed)
    from ratchet.base.files import make_folder
    from ratchet.write.learn.show import refresh_page, write_report

    make_folder(out, "--out")
    from ratchet.write.learn.corpus import check_texts

    check_texts(text or ())
    from ratchet.base.show.terminal import BudgetLine
    from ratchet.judge.court.court import check_ledger, open_court
    from ratchet.write.learn.loop import Loop
    from ratchet.write.learn.show import learn_report

    check_ledger(machines, ledger)
    with open_court(ledger, machines) as court, BudgetLine(budget_s) as progress:

        def follow(report: LearnReport, words: str) -> None:
            progress.spend(words)
            refresh_page(report, out)

        loop = Loop(
            config=config,
            court=court,
            out=out,
            show=follow,
            rounds=rounds,
            budget_s=budget_s,
            train=train,
            unseen=held,
            texts=tuple(text or ()),
            datasets=tuple(dataset or ()),
            command=cli.command_line(),
        )
        result = loop.run()
    paths = write_report(result, out)
    cli.show(
        as_json,
        lambda: document_of(result) | {"paths": paths},
        lambda: learn_report(result, paths),
    )


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
