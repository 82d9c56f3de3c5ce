"""Words and figures of `ratchet history` and `ratchet watch`."""

from __future__ import annotations

import math

from ratchet.history.analysis import AnalysedSeries
from ratchet.history.formats.figures import Exported
from ratchet.history.incidents import Incident

_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def show_value(value: float | None, unit: str) -> str:
    """Return a value with its unit: 12.3 ms, 1.4 GiB, 1200."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    if unit == "s" and size:
        scale, prefix = next(((s, p) for s, p in _PREFIXES if size >= s), _PREFIXES[-1])
        return f"{value / scale:.4g} {prefix}s"
    if unit == "B":
        scale, name = next(((s, n) for s, n in _BYTES if size >= s), _BYTES[-1])
        return f"{value / scale:.4g} {name}"
    return f"{value:.6g} {unit}".rstrip()


def show_change(change: float) -> str:
    """Return a relative change with its sign: +2.1%."""
    return f"{change:+.1%}" if math.isfinite(change) else "from 0"


def left_out_words(found: Exported) -> str:
    """Say what an export could not hold, and why; empty if it holds all."""
    if not found.why:
        return ""
    every = found.series + found.left_out_series
    return (
        f"; left out: {found.left_out_results} results, and {found.left_out_series} of {every} "
        f"series altogether, since {found.why} (--format csv holds all)"
    )


def short_revision(revision: str) -> str:
    """Return the first digits of a commit's hash; other names stay whole."""
    hash, plus, rest = revision.partition("+")
    digits = len(hash) == 40 and all(one in "0123456789abcdef" for one in hash)
    return (hash[:10] if digits else hash) + plus + rest


def urgency(one: AnalysedSeries) -> tuple[bool, bool, bool, str]:
    """Return what orders series: the regressed, those that code changed, the others that moved."""
    by_code = any(shift.kind != "environment" for shift in one.shifts)
    return (not one.regressed, not by_code, not one.shifts, one.series.key)


def among_words(incident: Incident) -> str:
    """Say how sure the commit is: `or one of 2 next to it` if others fit as well."""
    if not incident.series:
        return ""
    shared = set(incident.series[0].among)
    for one in incident.series[1:]:
        shared &= set(one.among)
    others = len(shared - {incident.revision})
    if not others:
        return ""
    return "or the one next to it" if others == 1 else f"or one of {others} next to it"
