"""Profiler traces: where the time goes, exactly.

Where a function shares its module's name (`diff`, `read`, `record`, `report`), the module can be
called: `ratchet.trace.read(path)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.callable_module import make_callable
from ratchet.trace.advice import Finding, advise
from ratchet.trace.columns import Trace
from ratchet.trace.diff import Diff
from ratchet.trace.documents import diff_document, document, ranks_document
from ratchet.trace.identity import Identity
from ratchet.trace.ranks import Ranks, read_ranks
from ratchet.trace.report import Analysis, Report, analyse

if TYPE_CHECKING:
    from ratchet.trace.diff import diff
    from ratchet.trace.read import read
    from ratchet.trace.record import record
    from ratchet.trace.report import report

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

for _name in ("diff", "read", "record", "report"):
    make_callable(f"{__name__}.{_name}", f"{__name__}.{_name}:{_name}")
