"""Numbers and answers as people read them, the same on the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ratchet.report.shape import Change, CompileCost, Result, Speedup, StepLimit

AGAINST = {
    "vs_written": "the step as written",
    "vs_compile": "torch.compile's best",
    "vs_compile_same_arithmetic": "torch.compile's best in the same arithmetic",
}
ABSENT = "-"

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeUnit:
    """One unit for a whole column, so that its numbers can be compared by eye."""

    name: str
    size_s: float

    def show(self, time_s: float) -> str:
        """The number alone, with three or four significant digits."""
        return _digits(time_s / self.size_s)


def common_unit(times_s: Sequence[float]) -> TimeUnit:
    """The unit in which the largest of these times is below 10,000 and the smallest readable."""
    finite = [time_s for time_s in times_s if math.isfinite(time_s) and time_s > 0]
    largest, smallest = max(finite, default=1.0), min(finite, default=1.0)
    for size_s, name in _TIME_UNITS:
        if smallest >= size_s or largest / size_s >= 1000:
            return TimeUnit(name=name, size_s=size_s)
    return TimeUnit(name="ns", size_s=1e-9)


def show_time(time_s: float) -> str:
    """A time with its unit; minutes and hours above 120 s."""
    if not math.isfinite(time_s):
        return ABSENT
    if time_s >= 7200:
        return f"{time_s / 3600:.1f} h"
    if time_s >= 120:
        return f"{time_s / 60:.1f} min"
    unit = common_unit([time_s])
    return f"{unit.show(time_s)} {unit.name}"


def show_moment(moment: str) -> str:
    """A moment in ISO 8601 to the minute, in UTC; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return moment


def show_bytes(size_bytes: float) -> str:
    """A size in binary units."""
    if size_bytes <= 0:
        return ABSENT
    for size, name in _BYTE_UNITS:
        if size_bytes >= size:
            return f"{_digits(size_bytes / size)} {name}"
    return f"{size_bytes:.0f} B"


def show_rate(per_s: float) -> str:
    """A rate with thousands separated."""
    return f"{per_s:,.0f}" if per_s >= 100 else _digits(per_s)


def show_share(share: float) -> str:
    """A share of one as a percentage; a dash where it is not known."""
    if not math.isfinite(share) or share <= 0:
        return ABSENT
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def show_ratio(ratio: float | None) -> str:
    """A ratio of times: baseline over new."""
    return ABSENT if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}x"


def show_interval(low: float | None, high: float | None) -> str:
    """The interval of a ratio."""
    return ABSENT if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return ABSENT
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def speedup_words(speedup: Speedup, against: str) -> str:
    """One comparison as a clause, its interval in it."""
    interval = f"95 % interval {show_interval(speedup['low'], speedup['high'])}"
    if speedup["answer"] in ("equivalent", "undecided"):
        interval = f"{show_ratio(speedup['ratio'])}, {interval}"
    return f"{_clause(speedup, against)} ({interval})"


def headline(result: Result) -> str:
    """The turn's answer in one sentence."""
    speedup = result["speedup"]
    clauses = [
        _clause(speedup[key], AGAINST[key])
        for key in ("vs_compile", "vs_written")
        if key in speedup
    ]
    if not clauses:
        return f"{result['workload']} was timed, and compared with nothing."
    return f"With Ratchet, a step of {result['workload']} runs {' and '.join(clauses)}."


def _clause(speedup: Speedup, against: str) -> str:
    ratio = show_ratio(speedup["ratio"])
    return {
        "faster": f"{ratio} as fast as {against}",
        "slower": f"slower than {against}, at {ratio} its speed",
        "equivalent": f"as fast as {against}, within noise",
    }.get(speedup["answer"], f"with no clear difference from {against}")


def change_gave(change: Change) -> str:
    """What a change gave, with its interval; a dash where it was not timed."""
    if change["ratio"] is None:
        return {"bundle": "with the bundle", "rival": "the rival has it"}.get(
            change.get("basis") or "", ABSENT
        )
    return f"{show_ratio(change['ratio'])} ({show_interval(change['low'], change['high'])})"


def limit_words(limit: StepLimit) -> str:
    """How far a step is from what the machine can do, and what holds the rest."""
    most, left_s = limit["most"], limit["step_time_s"] - limit["least_s"]
    if most is None:
        return f"How far {limit['title']} is from this machine's limit is not known."
    said = (
        f"{limit['title']} runs at {show_share(limit['share'])} of what this machine can do in "
        f"this arithmetic; at most {most:.1f}x is left"
    )
    parts = [
        f"{show_share(one['winnable_s'] / left_s)} of it in {one['category']}"
        for one in limit["categories"][:3]
        if left_s > 0 and one["winnable_s"] >= 0.05 * left_s
    ]
    unknown_s = sum(one["unknown_s"] for one in limit["categories"])
    note = (
        f" Operators whose bound is not known take {show_share(unknown_s / limit['step_time_s'])} "
        "of the step and count as winnable."
        if unknown_s > 0
        else ""
    )
    return f"{', '.join([said, *parts])}.{note}"


def compile_words(cost: CompileCost) -> str:
    """What the longer start costs and when it has paid."""
    if cost["extra_setup_s"] <= 0:
        return "Ratchet starts no later than the step as written."
    extra = f"Ratchet starts {show_time(cost['extra_setup_s'])} later than the step as written"
    steps = cost["pays_after_steps"]
    if steps is None:
        return f"{extra}, and does not win that back: its steps are no faster."
    return f"{extra}, and has won that back after {steps:,} step{'' if steps == 1 else 's'}."


def floor_words(floor: Mapping[str, float]) -> str:
    """How far two runs of the same thing lie apart here."""
    if "low" not in floor or "high" not in floor:
        return "No A/A floor was measured."
    interval = show_interval(floor["low"], floor["high"])
    return (
        f"Two copies of the same step compared at {interval} here (the A/A floor): a difference "
        "inside that counts as none."
    )


def device_words(device: Mapping[str, Any]) -> str:
    """The device in a few words."""
    model = str(device.get("model") or device.get("name") or device.get("kind") or "this machine")
    cores = device.get("usable_cores") or device.get("cores")
    return f"{model}, {cores} cores" if cores else model


def unit_words(result: Result) -> str:
    """What a step is counted in: tokens, or images where the result says so."""
    return str(result.get("unit", "tokens"))
