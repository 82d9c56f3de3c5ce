"""The process that runs a step to be timed; the judge starts it by name.

The judge calls `make_arm(...)` in a new process and uses only `step` and `describe`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ratchet.base import address
from ratchet.base.errors import WorkloadError
from ratchet.base.serialise import document_of
from ratchet.judge.workers.patience import yield_cores
from ratchet.train.recipe.installed import activate_proven
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.names import LoadOptions

if TYPE_CHECKING:
    from torch import Tensor
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ratchet.train.workloads.step import TrainingStep
    from ratchet.train.workloads.workload import Workload


REPLAYED = 3  # Calls of a step after which torch replays its graph of launches
BATCHES = 8
"""Distinct batches that an arm cycles through: real data, tokenised before the clock starts."""


def make_arm(
    *,
    workload: str,
    options: LoadOptions,
    config: dict[str, object] | None,
    kernels: Sequence[dict[str, str]],
    is_random: bool = False,
) -> StepArm:
    """Build the workload in this process and prepare its step for timing.

    Without a config the step runs as its author wrote it, after the checks that every workload must
    pass. `is_random` says that the step draws random numbers (`StepArm.workload`).
    """
    from ratchet.train.workloads.check import load_checked
    from ratchet.train.workloads.load import load

    prepare_torch(options)
    activate_proven(kernels)
    if config is None:
        built, warnings = load_checked(workload, **options)
        return StepArm(built, built.as_written(), warnings=warnings)
    built = load(workload, **options)
    return StepArm(built, msgspec.convert(config, StepConfig), is_random=is_random)


FACTORY = address(make_arm)


def make_shrunk_arm(
    *,
    workload: str,
    options: LoadOptions,
    config: dict[str, object],
    kernels: Sequence[dict[str, str]],
    is_random: bool = False,
) -> ShrunkArm:
    """Prepare to train small copies of the workload, for the loss curves; random ones too."""
    prepare_torch(options)
    activate_proven(kernels)
    return ShrunkArm(workload, options, msgspec.convert(config, StepConfig))


SHRUNK_FACTORY = address(make_shrunk_arm)


def prepare_torch(options: LoadOptions) -> None:
    """Make MKL's first calls, and the workload's GPU the current one: Triton launches there.

    On cores nothing is compiled by Triton. Torch starts processes for that all the same, each of
    which imports torch beside the step: they stay away.
    """
    device = str(options.get("device", ""))
    if device == "cpu":
        os.environ.setdefault("TORCH_WARM_POOL", "0")
    from ratchet.judge.workers.first_calls import make_first_calls

    if ":" in device:
        import torch

        from ratchet.train.workloads.device import place

        torch.cuda.set_device(place(options["device"]))
    make_first_calls()


class StepArm:
    """A training step behind the judge's protocol."""

    calls: tuple[str, ...] = (
        *("workload", "gradients", "difference", "profile", "regions", "sites"),
    )
    timed_calls = ("profile", "regions")

    def __init__(
        self,
        workload: Workload,
        config: StepConfig,
        *,
        step: TrainingStep | None = None,
        warnings: Sequence[str] = (),
        is_random: bool = False,
    ) -> None:
        """`step` is the step of that config, if it is built already."""
        from ratchet.train.recipe.compiled_step import build
        from ratchet.train.workloads.blame import batch_of

        self._workload = workload
        self._config = config
        self._step = step if step is not None else build(workload, config)
        self._warnings = list(warnings)
        self._is_random = is_random
        self._batches = [batch_of(workload, index) for index in range(BATCHES)]
        self._next = 0
        self._loss: Tensor | None = None

    def step(self, iterations: int) -> None:
        """Run `iterations` whole training steps, waiting for the device at the end."""
        for _ in range(iterations):
            self._loss = self._step(self._batches[self._next % BATCHES])
            self._next += 1
        if self._workload.device != "cpu":
            import torch

            torch.cuda.synchronize(self._workload.device)

    def workload(self) -> dict[str, object]:
        """Describe the workload and its step (JSON of `StepFacts`).

        Only valid in an arm that runs the step as written; other arms have changed the model.
        """
        from ratchet.train.recipe.facts import describe_workload

        facts = describe_workload(self._step, self._batches[0])
        return {**document_of(facts), "warnings": self._warnings}

    def gradients(self, path: str, autocast: bool = False) -> dict[str, object]:
        """Write the first step's gradients (fp32, by parameter name) as safetensors to `path`.

        With `autocast`, they are those of a step that is uncompiled, in bf16 autocast. Random
        numbers are those that the step as written draws from seed 0.
        """
        from ratchet.judge.problems.model_file import seeded
        from ratchet.train.recipe.comparison import eager_draws, write_gradients
        from ratchet.train.recipe.compiled_step import build
        from ratchet.train.workloads.device import place

        if self._next:
            raise WorkloadError(
                "gradients are available only before the first step: start a new arm"
            )
        if autocast and self._workload.train_step is not None:
            raise WorkloadError("a train_step may carry state: start an arm of that precision")
        compiled, device = self._config.compile_mode is not None, place(self._workload.device)
        if self._workload.train_step is not None:
            with seeded(0, device):
                self._step.forward_backward(self._batches[0])  # the first call runs as written
        draws = self._is_random and compiled and not autocast
        with eager_draws(needed=draws):
            for _ in range(1 if autocast else self._calls_until_replayed()):
                self._drop_gradients()
                with seeded(0, device):
                    loss = self._backward(autocast)
        found = self._step.gradients()
        write_gradients(found, Path(path))
        count = len(found)
        del found
        self._drop_gradients()
        if draws:  # the step that is timed compiles as a user's does
            self._step = build(self._workload, self._config)
        return {"loss": float(loss.detach()), "parameters": count}

    def _calls_until_replayed(self) -> int:
        """Return the calls after which a replay has computed the gradients, where graphs replay.

        The first call only warms up, and the second records (torch's CUDAGraph Trees).
        """
        from ratchet.train.workloads.step import replays

        own = self._workload.train_step is not None
        return REPLAYED if replays(self._workload, self._config) and not own else 1

    def _drop_gradients(self) -> None:
        """Drop the gradients on a GPU, where the next replay writes over them; else zero them.

        Freeing them would change the heap of what is timed on a CPU (see gradients.py).
        """
        copies = self._step.copies
        for parameter in self._step.model.parameters():
            read = copies.with_gradient(parameter) if copies else parameter
            if self._workload.device != "cpu":
                read.grad = None
            elif read.grad is not None:
                read.grad.zero_()

    def _backward(self, autocast: bool) -> Tensor:
        if not autocast:
            return self._step.forward_backward(self._batches[0])
        import torch

        from ratchet.train.workloads.step import compiled_loss

        update = {"precision": "bf16_autocast", "compile_mode": None}
        compute = compiled_loss(self._workload, msgspec.structs.replace(self._config, **update))
        count = self._workload.accumulate
        for batch in self._batches[0] if count > 1 else self._batches[:1]:
            loss = compute(self._step.model, batch) / count
            torch.autograd.backward(loss)
        return loss

    def difference(self, calls: int) -> str:
        """Return the first difference of a `train_step` from the step as written; empty if none.

        So many steps run both ways from the same state, after the first, which runs as written.
        Empty for a workload with a loss, whose step is Ratchet's own.
        """
        from ratchet.base.errors import RecipeError
        from ratchet.train.recipe.comparison import CheckedStep
        from ratchet.train.recipe.compiled_step import CompiledStep

        own = self._step.own
        if not isinstance(own, CompiledStep):
            return ""
        checked = CheckedStep(own, calls=calls, strict=True)
        try:
            for index in range(calls + (not own.is_ready())):
                checked(self._batches[index % BATCHES])
        except RecipeError as error:
            return str(error).partition(";")[0]
        return ""

    def profile(self, path: str, steps: int = 2) -> dict[str, object]:
        """Write a Chrome trace of `steps` steps to `path`, with a mark around each step (JSON)."""
        from ratchet.train.recipe.facts import record_steps

        return record_steps(self._step, self._batches, steps, self._workload.device, Path(path))

    def describe(self) -> dict[str, object]:
        """Return peak memory so far, and how graphs and kernels ran (JSON, `ArmFacts` in it)."""
        from ratchet.judge.kernels import registry
        from ratchet.train.graph.regions import install
        from ratchet.train.workloads.bench import peak_memory_bytes

        report = getattr(self._step, "install_report", None)
        dynamo = sys.modules.get("torch._dynamo.utils")  # not imported where nothing is compiled
        graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
        return {
            "peak_memory_bytes": peak_memory_bytes(self._workload.device),
            "fallbacks": dict(registry.fallbacks),
            "region_calls": dict(install.calls),
            "compiled_graphs": dynamo.counters["inductor"]["fxgraph_cache_miss"] if dynamo else 0,
            "graphs": graphs,
            "installed": dict(report.installed) if report is not None else {},
            "declined": [list(pair) for pair in report.declined] if report is not None else [],
            "loss": float(self._loss.detach()) if self._loss is not None else None,
            "notes": self._notes(graphs),
        }

    def _notes(self, graphs: int) -> list[str]:
        own = self._step.own_notes
        if self._config.compile_mode is None or graphs or own or not self._next:
            return own
        return ["torch.compile made no graph of the step: it runs uncompiled"]

    def sites(self, precision: str) -> list[dict[str, object]]:
        """Return the call sites that the library's kernels could take in a precision (JSON).

        They have their real shapes. The arm must not have changed its model's dtypes.
        """
        from dataclasses import asdict

        from ratchet.train.graph.capture import capture

        config = msgspec.structs.replace(self._config, precision=precision)
        return [asdict(site) for site in capture(self._workload, config)]

    def regions(self, measuring_s: float) -> list[dict[str, object]]:
        """Return the regions of the step's graphs, the most time to win first (JSON)."""
        from ratchet.train.graph.regions.capture import capture_regions

        found = capture_regions(self._workload, self._config, measuring_s=measuring_s)
        return [one.as_json() for one in found]


