"""`ratchet port`, `inspect`, `tune` and `emulate`: AMD GPUs that need not be here."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli import app as cli
from ratchet.cli.app import app, argument, option
from ratchet.cli.outputs import JUNIT, PAGE, SARIF, TUNED, OutFile, OutFolder

LaunchTier = Annotated[
    str | None,
    option(
        ...,
        "Sizes to launch with: ci, cpu or gpu. Default: the largest that PROBLEM has.",
        "TIER",
    ),
]


@app.command()
def port(
    context: typer.Context,
    path: Path = argument("A repository, a folder or a file."),
    write: bool = option(False, "Change the files. Without it, only report."),
    force: bool = option(
        False, "Write even if git has no copy of the files, and over what Ratchet did not write."
    ),
    target: str = option(
        "",
        "GPUs to compile for, separated by commas; none compiles nothing. Default: all.",
        "NAMES",
    ),
    prove: bool = option(
        False,
        "Execute the ported kernels and programs on emulated GPUs (--target; default: "
        "gfx942), and compare the kernels with their problems.",
    ),
    problems: Path | None = option(
        None,
        "With --prove: problem files, named after the functions or after the kernels' "
        "files. Default: PATH/problems, and the shipped problems.",
        "FOLDER",
    ),
    time_limit: str = option("5m", "With --prove: limit for each kernel.", "TIME"),
    sarif: Path | None = option(
        None, "Write the findings as SARIF too.", "FILE", parser=OutFile(signs=(SARIF,))
    ),
    out: Path | None = option(
        None,
        "Write the patch, a page, JSON and the HIP code there.",
        "FOLDER",
        parser=OutFolder(
            names=("port.patch", "port.json", "report.html", "hip/**/*.hip"), signs=(PAGE,)
        ),
    ),
    as_json: cli.AsJson = False,
    ledger: cli.LedgerUrl = None,
) -> None:
    """Port CUDA and Triton code to ROCm: findings, a patch, and a compilation for AMD GPUs.

    Exit code 0: nothing is left to do. 1: findings are left, a file with kernels does not compile,
    an executed kernel is not right, or a program failed. 2: a mistake in the call.
    """
    from ratchet.amd.port.porting import PortSettings, write_outputs
    from ratchet.amd.port.porting import port as run
    from ratchet.amd.port.show import as_sarif, port_report, render_port_page
    from ratchet.base.files import write_whole
    from ratchet.base.show.terminal import working
    from ratchet.judge.kernels.kernel import TARGETS
    from ratchet.judge.terms import parse_time_limit_s

    names = cli.listed(target)
    named = names not in ((), ("none",))
    settings = PortSettings(
        write=write,
        force=force,
        targets=names if named else TARGETS,
        compiles=names != ("none",),
    )
    limit_s = parse_time_limit_s(time_limit)
    if not prove:
        cli.refuse(context, "problems time_limit", "without --prove")
    with working(f"reading {path}"):
        result = run(path, settings)
    if prove:
        from ratchet.amd.port.proofs import EXECUTED
        from ratchet.amd.port.proofs import prove as execute
        from ratchet.judge.court.court import open_court

        with open_court(ledger) as court:
            result = execute(
                result,
                court,
                targets=names if named else EXECUTED,
                problems=problems,
                time_limit_s=limit_s,
                say=lambda what: print(f"ratchet: executing {what}", file=sys.stderr),
            )
    if out is not None:
        result = write_outputs(result, out, render_port_page(result))
    if sarif is not None:
        write_whole(sarif, json.dumps(as_sarif(result), indent=2).encode())
    cli.show(as_json, result.as_json, lambda: port_report(result))
    if not result.is_done:
        raise typer.Exit(1)


COMPILED, NOT_COMPILED = 0, 1


@app.command()
def inspect(
    problem: str = argument(cli.PROBLEM_HELP),
    kernel: Path = argument("The kernel's file: .py (Triton) or .hip.", readable=False),
    target: str = option(
        "",
        "Targets, separated by commas, with a predicted time. Default: all AMD targets, without.",
        "NAMES",
    ),
    case: str | None = option(
        None, "Case whose launches to compile. Default: the largest timed one."
    ),
    entry: cli.EntryName = None,
    tier: LaunchTier = None,
    scale: cli.ScaleFactor = "1",
    as_json: cli.AsJson = False,
) -> None:
    """Compile a kernel for AMD GPUs without one: registers, spills, occupancy.

    Exit code 0: it compiled on every target. 1: a target failed, the
    kernel launches nothing, or the problem cannot be used.
    2: a mistake in the call.
    """
    from ratchet.amd.architectures import find_architectures
    from ratchet.judge.api import as_kernel, as_problem, check_texts
    from ratchet.judge.kernels.kernel import TARGETS
    from ratchet.judge.problems.problem_file import LOADING_LIMIT_S
    from ratchet.judge.terms import Terms

    terms = Terms.of(entry=entry, tier=tier, scale=scale, time_limit_s=LOADING_LIMIT_S)
    targets = cli.listed(target) or TARGETS
    find_architectures(targets)
    read = check_texts(problem, kernel, entry=entry)

    from ratchet.amd.profile import all_compiled, find_action, inspect_kernel, inspection_report

    if read is not None:
        find_action(read.language)
    asked = as_problem(problem, terms, on_gpu=True)
    found = inspect_kernel(
        as_kernel(kernel, asked, entry=entry), asked, targets, case=case, predicts=bool(target)
    )
    if as_json:
        cli.print_json(found)
    elif found["targets"]:
        cli.print_result(inspection_report(found))
    else:
        print(f"ratchet: {found['reason']}", file=sys.stderr)
    raise typer.Exit(COMPILED if all_compiled(found) else NOT_COMPILED)


@app.command()
def tune(
    kernel: Path = argument("The kernel's file, in Triton.", readable=False),
    problem: str = option(
        "",
        "What KERNEL answers, which sizes its launches: a problem's file in our form, or "
        "a shipped problem. Default: the shipped problem with the name of KERNEL's file.",
        "PROBLEM",
    ),
    target: str = option(
        "gfx942", "The GPU's code: gfx90a, gfx942, gfx950, gfx1100 or gfx1201.", "NAME"
    ),
    config: list[str] | None = option(
        None, "Values to try, instead of the autotuner's; several options make a grid.", "NAME=A,B"
    ),
    function: str | None = option(
        None, "Triton kernel of the file to tune.", "NAME", flag="--kernel"
    ),
    top: int = option(5, "Configurations of the shortlist.", min=1, max=100),
    case: str | None = option(None, "Case whose launches to size. Default: the largest timed one."),
    rows: str = option(
        "", "Order the configurations at each of these numbers of rows (M), as in 1,16,4096.", "M,M"
    ),
    entry: cli.EntryName = None,
    tier: LaunchTier = None,
    time_limit: str = option("5m", "Limit for the whole: 30s, 5m.", "TIME"),
    out: Path = option(
        Path("ratchet-tune"),
        "Folder for the shortlist as Python and as JSON.",
        "FOLDER",
        parser=OutFolder(
            names=("tuned.py", "tune.json", "vllm.json", "aiter.json"), signs=(TUNED,)
        ),
    ),
    as_json: cli.AsJson = False,
) -> None:
    """Order a Triton kernel's configurations by the lower bound on its time, without the GPU.

    Those that do not compile, spill or exceed the LDS are dropped. Nothing is timed: the shortlist
    is for a GPU to time.

    Exit code 0: there is a shortlist, at each size. 1: no configuration is left.
    2: a mistake in the call.
    """
    from ratchet.amd.profile import tuning
    from ratchet.base.show.terminal import working
    from ratchet.judge.api import as_kernel, as_problem, check_texts
    from ratchet.judge.terms import Terms, parse_time_limit_s

    terms = Terms.of(entry=entry, tier=tier, scale="1", time_limit_s=time_limit)
    tuning.check_target(target)
    grid, counts = tuning.read_grid(config or []), tuning.read_rows(rows)
    name = problem or kernel.stem
    check_texts(name, kernel, entry=entry)
    asked = as_problem(name, terms, on_gpu=True)
    with working("compiling and emulating"):
        found = tuning.tune(
            as_kernel(kernel, asked, entry=entry),
            asked,
            target,
            grid=grid,
            function=function,
            case=case,
            rows=counts,
            top=top,
            time_limit_s=parse_time_limit_s(time_limit),
            small=as_problem(name, replace(terms, tier=None, scale="emulated")),
        )
    found = tuning.write_outputs(found, out)
    cli.show(as_json, found.as_json, lambda: tuning.tune_report(found))
    raise typer.Exit(COMPILED if found.is_whole else NOT_COMPILED)


@app.command(cls=cli.after_dashes("[OPTIONS] -- COMMAND..."))
def emulate(
    context: typer.Context,
    target: str = option(
        "gfx942", "The GPU's code: gfx90a, gfx942, gfx950, gfx1100 or gfx1201.", "NAME"
    ),
    autotune: str = option(
        "first",
        "Configuration of autotuned kernels: first (the first that compiles) or bound "
        "(the one with the least bound; every configuration runs).",
        "HOW",
    ),
    junit: Path | None = option(
        None,
        "Also write JUnit's XML, a test case for each kernel.",
        "FILE",
        parser=OutFile(signs=(JUNIT,)),
    ),
    instructions: int = option(
        2_000_000_000, "Most wave instructions of one launch.", "N", min=1000, max=10**15
    ),
    as_json: cli.AsJson = False,
) -> None:
    """Run a program on an emulated AMD GPU: `-- pytest test_it.py`, `-- python it.py`, `-- it.cu`.

    The program needs no edits. A CUDA or HIP source with a main function is ported and compiled
    first: `-- main.cu kernels.cu ARGUMENTS`. A Triton program's `device="cuda"` tensors lie in main
    memory, its launches run as the GPU's machine code, and torch.cuda answers as the GPU would.
    Nothing is timed. The program is your own: it runs unconfined, as when you start it yourself.

    The exit code is the program's, or 1 if it hid a launch that failed.
    """
    from ratchet.amd.emulator.program import check_autotune
    from ratchet.amd.emulator.program import emulate as run
    from ratchet.amd.port.program import compile_program, sources_of

    command = context.meta[cli.COMMAND] or ()
    sources = sources_of(command)
    result = run(
        command[max(0, len(sources) - 1) :],
        target,
        program=compile_program(sources, target) if sources else None,
        autotune=check_autotune(autotune),
        limit=instructions,
        stdout=sys.stderr if as_json else None,
    )
    if junit is not None:
        from ratchet.base.files import write_whole

        write_whole(junit, result.as_junit())
    from ratchet.amd.emulator.program import emulate_report

    cli.show(as_json, result.as_json, lambda: emulate_report(result))
    raise typer.Exit(result.code)
