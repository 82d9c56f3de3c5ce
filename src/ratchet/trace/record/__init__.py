"""Recording: run a training command with a profiler that its script does not know of."""

from __future__ import annotations

from ratchet.trace.record.command import CommandFailed, Schedule, record

__all__ = ["CommandFailed", "Schedule", "record"]