class UntimedArm:
    """An arm that answers calls and is never timed."""

    def step(self, iterations: int) -> None:
        raise WorkloadError("this arm is never timed")

    def describe(self) -> dict[str, object]:
        return {}


class VectorProbe(UntimedArm):
    """Compiles torch's tests of the CPU's vector instructions, which every first compile needs.

    Their results are kept in the compile cache. They take a core for a dozen seconds where a
    machine has AMX, so this runs beside what computes nothing that is timed.
    """

    calls = ("probe",)

    def probe(self) -> str:
        """Return the name of the instructions that torch's compiler will use."""
        yield_cores()  # the step as written runs beside it, on every core
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        return str(pick_vec_isa())


PROBE_FACTORY = address(VectorProbe)


class ShrunkArm(UntimedArm):
    """Trains small copies of a workload from given seeds; never timed."""

    calls = ("curve",)

    def __init__(self, workload: str, options: LoadOptions, config: StepConfig) -> None:
        self._spec = workload
        self._options = options
        # The copies are so small that a second thread costs more than it saves.
        self._config = msgspec.structs.replace(config, threads=1, affinity=False)

    def curve(self, seed: int, steps: int) -> list[float]:
        """Return the loss at each of `steps` steps of the copy initialised from `seed`."""
        from ratchet.train.recipe.compiled_step import build
        from ratchet.train.workloads.blame import batch_of
        from ratchet.train.workloads.load import load

        options: LoadOptions = {**self._options, "seed": seed}
        workload = load(self._spec, **options)
        if workload.shrink is not None:
            workload = workload.shrink(seed)
        step = build(workload, self._config)
        return [float(step(batch_of(workload, index)).detach()) for index in range(steps)]


