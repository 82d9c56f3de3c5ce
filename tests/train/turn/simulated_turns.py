"""Whole turns with made-up arms on a made-up clock: what a turn decides, without running a step."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.gpu_use import GpuUse
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import ArmFailure, OutOfTime, RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.measure import Timing
from ratchet.judge.steps import arms as recipe_trial
from ratchet.judge.steps.arms import ArmSpec
from ratchet.judge.steps.numerics import GradientCheck
from ratchet.train.recipe import Candidate, wanted_libraries, with_config
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.turn import arms, compose, headroom, loop, schedule, screen, search
from ratchet.train.turn.judge_kernels import NO_TIME, UsableKernels
from ratchet.train.turn.loop import Outcome
from ratchet.train.turn.optimize_result import IdentityResult, OpTime, StepProfile
from ratchet.train.turn.schedule import SHRUNK_STEP_S
from ratchet.train.turn.settings import Settings
from ratchet.train.turn.state import Listener
from ratchet.train.workloads.config import StepConfig

CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 1e11, "bf16": 2e11},
    copy_bytes_per_s={"dram": 1e10},
    triad_bytes_per_s={"dram": 1e10},
)
BATCH_SIZE = 2
NO_BF16 = msgspec.structs.replace(CEILINGS, gemm_flops_per_s={"fp32": 1e11, "bf16": 1e10})


@dataclass(kw_only=True)
class World:
    """What everything costs, in seconds of the made-up clock, and what each lever does."""

    start_s: float = 5.0
    compile_s: float = 10.0
    autotune_s: float = 30.0
    compiling_slows: float = 0.0
    """How much slower the steps of a process are that compiled their code itself."""
    warm: float = 0.1
    """What compiling a config again takes of the first time."""
    step_s: float = 0.1
    compiled: float = 0.8
    """A compiled step's time in written ones."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """What a field of the config, changed from what was written, does to a step's time.

    `field=value` does it with that value alone.
    """
    learns_worse: frozenset[str] = frozenset()
    """Precisions, products and modes of torch.compile whose losses end twice as high."""
    device: Device | None = None
    """A GPU that is not here; None for this machine's CPU."""
    idle: float = 0.0
    """Share of a step in which the device computes nothing; the larger a batch, the less."""
    others_bytes: int = 1 << 30
    """Memory of the GPU that is not this turn's."""
    breaks: dict[str, RatchetError] = field(default_factory=dict)
    """What a process raises as it starts, by a value of its config."""
    largest_batch: int = 1 << 20
    """A larger one does not fit into memory."""
    diverges: bool = False
    """True if every loss is NaN."""
    wobble: float = 0.001
    """How far single steps lie from their time."""
    no_kernels: str | None = None
    """Why this machine can try no kernel."""
    verdict_s: float = 20.0
    kernels: Mapping[str, float] = field(default_factory=dict)
    """What a library kernel that is right does to a step's time, by name; all others are wrong."""
    starts: float = 0.0
    """How far starts of one step differ, as a standard deviation of the logarithm."""
    luck: random.Random = field(default_factory=lambda: random.Random(1))
    side_by_side: bool = True
    """Whether starting two arms together takes no longer than one."""
    categories: Mapping[str, tuple[float, float | None]] = field(
        default_factory=lambda: {
            "matmul": (0.6, 0.3),
            "optimizer": (0.2, None),
            "loss": (0.2, None),
        }
    )
    """By category: its share of the step, and the roofline's share."""
    ceilings: Ceilings = NO_BF16
    system: float = 0.1
    evidence: dict[tuple[str, str], str] = field(default_factory=dict)
    now_s: float = 1000.0
    arms_started: int = 0
    busy_until_s: float = 0.0
    compiled_before: set[str] = field(default_factory=set)

    def remember(self, kind: str, key: str, evidence: dict[str, Any], **more: Any) -> None:
        """Keep evidence as a ledger does; a real one would take most of a drawn turn's time."""
        self.evidence[kind, key] = json.dumps(evidence)

    def recall(self, kind: str, key: str, **more: Any) -> dict[str, Any] | None:
        found = self.evidence.get((kind, key))
        return None if found is None else dict(json.loads(found))

    def spend(self, takes_s: float) -> dict[str, Any]:
        self.now_s += takes_s
        return {"status": "wrong"}

    def step_time_s(self, config: StepConfig) -> float:
        time_s = self.step_s * (1.0 if config.compile_mode is None else self.compiled)
        for given, factor in self.factors.items():
            name, _, value = given.partition("=")
            own = getattr(config, name)
            if own != getattr(StepConfig(), name) and value in ("", own):
                time_s *= factor
        for name in wanted_libraries(config):
            time_s *= self.kernels.get(name, 1.0)
        return time_s

    def is_cold(self, config: StepConfig) -> bool:
        key = with_config(config, {}).graph_key()
        return config.compile_mode is not None and key not in self.compiled_before

    def compile_time_s(self, config: StepConfig) -> float:
        again = 1.0 if self.is_cold(config) else self.warm
        key = with_config(config, {}).graph_key()
        self.compiled_before.add(key)
        times_s = {None: 0.0, "default": self.compile_s, "reduce-overhead": self.compile_s}
        return again * times_s.get(config.compile_mode, self.autotune_s)


