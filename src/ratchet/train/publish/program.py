"""A workload's forward pass and training step as programs of torch.export and as ONNX.

The step is a function: parameters, the optimizer's state and a batch go in; the loss, the new
parameters and the new state come out. What torch.export writes is loaded again and run beside the
workload's own step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from ratchet.base.errors import PublishError
from ratchet.train.publish.export_result import (
    INSTALL,
    ExportResult,
    Fallback,
    WrittenProgram,
    new_folder,
    written_files,
)
from ratchet.train.workloads.check import load_checked
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Batch, Workload

# ONNX beside an exported program, where `onnx` and `onnxscript` are installed.


def can_translate() -> bool:
    """Return whether torch's exporter to ONNX can run."""
    return find_spec("onnx") is not None and find_spec("onnxscript") is not None


def write_onnx(
    program: ExportedProgram, path: Path, wanted: Sequence[Tensor], tolerance: float
) -> str:
    """Write a program as ONNX and run it in onnxruntime; return what was done, in words.

    Raises PublishError: onnxruntime gives other results than the program.
    """
    if not can_translate():
        return f"not written: {INSTALL}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(program, dynamo=True, verbose=False)
            made.save(str(path))  # type: ignore[union-attr]
        except Exception as error:
            return f"not written: {_why(program, error)}"
        if find_spec("onnxruntime") is None:
            return f"{path.name}, not run: {INSTALL}"
        found = _run(path, program)
    for one, other in zip(found, wanted, strict=True):
        apart = (one.double() - other.double()).norm()
        if not float(apart) <= tolerance * max(float(other.double().norm()), 1e-6):
            raise PublishError(f"{path.name} gives other results in onnxruntime than in torch")
    return f"{path.name}, run by onnxruntime with the same results"


def untranslated(operators: Iterable[OpOverload]) -> set[OpOverload] | None:
    """Return the operators that torch's exporter to ONNX does not know; None if it is missing."""
    if not can_translate():
        return None
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    known = ONNXRegistry.from_torchlib()
    return {one for one in set(operators) if not known.is_registered(one)}


def _why(program: ExportedProgram, error: Exception) -> str:
    """Return the operators that the exporter lacks, else the last words of its error."""
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    missing = untranslated([one for one in called if isinstance(one, torch._ops.OpOverload)])
    if missing:
        return f"ONNX lacks {', '.join(sorted(map(str, missing)))}"
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:120]


def _run(path: Path, program: ExportedProgram) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = [one for one in torch.utils._pytree.tree_leaves(program.example_inputs)]
    names = [one.name for one in session.get_inputs()]
    tensors = [one for one in given if isinstance(one, Tensor)]
    feeds = {name: one.detach().numpy() for name, one in zip(names, tensors, strict=True)}
    return [torch.as_tensor(one) for one in session.run(None, feeds)]


EXACT: Final = 1e-3
LOW: Final = 5e-2
"""Largest difference of a program from the step as written, as a share of the results' norm."""
CLIP_EPS: Final = 1e-6
SEED: Final = 0
_ASIDE: Final = ("getitem", "_assert_tensor_metadata")  # Nodes of a graph that compute nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedProgram:
    """A module to be exported, its inputs, and what the workload's own code gives for them."""

    name: str
    module: nn.Module
    inputs: tuple[object, ...]
    named: dict[str, object]
    wanted: Sequence[Tensor]


def export_workload(workload: str, options: LoadOptions, out: Path) -> ExportResult:
    """Export a workload's forward pass and its training step into a new folder.

    Raises WorkloadError (the workload cannot be built); PublishError (it runs a step of its own,
    torch.export refuses it, or the loaded program gives other results).
    """
    with new_folder(out) as stage:
        loaded, _ = load_checked(workload, **options)
        if loaded.loss is None:
            raise PublishError(
                f"{workload} has a train_step of its own: give a workload with a loss"
            )
        if loaded.precision == "bf16_master":
            raise PublishError(
                f"{workload} trains copies of its weights in bf16_master, which no program holds: "
                "give --precision fp32 or bf16_autocast"
            )
        _update_of(loaded)  # says at once what cannot be exported
        programs, fallbacks = [], []
        for make in (_forward, _step):
            exact = loaded.as_written().precision in ("fp32", "fp64")
            program, missing = _written(make(loaded), stage, EXACT if exact else LOW)
            programs.append(program)
            fallbacks += missing
        files = written_files(stage)
    said = (
        "each program was loaded with torch.export.load, run, and compared with the step as written"
    )
    return ExportResult(
        subject=workload,
        to="export",
        out=str(out),
        files=files,
        checks=(said,),
        programs=tuple(programs),
        fallbacks=tuple(fallbacks),
    )


