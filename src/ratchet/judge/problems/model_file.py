"""A KernelBench file in a worker process: its model as a reference, and its inputs.

The model is built once per dtype. Its parameters are drawn anew for each call, with the mean and
spread of its own initialisation. A parameter that starts as a constant (the scale and shift of a
norm, a bias of zeros) is spread, so that no kernel can leave it out. Running statistics are drawn
too. Other buffers (masks, tables) and tensors that are plain attributes keep the model's values.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ratchet.base.errors import KernelError
from ratchet.judge.problems.case import Case, ModelForm, Structure, TensorSpec
from ratchet.judge.problems.inputs import PLAIN, restored
from ratchet.judge.problems.model_state import (
    WEIGHTS_SEED,
    StatefulCall,
    plain_tensors,
    widen_plain,
)

# Support for problem files that ask for `cuda`, on the CPU.
#
# The judge always draws values on the CPU, so that a seed means the same everywhere. KernelBench's
# files must also run without a GPU. So a tensor that a file would create on a GPU is created in
# main memory. If the judge uses a GPU, it copies the tensor there.


class _OnCores(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            args = [torch.device("cpu") if _is_cuda(one) else one for one in args]
        if _is_cuda(named.get("device")):
            named["device"] = "cpu"
        return func(*args, **named)


def on_cores(text: str) -> contextlib.AbstractContextManager[object]:
    """Create all tensors on the CPU inside the context, if the file's text names a GPU."""
    return _OnCores() if "cuda" in text else contextlib.nullcontext()


def _is_cuda(device: object) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


# For worker processes only: making the module of a problem's source text runs the file.

NAME = "ratchet_problem_file"
SMALL = 2.0**-10  # a norm's usual epsilon, 1e-5, is ten times the square


@functools.lru_cache(maxsize=2)
def source_module(text: str) -> types.ModuleType:
    """Run the text as a module, once; raise whatever it raises."""
    return run_source(text)


def run_source(text: str) -> types.ModuleType:
    filename = f"<{NAME}>"
    # Dataclasses look up their module; torch.compile and tracebacks look up the text of a line.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(NAME)
    module.__file__ = filename
    sys.modules[NAME] = module
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