class MadeUpArm:
    """An arm whose every answer takes the time that its world says."""

    def __init__(self, world: World, spec: ArmSpec) -> None:
        self.world, self.spec = world, spec
        self.name, self.deadline_s = spec.name, spec.deadline_s
        self.config = msgspec.convert(spec.arguments.get("config") or {}, StepConfig)
        self.batch_size = spec.arguments.get("options", {}).get("batch_size", BATCH_SIZE)
        self.pid: int | None = None
        self.setup_time_s = 0.0
        self.steps, self._compiled = 0, False
        self._slower, self.identity = 1.0, ""
        self._ready_s, self._answer = 0.0, None

    def __enter__(self) -> MadeUpArm:
        self.begin_start()
        self.finish_start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _begin(self, takes_s: float) -> None:
        assert self.pid is not None, "the arm does not run"
        world = self.world
        begins_s = max(world.now_s, self._ready_s)
        if not world.side_by_side:
            begins_s = max(begins_s, world.busy_until_s)
        self._ready_s = world.busy_until_s = begins_s + takes_s

    def _finish(self) -> None:
        if self._ready_s > self.deadline_s:
            self.world.now_s = max(self.world.now_s, self.deadline_s)
            self.world.busy_until_s = self.world.now_s
            self.close()
            raise OutOfTime(f"arm '{self.name}' was ended at its deadline")
        self.world.now_s = max(self.world.now_s, self._ready_s)

    def begin_start(self, *then: dict[str, Any]) -> None:
        values = map(str, msgspec.to_builtins(self.config).values())
        for error in [self.world.breaks[one] for one in values if one in self.world.breaks]:
            raise error
        if self.batch_size > self.world.largest_batch:
            raise ArmFailure(f"arm '{self.name}': CUDA out of memory")
        self.world.arms_started += 1
        self.pid = self.world.arms_started
        self.identity = f"process {self.pid}"
        self._slower = math.exp(self.world.luck.gauss(0.0, self.world.starts))
        self._begun_s, self._ready_s = self.world.now_s, 0.0
        self._begin(self.world.start_s)
        self.setup_time_s = self._ready_s - self._begun_s
        for one in then:
            if one["do"] == "run":
                self.begin_run(one["iterations"])
            else:
                self.begin_call(one["method"], **one["arguments"])
        self.ready_time_s = self._ready_s - self._begun_s

    @property
    def has_answered(self) -> bool:
        return self.world.now_s >= self._ready_s

    def finish_start(self) -> None:
        self._finish()

    def begin_run(self, iterations: int, *, timed: bool = True) -> None:
        first_s = 0.0
        if not self.steps:
            self._compiled = self.world.is_cold(self.config)
            self._slower *= 1 + self.world.compiling_slows * self._compiled
            first_s = self.world.compile_time_s(self.config)
        sign = 1 if (self.world.arms_started + self.steps) % 2 else -1
        step_s = self.world.step_time_s(self.config) * (1 + sign * self.world.wobble)
        step_s *= max(1.0, (1 - self.world.idle) * self.batch_size / BATCH_SIZE)
        step_s *= self._slower
        self.steps += iterations
        self._took_s = first_s + iterations * step_s
        self._begin(self._took_s)

    def finish_run(self) -> Timing:
        self._finish()
        return Timing(wall_time_s=self._took_s, cpu_time_s=self._took_s)

    def run(self, iterations: int, *, timed: bool = True) -> Timing:
        self.begin_run(iterations)
        return self.finish_run()

    def begin_call(self, method: str, **arguments: Any) -> None:
        self._answer = None
        takes_s = self.world.step_time_s(self.config)
        if method == "gradients":
            Path(arguments["path"]).touch()
        elif method in ("probe", "sites"):
            takes_s = 0.0
        elif method == "difference":
            takes_s, self._answer = 0.0, ""
        elif method == "curve":
            takes_s = arguments["steps"] * min(SHRUNK_STEP_S, 0.2 * self.world.step_s)
            own = {self.config.precision, self.config.products, str(self.config.compile_mode)}
            worse = bool(own & self.world.learns_worse)
            loss = math.nan if self.world.diverges else 2.0 if worse else 1.0
            self._answer = [loss] * arguments["steps"]
        elif method == "profile":
            takes_s *= 3 * arguments["steps"]
            self._answer = {"system_s": self.world.system * self.world.step_s}
            Path(arguments["path"]).write_text(json.dumps(msgspec.to_builtins(self.config)))
        elif method == "workload":
            self._answer = description()
        self._begin(takes_s)

    def finish_call(self) -> Any:
        self._finish()
        return self._answer

    def call(self, method: str, **arguments: Any) -> Any:
        self.begin_call(method, **arguments)
        return self.finish_call()

    def describe(self) -> dict[str, Any]:
        return {"peak_memory_bytes": 1 << 20, "compiled_graphs": int(self._compiled)}

    def pause(self) -> None:
        assert self.pid is not None

    def resume(self) -> None:
        assert self.pid is not None

    def close(self) -> None:
        self.pid = None


