"""Answers as plain data, for `--json` and for the pages."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ratchet.base.json_value import Json

if TYPE_CHECKING:
    from ratchet.trace.analysis.identity import Identity
    from ratchet.trace.answers.report import Report
    from ratchet.trace.compare.diff import Diff
    from ratchet.trace.compare.ranks import Ranks


def document(answers: Report) -> dict[str, object]:
    """Return one rank's report as one JSON object."""
    from ratchet.trace.advice import advise

    whole = answers.identity
    plain = {
        field.name: plainly(getattr(answers, field.name))
        for field in dataclasses.fields(answers)
        if field.name not in ("identity", "steps", "by_device")
    }
    return {
        **plain,
        "window_ns": whole.window,
        "identity_ns": whole.times,
        "communication": _communication(whole),
        "steps": [_window(step) for step in answers.steps],
        "by_device": [_window(device) for device in answers.by_device],
        "advice": [plainly(finding) for finding in advise(answers)],
    }


def ranks_document(ranks: Ranks) -> dict[str, object]:
    """Return the reports of several ranks, their sums, and the differences between them."""
    whole = ranks.identity
    return {
        "window_ns": whole.window,
        "identity_ns": whole.times,
        "communication": {
            **_communication(whole),
            "wire_ns": ranks.wire,
            "waiting_ns": {str(rank): time for rank, time in ranks.waiting.items()},
            "straggler": ranks.straggler,
            "unmatched": ranks.unmatched,
        },
        "skew": ranks.skew,
        "shared_collectives": [plainly(row) for row in ranks.collectives],
        "faults": list(ranks.faults),
        "ranks": [document(answers) for answers in ranks.reports],
    }


def diff_document(found: Diff) -> dict[str, object]:
    """Return a comparison as one JSON object."""
    return {
        "before": found.name_before,
        "after": found.name_after,
        "device_before": found.device_before,
        "device_after": found.device_after,
        "ranks": found.ranks,
        "window_before_ns": found.window_before,
        "window_after_ns": found.window_after,
        "window_change_ns": found.window_change,
        "rows_change_ns": sum(row.change for row in found.rows),
        "hidden_change_ns": found.hidden_change,
        "idle_change_ns": found.idle_change,
        "identity_before_ns": found.parts_before,
        "identity_after_ns": found.parts_after,
        "identity_change_ns": found.parts_change,
        "device_work": found.device_work,
        "faults": list(found.faults),
        "groups": [plainly(row) for row in found.groups],
        "rows": [plainly(row) for row in found.rows],
    }


def _window(part: Identity) -> dict[str, object]:
    return {
        "label": part.label,
        "start_ns": part.start,
        "window_ns": part.window,
        "overlap": part.overlap,
        **part.times,
    }


def _communication(whole: Identity) -> dict[str, object]:
    return {
        "total_ns": whole.communication,
        "exposed_ns": whole.exposed_communication,
        "overlap": whole.overlap,
    }


def plainly(value: object) -> Json:
    """Turn dataclasses into dicts with their derived figures, and tuples into lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: plainly(getattr(value, f.name)) for f in dataclasses.fields(value)}
        derived = [n for n, kind in vars(type(value)).items() if isinstance(kind, property)]
        return plain | {name: plainly(getattr(value, name)) for name in derived}
    if isinstance(value, tuple | list):
        return [plainly(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plainly(entry) for key, entry in value.items()}
    return value
