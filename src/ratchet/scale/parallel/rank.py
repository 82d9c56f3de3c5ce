"""The program of each rank: it builds one step or several, times them in turn and profiles them.

torchrun runs it: python -m ratchet.scale.parallel.rank REQUEST FOLDER. Each rank leaves
FOLDER/rank_N.json, or FOLDER/error_N.txt with the one line of a mistake.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, schedule

from ratchet.base.errors import RatchetError
from ratchet.base.measure import Sample, Timing
from ratchet.base.measure.rounds import run_rounds
from ratchet.base.serialise import document_of, encoded
from ratchet.judge.workers.first_calls import make_first_calls
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.compiled_step import build
from ratchet.train.recipe.installed import activate_proven, as_kernel
from ratchet.train.recipe.ranks import of_all_ranks
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.parallel import parse_parallel
from ratchet.train.workloads.parallel.meshes import joined, rank_device
from ratchet.train.workloads.parallel.parallelize import dimensions, mean_loss, parallelize
from ratchet.train.workloads.workload import count

WARMUP_STEPS: Final = 3
PROFILED_STEPS: Final = 3
ROUNDING: Final = 1e-8
"""Share of the largest squared gradient below which another one is rounding noise."""


class RankRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of all ranks: `rounds` timed steps of each arm side by side, or losses alone."""

    workload: str
    options: LoadOptions  # Options of `load`; `device` is a kind, cpu or cuda
    layout: str
    arms: dict[str, Candidate | None]  # By name; None is the step as written
    rounds: int
    launch: int = 0
    shrunk: bool = False
    """Train the workload's small copy, with the seed among the options, for its losses."""
    traced: bool = True  # Leave a trace of some steps of each arm, as ARM.rank_N.json
    wait_s: float = 120.0  # Time that a rank waits for another


class ArmOnRank(msgspec.Struct, kw_only=True):
    """One rank's figures of one arm; times in seconds."""

    first_step_s: float
    times_s: list[float]  # Figures of this rank alone, a step each
    peak_memory_bytes: int  # After the model was split; of the whole process on a CPU
    losses: list[float]  # Losses of the whole batch, from the first warm-up step on
    gradient_error: float = 0.0
    """Largest relative error in norm, over parameters, of the first step's gradients against the
    first arm's; over all ranks."""
    trace: str = ""


class RankResult(msgspec.Struct, kw_only=True):
    rank: int
    host: str
    device: str
    threads: int
    unit: str
    items_per_step: int  # Tokens, images or samples of all ranks
    sequence: int  # Tokens of a sequence; 0 if the batches hold none
    parameters: int
    samples: list[Sample]  # A sample's time is that of the slowest rank
    arms: dict[str, ArmOnRank]


