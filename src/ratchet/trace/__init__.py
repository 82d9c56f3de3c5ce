"""Profiler traces: where the time goes, exactly.

Functions that share their module's name (`read`, `report`, `diff`) are imported from it:
`from ratchet.trace.read import read`.
"""

from __future__ import annotations

from ratchet.trace.advice import Finding, advise
from ratchet.trace.columns import Trace
from ratchet.trace.diff import Diff
from ratchet.trace.documents import diff_document, document, ranks_document
from ratchet.trace.identity import Identity
from ratchet.trace.ranks import Ranks, read_ranks
from ratchet.trace.report import Analysis, Report, analyse

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
    "diff_document",
    "document",
    "ranks_document",
    "read_ranks",
]
