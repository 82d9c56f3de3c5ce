"""Comparisons in the ledger: raw samples and answers, kept also if the comparison fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ratchet.devices.probe import probe
from ratchet.guard.compare.run import (
    CompareOutcome,
    CompareSettings,
    OnProgress,
    compare_contest,
)
from ratchet.guard.compare.sides import Contest
from ratchet.ledger import Ledger

COMMAND = "compare"


def compare_and_keep(
    contest: Contest,
    settings: CompareSettings,
    *,
    asked: Mapping[str, Any],
    device: str = "cpu",
    ledger: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = lambda _: None,
    add: Callable[[CompareOutcome], CompareOutcome] = lambda outcome: outcome,
) -> CompareOutcome:
    """Compare two sides, and keep every sample in the ledger; `asked` says what was compared.

    `add` may add details to the outcome, after the samples are safe.
    """
    with Ledger.open(ledger) as book:
        here = book.here(probe(device))
        title = " : ".join(contest.titles)
        turn = book.start_turn(title, asked, fingerprint=here, command=COMMAND)
        with book.failing(turn):
            outcome = compare_contest(
                contest,
                settings,
                on_progress,
                lambda samples: book.record_measurements(turn, samples, purpose=COMMAND),
            )
            readings = {"readings": outcome.readings.as_json()}
            book.remember("compare_readings", turn, readings, fingerprint=here)
            outcome = replace(add(outcome), turn=turn)
        book.finish_turn(turn, outcome.as_json())
    return outcome
