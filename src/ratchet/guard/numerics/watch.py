"""Record what each module and op of a step computes. Runs in the process of a side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ratchet.base.errors import GuardError

ROOT = "model"
MOST_ELEMENTS = 1 << 20
"""A larger tensor is recorded by evenly spaced elements."""
Recorded = dict[str, Tensor]


def tensors_of(value: object) -> list[Tensor]:
    """Return the floating tensors of an output, also in tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for one in value for tensor in tensors_of(one)]
    return []


def sampled(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, flat and evenly thinned if it is large."""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() // MOST_ELEMENTS)
    flat = flat[::step] if step > 1 else flat
    dtype = torch.float64 if flat.dtype == torch.float64 else torch.float32
    return flat.to(device="cpu", dtype=dtype, copy=True).contiguous()


class ModuleWatch:
    """Hooks on every module: outputs in the order of their calls, and gradients of inputs."""

    def __init__(self, model: nn.Module, *, backward: bool) -> None:
        self.forward: list[tuple[str, Tensor]] = []
        self.backward: list[tuple[str, Tensor]] = []
        self._handles: list[RemovableHandle] = []
        for name, module in model.named_modules():
            # torch.compile traces this hook: the tensors become outputs of its graph.
            forward = module.register_forward_hook(_keeping(self.forward, name or ROOT))
            self._handles.append(forward)
            if backward and name:
                hook = module.register_full_backward_hook(_keeping(self.backward, name, at=1))
                self._handles.append(hook)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self) -> tuple[Recorded, Recorded]:
        """Return what was recorded since the last call, by name, in order."""
        found = _named(self.forward), _named(self.backward)
        self.forward.clear()
        self.backward.clear()
        return found


def _keeping(kept: list[tuple[str, Tensor]], name: str, *, at: int = 2) -> Callable[..., None]:
    """Return a hook that keeps the tensors of its argument `at`: 1 of inputs, 2 of outputs."""

    def hook(*given: object) -> None:
        for tensor in tensors_of(given[at]):
            kept.append((name, tensor.detach()))

    return hook


class OpWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the outputs of every op, in order, while it is `active`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.active = False
        self.found: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        output = func(*args, **(kwargs or {}))
        if self.active:
            # `sampled` calls ops too; a mode is off while it runs.
            self.found += [(str(func), sampled(tensor)) for tensor in tensors_of(output)]
        return output


class NonFinite(GuardError):
    """The first op that made a NaN, or an infinity out of finite numbers."""

    def __init__(self, op: str, kind: str, inputs: list[str]) -> None:
        super().__init__(f"{op} made {kind}")
        self.op, self.kind, self.inputs = op, kind, inputs


class NonFiniteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises NonFinite at the first op whose output is not finite though its inputs are.

    Masks hold infinities on purpose: an op that fills, selects or copies them is let pass, and so
    is every infinity that comes out of a mask.
    """

    FILLS = ("fill", "full", "where", "tri", "copy", "clone", "view", "expand", "empty", "detach")

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        output = func(*args, **(kwargs or {}))
        name = str(func)
        if any(part in name for part in self.FILLS):
            return output
        given = tensors_of((list(args), kwargs or {}))
        for tensor in tensors_of(output):
            kind = _kind(tensor)
            if kind and not any(_kind(one) in (kind, "NaN") for one in given if one is not tensor):
                raise NonFinite(name, kind, [_describe(one) for one in given])
        return output


@contextmanager
def within(module: nn.Module, watch: OpWatch, *, backward: bool) -> Iterator[None]:
    """Record the ops of a module's forward, or of its backward."""

    def switch(on: bool) -> Callable[..., None]:
        return lambda *_: setattr(watch, "active", on)

    if backward:
        handles = [
            module.register_full_backward_pre_hook(switch(True)),
            module.register_full_backward_hook(switch(False)),
        ]
    else:
        handles = [
            module.register_forward_pre_hook(switch(True)),
            module.register_forward_hook(switch(False)),
        ]
    try:
        with watch:
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def naming(model: nn.Module) -> Iterator[list[str]]:
    """Keep the names of the modules that are running, innermost last."""
    stack: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name or ROOT)))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def not_finite(recorded: Recorded) -> list[str]:
    """Return the names of the tensors that hold a NaN or an infinity."""
    return [name for name, tensor in recorded.items() if not bool(tensor.isfinite().all())]


def _named(found: Iterable[tuple[str, Tensor]]) -> Recorded:
    """Number the tensors of a module after its first."""
    named: Recorded = {}
    counts: dict[str, int] = {}
    for name, tensor in found:
        number = counts[name] = counts.get(name, -1) + 1
        named[f"{name}#{number}" if number else name] = sampled(tensor)
    return named


def _kind(tensor: Tensor) -> str:
    if bool(tensor.isnan().any()):
        return "NaN"
    return "infinity" if bool(tensor.isinf().any()) else ""


def _describe(tensor: Tensor) -> str:
    size = "x".join(map(str, tensor.shape)) or "scalar"
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return f"{dtype} {size}"
    low, high = float(tensor.min()), float(tensor.max())
    return f"{dtype} {size}, {low:.4g} to {high:.4g}"
