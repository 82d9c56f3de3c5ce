"""Compile a step: whole, for changing shapes, or by the units of a model on several ranks."""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from ratchet.base.errors import told
from ratchet.train.workloads.checkpointing import is_transformed

TORCH_LOG = logging.getLogger("torch._dynamo.convert_frame")
LONG_S = 60.0  # Time after which compiling is told, then again after twice as long each time
COMPILERS = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx")
"""Modules of torch that are on the stack while it compiles, and not while compiled code runs."""


@contextmanager
def parts_as_written(tell: Callable[[str], None]) -> Iterator[None]:
    """Let frames that fail to compile run as written, each with one line instead of a traceback.

    Backward graphs are compiled with their forward ones, since no frame is left to run as written
    once the script calls `backward()`.
    """
    import torch._dynamo
    import torch._functorch.config

    def one_line(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.levelno < logging.WARNING:
            return True
        tell(f"torch.compile fails on a part of the model, which runs as written ({told(error)})")
        return False

    TORCH_LOG.addFilter(one_line)
    try:
        with (
            torch._dynamo.config.patch(suppress_errors=True),
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        ):
            yield
    finally:
        TORCH_LOG.removeFilter(one_line)


@contextmanager
def told_while_long(tell: Callable[[str], None], first_s: float = LONG_S) -> Iterator[None]:
    """Tell that torch.compile is at work, each time that it has been for twice as long."""
    mine, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        waited_s, next_s = 0.0, first_s
        while not ended.wait(next_s - waited_s):
            waited_s, next_s = next_s, 2 * next_s
            if is_compiling(mine):
                tell(
                    f"torch.compile has been at work for {waited_s:g} s; the step goes on when it "
                    "is done, and the next start finds the code in torch's cache"
                )

    threading.Thread(target=watch, name="ratchet-compiling", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def is_compiling(thread: int) -> bool:
    """Return True while torch makes code in a thread."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__") in COMPILERS:
            return True
        frame = frame.f_back
    return False


@contextmanager
def kept_graphs(keep: bool) -> Iterator[None]:
    """Let what is compiled be differentiated again, as by `backward(retain_graph=True)`.

    No backward graph may then write into what the forward pass has saved for it. Where a backward
    graph is compiled with its forward one, torch 2.13 leaves the list of what it may write into at
    None, and takes that for a list that is not empty.
    """
    if not keep:
        yield
        return
    import torch._functorch.config
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

    own = ViewAndMutationMeta.__post_init__

    def with_a_list(meta: ViewAndMutationMeta) -> None:
        own(meta)
        meta.bw_donated_idxs = meta.bw_donated_idxs or []

    ViewAndMutationMeta.__post_init__ = with_a_list  # type: ignore[method-assign,assignment]
    try:
        with torch._functorch.config.patch(donated_buffer=False):
            yield
    finally:
        ViewAndMutationMeta.__post_init__ = own  # type: ignore[method-assign]


# Compile a function whose inputs may change between calls.
#
# Graphs of fixed shapes are the fastest, and only they contain Ratchet's kernels. The first few
# shapes get such graphs. Later shapes share graphs of dynamic shapes. A number that changes
# becomes an input of the graph, whose shapes stay fixed. Inputs that no graph covers run
# uncompiled, so dynamo never reaches its recompilation limit.

LOG = logging.getLogger("ratchet")
REPLAYS = "triton.cudagraphs"
"""Inductor's option that replays a graph of launches, whose results each replay writes anew."""
UNSTABLE = 3
"""Number of compiling calls with equal shapes after which something other than shapes changes.

Two are usual: a smaller last batch that is no argument, a layer that is unfrozen.
"""

Shapes = tuple[object, ...]
Numbers = tuple[float, ...]
CompileOptions: TypeAlias = Mapping[str, str | int | bool | Callable[..., Any]]
"""Options of inductor, as `torch.compile(options=...)` takes them."""


class BoundedCompile:
    """Compile `function` with `options` for the first few shapes, and dynamically for later ones.

    Half of `torch._dynamo.config.recompile_limit` goes to graphs of fixed shapes. One graph is
    reserved for a known shape that compiles again later, and the rest go to graphs of dynamic
    shapes. `options` apply only to the fixed graphs. When a shape has compiled `UNSTABLE` times,
    something else changes: from then on, numbers are inputs of the fixed graphs, unless `numbers`
    is False.

    With `scalars`, a number that the function takes out of a tensor, such as `loss.item()`, is a
    value of the graph. Otherwise such a number ends a graph, and what follows compiles again for
    each value.
    """

    def __init__(
        self,
        function: Callable[..., object],
        options: CompileOptions,
        *,
        numbers: bool = True,
        scalars: bool = False,
    ) -> None:
        import torch._dynamo
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

        limit = int(torch._dynamo.config.recompile_limit)
        self._function = function
        self._options = dict(options) or None
        self._replays = bool(options.get(REPLAYS)) and torch.cuda.is_available()
        self._fixed = torch.compile(function, dynamic=False, options=self._options)
        self._dynamic = torch.compile(function, dynamic=True)
        self._numbered: Callable[..., object] | None = None
        self._takes_numbers = numbers
        self.scalars = scalars
        self._most_shapes = max(1, limit // 2)
        self._dynamic_left = max(0, limit - self._most_shapes - 1)
        self._fixed_left = limit - self._dynamic_left
        self._seen: dict[Shapes, Numbers] = {}
        """Shapes with a fixed graph, and the numbers among the inputs of their last call."""
        self._told: set[str] = set()
        self._has_run = False
        self.goes_on = False
        """If True, a frame that fails to compile in the first run runs as written too; otherwise
        that failure is raised."""
        self.calls = 0
        self.graphs = 0  # Number of graphs that dynamo has made for this function
        code = getattr(inspect.unwrap(function), "__code__", None)
        self.was_compiled = code is not None and bool(_debug_get_cache_entry_list(code))
        """True if its code was compiled before, for another function of the same code: then graphs
        of that one may serve."""
        self.recompilations = 0
        """Number of calls that compiled a fixed graph for shapes that had one."""

    def __call__(self, *arguments: object, **named: object) -> Any:
        if not self._replays:
            return self._call(arguments, named)
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return tree_map_only(Tensor, Tensor.clone, self._call(arguments, named))

    def _call(self, arguments: tuple[object, ...], named: dict[str, object]) -> object:
        self.calls += 1
        shapes = shapes_of(arguments, named)
        if shapes in self._seen:
            return self._call_again(shapes, arguments, named)
        if len(self._seen) < self._most_shapes and self._fixed_left > 0:
            with told_while_long(self._tell):
                result, compiled = self._call_fixed(True, arguments, named)
            if compiled:
                self._fixed_left -= 1
                self._seen[shapes] = numbers_of(arguments, named)
            return result
        if len(self._seen) == self._most_shapes:  # else fixed graphs ran out, and that was told
            self._tell(
                f"the step was compiled for {len(self._seen)} shapes of its inputs. New shapes "
                "share a graph of dynamic shapes, which contains no kernels. To keep the kernels, "
                "pad batches to fewer shapes"
            )
        result, compiled = self._watched(self._dynamic, self._dynamic_left > 0, arguments, named)
        if compiled:
            self._dynamic_left -= 1
            if self._dynamic_left == 0:
                self._tell(
                    "the step keeps recompiling, even with dynamic shapes. Inputs that no "
                    "existing graph covers now run without torch.compile"
                )
        return result

    def _call_again(
        self, shapes: Shapes, arguments: tuple[object, ...], named: dict[str, object]
    ) -> object:
        result, compiled = self._call_fixed(self._fixed_left > 0, arguments, named)
        numbers = numbers_of(arguments, named)
        if compiled:
            self._fixed_left -= 1
            self.recompilations += 1
            if self._takes_numbers and self.recompilations + 1 == UNSTABLE:
                # Numbers are inputs from now on, which has a dynamic graph's place.
                self._numbered = torch.compile(self._function, options=self._options)
                if self._dynamic_left > 1:
                    self._dynamic_left -= 1
                    self._fixed_left += 1
            if self._fixed_left == 0:
                self._tell(
                    f"the step keeps recompiling for inputs of the same shapes, because "
                    f"{_what_changed(self._seen[shapes], numbers)}. What no existing graph covers "
                    "now runs without torch.compile"
                )
        self._seen[shapes] = numbers
        return result

    def _call_fixed(
        self, may_compile: bool, arguments: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, bool]:
        if self._numbered is None:
            return self._watched(self._fixed, may_compile, arguments, named)
        with _only_numbers_change(arguments, named):
            return self._watched(self._numbered, may_compile, arguments, named)

    def _watched(
        self,
        function: Callable[..., object],
        may_compile: bool,
        arguments: tuple[object, ...],
        named: dict[str, object],
    ) -> tuple[object, bool]:
        """Call the compiled function; return its result, and True if dynamo compiled a frame."""
        import torch._dynamo
        from torch._dynamo.utils import counters

        if not may_compile:
            with torch.compiler.set_stance("eager_on_recompile"):
                return function(*arguments, **named), False
        before, graphs = counters["frames"]["total"], counters["stats"]["unique_graphs"]
        # A long run must not end because a new shape, a full disk or a broken cache stops a
        # compiler; a first run tells.
        goes_on = self.goes_on or self._has_run
        with (
            optimizers_as_they_are(),
            # Compile again when a script adds hooks to a module, or removes them.
            torch._dynamo.config.patch(skip_nnmodule_hook_guards=False),
            torch._dynamo.config.patch(capture_scalar_outputs=True)
            if self.scalars
            else nullcontext(),
            parts_as_written(self._tell) if goes_on else nullcontext(),
        ):
            result = function(*arguments, **named)
        self._has_run = True
        self.graphs += counters["stats"]["unique_graphs"] - graphs
        return result, counters["frames"]["total"] > before

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            LOG.warning("ratchet: %s", what)


def shapes_of(arguments: tuple[object, ...], named: dict[str, object]) -> Shapes:
    """Return what a graph is of: the gradient mode, all tensors' shapes, all flags and words."""
    found: list[object] = [torch.is_grad_enabled()]
    for leaf in tree_leaves((arguments, named)):
        if isinstance(leaf, Tensor):
            found.append((leaf.shape, leaf.dtype, leaf.requires_grad))
        elif isinstance(leaf, bool | str):
            found.append(leaf)
    return tuple(found)


def numbers_of(arguments: tuple[object, ...], named: dict[str, object]) -> Numbers:
    """Return all numbers among the arguments; flags are none."""
    leaves = tree_leaves((arguments, named))
    return tuple(leaf for leaf in leaves if type(leaf) in (int, float))


@contextmanager
def optimizers_as_they_are() -> Iterator[None]:
    """Let dynamo read an optimizer's groups without preparing the optimizer to be traced.

    Ratchet keeps `Optimizer.step` out of graphs. Dynamo's preparation for a traced step sets
    `capturable` in the groups and guards on each value in them, so that a step which only reads or
    sets a learning rate would be compiled again for each rate, and fail.
    """
    from torch._dynamo.variables.optimizer import OptimizerVariable

    prepare = OptimizerVariable.__dict__.get("_set_capturable")
    if prepare is None:
        yield
        return
    OptimizerVariable._set_capturable = lambda self, tx: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        OptimizerVariable._set_capturable = prepare  # type: ignore[method-assign]


@contextmanager
def _only_numbers_change(arguments: tuple[object, ...], named: dict[str, object]) -> Iterator[None]:
    """Let dynamo make numbers inputs of its graphs, and keep the shapes of the arguments fixed."""
    import torch._dynamo

    for leaf in tree_leaves((arguments, named)):
        if isinstance(leaf, Tensor):
            torch._dynamo.mark_static(leaf)
    with torch._dynamo.config.patch(
        automatic_dynamic_shapes=True, allow_unspec_int_on_nn_module=True
    ):
        yield


def _what_changed(before: Numbers, now: Numbers) -> str:
    for old, new in zip(before, now, strict=False):
        if old != new:
            return f"a number among them changes ({old!r}, then {new!r})"
    return "something that it reads elsewhere changes, such as a counter"


# Models that lie on several ranks: which parts FSDP2 gathers, and how those are compiled.
#
# torch.compile takes a sharded model unit by unit, inside of the hooks that gather its weights, as
# torchtitan does (arXiv:2410.06511, section 3.2.1): a graph of several units would break at each.

_COUNT = itertools.count()


def without_ddp(module: nn.Module) -> nn.Module:
    """Return the module in a DistributedDataParallel, whose own code dynamo does not enter."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def sharded_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules within a model that FSDP2 gathers; empty if nothing is sharded."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    if loaded is None:
        return []
    return [one for one in model.modules() if isinstance(one, loaded.FSDPModule)]


def units_of(model: nn.Module) -> list[nn.Module]:
    """Return the sharded units that are compiled one by one: the innermost of several layers."""
    return [
        one
        for one in sharded_in(model)
        if next(one.children(), None) is not None
        and not any(inner is not one for inner in sharded_in(one))
    ]


def is_flattened(model: nn.Module) -> bool:
    """Return True if FSDP1 has flattened weights within the model."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and any(
        isinstance(one, loaded.FullyShardedDataParallel) for one in model.modules()
    )


def is_on_ranks(model: nn.Module) -> bool:
    """Return True if the gradients of other ranks reach the model's parameters."""
    return isinstance(model, DistributedDataParallel) or bool(sharded_in(model))


class CompiledUnit:
    """A sharded unit's forward, compiled where gradients are recorded; `written` is the plain one.

    It stands in the place of the unit's `forward`, so FSDP2's hooks run around it.
    """

    def __init__(
        self, unit: nn.Module, options: CompileOptions, written: Callable[..., object]
    ) -> None:
        def call(*arguments: object, **named: object) -> object:
            return written(*arguments, **named)

        self.written = written
        self.compiled = BoundedCompile(with_own_code(call, unit), options)

    def __call__(self, *arguments: object, **named: object) -> object:
        inside = torch.compiler.is_compiling() or is_transformed()
        if inside or not torch.is_grad_enabled():
            return self.written(*arguments, **named)
        return self.compiled(*arguments, **named)


def compile_units(model: nn.Module, options: CompileOptions) -> bool:
    """Compile the units of a sharded model in place; return False if it has none."""
    units = units_of(model)
    for one in units:
        one.__dict__["forward"] = CompiledUnit(one, options, one.forward)
    return bool(units)


def with_own_code(call: Callable[..., object], module: nn.Module) -> Callable[..., object]:
    """Give a function that stands for a module code of its own, and return it.

    Dynamo bounds recompilations for each code object, and all modules share one of torch's.
    """
    name = f"call_{next(_COUNT)}_{type(module).__name__}"
    call.__code__ = call.__code__.replace(co_name=name)
    return call