SPREAD = 0.5  # Spread of a parameter that starts as a constant, uniform to both sides
CPU = torch.device("cpu")
STATISTICS = ("running_mean", "running_var")
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class ModelFile:
    """The reference of one file, and draws of its inputs."""

    def __init__(self, text: str, form: ModelForm) -> None:
        with on_cores(text):
            self._module = source_module(text)
        self._text = text
        self._form = form
        self._calls: dict[tuple[bool, torch.device], StatefulCall] = {}
        self._template = self._build(double=False)
        self._drawn = {name for name, _ in self._template.named_parameters(remove_duplicate=False)}

    def _build(self, *, double: bool, seed: int = WEIGHTS_SEED) -> nn.Module:
        dtype = torch.float64 if double else torch.float32
        with seeded(seed), _default_dtype(dtype), on_cores(self._text):
            model = self._module.Model(*ast.literal_eval(self._form.init))
        assert isinstance(model, nn.Module)
        model.train(self._form.training)
        if double:
            model.double()
            widen_plain(model)
        return model

    def call(self, *, double: bool = False, seed: int = WEIGHTS_SEED) -> StatefulCall:
        """Return a fresh model as a function of its state and inputs."""
        model = self._build(double=double, seed=seed)
        form = self._form
        return StatefulCall(model, form.state, form.arguments, form.attributes, frozen=form.frozen)

    def first_state(self) -> list[Tensor]:
        """Return each part of the state as the constructor draws it under WEIGHTS_SEED."""
        found = {**plain_tensors(self._template), **self._template.state_dict()}
        return [found[name] for name in self._form.state]

    def on_this_machine(self) -> contextlib.AbstractContextManager[object]:
        """Return a context for calls of the model; without a GPU its tensors go to the CPU."""
        return contextlib.nullcontext() if torch.cuda.is_available() else on_cores(self._text)

    def reference(self, *given: object) -> tuple[Tensor, ...]:
        """Compute f(*state, *inputs, scalars); in float64 throughout for float64 tensors."""
        double = any(isinstance(one, Tensor) and one.dtype == torch.float64 for one in given)
        where = next((one.device for one in given if isinstance(one, Tensor)), CPU)
        if (double, where) not in self._calls:
            self._calls[double, where] = self.call(double=double)
            if where != CPU:  # buffers that are not part of the state
                self._calls[double, where].model.to(where)
        with (
            self.on_this_machine(),
            _default_dtype(torch.float64) if double else contextlib.nullcontext(),
        ):
            return self._calls[double, where](*given)

    def is_same_in_modes(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether the model answers alike in training and in evaluation mode."""
        where = next((one.device for one in inputs), CPU)
        own = self.reference(*inputs, ())
        try:
            with self.on_this_machine():
                other = self._calls[False, where].in_other_mode(*inputs, ())
        except Exception:  # its author did not foresee the other mode
            return False
        return len(own) == len(other) and all(map(torch.equal, own, other))

    def timed(self) -> Callable[..., tuple[Tensor, ...]]:
        """Return the model without the context of `reference`, which a `ModelNew` does not get.

        A forward that creates tensors on a missing GPU still needs that context.
        """
        call = self.call()
        if "cuda" in self._text and not torch.cuda.is_available():
            own = {**plain_tensors(call.model), **call.model.state_dict()}
            with seeded(WEIGHTS_SEED), on_cores(self._text):
                inputs = [one for one in self._module.get_inputs() if isinstance(one, Tensor)]
            try:
                call(*(own[name].clone() for name in self._form.state), *inputs, ())
            except (AssertionError, RuntimeError):
                return self.reference
        return call

    def compiled(self) -> Callable[..., tuple[Tensor, ...]]:
        """Return the same reference under torch.compile, in torch's default mode."""
        call = self.call()
        call.model.compile()
        return call

    def draw(self, case: Case, seed: int) -> list[Tensor]:
        """Draw the state and inputs of a case; the same seed gives the same values."""
        generator = torch.Generator().manual_seed(seed)
        count = len(self._form.state)
        names, specs = self._form.state, case.inputs[count:]
        found = {**plain_tensors(self._template), **self._template.state_dict()}
        tied: dict[tuple[int, torch.Size], Tensor] = {}  # one tensor under two names
        state = []
        for name in names:
            place = (found[name].data_ptr(), found[name].shape)
            if place not in tied:
                tied[place] = self._draw_state(name, found[name], generator)
            state.append(tied[place])
        with seeded(seed), on_cores(self._text):
            tensors = [one for one in self._module.get_inputs() if isinstance(one, Tensor)]
        if len(tensors) != len(specs):
            raise KernelError("get_inputs returns a varying number of tensors: make it constant")
        structures = self._form.structures or (PLAIN,) * len(specs)
        triples = zip(tensors, specs, structures, strict=True)
        return [*state, *(vary(one, spec, kept, generator) for one, spec, kept in triples)]

    def _draw_state(self, name: str, like: Tensor, generator: torch.Generator) -> Tensor:
        last = name.rpartition(".")[2]
        if (
            self._form.frozen
            or like.dtype not in _FLOATS
            or not (name in self._drawn or last in STATISTICS)
        ):
            return like.detach().clone()
        wide = like.detach().float()
        spread = float(wide.std(correction=0)) if wide.numel() else 0.0
        if spread == 0.0:
            moved = torch.rand(wide.shape, generator=generator).mul_(2 * SPREAD).sub_(SPREAD)
            return (wide + moved).to(like.dtype)
        drawn = torch.randn(wide.shape, generator=generator)
        return drawn.mul_(spread).add_(wide.mean()).to(like.dtype)


@functools.lru_cache(maxsize=1)
def model_of(text: str, form: ModelForm) -> ModelFile:
    """Return the model of a file's text; raise whatever the file raises."""
    return ModelFile(text, form)


def vary(
    tensor: Tensor, spec: TensorSpec, structure: Structure, generator: torch.Generator
) -> Tensor:
    """Return an input of the file with fewer rows, or with other values of the same structure.

    Integers keep their values.
    """
    tensor = tensor.detach()
    if tuple(tensor.shape) != spec.shape:
        for dimension, extent in enumerate(spec.shape):
            tensor = tensor.narrow(dimension, 0, extent)
        tensor = tensor.contiguous()
    if not tensor.dtype.is_floating_point or spec.distribution == "from_file":
        return tensor
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no fp8 arithmetic
    varied = _VARIED[spec.distribution](wide, generator)
    return restored(varied, wide, structure).to(tensor.dtype)


def _signed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return tensor * signs


def _heavy_tailed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    chi = torch.rand(tensor.shape, generator=generator).clamp(min=1e-4).log().neg()
    return tensor / chi.clamp(min=1e-4).sqrt()


def _uneven(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Make a quarter of the rows and of the columns so small that an epsilon beside them counts.

    Beside the others they are too small to show the roundings of formulas that cancel near zero.
    """
    for dimension in range(min(tensor.dim(), 2)):
        small = torch.rand(tensor.shape[dimension], generator=generator) < 0.25
        factor = torch.where(small, SMALL, 1.0).to(tensor.dtype)
        tensor = tensor * factor.view(-1, *(1,) * (tensor.dim() - dimension - 1))
    return tensor


def _zero_rows(tensor: Tensor, _: torch.Generator) -> Tensor:
    """Make a quarter of the rows and of the columns zero: the same in each draw and each input."""
    tensor = tensor.clone()
    for dimension in range(min(tensor.dim(), 2)):
        tensor.movedim(dimension, 0)[1::4] = 0.0
    return tensor


_VARIED: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "from_file_signed": _signed,
    "from_file_shifted": lambda tensor, _: tensor + 2.0,
    "from_file_large": lambda tensor, _: tensor * 32.0,
    "from_file_heavy_tailed": _heavy_tailed,
    "from_file_uneven": _uneven,
    "from_file_zero_rows": _zero_rows,
}


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch (the CPU, and `device` if it is a GPU), numpy and Python; restore them after."""
    kept = random.getstate(), np.random.get_state()
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)