class _Arm:
    """A step of this rank, whose time is the slowest rank's."""

    def __init__(self, name: str, asked: RankRequest, device: torch.device) -> None:
        self.name = name
        arm = asked.arms[name]
        workload = load(asked.workload, **LoadOptions(**{**asked.options, "device": str(device)}))
        if asked.shrunk:
            assert workload.shrink is not None
            workload = workload.shrink(int(asked.options.get("seed", 0)))
        self.items, self.unit = count(workload, batch_of(workload, 0))
        self.sequence = dimensions(workload).sequence if self.unit == "tokens" else 0
        self.parameters = sum(one.numel() for one in workload.model.parameters())
        if arm is None:
            arm = with_config(workload.as_written(), {})
        own = parallelize(workload, parse_parallel(asked.layout), arm.tuning)
        self.step = build(own, arm.config)
        self.device, self.index = device, 0
        self.times_s: list[float] = []
        self.losses: list[float] = []
        del workload
        gc.collect()
        reset_peak(device)

    def run(self, iterations: int) -> Timing:
        """Run some steps; return the time of the slowest rank."""
        wall_s = cpu_s = 0.0
        for _ in range(iterations):
            own = self._one()
            slowest = torch.tensor(own, device=self.device, dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            wall_s, cpu_s = wall_s + float(slowest[0]), cpu_s + float(slowest[1])
        return Timing(wall_time_s=wall_s, cpu_time_s=cpu_s)

    def _one(self) -> tuple[float, float]:
        batch = batch_of(self.step.workload, self.index)
        self.index += 1
        settle(self.device)
        dist.barrier()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        loss = self.step(batch)
        settle(self.device)
        own = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        self.times_s.append(own[0])
        self.losses.append(mean_loss(loss))
        return own

    def gradients(self) -> dict[str, Tensor]:
        """Return this rank's part of each gradient of the first batch; the weights stay."""
        self.step.forward_backward(batch_of(self.step.workload, 0))
        found = {
            name: (one.to_local() if isinstance(one, DTensor) else one).detach().clone()
            for name, one in self.step.gradients().items()
        }
        for parameter in self.step.parameters.values():
            parameter.grad = None
        return found

    def traced(self, path: Path) -> str:
        """Profile some steps; return the trace's name."""
        kinds = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        plan = schedule(wait=0, warmup=1, active=PROFILED_STEPS, repeat=1)
        with profile(activities=kinds, schedule=plan, acc_events=True) as found:
            for _ in range(1 + PROFILED_STEPS):
                self._one()
                found.step()
        found.export_chrome_trace(str(path))
        return path.name


def settle(device: torch.device) -> None:
    """Wait for a GPU's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Forget the peak of memory so far, such as that of a whole model before it was split."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak resident size


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`: of torch's allocations on a GPU, else of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    lines = Path("/proc/self/status").read_text().splitlines()
    told = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return int(told["VmHWM"].split()[0]) * 1024


def run(asked: RankRequest, folder: Path) -> RankResult:
    """Build, warm, time and profile the arms on this rank; all ranks run it together."""
    device = rank_device(str(asked.options.get("device", "cpu")))
    for one in asked.arms.values():
        if one is not None:
            activate_proven([document_of(kernel) for kernel in one.kernels])
    with joined(device, wait_s=asked.wait_s):
        arms = {name: _Arm(name, asked, device) for name in asked.arms}
        errors = gradient_errors(arms) if len(arms) > 1 and not asked.shrunk else {}
        first_s = {name: arm.run(1).wall_time_s for name, arm in arms.items()}
        for arm in arms.values():
            arm.run(WARMUP_STEPS - 1)
        rng = np.random.default_rng(asked.launch)  # the same order on every rank
        launch, own = asked.launch, list(arms.values())
        samples = run_rounds(own, rounds=asked.rounds, launch=launch, rng=rng, fewest_arms=1)
        peak = peak_bytes(device)
        rank = dist.get_rank()
        traces = {
            name: arm.traced(folder / f"{name}.rank_{rank}.json") if asked.traced else ""
            for name, arm in arms.items()
        }
        first = next(iter(arms.values()))
        return RankResult(
            rank=rank,
            host=os.uname().nodename,
            device=str(device),
            threads=torch.get_num_threads(),
            unit=first.unit,
            items_per_step=first.items,
            sequence=first.sequence,
            parameters=first.parameters,
            samples=samples,
            arms={
                name: ArmOnRank(
                    first_step_s=first_s[name],
                    times_s=arm.times_s[WARMUP_STEPS : WARMUP_STEPS + asked.rounds],
                    peak_memory_bytes=peak,
                    losses=arm.losses,
                    gradient_error=errors.get(name, 0.0),
                    trace=traces[name],
                )
                for name, arm in arms.items()
            },
        )


def gradient_errors(arms: Mapping[str, _Arm]) -> dict[str, float]:
    """Return each arm's largest relative error of a gradient against the first arm's.

    A gradient that is zero but for rounding, such as a key's bias, counts by its share of the
    largest one.
    """
    (first, *others) = arms.values()
    wanted, found = first.gradients(), {}
    for arm in others:
        own = arm.gradients()
        parts = {
            name: (float((own[name] - one).square().sum()), float(one.square().sum()))
            for name, one in wanted.items()
        }
        told = of_all_ranks(parts)
        names = {name for one in told for name in one}
        sums = {
            name: [sum(one.get(name, (0.0, 0.0))[place] for one in told) for place in (0, 1)]
            for name in names
        }
        least = ROUNDING * max(size for _, size in sums.values())
        found[arm.name] = max(
            (error / max(size, least)) ** 0.5 if size else error for error, size in sums.values()
        )
    return found


def main(request: str, folder: str) -> int:
    """Run this rank; return its exit code."""
    rank = os.environ.get("RANK", "0")
    make_first_calls()
    try:
        asked = msgspec.json.decode(
            Path(request).read_bytes(), type=RankRequest, dec_hook=as_kernel
        )
        found = run(asked, Path(folder))
    except RatchetError as error:
        Path(folder, f"error_{rank}.txt").write_text(str(error))
        return 2
    Path(folder, f"rank_{rank}.json").write_bytes(encoded(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