def _written(
    traced: TracedProgram, folder: Path, tolerance: float
) -> tuple[WrittenProgram, list[Fallback]]:
    file = folder / f"{traced.name}.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own
        try:
            program = torch.export.export(traced.module, traced.inputs, traced.named)
            program = program.run_decompositions()
            torch.export.save(program, file)
        except Exception as error:
            first = " ".join(str(error).split())[:200]
            raise PublishError(f"torch.export refuses the {traced.name}: {first}") from error
        again = torch.export.load(file)
        torch.manual_seed(SEED)
        found = _tensors(again.module()(*traced.inputs, **traced.named))
    apart = max(_apart(one, other) for one, other in zip(found, traced.wanted, strict=True))
    if not apart <= tolerance:
        raise PublishError(
            f"the exported {traced.name} differs from the workload's by {apart:.2g} of its norm "
            f"(at most {tolerance:g}): it may draw random numbers"
        )
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    operators = [one for one in called if not any(word in str(one) for word in _ASIDE)]
    said = write_onnx(program, folder / f"{traced.name}.onnx", found, tolerance)
    return (
        WrittenProgram(
            name=traced.name,
            file=file.name,
            operations=len(operators),
            apart=apart,
            onnx=said,
        ),
        _fallbacks(traced.name, operators),
    )


def _fallbacks(name: str, operators: Sequence[OpOverload]) -> list[Fallback]:
    """Return the operators that are outside Core ATen, or that torch's ONNX exporter lacks."""
    missing = untranslated(operators)
    found = []
    for one in sorted(set(operators), key=str):
        core = torch.Tag.core in getattr(one, "tags", ())
        translated = None if missing is None else one not in missing
        if not core or translated is False:
            found.append(
                Fallback(
                    program=name,
                    operator=str(one),
                    calls=operators.count(one),
                    core_aten=core,
                    onnx=translated,
                )
            )
    return found


def _autocast(workload: Workload) -> torch.autocast:
    enabled = workload.precision == "bf16_autocast"
    return torch.autocast(workload.device.partition(":")[0], torch.bfloat16, enabled=enabled)


class _Autocast(nn.Module):
    """A model under the workload's autocast, which is a part of its forward pass."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        super().__init__()
        self.model, self._workload = model, workload

    def forward(self, *arguments: object, **named: object) -> object:
        with _autocast(self._workload):
            return self.model(*arguments, **named)


def _forward(workload: Workload) -> TracedProgram:
    """Return the model's call in the workload's loss, in evaluation mode."""
    given: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def note(_: nn.Module, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        given.append((arguments, named))

    model = copy.deepcopy(workload.model)
    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        _loss_of(workload, model, workload.batch(0))
    handle.remove()
    if not given:
        raise PublishError(f"the loss of {workload.name} does not call its model")
    module = _Autocast(model.eval(), workload)
    with torch.no_grad():
        wanted = _tensors(module(*given[0][0], **given[0][1]))
    return TracedProgram(
        name="forward", module=module, inputs=given[0][0], named=given[0][1], wanted=wanted
    )


def _step(workload: Workload) -> TracedProgram:
    """Return loss, gradients and AdamW's update as one function of tensors."""
    model = copy.deepcopy(workload.model).train()
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    parameters = [one.detach().clone() for one in model.parameters() if one.requires_grad]
    batch, form = pytree.tree_flatten(workload.batch(0))
    update = _update_of(workload)

    def step(parameters: list[Tensor], state: list[Tensor], batch: list[Batch]) -> list[Tensor]:
        leaves = [one.detach().requires_grad_() for one in parameters]
        own = dict(zip(names, leaves, strict=True))
        with stateless._reparametrize_module(model, own), torch.enable_grad():
            loss = _loss_of(workload, model, pytree.tree_unflatten(batch, form))
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [loss.detach(), *update(parameters, gradients, state)]

    state = [torch.zeros_like(one) for _ in range(2) for one in parameters]
    state.append(torch.zeros(()))
    inputs = (parameters, state, batch)
    wanted = _as_written(workload)
    # torch decomposes the fused attention of a CPU without what its backward needs.
    with sdpa_kernel(SDPBackend.MATH):
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for node in graph.graph.nodes:  # a tensor's strides may differ when it is traced again
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()
    return TracedProgram(name="step", module=graph, inputs=inputs, named={}, wanted=wanted)


