"""Training jobs: models, data, the step, precision and memory."""

from __future__ import annotations

from ratchet.workloads.check import check
from ratchet.workloads.config import StepConfig
from ratchet.workloads.load import known, load
from ratchet.workloads.step import TrainingStep
from ratchet.workloads.workload import AdamWSpec, Workload

__all__ = ["AdamWSpec", "StepConfig", "TrainingStep", "Workload", "check", "known", "load"]
