"""`ratchet judge`: judge one kernel, or a suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ratchet.base.errors import RatchetError
from ratchet.base.serialise import document_of
from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import OutFolder

if TYPE_CHECKING:
    from ratchet.judge.court.court import Court
    from ratchet.judge.court.suite import Suite, SuiteRow
    from ratchet.judge.terms import JudgedKernel, Terms


def list_problems(pattern: str | None, *, as_json: bool) -> None:
    """Print the suite's problems whose names match `pattern`, or all of them."""
    from ratchet.judge.problems.suites import family_of, find_problem, names_like

    families = {name: family_of(name) for name in names_like(pattern or "*")}

    from ratchet.base.show.model import records
    from ratchet.judge.problems.templates import problem_table, problems_report

    table = problem_table((find_problem(name), family) for name, family in families.items())
    cli.show(as_json, lambda: {"problems": records(table)}, lambda: problems_report(table))


def show_problem(problem: str | None, language: str | None, terms: Terms, *, as_json: bool) -> None:
    """Print one problem for a kernel's author, or a file to start from."""
    from ratchet.judge.problems.problem_file import load_card, problem_name
    from ratchet.judge.problems.templates import parse_language, template

    if problem is None:
        raise RatchetError("--show needs a PROBLEM: ratchet judge --list prints their names")
    spoken = None if language is None else parse_language(language)
    problem_name(problem)

    from ratchet.base.show.terminal import make_console, verbatim
    from ratchet.judge.problems.templates import card_report, standalone_reference

    asked, card = load_card(problem, scale=terms.scale, time_limit_s=terms.time_limit_s)
    text = None if spoken is None else template(asked, card, spoken)
    reference = standalone_reference(asked) or asked.text
    if as_json:
        cli.print_json(document_of(card) | {"reference": reference, "template": text})
    elif text is not None:
        verbatim(make_console(), [text.rstrip()])
    else:
        cli.print_result(card_report(card, reference))


PROVEN, NOT_PROVEN, INTERRUPTED = 0, 1, 130
LIMIT, COMPILING_LIMIT = "60s", "5m"
JUDGING = (
    "suite kernelbench level candidate entry tier scale time_limit against_compile own device "
    "target profile frozen_weights fresh out"
)
"""Options that neither `--list` nor `--show` takes; the latter takes two of them."""


