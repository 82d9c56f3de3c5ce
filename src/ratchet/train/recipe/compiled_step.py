"""Run a script's step by a recipe, in the way that its first call allows.

The first call runs as written, before anything is installed. After it, the step is compiled whole,
or it runs in plain Python and the modules that it calls are compiled one by one. What is installed
is in place while the step runs: between two calls the script's objects are as it made them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from ratchet.base.errors import told
from ratchet.train.recipe.first_call import WATCHING, Seen, recurrent_in, watch
from ratchet.train.recipe.module_calls import (
    STAY,
    ModuleCall,
    attention,
    compile_options,
    memory_slots,
)
from ratchet.train.recipe.script_state import RAISED, Marks, numbers
from ratchet.train.recipe.slots import (
    Attribute,
    KeptTensors,
    StepOutOfGraphs,
    StepSlot,
    WidenedForward,
    computes_in_bf16,
    filled,
    update_slot,
)
from ratchet.train.workloads.compiling import (
    BoundedCompile,
    CompileOptions,
    kept_graphs,
    numbers_of,
    sharded_in,
    without_ddp,
)
from ratchet.train.workloads.config import AUTOCAST, StepConfig
from ratchet.train.workloads.lowered import lowered_forward
from ratchet.train.workloads.own_step import BatchStep
from ratchet.train.workloads.updates import has_implementation
from ratchet.train.workloads.workload import Workload

if TYPE_CHECKING:
    from ratchet.train.graph.steps import InstalledStep

log = logging.getLogger("ratchet")
MOST_RECOMPILATIONS = 2
"""Recompilations for inputs of the same shapes after which a step is no longer compiled whole."""

PASS_TENSOR = (
    "; to have the whole step compiled, pass the number as a tensor, as in step(torch.tensor(i)), "
    "or use it outside of the step"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A script's step, model and optimizers, as given to `ratchet.compile`."""

    step: Callable[..., object]
    model: nn.Module
    optimizers: Sequence[Optimizer]  # Those whose update the recipe may replace


