"""Profiler traces: where the time goes, exactly.

`record/` makes traces. Then, bottom up: `read/` turns files into columns, `analysis/` finds links
and the window, `answers/` makes tables, `compare/` puts traces side by side, `advice/` says what
could be won, `export/` passes the results on, `show/` puts them in words. The packages `read` and
`record` can be called like the function of the same name: `ratchet.trace.read(path)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.base.callable_module import make_callable
from ratchet.trace.advice import Finding, advise
from ratchet.trace.analysis.analyse import Analysis, analyse
from ratchet.trace.analysis.identity import Identity
from ratchet.trace.answers.report import Report, report
from ratchet.trace.compare.diff import Diff, diff
from ratchet.trace.compare.ranks import Ranks, read_ranks
from ratchet.trace.export.documents import diff_document, document, ranks_document
from ratchet.trace.read.columns import Trace

if TYPE_CHECKING:
    from ratchet.trace.read.file import read
    from ratchet.trace.record.command import record

__all__ = [
    "Analysis",
    "Diff",
    "Finding",
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

make_callable("ratchet.trace.read", "ratchet.trace.read.file:read")
make_callable("ratchet.trace.record", "ratchet.trace.record.command:record")
