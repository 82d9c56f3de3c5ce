"""The process of one side: runs its step, and writes what it computed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ratchet.base import Json
from ratchet.base.errors import GuardError
from ratchet.base.serialise import document_of
from ratchet.guard.compare.step_arm import build
from ratchet.guard.numerics.watch import (
    ROOT,
    ModuleWatch,
    NonFinite,
    NonFiniteWatch,
    OpWatch,
    naming,
    not_finite,
    sampled,
    within,
)
from ratchet.train.graph.steps import build_step
from ratchet.train.workloads import load
from ratchet.train.workloads.blame import batch_of, user_place
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Batch, Workload

FACTORY = "ratchet.guard.numerics.recorder:NumericsRecorder"


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
        """Write the outputs and gradients of `batches` steps without updates (JSON: names, losses).

        The files are forward-, backward- and parameters-INDEX.safetensors.
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
            "losses": [],
            "forward": [],
            "backward": [],
            "not_finite": [],
        }
        try:
            for index in range(batches):
                loss = _quietly(step, batch_of(step.workload, index))
                said["losses"].append(float(loss))
                forward, backward = watch.take()
                gradients = {name: sampled(one) for name, one in step.gradients().items()}
                parts = {"forward": forward, "backward": backward, "parameters": gradients}
                for part, recorded in parts.items():
                    said["not_finite"] += [[part, name] for name in not_finite(recorded)]
                    if index == 0 and part in said:
                        said[part] = list(recorded)
                    save_file(recorded, place / f"{part}-{index}.safetensors")
                for parameter in step.model.parameters():
                    parameter.grad = None
        finally:
            watch.close()
        return said

    def losses(self, steps: int) -> list[float]:
        """Train, and return the loss of each step."""
        step = self._build()
        return [float(step(batch_of(step.workload, index)).detach()) for index in range(steps)]

    def ops(self, path: str, module: str, *, backward: bool) -> list[str]:
        """Write the output of each op inside a module; return the ops in order."""
        step = self._build()
        mode = OpWatch()
        with within(_module(step.model, module), mode, backward=backward):
            _quietly(step, batch_of(step.workload, 0))
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
                calls.append(tree_map_only(Tensor, _copied, (arguments, named)))

        handle = found.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            _quietly(step, batch_of(step.workload, 0))
        finally:
            handle.remove()
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
            return build_step(_in_double(workload), config)
        return build(workload, self._changes, self._recipe)


def _quietly(step: TrainingStep, batch: Batch) -> Tensor:
    """Run forward and backward without torch's warnings about hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Tensor = step.forward_backward(batch)
    return found.detach()


def _in_double(workload: Workload) -> Workload:
    """Return the workload with weights and batches of fp64."""
    batch = workload.batch
    workload.model.double()
    return replace(workload, batch=lambda index: tree_map_only(Tensor, _double, batch(index)))


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _module(model: nn.Module, name: str) -> nn.Module:
    return model if name == ROOT else model.get_submodule(name)


def _digest(tensor: Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]
