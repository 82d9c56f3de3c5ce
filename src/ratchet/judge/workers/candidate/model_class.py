"""Load a `ModelNew` inside the sandbox: built once, its state set before each call."""

from __future__ import annotations

import ast
import contextlib
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.source_files import load
from ratchet.judge.problems.model_state import WEIGHTS_SEED, StatefulCall, move_plain, plain_tensors


def load_model(
    source: str,
    entry: str,
    *,
    init: str,
    arguments: Sequence[str | None],
    state: Sequence[tuple[str, Sequence[int], str]],
    training: bool,
    attributes: Sequence[str] = (),
    warm_up: Sequence[tuple[Sequence[int], str]] = (),
    device: str | None = None,
    drawn: Sequence[str] = (),
    frozen: bool = False,
    alone: bool | None = None,
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the model of a source as f(*state, *inputs, scalars), built on `device`.

    `state` gives name, shape and dtype of each part of the state, `attributes` the names of its
    plain attributes, and `drawn` the digests of the values that the reference's constructor drew.
    `alone` is that of the problem's form.
    With `warm_up`, shape and dtype of each tensor input, the model is called once on zeros. If it
    is `frozen`, its weights are bound once.

    Raises KernelError if the source has no such class, or another state.
    """
    path = Path(tempfile.mkdtemp(prefix="candidate-")) / "candidate.py"
    path.write_text(source)
    built = load(path, entry)
    with _building(None if frozen else device):
        model = built(*ast.literal_eval(init))
    if not isinstance(model, nn.Module):
        raise KernelError(f"{entry} builds {type(model).__name__}: it must be a torch.nn.Module")
    if device is not None:
        model.to(device)
        if frozen:
            move_plain(model, device)
    model.train(training)
    with torch.no_grad():
        forms = [(tuple(shape), getattr(torch, dtype)) for _, shape, dtype in state]
        names = [name for name, _, _ in state]
        call = StatefulCall(
            model, names, arguments, attributes, forms, frozen=frozen, drawn=drawn, alone=alone
        )
        if warm_up:
            own = {**plain_tensors(model), **model.state_dict()}
            held = [own[name].clone() for name, _, _ in state]
            call(
                *held,
                *(
                    torch.zeros(tuple(shape), dtype=getattr(torch, d), device=device)
                    for shape, d in warm_up
                ),
                (),
            )
    return call


def _building(device: str | None) -> contextlib.AbstractContextManager[object]:
    """Return the context in which a model is built, under the seed that the reference had.

    On the machine's cores it draws the same numbers.
    """
    torch.manual_seed(WEIGHTS_SEED)
    random.seed(WEIGHTS_SEED)
    np.random.seed(WEIGHTS_SEED)
    return torch.device(device) if device is not None else contextlib.nullcontext()
