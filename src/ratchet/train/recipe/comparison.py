"""Run a step as written and by its recipe from the same state, and compare what they do."""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ratchet.base.errors import RecipeError, told
from ratchet.train.recipe.compiled_step import CompiledStep, Script
from ratchet.train.recipe.script_state import RAISED, Snapshot, of_random_states, set_seeds

log = logging.getLogger("ratchet")
EXACT = ("fp32", "fp64")
ROUNDING = {True: 2e-3, False: 0.15}
"""Largest difference of a value that an exact or a low precision explains, of its norm."""
FLOOR = 0.1
"""Share of the largest root mean square of its kind that counts as every tensor's own.

A gradient that is zero but for rounding, such as that of a bias before BatchNorm, has no digit that
two ways of computing it share.
"""
TURNED = {True: 0.25, False: 0.9}
"""Largest difference of the whole update, as a share of its norm; an update left out has 1."""
MOST_MOVED = 2.5
"""Largest difference of one parameter's update, as a share of its norm; a wrong sign has 2."""
EPSILON = 2e-6  # Rounding of a weight that is not updated, as a share of its norm
NOISE = 3.0  # Largest difference, as a share of that of two runs that draw other random numbers

Values = dict[tuple[str, str], Tensor]  # By kind (`gradient`) and name (`head.weight`)


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """The results and effects of one run of a step."""

    returned: object
    values: Values
    weights: dict[str, Tensor]


class CheckedStep:
    """A compiled step whose next calls are compared with the step as written."""

    def __init__(self, step: CompiledStep, *, calls: int, strict: bool) -> None:
        self._step = step
        self._left = calls
        self._strict = strict

    def __call__(self, *arguments: object, **named: object) -> object:
        """Run the step; while calls are compared, the script goes on from the run as written."""
        if not self._left or not self._step.is_ready():
            return self._step(*arguments, **named)
        script, optimizers = self._step.script, self._step.stepped
        given = (*arguments, *named.values())
        snapshot = Snapshot(script.step, script.model, optimizers, given)
        if snapshot.refused:
            log.warning("ratchet: check is not made: %s", snapshot.refused)
            self._left = 0
            return self._step(*arguments, **named)
        self._left -= 1

        def once(step: Callable[..., object]) -> Effects:
            return run(step, script, optimizers, arguments, named)

        before = _weights(script)
        wrong = ""
        try:
            recipe = once(self._step)
        except RAISED as error:
            wrong = f"it raises {told(error)}"
        snapshot.restore()
        written, twin = once(self._step.written), None
        if not wrong and of_random_states() != snapshot.random_states:
            snapshot.restore()
            set_seeds()
            twin = once(self._step.written)
            snapshot.restore()
            written = once(self._step.written)
        wrong = wrong or difference(before, written, recipe, twin, self._step.precision)
        if wrong:
            self._refuse(wrong)
        return written.returned

    def _refuse(self, wrong: str) -> None:
        self._left = 0
        what = f"the recipe's step differs from the step as written: {wrong}"
        if self._strict:
            raise RecipeError(f"{what}; run `ratchet optimize` on this script's workload")
        log.warning("ratchet: %s. The step runs as written from now on", what)
        self._step.stop()