class CompiledStep:
    """A script's step as a recipe runs it."""

    def __init__(
        self,
        script: Script,
        config: StepConfig,
        device_type: str,
        install: CompileOptions | None = None,
    ) -> None:
        """Run `script` by `config`; `install` are the options that install its kernels."""
        self.script = script
        self._config = config
        self._install_kernels = install
        self._device_type = device_type
        self._thread: int | None = None
        self._running = False
        self._seen: Seen | None = None
        self._slots: list[StepSlot] = []
        self._standing: list[StepSlot] = []  # Slots that stay filled between calls
        self._lowered: list[StepSlot] = []
        """Those of the slots that a step has only while it is compiled whole."""
        self._whole: BoundedCompile | None = None
        self._modules: list[ModuleCall] = []
        self._numbers: tuple[float, ...] = ()
        self._kept: KeptTensors | None = None
        """Tensors that the modules keep, if the recipe and not the script makes them bf16."""
        self._told: set[str] = set()
        self.as_written = False  # True once the step has been found not to be run by the recipe

    def __call__(self, *arguments: object, **named: object) -> object:
        """Run the step; as written where gradients are off, and in other threads."""
        if self._runs_as_written():
            return self.script.step(*arguments, **named)
        self._running = True
        try:
            if self._seen is None:
                return self._first(arguments, named)
            return self.run(arguments, named)
        finally:
            self._running = False

    @property
    def stepped(self) -> tuple[Optimizer, ...]:
        """The script's optimizers: those given, and those that stepped in the first call."""
        others = self._seen.optimizers if self._seen is not None else []
        given = self.script.optimizers
        return (*given, *(one for one in others if not any(one is own for own in given)))

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The modules that the first call called from outside of all modules."""
        return () if self._seen is None else tuple(self._seen.modules)

    @property
    def notes(self) -> list[str]:
        """The warnings on how the step runs."""
        return sorted(self._told)

    @property
    def precision(self) -> str:
        return self._config.precision

    def is_ready(self) -> bool:
        """Return True if the next call runs by the recipe."""
        return self._seen is not None and not self._runs_as_written()

    def _runs_as_written(self) -> bool:
        if self.as_written or self._running or not torch.is_grad_enabled():
            return True
        mine = threading.get_ident()
        self._thread = self._thread or mine
        if mine != self._thread:
            self._tell("another thread calls the step, and runs it as written")
        return mine != self._thread

    def _first(self, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        recomputed = None if self._config.checkpointing == "none" else self.script.model
        if not WATCHING.acquire(blocking=False):  # in another thread: a later call is watched
            return self.script.step(*arguments, **named)
        try:
            result, seen = watch(self.script.step, arguments, named, recomputed)
        finally:
            WATCHING.release()
        self._numbers = numbers_of(arguments, named)
        self._seen = seen
        if self._config.precision in AUTOCAST and not seen.autocast:
            self._kept = KeptTensors(seen.modules)
            log.info("ratchet: the step computes in bf16, and passes outside of it %s", STAY)
        self._install(seen)
        return result

    def run(self, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        if self._whole is not None and numbers_of(arguments, named) != self._numbers:
            self._leave_whole("a number among its arguments changes", PASS_TENSOR)
        seen = self._seen
        assert seen is not None
        with ExitStack() as stack:
            stack.enter_context(filled(self._slots))
            stack.enter_context(kept_graphs(seen.backwards != 1 or seen.keeps_graph))
            if self._whole is None:
                result = self.script.step(*arguments, **named)
            else:
                stack.enter_context(attention(self._config))
                if self._config.precision in AUTOCAST:  # casts a weight anew after each update
                    autocast = (self._device_type, torch.bfloat16)
                    stack.enter_context(torch.autocast(*autocast, cache_enabled=False))
                result = self._whole(*arguments, **named)
        if self._kept is not None:
            self._kept.widen()
        self._tell_of_nothing_compiled()
        if self._whole is not None and self._whole.recompilations >= MOST_RECOMPILATIONS:
            self._leave_whole("it keeps recompiling for inputs of the same shapes")
        return result

    def _install(self, seen: Seen) -> None:
        options = compile_options(self._config, self._install_kernels)
        if seen.twice and options is not None:
            self._tell(
                "the step differentiates gradients (create_graph=True, or grad of torch.func), "
                "which torch.compile cannot do, so nothing in it is compiled"
            )
            options = None
        if seen.changing:
            self._tell(
                f"{len(seen.changing)} of the model's blocks are not recomputed: each call of them "
                "changes a buffer or a number that they keep, or runs a hook"
            )
        self._slots = [
            *memory_slots(self.script.model, self._config, seen.changing),
            *self._optimizer_slots(),
        ]
        why = seen.why_not_whole()
        if any(map(sharded_in, seen.modules)):
            why = why or "FSDP2 gathers and frees its weights meanwhile"
        if options is not None and not why:
            self._whole = BoundedCompile(self.script.step, options, numbers=False, scalars=True)
            self._lowered = self._forward_slots(seen)
            self._slots += self._lowered
            return
        if options is not None:
            self._tell_of_modules(why)
        self._install_modules(seen, options)

    def _forward_slots(self, seen: Seen) -> list[StepSlot]:
        """Return slots that make the modules read bf16 weights, and return fp32 nevertheless."""
        found: list[StepSlot] = []
        if self._config.precision == "bf16_master":
            device = self._device_type
            found += [Attribute(m, "forward", lowered_forward(m, device)) for m in seen.modules]
        if self._kept is not None:  # the script itself is not in autocast
            found += [WidenedForward(one) for one in seen.modules if not computes_in_bf16(one)]
        return found

    def _install_modules(self, seen: Seen, options: CompileOptions | None) -> None:
        for module in map(without_ddp, seen.modules):
            own = None if recurrent_in(module) else options
            call = ModuleCall(module, self._config, self._device_type, own)
            self._modules.append(call)
            self._slots.append(call.slot())

    def _optimizer_slots(self) -> list[StepSlot]:
        """Return the slots of the recipe's optimizers, and of all others that stepped.

        An optimizer that the first call did not step is stepped in a later call, or outside of the
        step. Its update is the recipe's from now on.
        """
        assert self._seen is not None
        found: list[StepSlot] = []
        for optimizer in self.stepped:
            given = any(one is optimizer for one in self.script.optimizers)
            update = update_slot(optimizer, self._config) if given else None
            if update is not None and any(one is optimizer for one in self._seen.optimizers):
                found.append(update)
            elif update is not None:
                update.fill()
                self._standing.append(update)
            if not isinstance(update, Attribute):
                found.append(StepOutOfGraphs(optimizer, self._device_type))
        return found

    def written(self, *arguments: object, **named: object) -> object:
        """Run the step as written, without anything of the recipe."""
        for slot in self._standing:
            slot.clear()
        try:
            return self.script.step(*arguments, **named)
        finally:
            for slot in self._standing:
                slot.fill()

    def leave_scalars(self) -> bool:
        """End graphs where the step takes a number from a tensor; return True if they did not."""
        if self._whole is None or not self._whole.scalars:
            return False
        options = compile_options(self._config, self._install_kernels) or {}
        self._whole = BoundedCompile(self.script.step, options, numbers=False)
        return True

    def stop(self) -> None:
        """Run the step as written from now on."""
        for slot in self._standing:
            slot.clear()
        self.as_written = True

    def _leave_whole(self, why: str, remedy: str = "") -> None:
        assert self._seen is not None
        self._whole = None
        self._slots = [one for one in self._slots if one not in self._lowered]
        self._tell_of_modules(why, remedy)
        options = compile_options(self._config, self._install_kernels)
        self._install_modules(self._seen, options)

    def _tell_of_modules(self, why: str, remedy: str = "") -> None:
        assert self._seen is not None
        found = Counter(type(one).__name__ for one in self._seen.modules if not recurrent_in(one))
        names = [name if count == 1 else f"{count} {name}" for name, count in found.items()]
        parts = f"of it only {', '.join(names)}" if names else "nothing of it"
        lost = ""
        if "linear_cross_entropy" in self._config.kernels:
            lost = "; linear_cross_entropy is installed only if a module computes the loss"
        self._tell(
            f"the step runs in Python, and Ratchet compiles {parts}, because {why}{lost}{remedy}"
        )

    def _tell_of_nothing_compiled(self) -> None:
        compiled = [part for one in self._modules for part in one.compiled]
        if self._whole is not None:
            compiled = [self._whole]
        called = [one for one in compiled if one.calls]
        if called and not any(one.graphs or one.was_compiled for one in called):
            self._tell(f"torch.compile made no graph of the step{_last_break()}")

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("ratchet: %s", what)


def build(workload: Workload, config: StepConfig) -> InstalledStep:
    """Build the workload's step as `config` runs it.

    A `train_step` runs as `ratchet.compile` runs a script's: its first call is as written.
    """
    from ratchet.train.graph.steps import build_step  # a script's own step does without

    own = workload.as_written() != config
    return build_step(workload, config, install=_install if own else None)


def _install(
    workload: Workload,
    config: StepConfig,
    options: CompileOptions,
    step: BatchStep,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
) -> BatchStep:
    if workload.precision in AUTOCAST and config.precision == workload.precision:
        config = msgspec.structs.replace(
            config, precision="fp32"
        )  # the step enters autocast itself
    fitting = [one for one in optimizers if has_implementation(one, config.optimizer, model)]
    # The model has its checkpointing, its logits and its products already.
    had = {"checkpointing": "none", "logits": "whole", "products": "own"}
    config = msgspec.structs.replace(config, **had)
    script = Script(step=step, model=model, optimizers=fitting)
    return CompiledStep(script, config, workload.device.split(":")[0], options)


def _last_break() -> str:
    """Return torch's own reason for the last graph break, in brackets."""
    from torch._dynamo.utils import counters

    reasons = list(counters["graph_break"])
    return f" ({reasons[-1].splitlines()[0]})" if reasons else ""


class FallbackStep:
    """A compiled step that runs as written from its first run on, if torch cannot run it.

    Examples are code that torch.compile fails on, and an operation that has no bf16 form. What the
    step itself raises is raised as ever.
    """

    def __init__(self, step: CompiledStep) -> None:
        self._step = step
        self._has_run = False

    def __call__(self, *arguments: object, **named: object) -> object:
        """Run the step; raise what the recipe's run raised if it left something changed."""
        step = self._step
        if self._has_run or not step.is_ready():
            return step(*arguments, **named)
        marks = Marks(
            [step.script.model, *step.modules],
            step.stepped,
            lambda: numbers(step.script.step),
        )
        try:
            result = step(*arguments, **named)
        except RAISED as error:
            if not marks.undo():
                raise
            if step.leave_scalars():
                return self(*arguments, **named)
            result = step.written(*arguments, **named)
            log.warning(
                "ratchet: the step runs as written; by its recipe it raises %s", told(error)
            )
            step.stop()
            return result
        self._has_run = True
        return result
