"""The report of a run of learning: typed data, and its result.json and report.html."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from ratchet.base.files import write_whole
from ratchet.base.serialise import encoded
from ratchet.write.learn.evaluate import Evaluation


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the loop: its cost, its result, and whether its policy was kept."""

    number: int
    kept: bool
    why: str
    evaluation: Evaluation
    forgetting: float
    replay: float
    corpus: int
    """Examples that it learned from."""
    judged: int
    """Kernels that were judged for it, by authors, training and evaluation."""
    spent_s: float


class LearnReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document behind result.json and the page."""

    title: str
    command: str
    running: bool
    config: list[tuple[str, str]]
    curves: dict[str, list[dict[str, float | str]]]
    """Each stage's steps."""
    rounds: tuple[RoundRow, ...] = ()
    figures: list[tuple[str, str]] = []
    notes: tuple[str, ...] = ()
    device: dict[str, object] = {}
    policy: str = ""
    """Folder of the policy."""


Render = Callable[[LearnReport], str]
RESULT, PAGE = "result.json", "report.html"


def write_report(report: LearnReport, folder: Path, render: Render) -> dict[str, str]:
    """Write result.json and the page; return their paths."""
    write_whole(folder / RESULT, encoded(report, indent=2))
    write_whole(folder / PAGE, render(report).encode())
    return {"result": str(folder / RESULT), "page": str(folder / PAGE)}


def refresh_page(report: LearnReport, folder: Path, render: Render) -> None:
    """Write the page of a run that goes on; a full disk does not end the run."""
    with contextlib.suppress(OSError):
        write_whole(folder / PAGE, render(report).encode())
