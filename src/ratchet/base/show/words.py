"""Times, sizes, rates, shares and ratios for people, the same in every report.

Durations and shares are also read as users write them: 90, 90s, 30m, 2h; 2%, 0.02.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ratchet.base.errors import RatchetError

ABSENT = "-"

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeUnit:
    """One unit for a whole column, so that its numbers can be compared by eye."""

    name: str
    size_s: float

    def show(self, time_s: float) -> str:
        """Format the number alone, with three or four significant digits."""
        return _digits(time_s / self.size_s)


def common_unit(times_s: Sequence[float]) -> TimeUnit:
    """Return the unit that keeps the largest time below 10,000 and the smallest readable."""
    finite = [time_s for time_s in times_s if math.isfinite(time_s) and time_s > 0]
    largest, smallest = max(finite, default=1.0), min(finite, default=1.0)
    for size_s, name in _TIME_UNITS:
        if smallest >= size_s or largest / (size_s / 1000) >= 10_000:
            return TimeUnit(name=name, size_s=size_s)
    return TimeUnit(name="ns", size_s=1e-9)


def show_time(time_s: float) -> str:
    """Format a time with its unit; minutes and hours above 120 s."""
    if not math.isfinite(time_s):
        return ABSENT
    if time_s >= 7200:
        return f"{time_s / 3600:.1f} h"
    if time_s >= 120:
        return f"{time_s / 60:.1f} min"
    unit = common_unit([time_s])
    return f"{unit.show(time_s)} {unit.name}"


def show_moment(moment: str) -> str:
    """Format an ISO 8601 moment to the minute, in UTC; return anything else unchanged."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return moment


def show_bytes(size_bytes: float) -> str:
    """Format a size in binary units."""
    if size_bytes <= 0:
        return ABSENT
    for size, name in _BYTE_UNITS:
        if size_bytes >= size:
            return f"{_digits(size_bytes / size)} {name}"
    return f"{size_bytes:.0f} B"


def show_rate(per_s: float) -> str:
    """Format a rate with thousands separators."""
    return f"{per_s:,.0f}" if per_s >= 100 else _digits(per_s)


def show_share(share: float) -> str:
    """Format a share of one as a percentage; a dash if it is unknown."""
    if not math.isfinite(share) or share <= 0:
        return ABSENT
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def show_ratio(ratio: float | None) -> str:
    """Format a ratio of times: baseline over new."""
    return ABSENT if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}x"


WORTHLESS: Final = 10.0
"""An interval whose ends are so many times apart comes of two or three samples or launches."""


def tells(low: float, high: float) -> bool:
    """Return False if the ends of an interval of positive numbers are too far apart to be shown."""
    return high <= WORTHLESS * low


def show_interval(low: float | None, high: float | None) -> str:
    """Format the interval of a ratio, if it tells anything."""
    if low is None or high is None or not tells(low, high):
        return ABSENT
    return f"{low:.2f} to {high:.2f}"


def show_percent(share: float) -> str:
    """Format a share of one in whole percent, 0 too."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else ABSENT


def share_of(part: float, whole: float) -> str:
    """Format a share as a percentage; only exactly 0 is `0`, and only exactly 1 is `100.0%`."""
    if not whole:
        return ABSENT
    share = part / whole
    if 0 < abs(share) < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{share:.1%}" if part else "0"


def show_change(change: float) -> str:
    """Format a relative change with its sign: +2.1%."""
    return f"{change:+.1%}" if math.isfinite(change) else "from 0"


def show_ns(time_ns: float) -> str:
    """Format nanoseconds with a suitable unit; 0 as 0."""
    return show_time(time_ns * 1e-9) if time_ns else "0"


def milliseconds(time_ns: float) -> str:
    """Format nanoseconds as milliseconds with three decimals."""
    return f"{time_ns / 1e6:,.3f}"


def change_ms(time_ns: float) -> str:
    """Format a difference of nanoseconds in milliseconds, with its sign."""
    return f"{time_ns / 1e6:+,.3f}" if time_ns else "0"


def show_bandwidth(bytes_per_s: float) -> str:
    """Format a rate in GB/s, or in MB/s below 0.1 GB/s; a dash if it is unknown."""
    if not bytes_per_s:
        return ABSENT
    if bytes_per_s < 1e8:
        return f"{bytes_per_s / 1e6:,.1f} MB/s"
    return f"{bytes_per_s / 1e9:,.1f} GB/s"


def show_flops(flops_per_s: float) -> str:
    """Format a rate of floating-point operations."""
    size, unit = (1e12, "TFLOP/s") if flops_per_s >= 1e12 else (1e9, "GFLOP/s")
    rate = flops_per_s / size
    return f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.3g} {unit}"


def show_value(value: float | None, unit: str) -> str:
    """Format a figure of a history with its unit, in four digits: 12.34 ms, 1.4 GiB, 1200."""
    if value is None or not math.isfinite(value):
        return ABSENT
    units = {"s": _TIME_UNITS, "B": (*_BYTE_UNITS, (1, "B"))}.get(unit)
    if units is None or not value:
        return f"{value:.6g} {unit}".rstrip()
    size, name = next((one for one in units if abs(value) >= one[0]), units[-1])
    return f"{value / size:.4g} {name}"


def axis_of_unit(what: str, unit: str) -> tuple[str, Callable[[float], str]]:
    """Return an axis' title, and how it shows a figure: short units stand beside each of them."""
    if unit in ("s", "B"):
        return what, lambda value: show_value(value, unit)
    titled = ", ".join(filter(None, (what, unit[:40])))
    return titled, lambda value: show_value(value, "")


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return ABSENT
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def sentence(text: str) -> str:
    """Turn a clause into the start of a sentence."""
    return text[:1].upper() + text[1:]


def device_words(device: Mapping[str, object]) -> str:
    """Describe the device in a few words."""
    model = str(device.get("model") or device.get("name") or device.get("kind") or "this machine")
    cores = device.get("usable_cores") or device.get("cores")
    return f"{model}, {counted(int(str(cores)), 'core')}" if cores else model


def plain(value: object) -> str:
    """Format a value of a config, a device or an environment."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or "none"
    return str(value)


def counted(count: int, what: str) -> str:
    """Format a number of things: `1 passage`, `2 passages`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([smh]?)\s*")


MOST_S = 366 * 86_400.0  # Longest duration that an option takes: a clock's wait has a limit


def parse_duration_s(given: object, what: str, *, least_s: float, too_short: str = "") -> float:
    """Return the seconds of `90s`, `30m`, `2h` or a number; at least `least_s`.

    `what` names the option, and `too_short` says what less is too short for. Raises RatchetError.
    """
    match = _DURATION.fullmatch(str(given))
    seconds = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not math.isfinite(seconds) or isinstance(given, bool):
        raise RatchetError(f"{what} {given!r} is not a duration: write 90s, 30m or 2h")
    if seconds > MOST_S:
        raise RatchetError(f"{what} {given!r} is over a year: give at most {MOST_S / 3600:.0f}h")
    if seconds < least_s:
        why = f", too short for {too_short}" if too_short else ""
        raise RatchetError(
            f"{what} {given!r} is under {least_s:.0f} s{why}: give at least {least_s:.0f}s"
        )
    return seconds


def parse_share(text: str, what: str, *, below: float = 1.0) -> float:
    """Return the share that `2%` or `0.02` names, at least 0 and below a limit.

    `what` names the option. Raises RatchetError.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < below:
        raise RatchetError(f"{what} {text!r} is no share: write 2% or 0.02, below {below:.0%}")
    return share
