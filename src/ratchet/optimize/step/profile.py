"""Profile a few steps inside an arm's process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function


def record_steps(
    step: Any,
    batches: Sequence[Any],
    steps: int,
    device: str,
    path: Path,
    *,
    modules: bool = False,
) -> dict[str, Any]:
    """Write a Chrome trace of `steps` steps to `path`, with a mark around each step.

    With `modules`, each op lies in the call of its module; every Python call is recorded for it.
    Returns `steps` and `system_s`, the seconds that one step spends in the kernel (JSON).
    """
    activities = [ProfilerActivity.CPU]
    if device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        record_shapes=True,
        acc_events=True,
        with_stack=modules,
        with_modules=modules,
    ) as profiler:
        before_s = os.times().system
        for index in range(steps):
            with record_function(f"ProfilerStep#{index}"):
                step(batches[index % len(batches)])
        system_s = (os.times().system - before_s) / steps
    profiler.export_chrome_trace(str(path))
    return {"steps": steps, "system_s": system_s}
