"""Run one model type's step in each of its arms, and compare; as a program, do so in forks.

Importing torch and transformers takes longer than a tiny model's eager step, so the program does it
once, before any thread is started. It reads a `SweepRequest` as JSON from its first argument and
prints one `TypeRow` a line as JSON. A type that crashes or hangs gets a row too.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ratchet.base.errors import told
from ratchet.base.process import families
from ratchet.guard.sweep import ArmRun, Status, SweepRequest, TypeRow
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.steps.numerics import ERROR_FACTOR, NOISE_ERROR, NOISE_FACTOR
from ratchet.train.graph.scope import InstallReport
from ratchet.train.graph.steps import build_step
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.hf import tiny_hf
from ratchet.train.workloads.hf_config import Head, trained_types

STEPS: Final = 3
"""An arm's steps: the first loss shows the forward pass, later ones gradients and update."""
WRITTEN, AUTOCAST, ROUNDED, EAGER = "written", "autocast", "rounded", "optimizer"
_LEVERS = StepConfig(compile_mode="default", kernels=tuple(LIBRARY), optimizer="kernel")
ARMS: Final[Mapping[str, StepConfig]] = {
    WRITTEN: StepConfig(),
    AUTOCAST: StepConfig(precision="bf16_autocast"),
    ROUNDED: StepConfig(),
    "kernels": _LEVERS,
    "bf16": msgspec.structs.replace(_LEVERS, precision="bf16_master"),
    "bf16 activations": msgspec.structs.replace(_LEVERS, precision="bf16_autocast"),
    "compile": StepConfig(compile_mode="default"),
    EAGER: StepConfig(optimizer="kernel"),
}
NARROWER: Final[Mapping[str, tuple[str, ...]]] = {
    "kernels": ("compile", EAGER),
    "bf16": ("bf16 activations",),
}
"""Arms with fewer levers, tried in turn where an arm does not train."""
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-4, 1e-3
"""In fp32: of a loss's size, and of the gradient's norm."""
ROUNDINGS: Final = 10
"""An fp32 arm may be off by so many times what a rounding of all weights changes (`ROUNDED`), but
by no more than a bf16 arm. BatchNorm over two images turns the last digit of a loss into the third.
"""
LOSS_TOLERANCE_BF16, GRADIENT_TOLERANCE_BF16 = 1e-2, 0.1
"""In bf16; twice what eager autocast loses against fp32, if that is more, and as in the judge ten
times where autocast leaves noise of the gradient.
"""
QUICK: Final = {"fallback_by_default": True, "layout_optimization": False}
"""Settings with which Inductor calls torch's own operators and generates no code.

Where Inductor also laid out convolutions anew, losses varied from run to run (torch 2.13).
"""
SMALLEST_NORM = 0.01
REASONS, LONGEST_CONTEXT = 3, 120
CONTEXT = "Developer debug context:"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ran:
    run: ArmRun
    gradients: dict[str, Tensor]
    report: InstallReport
    breaks: dict[str, int]
    model: str
    inputs: tuple[str, ...]


def try_type(
    name: str, head: Head, *, device: torch.device, keep: Callable[[TypeRow], None]
) -> TypeRow:
    """Return the row of a model type; `keep` gets what is known so far before each arm."""
    return _Trial(name, head, device, keep).row()


def run_arm(name: str, arm: str, *, device: torch.device | None = None) -> ArmRun:
    """Run one arm of a type in this process; what it raises passes."""
    return _ran(name, arm, device or torch.device("cpu")).run


