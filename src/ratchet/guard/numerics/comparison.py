"""`compare --numerics` as one call: two sides in, a report and a script that shows it out."""

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
from ratchet.guard.command import run_process
from ratchet.guard.compare.sides import WorkloadSide
from ratchet.guard.numerics.divergence import NumericsReport
from ratchet.guard.numerics.find import Finder, OpenRecorder, recorder_process
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
) -> NumericsReport:
    """Find the first divergence; write a script that shows it to `out`, and keep the report.

    Raises:
        GuardError: the sides are no two versions of one model.
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

TEMPLATE = '''"""{title}

Runs one module on saved inputs: the code it is held against, and the changed code, each against
fp64. Needs torch{needs}. Exit code 1: the changed code errs more than its dtype explains.
"""

import contextlib
import copy
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
COMPILE_MODE = {compile_mode!r}
PRECISION = {precision!r}
LEAST = 1e-4  # two honest fp32 results differ by less


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    values = value.values() if isinstance(value, dict) else value
    return [t for one in values for t in tensors(one)] if isinstance(values, (list, tuple)) or (
        isinstance(value, dict)
    ) else []


def mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {{name: mapped(one, change) for name, one in value.items()}}
    if type(value) in (list, tuple):
        return type(value)(mapped(one, change) for one in value)
    return value


def run(saved, *, double=False, compile_mode=None):
    """Return the outputs, the gradients of the inputs and those of the weights."""
    module = copy.deepcopy(saved["module"])
    module = module.double() if double else module
    fresh = lambda t: (t.double() if double else t).clone().requires_grad_()
    arguments, named = mapped((saved["args"], saved["kwargs"]), fresh)
    autocast = PRECISION == "bf16_autocast" and not double
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    if compile_mode is not None:
        module.compile(mode=None if compile_mode == "default" else compile_mode)
    with context:
        outputs = tensors(module(*arguments, **named))
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outputs]
    torch.autograd.backward(outputs, gradients)
    found = {{f"output {{at}}": one for at, one in enumerate(outputs)}}
    for at, one in enumerate(tensors((arguments, named))):
        if one.grad is not None:
            found[f"gradient of input {{at}}"] = one.grad
    for name, one in module.named_parameters():
        if one.grad is not None:
            found[f"gradient of {{name}}"] = one.grad
    return {{name: one.detach().double() for name, one in found.items()}}


def error(one, exact):
    return float((one - exact).norm() / exact.norm().clamp_min(1e-300))


def main():
    torch.manual_seed(0)
    before = torch.load(HERE / "{baseline}", weights_only=False)
    after = torch.load(HERE / "{changed}", weights_only=False)
    after["args"], after["kwargs"] = before["args"], before["kwargs"]
    exact, usual = run(before, double=True), run(before)
    new = run(after, compile_mode=COMPILE_MODE)
    wrong = False
    for name in exact:
        if name not in new:
            continue
        was, now = error(usual[name], exact[name]), error(new[name], exact[name])
        bad = not now <= max(2 * was, LEAST)
        wrong = wrong or bad
        mark = "  <-- differs" if bad else ""
        print(f"{{name}}: error {{now:.2e}}, baseline {{was:.2e}}{{mark}}")
    print("reproduced" if wrong else "not reproduced: the module alone agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def write_script(finder: Finder, report: NumericsReport, side: WorkloadSide, folder: Path
                 ) -> NumericsReport:  # fmt: skip
    """Write the script, the saved modules and the report to `folder`, and run the script once.

    Without a divergence in one module, or if the module cannot be pickled, only the report is
    written.
    """
    files.make_folder(folder)
    found = report.divergence
    alone = found is not None and found.part in ("forward", "backward", "parameters")
    if found is None or not alone or side.recipe is not None:
        return _written(report, folder)
    module = found.module.partition("#")[0]
    if found.part == "parameters":
        module = module.rpartition(".")[0] or module
    try:
        saved = all(
            _save(finder, name, folder / file, module)
            for name, file in (("base", BASELINE), (found.side, CHANGED))
        )
    except RatchetError as error:
        report = replace(report, warnings=(*report.warnings, f"no script: {error}"))
        saved = False
    if not saved:
        said = f"no script: {found.kind} or its inputs cannot be pickled"
        return _written(replace(report, warnings=(*report.warnings, said)), folder)
    own = is_user_spec(side.workload)
    if own:
        source = user_file(side.workload)
        files.copy_whole(source, folder / source.name)
    text = TEMPLATE.format(
        title=headline(report),
        needs=_needs(side.workload),
        compile_mode=side.changes.get("compile_mode"),
        precision=side.changes.get("precision") or side.options.get("precision") or "fp32",
        baseline=BASELINE,
        changed=CHANGED,
    )
    files.write_whole(folder / SCRIPT, text.encode())
    return _written(replace(report, reproduces=_reproduces(folder)), folder)


def headline(report: NumericsReport) -> str:
    """Say what was found in one line."""
    found, broken = report.divergence, report.not_finite
    if broken is not None:
        where = f" in {broken.module}" if broken.module else ""
        op = broken.op or "compiled code"
        when = f"{broken.part}, step {broken.step}"
        return f"{broken.side} makes {broken.kind}: first by {op}{where} ({when})"
    if found is None:
        return "no divergence: B agrees with A as far as its dtype allows"
    what = {
        "weights": "starts with other weights",
        "forward": "computes another output",
        "backward": "computes another gradient of its input",
        "parameters": "has another gradient",
        "losses": "has another loss",
    }[found.part]
    kind = f" ({found.kind})" if found.kind else ""
    return f"{found.side} diverges first at {found.module}{kind}: it {what}"


def _save(finder: Finder, name: str, path: Path, module: str) -> bool:
    with finder.recorder(name) as arm:
        return bool(arm.call("save_module", path=str(path), module=module))


def _needs(workload: str) -> str:
    if is_user_spec(workload):
        return ", and what the file beside it imports"
    return " and transformers" if workload.startswith("hf:") else " and torch-ratchet"


def _reproduces(folder: Path) -> bool | None:
    """Run the script; None if it fails."""
    command = [sys.executable, str(folder.absolute() / SCRIPT)]
    try:
        done = run_process(command, folder, LIMIT_S, {})
    except OSError:
        return None
    return None if done.late or "reproduced" not in done.out else done.code == REPRODUCED


def _written(report: NumericsReport, folder: Path) -> NumericsReport:
    report = replace(report, folder=str(folder))
    files.write_whole(folder / REPORT, encoded(report.as_json(), indent=2))
    return report
