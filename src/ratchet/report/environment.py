"""Set up every page's template: all text is escaped, and a missing name is an error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from ratchet.report import breakdown, words
from ratchet.report.narrow import stacked


@cache
def page_environment() -> Environment:
    """Return the template environment with its filters and functions."""
    environment = Environment(
        loader=PackageLoader("ratchet.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = {
        "time": words.show_time,
        "bytes": words.show_bytes,
        "rate": words.show_rate,
        "share": words.show_share,
        "ratio": words.show_ratio,
        "moment": words.show_moment,
        "gave": words.change_gave,
        "plain": plain,
    }
    environment.filters["stacked"] = stacked
    environment.filters.update({f"show_{name}": show for name, show in shown.items()})
    said = {
        "interval": words.show_interval,
        "compile_words": words.compile_words,
        "floor_words": words.floor_words,
        "device_words": words.device_words,
        "is_decided": words.is_decided,
        "limit_words": words.limit_words,
        "identity_words": breakdown.identity_words,
        "finding_words": breakdown.finding_words,
    }
    environment.globals.update(said)
    return environment


def plain(value: object) -> str:
    """Format a value of a config, a device or an environment for people."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items()) or "none"
    return str(value)