class _Trial:
    """The arms of one type, each from the same weights, batches and random numbers."""

    def __init__(
        self, name: str, head: Head, device: torch.device, keep: Callable[[TypeRow], None]
    ) -> None:
        self._name, self._device, self._keep = name, device, keep
        self._began_s = time.monotonic()
        self._runs: dict[str, ArmRun] = {}
        self._seen_compiled = False
        self._gradients: dict[str, dict[str, Tensor]] = {}
        self._row = TypeRow(type=name, status="does not train as written", head=head.auto_class)

    def row(self) -> TypeRow:
        if why := self._failure(WRITTEN):
            return self._done("does not train as written", [why])
        self._row = msgspec.structs.replace(self._row, status="fails")
        in_fp32, left_out = self._widest("kernels")
        if in_fp32 is None:
            return self._done("fails", left_out)
        differing = self._differences(in_fp32)
        if ARMS[in_fp32].compile_mode is not None:
            differing += self._in_bf16(left_out)
        if differing:
            return self._told_apart(differing)
        # What of the step ran as torch has it: graph breaks and declined call sites.
        row = self._row
        breaks = [f"{row.breaks} graph breaks: {row.break_reasons[0]}"] if row.breaks else []
        parts = [*left_out, *breaks, *row.declined]
        return self._done("falls back" if parts else "works", parts)

    def _in_bf16(self, left_out: list[str]) -> list[str]:
        """Run the arms in bf16, add to what was left out, and return how they differ."""
        if why := self._failure(AUTOCAST):
            left_out.append(f"bf16: eager autocast raises {why}")
            return []
        arm, words = self._widest("bf16")
        left_out += words
        return [] if arm is None else self._differences(arm)

    def _widest(self, arm: str) -> tuple[str | None, list[str]]:
        """Return the first of an arm and its narrower ones that trains, and what was left out."""
        words: list[str] = []
        for one in (arm, *NARROWER[arm]):
            if not (why := self._failure(one)):
                return one, words
            words.append(f"{one}: {why}")
            self._shown(one)
        return None, words

    def _failure(self, arm: str) -> str:
        """Run an arm; return why it does not train, in a line."""
        self._keep(self._so_far(doing=arm))
        began_s = time.monotonic()
        try:
            ran = _ran(self._name, arm, self._device)
        except Exception as error:  # the model's code, torch's or a kernel's may raise anything
            run = ArmRun(error=told(error))
        else:
            run = self._compared(arm, ran)
        if not all(math.isfinite(loss) for loss in run.losses):  # a row's JSON has no NaN
            shown = ", ".join(f"{loss:g}" for loss in run.losses)
            run = ArmRun(error=f"the losses are {shown}")
        self._runs[arm] = msgspec.structs.replace(run, time_s=time.monotonic() - began_s)
        return run.error

    def _compared(self, arm: str, ran: _Ran) -> ArmRun:
        """Keep what a run tells about the row, and compare its gradients with its reference's."""
        if arm in (WRITTEN, AUTOCAST):
            self._gradients[arm] = ran.gradients
        changes: dict[str, object] = {"model": ran.model, "inputs": ran.inputs}
        if ARMS[arm].compile_mode is not None and not self._seen_compiled:
            self._seen_compiled = True
            changes |= {
                "breaks": sum(ran.breaks.values()),
                "break_reasons": tuple(_why_broken(one) for one in ran.breaks)[:REASONS],
                "installed": ran.report.installed,
                "declined": dict(
                    Counter(f"{pattern}: {why}" for pattern, why in ran.report.declined)
                ),
            }
        self._row = msgspec.structs.replace(self._row, **changes)
        reference = WRITTEN if arm == AUTOCAST else _reference(arm)
        error = None
        if arm != WRITTEN:
            error = _distance(ran.gradients, self._gradients[reference])
        return msgspec.structs.replace(ran.run, gradient_error=error)

    def _differences(self, arm: str) -> list[str]:
        """Return which of an arm's losses and gradient is further off than allowed.

        Where Inductor called torch's own operators, its own code decides: with them it returned
        wrong values for a few types (torch 2.13).
        """
        found = self._apart(arm)
        if found and ARMS[arm].precision == "fp32" and ROUNDED not in self._runs:
            self._failure(ROUNDED)
            found = self._apart(arm)
        if found:
            from torch._inductor import config

            if config.fallback_by_default:
                with config.patch({name: not value for name, value in QUICK.items()}):
                    why = self._failure(arm)
                found = [f"{arm}: {why}"] if why else self._apart(arm)
        if found:
            self._shown(arm)
        return found

    def _apart(self, arm: str) -> list[str]:
        """Return how far an arm's last run is off, where that is further than allowed."""
        run, reference = self._runs[arm], self._runs[_reference(arm)]
        found = []
        for step, (got, wanted) in enumerate(zip(run.losses, reference.losses, strict=True)):
            if not abs(got - wanted) <= self._allowed(arm, step) * max(1.0, abs(wanted)):
                found.append(f"{arm}: loss {step + 1} is {got:.6g}, not {wanted:.6g}")
                break
        if not (run.gradient_error or 0.0) <= self._allowed(arm, None):
            found.append(f"{arm}: the gradient is {run.gradient_error:.2g} of its norm off")
        return found

    def _allowed(self, arm: str, step: int | None) -> float:
        """Return the tolerance of a step's loss, over its size, or of the gradient's norm."""
        rough = GRADIENT_TOLERANCE_BF16 if step is None else LOSS_TOLERANCE_BF16
        if ARMS[arm].precision == "fp32":
            least = GRADIENT_TOLERANCE if step is None else LOSS_TOLERANCE
            return max(least, min(rough, ROUNDINGS * self._lost(ROUNDED, step)))
        noise = self._lost(AUTOCAST, None) > NOISE_ERROR
        return max(rough, (NOISE_FACTOR if noise else ERROR_FACTOR) * self._lost(AUTOCAST, step))

    def _lost(self, arm: str, step: int | None) -> float:
        """Return how far an eager arm is from the step as written; 0 if it has not run."""
        run, written = self._runs.get(arm, ArmRun()), self._runs[WRITTEN]
        if step is None or not run.losses:
            return run.gradient_error or 0.0
        size = max(1.0, abs(run.losses[step]))
        return abs(run.losses[step] - written.losses[step]) / size

    def _shown(self, arm: str) -> None:
        """Remember the first arm that is not as it should be."""
        self._row = msgspec.structs.replace(self._row, arm=self._row.arm or arm)

    def _told_apart(self, differing: list[str]) -> TypeRow:
        """Return the row of a type that differs: is it the step itself, torch.compile, or us?

        No recipe compiles a step that torch.compile alone changes: `optimize` compares them.
        """
        first = self._runs[WRITTEN]
        if self._failure(WRITTEN) or self._runs[WRITTEN].losses != first.losses:
            return self._done("does not train as written", ["two runs of one seed differ"])
        if "compile" not in self._runs and not self._failure("compile"):
            alone = self._differences("compile")
            differing.append(f"torch.compile alone {'differs too' if alone else 'does not'}")
            if alone and not self._failure(EAGER) and not self._differences(EAGER):
                return self._done("falls back", [*differing, "the step stays eager"])
        return self._done("differs", differing)

    def _so_far(self, **more: object) -> TypeRow:
        spent_s = time.monotonic() - self._began_s
        return msgspec.structs.replace(self._row, runs=self._runs, time_s=spent_s, **more)

    def _done(self, status: Status, parts: list[str]) -> TypeRow:
        return self._so_far(status=status, why="; ".join(parts))


