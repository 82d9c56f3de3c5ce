"""`ratchet write`: authors write kernels for one problem, or for a workload's own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ratchet.base.errors import RatchetError
from ratchet.base.files import make_folder
from ratchet.base.serialise import document_of
from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import PAGE, OutFolder, Values
from ratchet.train.workloads.names import LoadOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratchet.judge.problems.problem import Problem
    from ratchet.write.problem_run import RunEvent
    from ratchet.write.show import WriteProgress
    from ratchet.write.write import Follow
    from ratchet.write.writing_result import WritingRequest, WritingResult

PROVEN, NOT_PROVEN, INTERRUPTED = 0, 1, 130
BUDGET, WORKLOAD_BUDGET = "60s", "10m"
MEASURED_S, MEASURED_SHARE = 60.0, 0.1
"""Time for measuring what regions take now, and its share of the budget at most."""


def _folder_of(problem: str) -> Path:
    """Return the folder of a problem's files, by its name."""
    from ratchet.judge.problems.problem_file import problem_name
    from ratchet.write.show import default_out

    return default_out(problem_name(problem) or Path(problem).stem)


def _default_folder(values: Values) -> Path | None:
    """Return where a call without `--out` writes; None if it writes nothing."""
    from ratchet.write.show import default_out

    problem, workload = values["problem"], values["workload"]
    if problem is not None:
        return _folder_of(problem)
    return default_out(workload) if workload and not values["listed"] else None


@app.command()
def write(
    context: typer.Context,
    problem: str | None = argument(cli.PROBLEM_HELP, default=None),
    workload: str | None = option(
        None,
        "Write for all of a workload's own problems, the most promising first.",
        "WORKLOAD",
        flag="--from",
    ),
    listed: bool = option(
        False, "With --from: list the problems by what they may gain.", flag="--list"
    ),
    budget: str | None = option(
        None, "Time for everything: 60s (default), 10m (for --from).", "TIME"
    ),
    language: str | None = option(None, "Only kernels in this language.", "cpp|triton|torch|hip"),
    authors: str | None = option(
        None,
        "Who proposes: library, compiler, search, agent, policy:FOLDER. Default: all; "
        "the agent if it has a model, no policy.",
        "NAMES",
    ),
    model: str = option("", "Language model that the agent asks.", "NAME"),
    base_url: str = option("", "Its OpenAI-compatible endpoint. Key: OPENAI_API_KEY.", "URL"),
    strategy: str = option("beam", "The agent's strategy: beam or evolve.", "NAME"),
    samples: int = option(2, "Answers to ask for in each turn.", min=1),
    tokens: int | None = option(None, "Tokens that the agent may use, with its prompts.", min=1),
    replay: str = option("", "Replay the agent's answers of an earlier run.", "RUN"),
    resume: bool = option(False, "Continue a run that was killed or interrupted."),
    fresh: bool = option(False, "Search and judge again, whatever the ledger holds."),
    against_compile: bool = option(False, "Also time torch.compile in the verdict."),
    candidates: int | None = option(None, "Screen at most this many kernels.", min=1),
    step: cli.StepOptions = cli.StepOptions(),
    seed: int = cli.seed_option("Seed of the search."),
    out: Path | None = option(
        None,
        "Folder for the kernel, result.json and report.html.",
        "FOLDER",
        parser=OutFolder(
            names=("kernel.*", "kernel-not-proven.*", "result.json", "report.html"),
            signs=(PAGE,),
            default=_default_folder,
        ),
        show_default=False,
    ),
    target: str | None = option(
        None,
        "Write Triton for an AMD GPU that is not here, such as gfx942: its machine code "
        "is emulated, and its time estimated.",
        "GFX",
    ),
    fleet: cli.Fleet = "local",
    ledger: cli.LedgerUrl = None,
    as_json: cli.AsJson = False,
) -> None:
    """Write a faster kernel for a problem: authors propose, the judge decides.

    Exit code 0: a kernel is proven. 1: none is. 2: a mistake in the call.
    """
    from ratchet.write.writing_result import AgentChoice, make_request, parse_fleet

    if (problem is None) == (workload is None):
        raise RatchetError("write takes one of PROBLEM and --from WORKLOAD: give one")
    if listed and workload is None:
        raise RatchetError("--list shows a workload's problems: give --from WORKLOAD")
    request = make_request(
        budget=budget or (BUDGET if workload is None else WORKLOAD_BUDGET),
        language=language,
        authors=authors,
        agent=AgentChoice(
            model=model,
            base_url=base_url,
            strategy=strategy,
            samples=samples,
            tokens=tokens,
            replay=replay,
        ),
        device=step.device,
        target=target,
        seed=seed,
        resume=resume,
        fresh=fresh,
        against_compile=against_compile,
        candidates=candidates,
    )
    if workload is None:
        cli.refuse(context, cli.STEP.removesuffix(" device"), "without --from WORKLOAD")
    machines = parse_fleet(fleet)
    began = context.obj if isinstance(context.obj, float) else time.monotonic()
    if problem is not None:
        raise typer.Exit(_write_one(problem, request, out, ledger, machines, as_json, began))
    assert workload is not None
    raise typer.Exit(
        _write_all(
            workload,
            step.of(workload),
            request,
            out,
            ledger,
            machines,
            as_json,
            began,
            listed=listed,
        )
    )


