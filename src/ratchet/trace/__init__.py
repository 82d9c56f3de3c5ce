"""Profiler traces: where the time goes, exactly.

`record` makes traces. Then, bottom up: `read/` turns files into columns, `analysis/` finds links
and the window, `answers/` makes tables, `ranks`, `compare` and `merge` put traces side by side,
`advice` says what could be won, `export` passes the results on, `show/` puts them in words. The
packages `read` and `record` can be called like the function of the same name:
`ratchet.trace.read(path)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.base import make_callable
from ratchet.trace.advice import Advice, advise
from ratchet.trace.analysis import Analysis, Identity, analyse
from ratchet.trace.answers.report import Report, report
from ratchet.trace.compare import Diff, diff
from ratchet.trace.export import diff_document, document, ranks_document
from ratchet.trace.ranks import Ranks, read_ranks
from ratchet.trace.read.columns import Trace

if TYPE_CHECKING:
    from ratchet.trace.read import read
    from ratchet.trace.record import record

__all__ = [
    "Advice",
    "Analysis",
    "Diff",
    "Identity",
    "Ranks",
    "Report",
    "Trace",
    "advise",
    "analyse",
    "diff",
    "diff_document",
    "document",
    "ranks_document",
    "read",
    "read_ranks",
    "record",
    "report",
]

make_callable("ratchet.trace.read", "ratchet.trace.read:read")
make_callable("ratchet.trace.record", "ratchet.trace.record:record")