@app.command()
def judge(
    context: typer.Context,
    problem: str | None = argument(cli.PROBLEM_HELP, default=None),
    kernels: list[Path] | None = argument(
        "The kernel's file: .cpp or .py (torch or Triton); with --target also .hip. "
        "Several are judged one after another, by the same processes.",
        "[KERNEL]...",
        default=None,
        readable=False,  # the judge says why a file cannot be read
    ),
    listed: bool = option(
        False,
        "List the shipped problems. PROBLEM is then a pattern: --list 'softmax*'.",
        flag="--list",
    ),
    shown: bool = option(
        False,
        "Print PROBLEM's signature, cases, tolerance and reference, then stop.",
        flag="--show",
    ),
    language: str | None = option(
        None,
        "With --show: print a file to start a kernel from.",
        "cpp|triton|torch",
        flag="--template",
    ),
    suite: str | None = option(None, "Judge every problem of a shipped suite: training.", "NAME"),
    kernelbench: Path | None = option(None, "Judge one level of a KernelBench clone.", "DIR"),
    level: int = option(1, "Level of --kernelbench.", min=1),
    candidate: str | None = option(
        None,
        "Kernels to judge in a suite: library (default), eager, torch.compile (default "
        "for KernelBench), or a folder of kernels named after their problems.",
        "NAME|DIR",
    ),
    entry: cli.EntryName = None,
    tier: str | None = option(
        None,
        "Sizes to judge with: ci, cpu or gpu. Default: cpu, or the tier that PROBLEM has.",
        "TIER",
    ),
    scale: cli.ScaleFactor = "auto",
    time_limit: str | None = option(
        None,
        "Limit for each verdict, with reading its problem: 30s, 5m. Default: 60s, or 5m "
        "if torch.compile is the candidate.",
        "TIME",
    ),
    against_compile: bool | None = option(
        None,
        "Also time torch.compile of the reference. Default: in a suite, unless "
        "torch.compile is the candidate.",
        flag="--against-compile/--eager-only",
    ),
    own: bool | None = option(
        None,
        "Require that PROBLEM's work runs in the kernel's own code, or allow libraries. "
        "Default: as the problem says; any for KernelBench's form.",
        flag="--own/--any",
    ),
    device: cli.DeviceName = "auto",
    target: str | None = option(
        None,
        "Judge a KERNEL in Triton, HIP or CUDA by the machine code of an AMD GPU such as "
        "gfx942, emulated on the CPU: correct at best, never timed.",
        "GFX",
    ),
    profile: bool = option(
        False,
        "Also compile a kernel in Triton or HIP for AMD GPUs: registers, spills, "
        "occupancy. With --target, also compare its bound with torch.compile's kernels.",
    ),
    frozen_weights: bool = option(
        False,
        "For KernelBench's form: keep the weights that the constructor draws under one "
        "seed, so that a kernel for inference may fold them.",
    ),
    fresh: bool = option(False, "Judge a suite's or an emulated kernel again; ignore the ledger."),
    out: Path = option(
        Path("ratchet-out"), "Folder for JSON files and pages.", "FOLDER", parser=OutFolder()
    ),
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Decide whether a kernel is right and faster, and show the evidence.

    Exit code 0: every KERNEL is proven, or every judged kernel of a suite is right.
    1: any other verdict. 2: a mistake in the call.
    """
    from ratchet.judge.api import check_texts
    from ratchet.judge.problems.suites import check_suite
    from ratchet.judge.terms import Terms

    who = candidate or ("torch.compile" if kernelbench is not None else "library")
    compiles = problem is None and who != "torch.compile"
    terms = Terms.of(
        entry=entry,
        tier=tier,
        scale=scale,
        task=None if own is None else "own" if own else "any",
        time_limit_s=time_limit or (COMPILING_LIMIT if who == "torch.compile" else LIMIT),
        against_compile=compiles if against_compile is None else against_compile,
        device=device,
        target=target,
        frozen_weights=frozen_weights,
        profile=profile,
    )
    if language is not None and not shown:
        raise RatchetError("--template needs --show PROBLEM: add it, or leave --template out")
    if listed or shown:
        if kernels or (listed and shown):
            raise RatchetError("--list and --show take no KERNEL and exclude each other: give one")
        cli.refuse(context, JUDGING if listed else JUDGING.replace("scale time_limit", ""), "here")
        if listed:
            return list_problems(problem, as_json=as_json)
        return show_problem(problem, language, terms, as_json=as_json)
    given = kernels or []
    _check_form(problem, given, suite, kernelbench)
    if target is not None and problem is None:
        raise RatchetError("--target is for one PROBLEM KERNEL: leave it out with a suite")
    if problem is not None and candidate is not None:
        raise RatchetError("--candidate is for a suite: leave it out with PROBLEM KERNEL")
    if problem is None and own is not None:
        raise RatchetError("--own and --any are for one PROBLEM: leave them out with a suite")
    cli.refuse(context, "level" if kernelbench is None else "tier", "for what is judged here")
    if problem is None:
        cli.refuse(context, "entry", "in a suite")
    if suite is not None:
        cli.refuse(context, "scale", "in this suite")
        if frozen_weights:
            raise RatchetError("--frozen-weights is for KernelBench's form: leave it out here")
        check_suite(suite)
    read = [
        check_texts(problem, one, entry=entry, run_here=target is None)
        for one in given
        if problem is not None
    ]

    # numpy, the ledger and torch are imported from here on: mistakes in the call are answered.
    from ratchet.judge.court.calls import judge_named
    from ratchet.judge.court.court import Court
    from ratchet.judge.court.show_suite import check_out
    from ratchet.judge.court.suite import kernelbench_suite, training_suite
    from ratchet.judge.trial.kernel_trial import check_kernels

    check_out(out)
    if problem is not None:
        with Court(ledger) as court:
            judged = (
                judge_named(
                    court,
                    one,
                    problem,
                    terms,
                    read=text,
                    warn=lambda expected_s: _say_what_will_not_fit(expected_s, terms.time_limit_s),
                    fresh=fresh,
                )
                for one, text in zip(given, read, strict=True)
            )
            code = _report(judged, len(given), out, as_json)
        raise typer.Exit(code)
    check_kernels()
    if kernelbench is not None:
        questions = kernelbench_suite(kernelbench, terms, level=level, candidate=who)
    else:
        assert suite is not None
        questions = training_suite(suite, tier=terms.tier or "cpu", candidate=who)
    with Court(ledger) as court:
        code = _judge_suite(questions, court, terms, fresh, out, as_json)
    raise typer.Exit(code)


def _say_what_will_not_fit(expected_s: float, limit_s: float) -> None:
    typer.echo(
        f"ratchet: a whole verdict takes some {expected_s:.0f} s here: with --time-limit "
        f"{limit_s:.3g}s a right kernel may not be timed, or not every output checked",
        err=True,
    )


def _check_form(
    problem: str | None, kernels: list[Path], suite: str | None, kernelbench: Path | None
) -> None:
    """Require exactly one of PROBLEM KERNEL, --suite and --kernelbench."""
    given = [problem is not None, suite is not None, kernelbench is not None]
    if sum(given) != 1:
        raise RatchetError(
            "judge takes one of PROBLEM KERNEL, --suite NAME and --kernelbench DIR: "
            f"{sum(given)} were given"
        )
    if problem is not None and not kernels:
        raise RatchetError(f"no KERNEL given for problem {problem!r}: give the kernel's file")


def _report(judged: Iterable[JudgedKernel], count: int, out: Path, as_json: bool) -> int:
    """Show each verdict as it comes; several are one JSON object's `verdicts`."""
    from ratchet.judge.court.show import verdict_report
    from ratchet.judge.court.show_suite import write_verdict

    documents: list[dict[str, object]] = []
    code = PROVEN
    for one in judged:
        paths = write_verdict(one, out)
        if one.verdict.status != "proven":
            code = NOT_PROVEN
        if not as_json:
            cli.print_result(verdict_report(one, paths))
            continue
        documents.append(
            document_of(one.verdict)
            | {
                "kernel": one.kernel.name,
                "problem": one.problem.name,
                "judged_at": one.judged_at,
                "recalled": one.recalled,
                "paths": paths,
            }
        )
    if as_json:
        cli.print_json({"verdicts": documents} if count > 1 else documents[0])
    return code


def _judge_suite(
    suite: Suite, court: Court, terms: Terms, fresh: bool, out: Path, as_json: bool
) -> int:
    from ratchet.judge.court.show_suite import (
        SuiteProgress,
        suite_report,
        write_suite,
        write_verdict,
    )
    from ratchet.judge.court.suite import SuiteRun, all_right

    pages: dict[str, str] = {}
    run = SuiteRun(suite=suite, court=court, terms=terms, fresh=fresh)
    with SuiteProgress(len(suite.questions)) as progress:

        def keep(row: SuiteRow, judged: JudgedKernel | None) -> None:
            if judged is not None:
                pages[row.name] = write_verdict(judged, out)["page"]
            progress.show(row)

        with contextlib.suppress(KeyboardInterrupt):  # the table shows the verdicts so far
            run.run(keep)
    result = run.result()
    paths = write_suite(result, pages, out)
    cli.show(
        as_json,
        lambda: document_of(result) | {"paths": paths},
        lambda: suite_report(result, paths=paths),
    )
    if result.interrupted:
        return INTERRUPTED
    return PROVEN if all_right(result.rows) else NOT_PROVEN
