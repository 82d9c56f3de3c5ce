"""Trace files to columns: Chrome and Kineto JSON, rocprofv3 JSON, rocpd databases.

`file.read` picks the reader by the file's first bytes. A JSON file becomes a stream of typed events
(`stream`, `events`), which become columns (`gather`); a large one is shared by several processes
(`shares`). Counters stand in the files beside the events (`counter_files`).
"""

from __future__ import annotations

from ratchet.trace.read.file import read

__all__ = ["read"]