# The process that looks at a built-in step at a GPU's sizes, on tensors without values.
#
# It answers what `StepArm` answers of such a step, and runs nothing.


def make_shapes_arm(*, workload: str, options: LoadOptions) -> ShapesArm:
    """Build the workload in this process, as a GPU would run it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ratchet.train.workloads.load import load_shapes

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return ShapesArm(load_shapes(workload, mode, **options), mode)


SHAPES_FACTORY: Final = address(make_shapes_arm)


class ShapesArm(UntimedArm):
    """A training step that is looked at and never run."""

    calls = ("workload", "sites", "products")

    def __init__(self, workload: Workload, mode: FakeTensorMode) -> None:
        self._workload, self._mode = workload, mode

    def workload(self) -> dict[str, object]:
        """Describe the workload and its step (JSON of `StepFacts`).

        Its peak memory is a lower bound: weights, gradients, moments, and what forward keeps.
        """
        from ratchet.train.recipe.facts import describe_workload
        from ratchet.train.workloads.device import state_bytes
        from ratchet.train.workloads.fake import saved_bytes
        from ratchet.train.workloads.step import TrainingStep

        workload = self._workload
        batch = workload.batch(0)
        facts = describe_workload(TrainingStep(workload, workload.as_written()), batch)
        kept = saved_bytes(workload, batch) or 0
        least_bytes = state_bytes(workload.model) + kept
        facts = msgspec.structs.replace(facts, peak_memory_bytes=least_bytes)
        return {**document_of(facts)}

    def products(self) -> list[object]:
        """Return the products of the step as written (JSON of `StepProduct`s)."""
        from ratchet.train.workloads.fake import step_products

        return [document_of(one) for one in step_products(self._workload) or ()]

    def sites(self, precision: str) -> list[dict[str, object]]:
        """Return the call sites that the library's kernels could take in a precision (JSON)."""
        from ratchet.train.graph.capture import capture

        config = msgspec.structs.replace(self._workload.as_written(), precision=precision)
        with self._mode, warnings.catch_warnings():
            # Copies in bf16 ask for the address of their weight, to see that it is the same one.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            return [asdict(site) for site in capture(self._workload, config)]