def _reference(arm: str) -> str:
    return WRITTEN if ARMS[arm].precision == "fp32" else AUTOCAST


def _ran(name: str, arm: str, device: torch.device) -> _Ran:
    """Run an arm's steps from a fresh model."""
    from torch import _dynamo
    from torch._dynamo.utils import counters

    _dynamo.reset()
    counters.clear()
    workload = tiny_hf(name, device)
    if arm == ROUNDED:
        _round(workload.model)
    step = build_step(workload, ARMS[arm])
    losses, gradients = [], {}
    for index in range(STEPS):
        _seed(index)
        batch = workload.batch(index)
        losses.append(step.forward_backward(batch).item())
        if index == 0:
            gradients = {key: one.detach().float().clone() for key, one in step.gradients().items()}
        step.update()
    return _Ran(
        run=ArmRun(losses=tuple(losses)),
        gradients=gradients,
        report=step.install_report,
        breaks=dict(counters["graph_break"]),
        model=type(workload.model).__name__,
        inputs=tuple(workload.batch(0)),
    )


def _round(model: nn.Module) -> None:
    """Change each weight by a rounding error, which is random."""
    torch.manual_seed(STEPS)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + torch.finfo(torch.float32).eps * torch.randn_like(weight))


def _seed(index: int) -> None:
    """Give every arm the same random numbers; Inductor draws as eager torch does here."""
    random.seed(index)
    np.random.seed(index)
    torch.manual_seed(index)


