"""`compare --numerics` as one call: two sides in; a report, and a script that shows it, out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ratchet.base import files, scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.serialise import encoded
from ratchet.base.show.model import Lines, ResultReport, blocks, grid
from ratchet.guard.command import run_process
from ratchet.guard.compare import SHORT_ID
from ratchet.guard.compare.workloads import WorkloadSide
from ratchet.guard.numerics.find import (
    Divergence,
    Finder,
    NumericsResult,
    OpenRecorder,
    recorder_process,
)
from ratchet.guard.repro.scripts import NUMERICS_SCRIPT
from ratchet.train.workloads.names import is_user_spec, user_file

COMMAND = "numerics"


def compare_numerics(
    a: WorkloadSide,
    b: WorkloadSide,
    out: Path,
    *,
    asked: Mapping[str, object],
    ledger: str | os.PathLike[str] | None = None,
    open_recorder: OpenRecorder = recorder_process,
    on_progress: Callable[[str], None] = lambda _: None,
) -> NumericsResult:
    """Find the first divergence; write a script that shows it to `out`, and keep the report.

    Raises GuardError: the sides are no two versions of one model.
    """
    files.check_new_folder(out)
    with Ledger.open(ledger) as book:
        here = book.here(probe("cpu"))
        turn = book.start_turn(f"{a.title} : {b.title}", asked, fingerprint=here, command=COMMAND)
        with book.failing(turn), scratch.folder("numerics") as place:
            finder = Finder(a, b, place, open_recorder=open_recorder, on_progress=on_progress)
            report = replace(finder.find(), turn=turn)
            if report.exit_code:
                side = b if report.divergence is None or report.divergence.side == "B" else a
                on_progress("writing a script that reproduces it")
                report = write_script(finder, report, side, out)
            book.finish_turn(turn, report.as_json())
    return report


SCRIPT, REPORT = "reproduce.py", "numerics.json"
BASELINE, CHANGED = "baseline.pt", "changed.pt"
REPRODUCED: Final = 1
LIMIT_S = 600.0


def write_script(finder: Finder, report: NumericsResult, side: WorkloadSide, folder: Path
                 ) -> NumericsResult:  # fmt: skip
    """Write the script, the saved modules and the report to `folder`, and run the script once.

    Without a divergence in one module, or if the module cannot be pickled, only the report is
    written.
    """
    files.make_folder(folder)
    found = report.divergence
    alone = found is not None and found.part in ("forward", "backward", "parameters")
    if found is None or not alone or side.recipe is not None:
        return _written(report, folder)
    try:
        saved = True
        for name, file in (("base", BASELINE), (found.side, CHANGED)):
            if saved:
                with finder.recorder(name) as arm:
                    saved = arm.call("save_module", path=str(folder / file), module=found.owner)
    except RatchetError as error:
        report = replace(report, warnings=(*report.warnings, f"no script: {error}"))
        saved = False
    if not saved:
        said = f"no script: {found.kind} or its inputs cannot be pickled"
        return _written(replace(report, warnings=(*report.warnings, said)), folder)
    needs = " and transformers" if side.workload.startswith("hf:") else " and torch-ratchet"
    sources = {}
    for spec, file in ((finder.side("base").workload, BASELINE), (side.workload, CHANGED)):
        if is_user_spec(spec):
            source = user_file(spec)
            name = f"{Path(file).stem}-{source.name}"
            files.copy_whole(source, folder / name)
            sources[file] = source.stem, name
            needs = ", and what the saved sources import"
    text = NUMERICS_SCRIPT.format(
        title=headline(report),
        sources=sources,
        needs=needs,
        compile_mode=side.changes.get("compile_mode"),
        precision=side.changes.get("precision") or side.options.get("precision") or "fp32",
        baseline=BASELINE,
        changed=CHANGED,
    )
    files.write_whole(folder / SCRIPT, text.encode())
    return _written(replace(report, reproduces=_reproduces(folder)), folder)


def headline(report: NumericsResult) -> str:
    """Say what was found in one line."""
    found, broken = report.divergence, report.not_finite
    if broken is not None:
        where = f" in {broken.module}" if broken.module else ""
        op = broken.op or "compiled code"
        when = f"{broken.part}, step {broken.step}"
        return f"{broken.side} makes {broken.kind}: first by {op}{where} ({when})"
    if found is None and not report.compared:
        return "nothing to compare: A and B are one code in two precisions"
    if found is None:
        return "no divergence: B agrees with A as far as its dtype allows"
    what = {
        "weights": "starts with other weights",
        "forward": "computes another output",
        "loss": "gives the model's output another gradient",
        "backward": "computes another gradient of its input",
        "parameters": "has another gradient",
        "losses": "has another loss",
    }[found.part]
    if found.between:
        what = f"computes another gradient between {' and '.join(found.between)}"
    kind = f" ({found.kind})" if found.kind else ""
    return f"{found.side} diverges first at {found.module}{kind}: it {what}"


def _reproduces(folder: Path) -> bool | None:
    """Run the script; None if it fails."""
    command = [sys.executable, str(folder.absolute() / SCRIPT)]
    try:
        done = run_process(command, folder, LIMIT_S, {})
    except OSError:
        return None
    return None if done.late or "reproduced" not in done.out else done.code == REPRODUCED


def _written(report: NumericsResult, folder: Path) -> NumericsResult:
    report = replace(report, folder=str(folder))
    files.write_whole(folder / REPORT, encoded(report.as_json(), indent=2))
    return report


def numerics_report(report: NumericsResult) -> ResultReport:
    """Describe the first divergence, what surrounds it, and the script."""
    largest = [(name, f"{error:.1e}") for name, error in report.largest]
    return ResultReport(
        headline=headline(report),
        header=blocks(
            f"A (reference): {report.titles[0]}",
            f"B (compared):  {report.titles[1]}",
            *(_divergence(report.divergence) if report.divergence else ()),
            *_inputs(report),
            grid(("B errs most at", "relative error"), largest),
            *_losses(report),
            Lines(_next(report), indent=0),
        ),
    )


def _inputs(report: NumericsResult) -> list[str]:
    broken = report.not_finite
    if broken is not None:
        place = f"your code:  {broken.place}" if broken.place else ""
        return [f"its inputs: {'; '.join(broken.inputs) or 'none'}", place]
    if report.compared:
        return [f"{report.compared} tensors were compared against {report.oracle}"]
    return []


def _losses(report: NumericsResult) -> list[str]:
    steps = list(zip(*report.losses, strict=True))
    return [
        f"{name}: A {steps[at][0]:.6f}, B {steps[at][1]:.6f}"
        for name, at in (("first loss", 0), ("last loss", -1))
        if steps
    ]


def _next(report: NumericsResult) -> list[str]:
    lines = []
    if report.reproduces is not None:
        seen = "it reproduces" if report.reproduces else "the module alone does NOT reproduce it"
        lines.append(f"script: {report.folder}/{SCRIPT} ({seen})")
    if report.exit_code and report.turn:
        lines.append(f"next: ratchet repro {report.turn[:SHORT_ID]}")
    return lines


def _divergence(found: Divergence) -> list[str]:
    if found.part == "weights" or found.detail:
        return [found.detail]
    lines = [
        f"error {found.error:.2e} against the reference; the dtype explains "
        f"{found.allowed_error:.2e} (the baseline's error is {found.baseline_error:.2e})"
    ]
    if abs(found.scale) > found.error / 2:
        lines.append(
            f"it is too {'large' if found.scale > 0 else 'small'} by {abs(found.scale):.2%}"
        )
    if found.op is not None:
        op = found.op
        where = f"op {op.index} of the module, {op.op}"
        if op.error is None:
            other = f"where A runs {op.expected}" if op.expected else "which A does not run"
            lines.append(f"{where}, {other}")
        else:
            lines.append(f"{where}: its output is off by {op.error:.2e}")
    return lines
