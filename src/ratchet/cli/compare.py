"""`ratchet compare` times two sides in pairs; `ratchet repro` writes a finding as a script."""

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
