"""Nothing gets slower or wrong: `ratchet compare`, `repro`, `bisect`, `watch` and `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from ratchet.base.errors import GuardError
from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import FINDING, NUMERICS, OutEither, OutFolder, Output, Values

if TYPE_CHECKING:
    from ratchet.guard.compare.request import CompareRequest


from ratchet.cli.app import AsJson, DeviceName, LedgerUrl, listed, print_error, show
from ratchet.cli.outputs import COMMENT, JUNIT, ROWS, OutFile, Page

USAGE = "[OPTIONS] A [B] | -- 'COMMAND A' 'COMMAND B' | --rev-a REV -- COMMAND..."


def _numerics_out(values: Values) -> Output:
    """Return what --numerics writes; without it the command writes nothing."""
    return OutFolder(names=("*",), signs=(NUMERICS,)) if values["numerics"] else Output()


@app.command(cls=cli.after_dashes(USAGE))
def compare(
    context: typer.Context,
    workloads: list[str] | None = argument(
        "One workload in two modes, or two workloads.", "[A] [B]", default=None
    ),
    a: str = option("", "Mode of A: eager, compile, bf16, cuda, ...", "MODE"),
    b: str = option("", "Mode of B, or a recipe's .json file.", "MODE"),
    rev_a: str | None = option(None, "Git revision of A.", "REV"),
    rev_b: str | None = option(None, "Git revision of B. Default: your files as they are.", "REV"),
    python_a: str | None = option(None, "Interpreter or environment of A.", "PATH"),
    python_b: str | None = option(None, "Interpreter or environment of B.", "PATH"),
    setup: str | None = option(None, "Command to run once in each revision, untimed.", "COMMAND"),
    printed: bool = option(False, "Compare the numbers on the command's last line of output."),
    higher: list[str] | None = option(None, "This printed metric is better if higher.", "NAME"),
    fail_if_slower: str = option("0%", "Regression budget, such as 2%.", "PERCENT"),
    budget: str = option("5m", "Time limit: 90s, 5m, 2h."),
    instructions: bool = option(False, "Also count instructions, with valgrind's callgrind."),
    numerics: bool = option(
        False, "Find the first module and op whose numbers differ; time nothing."
    ),
    out: Path = option(
        Path("ratchet-numerics"),
        "Folder for --numerics' script.",
        "FOLDER",
        parser=OutEither(choose=_numerics_out),
    ),
    step: cli.StepOptions = cli.StepOptions(),
    seed: int = cli.seed_option("Seed of the weights and of the order."),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Compare two ways of running something, in adjacent pairs, until the answer is clear.

    Exit codes: 0 not slower, 1 slower, 3 undecided, 2 a mistake in the call. With --numerics: 0 no
    divergence, 1 a divergence.
    """
    from ratchet.guard.compare.request import CompareRequest, make_sides  # numpy

    request = CompareRequest(
        workloads=tuple(workloads or ()),
        command=None if (words := context.meta[cli.COMMAND]) is None else tuple(words),
        modes=(a, b),
        revisions=(rev_a, rev_b),
        pythons=(python_a, python_b),
        setup=setup,
        printed=printed,
        higher=tuple(higher or ()),
        fail_if_slower=fail_if_slower,
        budget=budget,
        instructions=instructions,
        **vars(step),
        seed=seed,
        folder=Path.cwd(),
    )
    _ = request.allowed, request.budget_s  # mistakes in them are answered before any work
    from ratchet.base.show.terminal import BudgetLine

    if request.command is not None:
        cli.refuse(context, cli.STEP, "for a command")
    cli.refuse(
        context,
        "budget printed higher fail_if_slower instructions" if numerics else "out",
        f"{'with' if numerics else 'without'} --numerics",
    )
    if numerics:
        _numerics(request, out, ledger, as_json)
    with BudgetLine(request.budget_s) as progress:
        progress.spend("preparing both sides")
        with make_sides(request) as sides:
            # numpy is imported from here on: mistakes in the call are already answered.
            from ratchet.guard.compare import compare_sides, comparison_report

            outcome = compare_sides(request, sides, ledger=ledger, on_progress=progress.spend)
    cli.show(as_json, outcome.as_json, lambda: comparison_report(outcome), outcome.warnings)
    raise typer.Exit(outcome.exit_code)


def _numerics(request: CompareRequest, out: Path, ledger: str | None, as_json: bool) -> NoReturn:
    """Compare numerics, and exit."""
    if request.command is not None:
        raise GuardError("--numerics compares two workloads, or one in two modes: give A and B")
    from rich.progress import SpinnerColumn

    from ratchet.base.show.terminal import MovingLine
    from ratchet.guard.compare.request import make_sides
    from ratchet.guard.numerics.comparison import compare_numerics, numerics_report

    with MovingLine("starting", 1, SpinnerColumn()) as line, make_sides(request) as sides:
        asked = request.kept()
        report = compare_numerics(
            sides.a, sides.b, out, asked=asked, ledger=ledger, on_progress=line.move
        )
    cli.show(as_json, report.as_json, lambda: numerics_report(report), report.warnings)
    raise typer.Exit(report.exit_code)


