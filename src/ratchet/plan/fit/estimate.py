"""Estimate a step's peak without running it, with torch's own MemTracker on tensors without values.

MemTracker (torch.distributed._tools.mem_tracker) follows every op of an eager step in
FakeTensorMode. It sees no memory inside of an op and no compiled graphs.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from ratchet.workloads.blame import batch_of
from ratchet.workloads.step import TrainingStep
from ratchet.workloads.workload import Workload


def estimate_bytes(workload: Workload) -> int | None:
    """Return the estimated peak of the step as written; None if it needs values to run."""
    batch = batch_of(workload, 0)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _tracked(workload, batch, mode)
    # A model that reads values raises anything here; the measured step then tells.
    except Exception:
        return None


def _tracked(workload: Workload, batch: object, mode: FakeTensorMode) -> int | None:
    from torch.distributed._tools.mem_tracker import MemTracker

    fake = replace(workload, model=_without_values(workload.model, mode))
    given = pytree.tree_map_only(Tensor, mode.from_tensor, batch)
    step = TrainingStep(fake, fake.as_written())
    tracker = MemTracker()
    tensors = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor)]
    tracker.track_external(fake.model, *tensors)
    with tracker:
        step(given)  # makes the optimizer's state
        tracker.reset_mod_stats()
        step(given)
    peaks = tracker.get_tracker_snapshot("peak")
    return max((int(parts["Total"]) for parts in peaks.values()), default=0) or None


def _without_values(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of the model whose parameters and buffers have no values."""
    fakes: dict[int, object] = {}
    for parameter in model.parameters():
        fake = mode.from_tensor(parameter.detach())
        fakes[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        fakes[id(buffer)] = mode.from_tensor(buffer)
    with torch.no_grad():
        return copy.deepcopy(model, fakes)
