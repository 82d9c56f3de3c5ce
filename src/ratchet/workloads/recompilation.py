"""Compile a function whose inputs may change shape between calls.

Graphs of fixed shapes are the fastest, and only they contain Ratchet's kernels. The first few
shapes get such graphs. Later shapes share graphs of dynamic shapes. Inputs that those do not cover
run uncompiled, so dynamo never reaches its recompilation limit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

LOG = logging.getLogger("ratchet")
UNSTABLE = 3
"""Number of compiling calls with equal shapes after which something other than the shapes changes.

Two are usual, because the first step creates gradients and the optimizer's state.
"""

Shapes = tuple[object, ...]


class BoundedCompile:
    """Compile `function` with `options` for the first few shapes, and dynamically for later ones.

    Half of `torch._dynamo.config.recompile_limit` goes to graphs of fixed shapes. One graph is
    reserved for a known shape that compiles again later, and the rest go to graphs of dynamic
    shapes. `options` apply only to the fixed graphs.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        import torch._dynamo

        limit = int(torch._dynamo.config.recompile_limit)
        self._fixed = torch.compile(function, dynamic=False, options=dict(options) or None)
        self._dynamic = torch.compile(function, dynamic=True)
        self._fixed_left = max(1, limit // 2)
        self._dynamic_left = max(0, limit - self._fixed_left - 1)
        self._spare = limit - self._fixed_left - self._dynamic_left
        self._compiled: Counter[Shapes] = Counter()
        """Number of calls that compiled a fixed graph, by input shapes."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        shapes = shapes_of(arguments, named)
        if self._fixed_left > 0:
            result, compiled = _watched(self._fixed, True, arguments, named)
            if compiled:
                self._count_fixed(shapes)
        elif 0 < self._compiled[shapes] < UNSTABLE:
            result, compiled = _watched(self._fixed, self._spare > 0, arguments, named)
            if compiled:
                self._compiled[shapes] += 1
                self._spare -= 1
        else:
            result, compiled = _watched(self._dynamic, self._dynamic_left > 0, arguments, named)
            if compiled:
                self._count_dynamic()
        return result

    def _count_fixed(self, shapes: Shapes) -> None:
        self._compiled[shapes] += 1
        self._fixed_left -= 1
        if self._fixed_left == 0:
            LOG.warning(
                "ratchet: the step was compiled %d times for %d shapes of its inputs. New shapes "
                "share a graph of dynamic shapes, which contains no kernels. To keep the kernels, "
                "pad batches to fewer shapes",
                self._compiled.total(),
                len(self._compiled),
            )

    def _count_dynamic(self) -> None:
        self._dynamic_left -= 1
        if self._dynamic_left == 0:
            LOG.warning(
                "ratchet: the step keeps recompiling, even with dynamic shapes. Inputs that no "
                "existing graph covers now run without torch.compile"
            )


def shapes_of(arguments: tuple[Any, ...], named: dict[str, Any]) -> Shapes:
    """Return the shapes and dtypes of all tensors among the arguments, and the gradient mode."""
    tensors = (leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, Tensor))
    return torch.is_grad_enabled(), *((tensor.shape, tensor.dtype) for tensor in tensors)


def _watched(
    function: Callable[..., Any],
    may_compile: bool,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[Any, bool]:
    """Call the compiled function; return its result, and True if dynamo compiled a frame."""
    from torch._dynamo.utils import counters

    if not may_compile:
        with torch.compiler.set_stance("eager_on_recompile"):
            return function(*arguments, **named), False
    before = counters["frames"]["total"]
    result = function(*arguments, **named)
    return result, counters["frames"]["total"] > before
