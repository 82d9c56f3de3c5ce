"""The whole gate: find the base, run the suite, record what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratchet.base import git, scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RepositoryError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Observation, ObservationBook
from ratchet.base.ledger.connect import utc_now
from ratchet.guard.checkouts import Checkouts
from ratchet.guard.history.formats.choose import read_results
from ratchet.guard.history.formats.csv_file import ImportDefaults
from ratchet.guard.history.series import gather
from ratchet.guard.watch.benchmarks import (
    OnRun,
    WatchedResult,
    WatchLimits,
    WatchReport,
    confidence_for,
    watch_history,
    watch_pairs,
)
from ratchet.guard.watch.suite_file import WatchSuite


@dataclass(frozen=True, kw_only=True, slots=True)
class GateQuestion:
    """The two sides to compare."""

    folder: Path
    suite: WatchSuite
    base: str
    """A revision; empty with `against`."""
    against: Path | None
    pairs: int | None
    budget_s: float
    advisory: bool
    record: bool
    ledger: str | None


def run_gate(question: GateQuestion, on_run: OnRun) -> WatchReport:
    """Run the suite and return its report.

    Raises:
        RepositoryError: no repository, or no such base.
        HistoryError: the history cannot be read.
    """
    limits = WatchLimits(pairs=question.pairs, time_s=question.budget_s)
    commit = git.stamp(question.folder)
    notes: list[str] = []
    if question.against is not None:
        history = gather(_in_order(question.against))
        device = probe("cpu").fingerprint
        results = watch_history(question.suite, question.folder, history, device, limits, on_run)
        base, head = question.against.name, commit.revision or "here"
    else:
        base, head = _ends(question.folder, question.base)
        if commit.revision.endswith("+changes"):
            notes.append("uncommitted changes were not measured")
        if base == head:
            notes.append("the head is the base: what differs is noise")
        with scratch.folder("watch") as place:
            checkouts = Checkouts(
                question.folder,
                place,
                question.suite.build,
                question.suite.build_time_limit_s,
            )
            results = watch_pairs(question.suite, checkouts, base, head, limits, on_run)
    if question.record:
        _record(question, results, commit)
    return WatchReport(
        base=base,
        head=head,
        margin=question.suite.margin,
        confidence=confidence_for(question.suite),
        results=tuple(results),
        notes=tuple(notes),
        advisory=question.advisory,
    )


def _ends(folder: Path, base: str) -> tuple[str, str]:
    """Return where the head parted from the base, and the head."""
    head, other = git.resolve(folder, "HEAD"), git.resolve(folder, base)
    try:
        return git.git(folder, "merge-base", other, head), head
    except RepositoryError as error:
        raise RepositoryError(
            f"HEAD and {base!r} share no commit here: in CI check out with fetch-depth: 0"
        ) from error


def _in_order(path: Path) -> list[Observation]:
    return sorted(read_results(path, ImportDefaults()), key=lambda one: one.committed_at)


def _record(question: GateQuestion, results: list[WatchedResult], commit: git.CommitStamp) -> None:
    with Ledger.open(question.ledger) as ledger:
        here = ledger.here(probe("cpu"))
        ObservationBook(ledger).record(
            Observation(
                benchmark=one.name,
                metric="value",
                unit=one.unit,
                better=one.better,
                revision=commit.revision,
                committed_at=commit.committed_at or utc_now(),
                value=one.head,
                device=here["device"],
                software=here["software"],
                source="watch",
            )
            for one in results
            if one.head is not None
        )