def _write_one(
    given: str,
    request: WritingRequest,
    out: Path | None,
    ledger: str | None,
    fleet: str,
    as_json: bool,
    began: float,
) -> int:
    from ratchet.write.show import write_files

    folder = out or _folder_of(given)
    make_folder(folder, "--out")

    # numpy, the ledger and torch are imported from here on: mistakes in the call are answered.
    from ratchet.base.devices.probe import probe
    from ratchet.judge.api import as_problem
    from ratchet.judge.court.court import check_ledger, open_court
    from ratchet.judge.terms import Terms
    from ratchet.write.show import WriteProgress, write_report
    from ratchet.write.write import write as write_kernels

    check_ledger(fleet, ledger)
    problem = as_problem(
        given,
        Terms(time_limit_s=max(60.0, request.budget_s)),
        on_gpu=probe(request.judged_device).kind == "cuda",
    )
    opening = time.monotonic()
    with (
        open_court(ledger, fleet, device=request.device) as court,
        WriteProgress(request.budget_s) as progress,
    ):
        spent_s = _spent_s(began, opening, fleet)
        result = write_kernels(
            problem,
            request,
            court=court,
            follow=_following(folder, progress),
            command=cli.command_line(),
            spent_s=spent_s,
        )
    paths = write_files(result, folder)
    cli.show(
        as_json, lambda: result.to_json() | {"paths": paths}, lambda: write_report(result, paths)
    )
    if result.stopped == "interrupted":
        return INTERRUPTED
    return PROVEN if result.status == "proven" else NOT_PROVEN


def _write_all(
    workload: str,
    options: LoadOptions,
    request: WritingRequest,
    out: Path | None,
    ledger: str | None,
    fleet: str,
    as_json: bool,
    began: float,
    *,
    listed: bool,
) -> int:
    from ratchet.judge.court.court import check_ledger, open_court
    from ratchet.judge.trial.kernel_trial import check_kernels
    from ratchet.write.show import default_out, write_files, write_summary

    check_ledger(fleet, ledger)
    if fleet == "local" and not listed:
        check_kernels()  # before minutes are spent on what to write for
    from ratchet.base.show.terminal import working
    from ratchet.train.graph.regions.capture import region_report, regions_report
    from ratchet.train.workloads.load import load

    measuring_s = min(MEASURED_S, MEASURED_SHARE * request.budget_s)
    with working(f"taking the problems out of {workload}"):
        loaded = load(workload, **options)
        found = region_report(loaded, loaded.as_written(), measuring_s=measuring_s)
    if listed:
        regions = [one.as_json() for one in found.regions]
        cli.show(
            as_json,
            lambda: {"workload": workload, "regions": regions, "notes": found.notes},
            lambda: regions_report(workload, found.regions, found.notes),
        )
        return PROVEN
    folder = out or default_out(workload)
    make_folder(folder, "--out")
    from ratchet.write.show import WriteProgress, workload_report
    from ratchet.write.write import Asked, write_all

    asked = [
        Asked(problem=one.problem, gain_s=one.gain_s, likely_s=one.likely_s)
        for one in found.regions
    ]
    opening = time.monotonic()
    with (
        open_court(ledger, fleet, device=request.device) as court,
        WriteProgress(request.budget_s) as progress,
    ):

        def follow(problem: Problem) -> Follow:
            progress.begin(problem.name)
            make_folder(folder / default_out(problem.name).name, "--out")
            return _following(folder / default_out(problem.name).name, progress)

        def done(result: WritingResult) -> None:
            own = folder / default_out(result.problem).name
            write_files(result, own)

        spent_s = _spent_s(began, opening, fleet)
        result = write_all(
            workload,
            asked,
            request,
            court=court,
            follow=follow,
            done=done,
            command=cli.command_line(),
            spent_s=spent_s,
        )
    paths = write_summary(result, folder)
    cli.show(
        as_json,
        lambda: document_of(result) | {"paths": paths},
        lambda: workload_report(result, paths),
    )
    if result.interrupted:
        return INTERRUPTED
    return PROVEN if any(row.status == "proven" for row in result.rows) else NOT_PROVEN


def _spent_s(began: float, opening: float, fleet: str) -> float:
    """Return what the start took; finding a fleet's machines is not the budget's."""
    return (time.monotonic() if fleet == "local" else opening) - began


def _following(folder: Path, progress: WriteProgress) -> Follow:
    """Return what follows a run: a line on the terminal, and a page that is written again."""
    from ratchet.write.show import write_page

    def follow(event: RunEvent, result: Callable[[], WritingResult]) -> None:
        progress.show(event)
        if event.kind in ("screening", "screened", "judged"):
            write_page(result(), folder)

    return follow
