"""The result of a run of learning: plain typed data for JSON and the page."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.learn.evaluate import Evaluation


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the loop: what it cost, what came of it, and whether its policy was kept."""

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
    device: dict[str, Any] = {}
    policy: str = ""
    """Folder of the policy."""

    def to_json(self) -> dict[str, Any]:
        """Return dicts, lists, numbers and strings."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