def _distance(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of two gradients over that of the second.

    A loss near 0 has a gradient of rounding errors, so a small norm counts as `SMALLEST_NORM`.
    """
    off = sum(float((found[name] - one).double().square().sum()) for name, one in wanted.items())
    size = sum(float(one.double().square().sum()) for one in wanted.values())
    return math.sqrt(off) / max(math.sqrt(size), SMALLEST_NORM)


def _why_broken(reason: str) -> str:
    """Return the first line of dynamo's reason for a graph break, and what it met."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    met = next((line for line in lines if line.startswith(CONTEXT)), CONTEXT)
    words = met.removeprefix(CONTEXT).strip()[:LONGEST_CONTEXT]
    return f"{lines[0]} ({words})" if words else lines[0]


LAST_WORDS = 200
WARM_FROM, WARM_TYPE = 6, "qwen3"
"""Types from which on it pays to compile this small one before all others."""


def main() -> None:
    """Try the types of the request in order."""
    import torch._inductor.compile_fx  # noqa: F401
    import transformers.modeling_utils  # noqa: F401  the greater part of what each model imports

    from ratchet.judge.workers.first_calls import make_first_calls

    make_first_calls()
    request = msgspec.json.decode(sys.argv[1], type=SweepRequest)
    began_s = time.monotonic()
    if len(request.types) >= WARM_FROM:
        warm_up(request)
    gc.freeze()  # no fork's collector walks, and thereby copies, what was imported
    for name in request.types:
        if request.budget_s is not None and time.monotonic() - began_s > request.budget_s:
            return
        row = in_a_fork(name, request)
        sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        sys.stdout.flush()


def warm_up(request: SweepRequest) -> None:
    """Compile a small type, so that every fork finds what torch builds at its first compilation.

    It runs on one thread: a fork must not miss those of a pool.
    """
    from torch import _dynamo

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with contextlib.suppress(Exception), inductor_settings(request):  # its row will tell
        for arm in ("kernels", "bf16"):
            run_arm(WARM_TYPE, arm, device=torch.device(request.device))
    _dynamo.reset()
    torch.set_num_threads(threads)


def inductor_settings(request: SweepRequest) -> AbstractContextManager[object]:
    """Return a context in which eager torch and Inductor draw the same random numbers."""
    from torch._inductor import config

    patch = {"fallback_random": True, **(QUICK if request.quick else {})}
    return config.patch(patch)  # type: ignore[no-any-return]


def in_a_fork(name: str, request: SweepRequest) -> TypeRow:
    """Return the row of one type, whatever becomes of the process that tries it."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as rows, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _in_the_child(name, request, rows, said)
        late = not families.has_ended_within(child, request.limit_s)
        families.end_session(child)
        _, status = os.waitpid(child, 0)
        row = _last_row(name, rows)
        if row.doing or not row.type:
            why = f"it took more than {request.limit_s:g} s" if late else _how(status, said)
            # A script repeats the last arm.
            arm = row.arm or (row.doing if row.status == "fails" else "")
            row = msgspec.structs.replace(row, why=f"{row.doing}: {why}", arm=arm)
    return msgspec.structs.replace(
        row, quick=request.quick, versions=request.versions, time_s=time.monotonic() - began_s
    )


def _in_the_child(name: str, request: SweepRequest, rows: IO[bytes], said: IO[bytes]) -> None:
    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes, request.memory_bytes))

        def keep(row: TypeRow) -> None:
            rows.write(msgspec.json.encode(row) + b"\n")
            rows.flush()

        with inductor_settings(request):
            device = torch.device(request.device)
            keep(try_type(name, trained_types()[name], device=device, keep=keep))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _last_row(name: str, rows: IO[bytes]) -> TypeRow:
    rows.seek(0)
    for line in reversed(rows.read().split(b"\n")):
        with contextlib.suppress(msgspec.DecodeError):  # a child that was killed left a part
            return msgspec.json.decode(line, type=TypeRow)
    return TypeRow(type=name, status="does not train as written", doing="the import")


def _how(status: int, said: IO[bytes]) -> str:
    code = os.waitstatus_to_exitcode(status)
    said.seek(0)
    words = " ".join(said.read().decode(errors="replace").split())[-LAST_WORDS:]
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}: {words}"
    return f"exit code {code}: {words}"


if __name__ == "__main__":
    main()