def _repro_folder(identity: str) -> Path:
    """Return where a finding's files go without `--out`."""
    return Path("ratchet-repro") / Path(identity).name


@app.command()
def repro(
    identity: str = argument("The start of a comparison's identity, or of a kernel's hash.", "ID"),
    out: Path | None = option(
        None,
        "Folder to write to. Default: ratchet-repro/ID.",
        "FOLDER",
        parser=OutFolder(
            names=("*",),
            signs=(FINDING,),
            default=lambda values: _repro_folder(values["identity"]),
        ),
    ),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Write a script that shows a finding, with its environment and an issue in Markdown.

    A finding is a comparison, a divergence of numerics, or a verdict on a kernel.
    """
    from ratchet.guard.repro import repro as write

    made = write(identity, out or _repro_folder(identity), ledger=ledger)
    if as_json:
        cli.print_json(made)
        return
    print(made.title)
    for name in made.files:
        print(f"wrote: {Path(made.folder) / name}")
    for need in made.needs:
        print(f"needs: {need}")


@app.command(cls=cli.after_dashes("[OPTIONS] GOOD BAD -- COMMAND..."))
def bisect(
    context: typer.Context,
    good: str = argument("A revision before the change.", "GOOD"),
    bad: str = argument("A later revision, after it.", "BAD"),
    metric: str = option(
        "",
        "What COMMAND prints that counts: a regular expression around a number, or "
        "last-number. Default: COMMAND is timed whole.",
        "REGEX",
    ),
    build: str = option("", "Shell command that builds a checkout, once each.", "CMD"),
    max_pairs: int = option(400, "Pairs in the search at most.", min=1),
    at_least: str = option("0.5%", "Smaller differences do not count.", "SHARE"),
    time_limit: float = option(600.0, "For one run of COMMAND.", "SECONDS", min=0.1),
    repository: Path = option(Path("."), "The git repository. Default: here.", "FOLDER"),
    state: Path | None = option(
        None, "For checkouts and pairs. Default: your cache.", "FOLDER", parser=OutFolder()
    ),
    fresh: bool = option(False, "Forget what an unfinished run has measured."),
    keep: bool = option(False, "Keep checkouts and pairs."),
    seed: int = cli.seed_option("Of the order within pairs."),
    as_json: cli.AsJson = False,
) -> None:
    """Find the commit that changed how fast COMMAND is, with noisy measurements.

    COMMAND runs in checkouts and environments of their own; your working tree is not touched. The
    same call continues a killed run.

    Exit code 0: found. 1: narrowed to several commits. 3: GOOD and BAD do not differ clearly.
    2: a commit ran other code than its own, or a mistake in the call.
    """
    from ratchet.base.errors import RepositoryError
    from ratchet.base.show.words import parse_share
    from ratchet.guard.bisect import commit_range
    from ratchet.guard.command import MeasuredCommand

    words = context.meta[cli.COMMAND]
    if not words:
        raise RepositoryError("no COMMAND: write ratchet bisect GOOD BAD -- COMMAND")
    least = parse_share(at_least, "--at-least")
    command = MeasuredCommand(words=tuple(words), metric=metric, time_limit_s=time_limit)
    command.check()
    commits = commit_range(repository, good, bad)

    import shutil

    from ratchet.base.files import cache_folder
    from ratchet.guard.bisect import (
        BisectOptions,
        PairProgress,
        bisect_commits,
        bisect_report,
        state_folder,
    )

    options = BisectOptions(
        command=command, build=build, most_pairs=max_pairs, at_least=least, seed=seed
    )
    cache = cache_folder("bisect") if state is None else state
    place = state_folder(cache.absolute(), commits, options)
    if fresh:
        shutil.rmtree(place, ignore_errors=True)
    with PairProgress(len(commits.after)) as progress:
        result = bisect_commits(
            repository,
            commits,
            options,
            place=place,
            on_pair=progress.measured,
            on_work=progress.working,
        )
    if not keep:
        shutil.rmtree(place, ignore_errors=True)
    cli.show(as_json, lambda: result, lambda: bisect_report(result))
    raise typer.Exit({"found": 0, "narrowed": 1, "not reproduced": 3}[result.answer])


@app.command()
def watch(
    base: str = option(
        "", "Base branch or commit; the head is compared with where it parted from it.", "REVISION"
    ),
    against: Path | None = option(
        None, "Compare with a history instead: CSV, JSON or an asv folder.", "FILE"
    ),
    suite: Path | None = option(
        None, "What to run. Default: ratchet-watch.toml here, else a smoke workload.", "FILE.toml"
    ),
    pairs: int | None = option(None, "Pairs per benchmark, instead of the suite's.", min=3),
    budget: str = option("", "Start no pair after this: 90s, 10m.", "DURATION"),
    advisory: bool = option(False, "Report, and exit with 0 whatever was found."),
    markdown: Path | None = option(
        None, "Write a comment for a pull request.", "FILE.md", parser=OutFile(signs=(COMMENT,))
    ),
    junit: Path | None = option(
        None, "Write JUnit XML.", "FILE.xml", parser=OutFile(signs=(JUNIT,))
    ),
    out: Page = None,
    record: bool = option(False, "Store the head's results in the ledger."),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run a suite of benchmarks at the head and at the base, and say what got slower.

    Exit code 0: nothing is slower than allowed. 1: something is, or a benchmark failed. 2: a side
    ran other code than its commit's, or a mistake in the call.
    """
    from ratchet.base import files
    from ratchet.base.errors import RatchetError, WatchError
    from ratchet.guard.watch.suite import read_suite

    here = Path.cwd()
    if bool(base) == (against is not None):
        raise WatchError("give --base REVISION or --against FILE, one of them")
    asked = read_suite(suite, here)

    from ratchet.base.show.terminal import RunProgress
    from ratchet.guard.watch import junit_xml, markdown_comment, run_gate, watch_report
    from ratchet.guard.watch.suite import GateLimits
    from ratchet.train.turn.settings import parse_budget_s

    limits = GateLimits(pairs=pairs, time_s=parse_budget_s(budget) if budget else float("inf"))
    try:
        with RunProgress({one.name: asked.pairs_of(one, pairs) for one in asked.benchmark}) as line:
            report = run_gate(
                here,
                asked,
                limits,
                line.ran,
                base=base,
                against=against,
                advisory=advisory,
                record=record,
                ledger=ledger,
            )
    except RatchetError as error:
        if not advisory:
            raise
        typer.echo(f"ratchet: {error} (advisory: exit code 0)", err=True)
        if as_json:
            print_error(str(error), 0)
        return
    if markdown is not None:
        files.write_whole(markdown, markdown_comment(report).encode())
    if junit is not None:
        files.write_whole(junit, junit_xml(report))
    if out is not None:
        from ratchet.base.show.page import render_page
        from ratchet.guard.watch import watch_page

        files.write_whole(out, render_page(watch_page(report)).encode())
    show(as_json, report.as_json, lambda: watch_report(report))
    raise typer.Exit(int(report.red))


TABLE = "table.md"


@app.command()
def sweep(
    library: str = argument("hf: transformers.", "LIBRARY"),
    types: str = option("", "Only these model types, even if they have a row.", "A,B"),
    sample: int | None = option(None, "Only N types, always the same.", "N", min=1),
    budget: str = option("", "Start no type after this: 90s, 30m, 2h.", "TIME"),
    limit: str = option("10m", "Time for one type with all its steps.", "TIME"),
    quick: bool = option(
        False,
        "Let Inductor call torch's own operators and generate no code: a quarter of the "
        "time. Graphs, kernels' call sites and gradients are tested as ever.",
    ),
    out: Path = option(
        Path("ratchet-sweep"),
        "Folder for rows, table and scripts.",
        "FOLDER",
        parser=OutFolder(names=("rows.jsonl", TABLE, "repro/*"), signs=(ROWS,)),
    ),
    device: DeviceName = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run one training step of every model type: as written, compiled and with kernels.

    Models are tiny, with random weights and no dropout; nothing is downloaded. Each type runs in
    a process of its own. Rows are kept as they come, and the same command continues.

    Exit code 0: at least 95 % of the types that train as written train with Ratchet, with equal
    losses. 1: fewer.
    """
    from ratchet.base.errors import GuardError
    from ratchet.train.turn.settings import parse_budget_s

    if library != "hf":
        raise GuardError(f"{library!r} is no library that can be swept: write ratchet sweep hf")
    budget_s = parse_budget_s(budget) if budget else float("inf")
    limit_s = parse_budget_s(limit)

    from ratchet.base.devices.probe import probe
    from ratchet.base.files import write_whole
    from ratchet.guard.sweep import ROWS as ROWS_FILE
    from ratchet.guard.sweep import SweepLine, SweepSettings, sweep_markdown, sweep_report
    from ratchet.guard.sweep import sweep as run

    settings = SweepSettings(
        out=out,
        types=listed(types),
        sample=sample,
        budget_s=budget_s,
        limit_s=limit_s,
        quick=quick,
        device=probe(device).kind,
    )
    with SweepLine() as progress:
        result = run(settings, progress.show)
    write_whole(out / TABLE, sweep_markdown(result).encode())
    written = [str(out / name) for name in (ROWS_FILE, TABLE)]
    show(
        as_json,
        lambda: result.as_json() | {"written": written},
        lambda: sweep_report(result, written),
    )
    if not result.passed:
        raise typer.Exit(1)
