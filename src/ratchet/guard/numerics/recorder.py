"""The process of one side: runs its step, and writes what each module and op computes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from ratchet.base import Json, address
from ratchet.base.errors import GuardError
from ratchet.base.serialise import document_of
from ratchet.guard.compare.workloads import build
from ratchet.train.graph.steps import build_step
from ratchet.train.workloads.blame import batch_of, user_place
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.step import TrainingStep

ROOT = "model"
OF_OUTPUT = "@"  # After a module's name, the gradient of its output
MOST_ELEMENTS = 1 << 20  # A larger tensor is recorded by evenly spaced elements
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


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks in the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ModuleWatch:
    """Hooks on every module: outputs in the order of their calls, gradients in theirs.

    With `backward`, the gradients are those of each module's inputs, under its name, and of its
    outputs, under its name with OF_OUTPUT: what comes in from the modules that follow.
    """

    def __init__(self, model: nn.Module, *, backward: bool) -> None:
        self.forward: list[tuple[str, Tensor]] = []
        self.backward: list[tuple[str, Tensor]] = []
        self.callers: dict[str, str] = {}  # The module from whose code each was first called
        self.handles: list[RemovableHandle] = []
        self._running: list[str] = []
        for name, module in model.named_modules():
            # torch.compile traces this hook: the tensors become outputs of its graph.
            forward = module.register_forward_hook(_keeping(self.forward, name or ROOT))
            self.handles.append(forward)
            if backward:
                self.handles.append(module.register_forward_pre_hook(self._entering(name or ROOT)))
                self.handles.append(module.register_forward_hook(self._leaving(name or ROOT)))
            if backward and name:
                hook = module.register_full_backward_hook(_keeping(self.backward, name, at=1))
                self.handles.append(hook)

    def take(self) -> tuple[Recorded, Recorded]:
        """Return what was recorded since the last call, by name, in order."""
        found = _named(self.forward), _named(self.backward)
        self.forward.clear()
        self.backward.clear()
        self._running.clear()
        return found

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self.callers.setdefault(name, self._running[-1] if self._running else "")
            self._running.append(name)

        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        """Return a hook that keeps the gradients of a module's outputs once they are known.

        A full backward pre-hook would say the same, but not of outputs in a mapping.
        """

        def keep(gradient: Tensor) -> None:
            self.backward.append((name + OF_OUTPUT, gradient.detach()))

        def leave(*given: object) -> None:
            self._running.pop()
            for tensor in tensors_of(given[2]):
                if tensor.requires_grad:
                    tensor.register_hook(keep)  # type: ignore[no-untyped-call]

        return leave


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

    before, after = (
        (module.register_full_backward_pre_hook, module.register_full_backward_hook)
        if backward
        else (module.register_forward_pre_hook, module.register_forward_hook)
    )
    with hooked([before(switch(True)), after(switch(False))]), watch:
        yield


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
    with hooked(handles):
        yield stack


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


class NumericsRecorder:
    """Records one side; every call builds the workload anew, with its first weights.

    `double` runs all of it in fp64, eagerly.
    """

    calls = ("record", "ops", "hunt", "losses", "save_module")

    def __init__(
        self,
        *,
        workload: str,
        options: LoadOptions,
        changes: Mapping[str, object],
        recipe: str | None,
        double: bool = False,
    ) -> None:
        self._spec, self._options = workload, options
        self._changes, self._recipe, self._double = changes, recipe, double
        self._weights: dict[str, str] = {}

    def step(self, iterations: int) -> None:
        raise GuardError("a recorded side is never timed")

    def describe(self) -> dict[str, object]:
        return {}

    def record(self, folder: str, batches: int) -> dict[str, object]:
        """Write the outputs and gradients of `batches` steps without updates.

        Returns their names as JSON. The files are forward-, backward- and
        parameters-INDEX.safetensors.
        """
        step = self._build()
        eager = step.config.compile_mode is None
        watch = ModuleWatch(step.model, backward=eager and step.config.checkpointing == "none")
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        said: dict[str, Json] = {
            "precision": step.config.precision,
            "eager": eager,
            "weights": self._weights,
            "modules": {
                name or ROOT: type(one).__name__ for name, one in step.model.named_modules()
            },
            "forward": [],
            "backward": [],
            "not_finite": [],
        }
        with hooked(watch.handles):
            for index in range(batches):
                _quietly(step, index)
                forward, backward = watch.take()
                gradients = {name: sampled(one) for name, one in step.gradients().items()}
                said["callers"] = watch.callers
                parts = {"forward": forward, "backward": backward, "parameters": gradients}
                for part, recorded in parts.items():
                    said["not_finite"] += [
                        [part, name] for name, one in recorded.items() if not one.isfinite().all()
                    ]
                    if index == 0 and part in said:
                        said[part] = list(recorded)
                    save_file(recorded, place / f"{part}-{index}.safetensors")
                for parameter in step.model.parameters():
                    parameter.grad = None
        return said

    def losses(self, steps: int) -> list[float]:
        step = self._build()
        return [float(step(batch_of(step.workload, index)).detach()) for index in range(steps)]

    def ops(self, path: str, module: str, *, backward: bool) -> list[str]:
        """Write the output of each op inside a module; return the ops in order."""
        step = self._build()
        mode = OpWatch()
        with within(_module(step.model, module), mode, backward=backward):
            _quietly(step)
        save_file({f"{at:06d}": tensor for at, (_, tensor) in enumerate(mode.found)}, Path(path))
        return [name for name, _ in mode.found]

    def hunt(self, steps: int) -> dict[str, object] | None:
        """Return the first op of `steps` training steps that made a NaN or an infinity."""
        step = self._build()
        for index in range(steps):
            batch = batch_of(step.workload, index)
            with naming(step.model) as running:
                try:
                    with NonFiniteWatch():  # type: ignore[no-untyped-call]
                        step(batch)
                except NonFinite as found:
                    return {
                        "step": index,
                        "op": found.op,
                        "kind": found.kind,
                        "inputs": found.inputs,
                        "module": running[-1] if running else "",
                        "part": "forward" if running else "backward or update",
                        "place": user_place(found) or "",
                    }
        return None

    def save_module(self, path: str, module: str) -> bool:
        """Save a module with the inputs of its first call; return False if it cannot be pickled."""
        step = self._build()
        found = _module(step.model, module)
        calls: list[tuple[object, object]] = []

        def keep(_: nn.Module, arguments: object, named: object) -> None:
            if not calls:
                copied = tree_map_only(
                    Tensor, lambda one: one.detach().cpu().clone(), (arguments, named)
                )
                calls.append(copied)

        handle = found.register_forward_pre_hook(keep, with_kwargs=True)
        with hooked([handle]):
            _quietly(step)
        for parameter in step.model.parameters():
            parameter.grad = None
        if not calls:
            return False
        arguments, named = calls[0]
        try:
            torch.save({"module": found.cpu(), "args": arguments, "kwargs": named}, path)
        except Exception:  # pickling runs code of any class
            return False
        return True

    def _build(self) -> TrainingStep:
        torch.manual_seed(int(self._options.get("seed", 0)))
        workload = load(self._spec, **self._options)
        self._weights = {name: _digest(one) for name, one in workload.model.named_parameters()}
        if self._double:
            written = {**document_of(workload.as_written()), **self._changes}
            config = msgspec.convert(
                {**written, "precision": "fp32", "compile_mode": None}, StepConfig
            )
            batch = workload.batch
            workload.model.double()
            in_double = replace(
                workload, batch=lambda index: tree_map_only(Tensor, _double, batch(index))
            )
            return build_step(in_double, config)
        return build(workload, self._changes, self._recipe)


FACTORY = address(NumericsRecorder)


def _quietly(step: TrainingStep, index: int = 0) -> None:
    """Run forward and backward of a batch without torch's warnings about hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step.forward_backward(batch_of(step.workload, index))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _module(model: nn.Module, name: str) -> nn.Module:
    return model if name == ROOT else model.get_submodule(name)


def _digest(tensor: Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]
