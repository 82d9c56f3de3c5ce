"""Render results for people: terminal tables, and pages that open offline."""

from ratchet.report.device import print_bench, print_device
from ratchet.report.optimize import print_plan, print_result, render_page
from ratchet.report.progress import TurnProgress

__all__ = [
    "TurnProgress",
    "print_bench",
    "print_device",
    "print_plan",
    "print_result",
    "render_page",
]
