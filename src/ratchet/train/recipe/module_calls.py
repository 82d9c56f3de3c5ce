"""Run single modules by a recipe, through torch's own slot for a module's compiled call.

`nn.Module.compile` uses the same slot, `_compiled_call_impl`. The module keeps its type, its hooks
and the signature of its `forward`, and copies and pickles of it do not carry the slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn.attention import sdpa_kernel

from ratchet.base.errors import told
from ratchet.train.recipe.first_call import FirstGradients, kept_state, recurrent_in
from ratchet.train.recipe.script_state import RAISED, Marks
from ratchet.train.recipe.slots import (
    ABSENT,
    Attribute,
    StepSlot,
    computes_in_bf16,
    filled,
    widened,
)
from ratchet.train.workloads.checkpointing import (
    RECOMPUTES,
    apply_checkpointing,
    is_transformed,
    replaced_in,
)
from ratchet.train.workloads.compiling import (
    REPLAYS,
    BoundedCompile,
    CompiledUnit,
    CompileOptions,
    kept_graphs,
    units_of,
    with_own_code,
    without_ddp,
)
from ratchet.train.workloads.config import AUTOCAST, StepConfig
from ratchet.train.workloads.lowered import mixed_precision

# Every script that installs a recipe imports this module. What compiles, and what few recipes
# change, is imported by what needs it.
log = logging.getLogger("ratchet")
SLOT = "_compiled_call_impl"
STAY = "stay as written: a loss that compares the two sees the difference"


class ModuleCall:
    """A module's call in a recipe's precision, compiled if the recipe says so.

    It acts where gradients are recorded. In a bf16 recipe it acts on passes without gradients too:
    a loss may compare the two, as the ratio of PPO and GRPO does, and then the same weights must
    not compute in two arithmetics. Everywhere else, and inside another torch.compile, the module
    runs as written. Results have the dtype that they have without autocast, unless the script is
    in autocast itself.

    A module `alone`, whose step Ratchet does not see, also runs as written in evaluation mode, in
    the first step, which shows how it is differentiated, and from its first run by the recipe on
    if that raises. Its graphs may be kept for a second backward pass.
    """

    def __init__(
        self,
        module: nn.Module,
        config: StepConfig,
        device_type: str,
        options: CompileOptions | None,
        *,
        alone: bool = False,
        slots: tuple[StepSlot, ...] = (),
    ) -> None:
        units = units_of(module) if options is not None else []
        self._whole: BoundedCompile | None = None
        if options is not None:
            # A replayed graph writes each call's results over the last one's, which a script may
            # still read: only whole steps are replayed.
            options = {name: value for name, value in options.items() if name != REPLAYS}
            if not units:
                self._whole = BoundedCompile(_entry_of(module), options)
        own = [UnitForward(one, options or {}) for one in units]
        self.compiled = [self._whole] if self._whole else [one.compiled for one in own]
        """The module's own compiled call, or those of the units that FSDP2 gathers in it."""
        self.was_called = False  # The module has been called where it runs by the recipe
        self._has_run = False
        self._as_written = False
        self._watched = FirstGradients(module) if alone and self.compiled else None
        self._module = module
        self._config = config
        self._device_type = device_type
        self._alone = alone
        self._slots = (*slots, *own)

    def slot(self) -> Attribute:
        call = self._call

        def compiled_call(*arguments: object, **named: object) -> object:
            return call(*arguments, **named)

        return Attribute(self._module, SLOT, compiled_call)

    def _call(self, *arguments: object, **named: object) -> object:
        module = self._module
        if (
            self._as_written
            or torch.compiler.is_compiling()
            or is_transformed()
            or not (torch.is_grad_enabled() or self._config.precision in AUTOCAST)
            or (self._alone and not module.training)
        ):
            return module._call_impl(*arguments, **named)  # type: ignore[no-untyped-call]
        self.was_called |= torch.is_grad_enabled()
        if self._alone and not self._has_run:
            return self._run_first(arguments, named)
        return self._run(arguments, named)

    def _is_watched(self) -> bool:
        """Return True in the first step; leave out torch.compile after it if it cannot be used."""
        if self._watched is None:
            return False
        if self._watched.over:
            self._watched.release()
        if self._watched.over and self._watched.twice:
            log.warning(
                "ratchet: %s is not compiled: the script differentiates its gradients "
                "(create_graph=True), which torch.compile cannot do",
                type(self._module).__name__,
            )
            self._whole, self.compiled = None, []
            self._slots = tuple(one for one in self._slots if not isinstance(one, UnitForward))
        return not self._watched.over

    def _run_first(self, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        """Run by the recipe; as written from now on if that raises and has changed nothing."""
        module = self._module
        if self._is_watched():
            return module._call_impl(*arguments, **named)  # type: ignore[no-untyped-call]
        marks = Marks([module], numbers=partial(kept_state, module))
        try:
            result = self._run(arguments, named)
        except RAISED as error:
            if not marks.undo():
                raise
            result = module._call_impl(*arguments, **named)  # type: ignore[no-untyped-call]
            log.warning(
                "ratchet: %s runs as written; by its recipe it raises %s",
                type(module).__name__,
                told(error),
            )
            self._as_written = True
        if self._config.precision in AUTOCAST and not self._as_written:
            name = type(module).__name__
            log.info(
                "ratchet: %s computes in bf16; its passes in evaluation mode, and other models, %s",
                name,
                STAY,
            )
        self._has_run = True
        return result

    def _run(self, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        module = self._module
        function: Callable[..., object] = self._whole or module._call_impl
        if self._config.precision not in AUTOCAST:
            with self._place():
                return function(*arguments, **named)
        own = torch.is_autocast_enabled(self._device_type) or computes_in_bf16(module)
        with self._place(), mixed_precision(self._config.precision, self._device_type):
            result = function(*arguments, **named)
        return result if own else widened(result)

    @contextmanager
    def _place(self) -> Iterator[None]:
        with filled(self._slots), attention(self._config), kept_graphs(self._alone):
            yield


class UnitForward(Attribute):
    """The slot of a sharded unit's forward, compiled around the one in place."""

    def __init__(self, unit: nn.Module, options: CompileOptions) -> None:
        plain = unit.forward

        def written(*arguments: object, **named: object) -> object:
            forward = plain if self.before is ABSENT else self.before
            return forward(*arguments, **named)

        made = CompiledUnit(unit, options, written)
        self.compiled = made.compiled
        super().__init__(unit, "forward", made)


def attention(config: StepConfig) -> AbstractContextManager[object]:
    """Return the context of a config's attention back end."""
    from ratchet.train.workloads.step import ATTENTION_BACKENDS

    backends = ATTENTION_BACKENDS.get(config.attention)
    return sdpa_kernel(backends) if backends else nullcontext()


def memory_slots(
    model: nn.Module, config: StepConfig, without: Collection[nn.Module] = ()
) -> tuple[StepSlot, ...]:
    """Return slots that make a model recompute blocks, defer logits and multiply as a config says.

    The blocks `without` are left out.
    """
    applied: list[tuple[str, Callable[[nn.Module, str], None], str, str]] = [
        (RECOMPUTES, apply_checkpointing, config.checkpointing, "none")
    ]
    if config.logits != "whole":
        from ratchet.train.workloads.deferred_logits import DEFERS, apply_logits

        applied.append((DEFERS, apply_logits, config.logits, "whole"))
    if config.products != "own":
        from ratchet.train.workloads.fp8_products import MULTIPLIES, apply_products

        applied.append((MULTIPLIES, apply_products, config.products, "own"))
    found: list[StepSlot] = []
    for mark, apply, value, as_written in applied:
        apply(model, value)
        found += [
            Attribute(one, "forward", one.__dict__["forward"])
            for one in replaced_in(model, mark)
            if mark != RECOMPUTES or one not in without
        ]
        apply(model, as_written)
    return tuple(found)


def compile_module(module: nn.Module, config: StepConfig, device_type: str) -> ModuleCall:
    """Run a module by a recipe from now on, in training mode.

    Passes without gradients run as written, unless the recipe is in bf16. A later call takes the
    place of an earlier one. Returns the module's call.
    """
    module = without_ddp(module)
    options = compile_options(config)
    if options is not None and (recurrent := recurrent_in(module)):
        log.warning(
            "ratchet: %s is not compiled: torch.compile does not take nn.%s",
            type(module).__name__,
            recurrent,
        )
        options = None
    slots = memory_slots(module, config)
    call = ModuleCall(
        module,
        config,
        device_type,
        options,
        alone=True,
        slots=slots,
    )
    for part in call.compiled:
        part.goes_on = True
    call.slot().fill()
    return call


def compile_options(
    config: StepConfig, install: CompileOptions | None = None
) -> CompileOptions | None:
    """Return the options of torch.compile; None if the recipe compiles nothing.

    `install` are those that install the kernels, if they are made already.
    """
    if config.compile_mode is None:
        return None
    from ratchet.train.graph.steps import install_options, installed_kernels
    from ratchet.train.workloads.step import inductor_options

    kernels = install_options(installed_kernels(config)) if install is None else install
    return {**inductor_options(config), **kernels}


def _entry_of(module: nn.Module) -> Callable[..., object]:
    def call(*arguments: object, **named: object) -> object:
        return module._call_impl(*arguments, **named)  # type: ignore[no-untyped-call]

    return with_own_code(call, module)
