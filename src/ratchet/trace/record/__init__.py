"""Recording: run a training command under the profiler, without an edit of its script."""

from __future__ import annotations

from ratchet.trace.record.command import CommandFailed, Schedule, record

__all__ = ["CommandFailed", "Schedule", "record"]