def description() -> dict[str, Any]:
    return {
        "source": "made up",
        "unit": "tokens",
        "written": msgspec.to_builtins(StepConfig()),
        "optimizer_is_adamw": True,
        "has_attention": True,
        "trainable_bytes": 4 << 20,
        "flops_per_step": 1e6,
        "tokens_per_batch": 100,
        "batch_size": BATCH_SIZE,
    }


def _profile(world: World, path: Path) -> StepProfile:
    world.now_s += 1.0
    step_s = world.step_time_s(msgspec.convert(json.loads(path.read_text()), StepConfig))
    ops = [
        OpTime(
            name=f"aten::{category}",
            category=category,
            time_s=share * step_s,
            calls=1,
            share=share,
            bound="",
            least_s=None if least is None else least * step_s,
        )
        for category, (share, least) in world.categories.items()
    ]
    identity = IdentityResult(
        window_s=step_s,
        compute_s=step_s * (1 - world.idle),
        exposed_communication_s=0.0,
        exposed_copy_s=0.0,
        idle_s=step_s * world.idle,
    )
    return StepProfile(
        total_s=sum(op.time_s for op in ops),
        ops=ops,
        identity=identity,
        findings=[],
        trace=str(path),
        system_s=world.system * step_s,
    )


def _kernels(
    world: World,
    turn: Any,
    step: Candidate,
    written: Candidate,
    wanted: Any,
) -> UsableKernels:
    """Each verdict takes its time, and none is begun without it."""
    refused: dict[str, str] = {}
    proven = {}
    for name in wanted:
        if not turn.schedule.may_judge(0.0):
            refused[name] = NO_TIME
            continue
        takes_s = min(world.verdict_s, turn.schedule.left_s)
        turn.memo("judged", name, dict, lambda: world.spend(takes_s))  # noqa: B023
        if takes_s < world.verdict_s:
            refused[name] = NO_TIME
        elif name in world.kernels:
            proven[name] = (InstalledKernel(library=name, entry=name, hash=name, isa="any"),)
        else:
            refused[name] = "wrong"
    precision = step.config.precision
    return UsableKernels(usable={precision: proven}, refused={precision: refused}, verdicts=())


@contextmanager
def patched(world: World) -> Iterator[pytest.MonkeyPatch]:
    """Everything that would run, or look at a clock, made up."""
    clock = SimpleNamespace(monotonic=lambda: world.now_s, perf_counter=lambda: world.now_s)
    right = GradientCheck(
        passed=True, detail="", worst_parameter="w", worst_ratio=0.1, parameters=()
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (arms, headroom, loop, screen, recipe_trial):
            patch.setattr(module, "ArmProcess", lambda spec: MadeUpArm(world, spec))
        for module in (loop, schedule, recipe_trial):
            patch.setattr(module, "time", clock)
        patch.setattr(Ledger, "remember", world.remember)
        patch.setattr(Ledger, "recall", world.recall)
        patch.setattr(loop, "_ceilings", lambda device: world.ceilings)
        patch.setattr(loop, "why_no_kernels", lambda: world.no_kernels)
        threads = 2 if world.side_by_side else 1
        here = world.device or replace(probe("cpu"), threads=threads)
        patch.setattr(loop, "probe", lambda name: here)
        used = GpuUse(bytes=world.others_bytes).words("cuda:0")
        patch.setattr(loop, "warnings_of", lambda index: [used] if used else [])
        patch.setattr(compose.ceilings, "measure", lambda *a, **k: world.ceilings)
        patch.setattr(
            headroom,
            "explain",
            lambda path, steps, device, ceilings, system_s: _profile(world, path),
        )
        patch.setattr(search, "judge_kernels", partial(_kernels, world))
        patch.setattr(search.RegionTrials, "_may_install", lambda self: False)
        patch.setattr(screen, "judge_gradients", lambda **kind: right)
        yield patch


def run(
    world: World,
    folder: Path,
    budget_s: float,
    *,
    listener: Listener = lambda event, details: None,
    **settings: Any,
) -> Outcome:
    """One turn in this world; `world.now_s` moves on by what it took."""
    asked = Settings(
        workload="llama-tiny",
        options={"device": "cpu"},
        budget_s=budget_s,
        out=folder / "out",
        ledger=f"sqlite:///{folder / 'ledger.db'}",
        **settings,
    )
    with patched(world):
        return loop.optimize(asked, listener)
