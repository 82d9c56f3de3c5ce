"""Update each parameter when its gradient is there, so that no two gradients are held at a time.

From torch's tutorial "How to save memory by fusing the optimizer step into the backward pass". The
script's own optimizer steps, once for each parameter, so its state and its schedules stay as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.workload import Workload


def why_not_in_backward(workload: Workload) -> str:
    """Return why a workload's update must wait for all gradients; empty if it need not."""
    if workload.train_step is not None:
        return "the workload's own train_step updates"
    if workload.clip_norm is not None:
        return "clipping needs all gradients at once"
    return "a step that accumulates adds its gradients up" if workload.accumulate > 1 else ""


def check_in_backward(workload: Workload, config: StepConfig) -> None:
    """Raise WorkloadError if the config's step cannot update in its backward pass."""
    why = why_not_in_backward(workload)
    if not why and config.micro_batches > 1:
        why = "micro-batches add their gradients up"
    if not why and (config.optimizer == "kernel" or config.precision == "bf16_master"):
        why = f"optimizer {config.optimizer} with {config.precision} updates all weights at once"
    if why:
        raise WorkloadError(f"workload {workload.name!r} cannot update in its backward pass: {why}")


class UpdateInBackward:
    """Hooks that step one optimizer each, while `open`."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._open = False
        self._owners: dict[Tensor, tuple[Optimizer, dict[str, object]]] = {
            one: (optimizer, group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for one in group["params"]
        }
        self._hooks = [self._hooked(one) for one in self._owners]

    def _hooked(self, parameter: Tensor) -> RemovableHandle:
        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(self._update)  # type: ignore[no-untyped-call]
        return handle

    @contextmanager
    def open(self) -> Iterator[None]:
        """Update within; outside, gradients stay where backward leaves them."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _update(self, parameter: Tensor) -> None:
        if not self._open:
            return
        optimizer, own = self._owners[parameter]
        before = [group["params"] for group in optimizer.param_groups]
        try:
            for group in optimizer.param_groups:
                group["params"] = [parameter] if group is own else []
            optimizer.step()
        finally:
            for group, parameters in zip(optimizer.param_groups, before, strict=True):
                group["params"] = parameters
        parameter.grad = None