def run(
    step: Callable[..., object],
    script: Script,
    optimizers: tuple[Optimizer, ...],
    arguments: tuple[object, ...],
    named: dict[str, object],
) -> Effects:
    """Run a step once and note what it did."""
    names = {id(one): name for name, one in script.model.named_parameters()}
    values: Values = {}

    def note(optimizer: Optimizer, _: object, __: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name is not None and parameter.grad is not None:
                    values.setdefault(("gradient", name), _copied(parameter.grad))

    handle = register_optimizer_step_pre_hook(note)
    try:
        returned = step(*arguments, **named)
    finally:
        handle.remove()
    for index, leaf in enumerate(tree_leaves(returned)):
        if _is_value(leaf):
            values["returned value", str(index)] = _copied(leaf)
    for name, weight in script.model.named_parameters():
        if weight.grad is not None:
            values["gradient left", name] = _copied(weight.grad)
    for name, buffer in script.model.named_buffers():
        values["buffer", name] = _copied(buffer)
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if id(parameter) in names and isinstance(state, Mapping):
                for key, value in state.items():
                    if _is_value(value):
                        values[f"optimizer's {key}", names[id(parameter)]] = _copied(value)
    return Effects(returned=returned, values=values, weights=_weights(script))


def difference(
    before: Mapping[str, Tensor],
    written: Effects,
    recipe: Effects,
    twin: Effects | None,
    precision: str,
) -> str:
    """Return the first difference that the precision does not explain, with both values.

    `twin` is a second run as written that drew other random numbers.
    """
    scales: dict[str, float] = defaultdict(float)
    for (kind, _), value in written.values.items():
        scales[kind] = max(scales[kind], _norm(value) / max(1, value.numel()) ** 0.5)
    for key in sorted({*written.values, *recipe.values}):
        kind, name = key
        old, new = written.values.get(key), recipe.values.get(key)
        if old is None or new is None:
            there = "none as written" if old is None else "none with the recipe"
            return f"{kind} {name} ({there})"
        floor = FLOOR * scales[kind] * old.numel() ** 0.5
        allowed = (
            ROUNDING[precision in EXACT] * (1 + kind.startswith("optimizer")) * (_norm(old) + floor)
        )
        if twin is not None and key in twin.values:
            allowed += NOISE * _apart(old, twin.values[key])
        if not _apart(old, new) <= allowed and not _same_nan(old, new):
            return f"{kind} {name} is {_shown(new)}, and {_shown(old)} as written"
    return _update_differs(before, written, recipe, twin, TURNED[precision in EXACT])


def _update_differs(
    before: Mapping[str, Tensor],
    written: Effects,
    recipe: Effects,
    twin: Effects | None,
    turned: float,
) -> str:
    """Return the parameter whose two updates differ most, if the difference is too large."""
    apart, moved, noise, size = (0.0, 0.0, 0.0, 0.0)
    worst, most = "", 0.0
    for name, old in written.weights.items():
        new, start = recipe.weights[name], before[name]
        own = _apart(old, new)
        step, rounding = _apart(old, start), EPSILON * _norm(old)
        other = NOISE * _apart(old, twin.weights[name]) if twin is not None else 0.0
        if not own <= MOST_MOVED * step + rounding + other and not _same_nan(old, new):
            return _of_weight(name, old, new)
        if own > most:
            worst, most = name, own
        apart, moved = apart + own**2, moved + step**2
        noise, size = noise + other**2, size + rounding**2
    if apart**0.5 > turned * moved**0.5 + noise**0.5 + size**0.5:
        return _of_weight(worst, written.weights[worst], recipe.weights[worst])
    return ""


def _of_weight(name: str, old: Tensor, new: Tensor) -> str:
    return f"parameter {name} is {_shown(new)}, and {_shown(old)} as written"


def _weights(script: Script) -> dict[str, Tensor]:
    return {name: _copied(one) for name, one in script.model.named_parameters()}


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, Tensor | float | int) and not isinstance(leaf, bool)


def _copied(value: Tensor | float) -> Tensor:
    found = value if isinstance(value, Tensor) else torch.as_tensor(value)
    dense = found.detach().to_dense() if found.layout != torch.strided else found.detach()
    return dense.clone()


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(_wide(value)))


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float(torch.linalg.vector_norm(_wide(one) - _wide(other)))


def _wide(value: Tensor) -> Tensor:
    return value if value.is_complex() else value.double()


def _same_nan(one: Tensor, other: Tensor) -> bool:
    return not bool(torch.isfinite(_wide(one)).all()) and not bool(
        torch.isfinite(_wide(other)).all()
    )


def _shown(value: Tensor) -> str:
    if value.numel() == 1:
        return f"{float(value.abs() if value.is_complex() else value):.6g}"
    return f"of norm {_norm(value):.6g}"


# Take gradients for comparison: by the draws of uncompiled code, into a file, off the timed heap.
#
# glibc raises its threshold for mmap to the largest mapped block that was ever freed (mallopt(3)).
# Once a model's gradients or copies of them are freed, a process keeps the memory of its steps:
# for moe-42m with the AdamW kernel, which keeps gradients, that saved 20,000 page faults and a
# tenth of each step, in every arm whose gradients were checked, and hid what an allocator wins. So
# every value goes straight into the mapped file
# (https://github.com/huggingface/safetensors#format).

ALIGNED = 8


@contextmanager
def eager_draws(*, needed: bool) -> Iterator[None]:
    """Within, what torch.compile compiles draws the numbers that uncompiled code would.

    Inductor has a generator of its own, with the same odds. What was compiled within is dropped at
    the end, so that later steps run what a user's script runs.
    """
    if not needed:
        yield
        return
    import torch._dynamo
    import torch._inductor.config

    with torch._inductor.config.patch(fallback_random=True):
        yield
    torch._dynamo.reset()


def write_gradients(gradients: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors of any dtype, layout and device as float32, by name.

    A complex one has a last dimension of two: its real and its imaginary part.
    """
    header, end = {}, 0
    for name, gradient in gradients.items():
        shape = [*gradient.shape, *([2] if gradient.is_complex() else [])]
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    start = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(start + end)
    if not end:
        return
    values, at = torch.from_numpy(np.memmap(path, np.float32, "r+", start, (end // 4,))), 0
    for gradient in gradients.values():
        dense = gradient.detach()
        dense = dense if dense.layout == torch.strided else dense.to_dense()
        real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        values[at : at + real.numel()].view(real.shape).copy_(real)
        at += real.numel()
