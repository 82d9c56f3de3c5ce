"""Findings: what could be won, the evidence for it, and the levers that try it."""

from __future__ import annotations

from ratchet.trace.advice.findings import FINDINGS, Finding, advise

__all__ = ["FINDINGS", "Finding", "advise"]