def _as_written(workload: Workload) -> list[Tensor]:
    """Return what one step of the workload's own code gives, in the order of the exported step."""
    own = replace(workload, model=copy.deepcopy(workload.model), accumulate=1)
    step = TrainingStep(own, own.as_written())
    torch.manual_seed(SEED)
    loss = step(own.batch(0))
    trained = list(own.trained().values())
    (optimizer,) = step.optimizers.values()
    assert isinstance(optimizer, torch.optim.AdamW)
    moments = [
        optimizer.state[one].get(key, torch.zeros_like(one))
        for key in ("exp_avg", "exp_avg_sq")
        for one in trained
    ]
    return [loss, *(one.detach() for one in trained), *moments, torch.ones(())]


Update = Callable[[list[Tensor], Sequence[Tensor | None], list[Tensor]], list[Tensor]]


def _update_of(workload: Workload) -> Update:
    """Return the update as a function: clipping and AdamW (arXiv:1711.05101, algorithm 2).

    It returns the new parameters, both moments and the count of steps.
    """
    made = workload.make_optimizers()
    optimizer = next(iter(made.values()))
    groups = optimizer.param_groups
    plain = not any(groups[0].get(one) for one in ("amsgrad", "maximize"))
    if type(optimizer) is not torch.optim.AdamW or len(made) + len(groups) != 2 or not plain:
        raise PublishError(
            f"{workload.name} trains with {type(optimizer).__name__} in {len(groups)} groups: the "
            "exported step needs one plain torch.optim.AdamW with one group"
        )
    lr, decay, eps = (float(groups[0][key]) for key in ("lr", "weight_decay", "eps"))
    beta1, beta2 = groups[0]["betas"]
    clip_norm = workload.clip_norm

    def update(
        parameters: list[Tensor], given: Sequence[Tensor | None], state: list[Tensor]
    ) -> list[Tensor]:
        factor, step = torch.ones(()), state[-1] + 1
        if clip_norm is not None:
            squares = [one.float().square().sum() for one in given if one is not None]
            norm = torch.stack(squares).sum().sqrt()
            factor = (clip_norm / (norm + CLIP_EPS)).clamp(max=1.0)
        size, root = lr / (1 - beta1**step), (1 - beta2**step).sqrt()
        middle = len(state) // 2
        new, first, second = list(parameters), state[:middle], state[middle:-1]
        for index, gradient in enumerate(given):
            if gradient is None:  # torch leaves such a parameter as it is
                continue
            gradient = gradient * factor
            first[index] = first[index] * beta1 + gradient * (1 - beta1)
            second[index] = second[index] * beta2 + gradient.square() * (1 - beta2)
            change = size * first[index] / (second[index].sqrt() / root + eps)
            new[index] = parameters[index] * (1 - lr * decay) - change
        return [*new, *first, *second, step]

    return update


def _loss_of(workload: Workload, model: nn.Module, batch: object) -> Tensor:
    assert workload.loss is not None
    with _autocast(workload):
        return workload.loss(model, batch)


def _tensors(found: object) -> list[Tensor]:
    return [one.detach() for one in pytree.tree_leaves(found) if isinstance(one, Tensor)]


def _apart(one: Tensor, other: Tensor) -> float:
    apart, norm = (one.double() - other.double()).norm(), other.double().norm()
    return float(apart / norm) if norm else float(apart)
