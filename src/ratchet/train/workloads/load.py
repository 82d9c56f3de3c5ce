"""Turn the text that names a workload into the workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ratchet.train.workloads.config import Precision
from ratchet.train.workloads.device import place, require, state_bytes
from ratchet.train.workloads.family import CLIP_NORM, Data, Family
from ratchet.train.workloads.hf import load_hf
from ratchet.train.workloads.names import (
    PREFIX,
    SIZES,
    check_name,
    check_options,
    family_of,
    is_saved_spec,
    is_user_spec,
)
from ratchet.train.workloads.user import load_saved, load_user
from ratchet.train.workloads.workload import AdamWSpec, Request, Workload

FAMILIES: Mapping[str, Family] = {name: family_of(name) for name in SIZES}
SHRUNK = "tiny"
SHRUNK_LR = 1e-3


def load(
    spec: str,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    text: Path | str | None = None,
    device: str = "cpu",
) -> Workload:
    """Load the workload named by `spec`, such as `llama-60m`, `hf:qwen3` or `train.py:make`.

    The same arguments give the same weights and batches in every process. Raises WorkloadError if
    the workload cannot be built, and DeviceError if the device is missing or too small.
    """
    request = Request(
        seed=seed,
        batch_size=batch_size,
        sequence=sequence,
        precision=cast("Precision | None", precision),
        text=Path(text) if text else None,
        device=place(device),
    )
    check_options(spec, batch_size=request.batch_size, sequence=request.sequence, text=request.text)
    if spec.startswith(PREFIX):
        return load_hf(spec, request)
    if is_saved_spec(spec):
        return load_saved(spec, request)
    if is_user_spec(spec):
        return load_user(spec, request)
    check_name(spec)
    return _build(*_built_in(spec), spec, request)


def load_shapes(
    spec: str,
    mode: FakeTensorMode,
    *,
    batch_size: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    text: Path | str | None = None,
    **_: object,
) -> Workload:
    """Load a built-in workload as a GPU runs it: its sizes are a GPU's, its tensors are `mode`'s.

    They have shapes and no values, so a step of any size costs no memory.
    """
    request = Request(
        seed=0,
        batch_size=batch_size,
        sequence=sequence,
        precision=cast("Precision | None", precision),
        text=Path(text) if text else None,
        device=torch.device("cpu"),
        shapes_only=True,
    )
    with mode:
        built = _build(*_built_in(spec), spec, request)

    def batch(index: int) -> object:
        return pytree.tree_map_only(torch.Tensor, mode.from_tensor, built.batch(index))

    return replace(built, batch=batch)


def _built_in(spec: str) -> tuple[Family, str]:
    """Return the family and the size that a built-in workload's name means."""
    name, _, size = spec.partition("-")
    return FAMILIES[name], size or FAMILIES[name].alone


def _build(family: Family, size_name: str, spec: str, request: Request) -> Workload:
    on_gpu = request.shapes_only or request.device.type != "cpu"
    size = family.sizes[size_name]
    own = size.on_gpu if on_gpu else 0
    asked = {"batch_size": request.batch_size or own, "sequence": request.sequence}
    size = replace(size, **{key: value for key, value in asked.items() if value})
    data = Data(seed=request.seed, device=request.device, text=request.text)
    model = _initialised(family, size, spec, request)
    shrunk = SHRUNK_LR if size_name == SHRUNK else AdamWSpec().lr
    return Workload(
        name=spec,
        model=model,
        loss=family.loss,
        batch=family.build_batches(size, data),
        optimizer=AdamWSpec(lr=shrunk),
        clip_norm=CLIP_NORM,
        precision=request.precision or "fp32",
        tokens_per_batch=size.batch_size * (size.sequence if family.unit == "tokens" else 1),
        unit=family.unit,
        device=str(request.device),
        shrink=partial(_shrink, family, request),
        source=spec,
    )


def _shrink(family: Family, request: Request, seed: int) -> Workload:
    # The user's text may be too short or unusual for the small copy, so the copy uses the default
    # text.
    small = replace(request, seed=seed, batch_size=None, sequence=None, text=None)
    return _build(family, SHRUNK, f"{family.name}-{SHRUNK}", small)


def _initialised(family: Family, size: object, spec: str, request: Request) -> nn.Module:
    """Build the model if it fits in memory; its weights depend only on the seed."""
    if request.shapes_only:
        return family.build_model(size)
    with torch.device("meta"):
        needed_bytes = state_bytes(family.build_model(size))
    remedy = "choose a smaller size or a larger device"
    require(needed_bytes, request.device, f"workload {spec!r}", remedy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        return family.build_model(size).to(request.device)
