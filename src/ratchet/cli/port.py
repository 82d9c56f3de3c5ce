"""`ratchet port`: what stands between CUDA code and ROCm, and a patch for what can be rewritten."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.cli.app import AsJson, Debug, LedgerUrl, app, print_json, print_result

if TYPE_CHECKING:
    from ratchet.amd.port.porting import PortResult


@app.command()
def port(
    path: Annotated[Path, typer.Argument(help="A repository, a folder or a file.")],
    write: Annotated[
        bool, typer.Option("--write", help="Change the files. Without it, only report.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write even if git has no copy of the files.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="NAMES",
            help="GPUs to compile for, separated by commas; none compiles nothing. Default: all.",
        ),
    ] = "",
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Execute the ported kernels on emulated GPUs (--target; default: gfx942), and "
            "compare them with their problems.",
        ),
    ] = False,
    problems: Annotated[
        Path | None,
        typer.Option(
            "--problems",
            metavar="FOLDER",
            help="With --prove: problem files, named after the functions or after the kernels' "
            "files. Default: PATH/problems, and the shipped problems.",
        ),
    ] = None,
    time_limit: Annotated[
        str,
        typer.Option("--time-limit", metavar="TIME", help="With --prove: limit for each kernel."),
    ] = "5m",
    sarif: Annotated[
        Path | None,
        typer.Option("--sarif", metavar="FILE", help="Write the findings as SARIF too."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Write the patch, a page, JSON and the HIP code there."
        ),
    ] = None,
    as_json: AsJson = False,
    ledger: LedgerUrl = None,
    debug: Debug = False,
) -> None:
    """Port CUDA and Triton code to ROCm: findings, a patch, and a compilation for AMD GPUs.

    Exit code 0: nothing is left to do. 1: findings are left, or an executed kernel is not right.
    2: a mistake in the call.
    """
    from ratchet.amd.architectures import TARGETS
    from ratchet.amd.port.porting import PortSettings, write_outputs
    from ratchet.amd.port.porting import port as run
    from ratchet.amd.port.show import as_sarif, port_report, render_port_page
    from ratchet.base.errors import PortError
    from ratchet.base.files import check_new_file, check_new_folder, write_whole
    from ratchet.base.show.terminal import working
    from ratchet.judge.terms import parse_time_limit_s

    names = [name.strip() for name in target.split(",") if name.strip()]
    settings = PortSettings(
        write=write,
        force=force,
        targets=TARGETS if names in ([], ["none"]) else tuple(names),
        compiles=names != ["none"],
    )
    limit_s = parse_time_limit_s(time_limit)
    if problems is not None and not prove:
        raise PortError("--problems is for --prove: add it")
    check_new_file(sarif, "--sarif")
    if out is not None:
        check_new_folder(out)
    with working(f"reading {path}"):
        result = run(path, settings)
    if prove:
        executed = settings.targets if names not in ([], ["none"]) else ()
        result = _proved(result, executed, problems, limit_s, ledger)
    if out is not None:
        result = write_outputs(result, out, render_port_page(result))
    if sarif is not None:
        write_whole(sarif, json.dumps(as_sarif(result), indent=2).encode())
    if as_json:
        print_json(result.as_json())
    else:
        print_result(port_report(result))
    if result.left or any(one.was_executed and not one.is_right for one in result.proofs):
        raise typer.Exit(1)


def _proved(
    result: PortResult,
    targets: Sequence[str],
    problems: Path | None,
    limit_s: float,
    ledger: str | None,
) -> PortResult:
    from ratchet.amd.port.proofs import EXECUTED, prove
    from ratchet.judge.court.court import open_court

    def say(what: str) -> None:
        print(f"ratchet: executing {what}", file=sys.stderr)

    with open_court(ledger) as court:
        return prove(
            result,
            court,
            targets=targets or EXECUTED,
            problems=problems,
            time_limit_s=limit_s,
            say=say,
        )
