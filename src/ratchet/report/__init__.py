"""Render results for people: terminal tables, and pages that open offline."""

from ratchet.report.page import render_page
from ratchet.report.progress import TurnProgress
from ratchet.report.terminal import print_bench, print_device, print_plan, print_result

__all__ = [
    "TurnProgress",
    "print_bench",
    "print_device",
    "print_plan",
    "print_result",
    "render_page",
]
