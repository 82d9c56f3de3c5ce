"""The section of every page that says where its figures were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ratchet.base.json_value import Json
from ratchet.base.show import model as m
from ratchet.base.show.words import plain, show_bytes

WHERE = "Where this was measured"
Named = tuple[str, m.Inline]


def where_measured(
    device: Mapping[str, object],
    versions: Mapping[str, str],
    command: str,
    *,
    before: Iterable[Named] = (),
    after: Iterable[Named] = (),
) -> m.ReportSection:
    """Return the device and the software behind a result, with `before` and `after` the command."""
    software = [*before, *versions.items(), *after, ("command", m.Span(command, "code"))]
    return m.section(
        WHERE,
        m.section("Device", m.Facts(device_facts(device))),
        m.section("Software", m.Facts(software)),
        on="page",
    )


def device_facts(device: Mapping[str, object]) -> list[Named]:
    """Return every fact about a device, with sizes in their units."""
    return [
        (name.removesuffix("_bytes").replace("_", " "), _sizes(name, value))
        for name, value in device.items()
    ]


def _sizes(name: str, value: Json) -> str:
    if not name.endswith("_bytes"):
        return plain(value)
    sizes = value if isinstance(value, Mapping) else {"": value}
    return ", ".join(f"{part} {show_bytes(size)}" for part, size in sizes.items()).strip()


def facts_of(environment: Mapping[str, object]) -> list[Named]:
    """Return every fact of an environment."""
    return [(name.replace("_", " "), plain(value)) for name, value in environment.items()]
