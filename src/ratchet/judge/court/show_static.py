"""A kernel's compiled code: one table per kernel, with the targets side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ratchet.base import Json
from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, show_bytes, show_time

_REGISTERS = {"VGPR": "vgprs", "AGPR": "agprs", "SGPR": "sgprs", "registers": "registers"}


def static_section(document: Mapping[str, Json] | None) -> m.ReportSection | None:
    """Return every table of a profile, if there is one."""
    said = m.note(
        "Cross-compiled without a GPU from the launches that the kernel actually made. Times are "
        "estimates, not measurements."
    )
    tables = static_tables(document)
    return m.section("Compiled code", said, *tables) if tables else None


def static_tables(document: Mapping[str, Json] | None) -> list[m.ReportSection]:
    """Return one table per kernel, one of all bounds, and the errors; none without a profile.

    For an autotuned kernel, only the configurations that were kept have a table.
    """
    if not document or "targets" not in document:
        return []
    targets: Mapping[str, Mapping[str, Json]] = document["targets"]
    parts = [_kernel(key, targets) for key in _kept(targets)]
    bounds = [bound for found in targets.values() for bound in found.get("bounds", ())]
    if bounds:
        parts.append(_bounds(bounds, document))
    missing = list(_target_notes(targets))
    return [*parts, m.section("Not shown", *_notes(missing))] if missing else parts


def _notes(said: Sequence[str]) -> list[m.Words]:
    return [m.Words(f"note: {one}", "note") for one in said if one]


def _key(kernel: Mapping[str, Json]) -> str:
    """Return a kernel's identity across targets: its name, constants, warps and stages."""
    constants = {**kernel.get("constants", {})}
    if kernel.get("num_warps") is not None:
        constants["warps"] = kernel["num_warps"]
    if kernel.get("num_stages") is not None:
        constants["stages"] = kernel["num_stages"]
    shown = ", ".join(f"{name} {value}" for name, value in constants.items())
    return f"{kernel['name']} ({shown})" if shown else str(kernel["name"])


def _kept(targets: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """Return the kernels that the entry launches after tuning."""
    return list(
        dict.fromkeys(
            _key(kernel)
            for found in targets.values()
            for kernel in found.get("kernels", ())
            if _is_kept(kernel)
        )
    )


def _is_kept(kernel: Mapping[str, Json]) -> bool:
    return bool(kernel.get("launches", 1)) or not kernel.get("tuned", False)


def _kernel(key: str, targets: Mapping[str, Mapping[str, Json]]) -> m.ReportSection:
    found = {
        name: next((one for one in target.get("kernels", ()) if _key(one) == key), None)
        for name, target in targets.items()
    }
    here = {name: one for name, one in found.items() if one is not None}
    facts = {name: dict(_facts(one)) for name, one in here.items()}
    rows = dict.fromkeys(fact for one in facts.values() for fact in one)
    shown = [(fact, *(one.get(fact, ABSENT) for one in facts.values())) for fact in rows]
    said = [f"{name}: {one_note}" for name, one in here.items() for one_note in one["notes"]]
    return m.section(key, _texts(("", *here), shown), *_notes(said))


def _texts(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> m.ResultTable:
    return m.grid(titles, rows, left=len(titles))


def _facts(one: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name, key in _REGISTERS.items():
        if key in one:
            yield name, _count(one[key])
    yield "spills", _count(one.get("spills"))
    yield "LDS", _size(one.get("lds_bytes"))
    if "scratch_bytes" in one:
        yield "scratch", _size(one["scratch_bytes"])
    yield "waves", f"{_count(one.get('occupancy_waves'))} of {one.get('max_waves', ABSENT)}"
    yield "limited by", str(one.get("occupancy_limit") or ABSENT)
    yield "matrix", _matrix(one.get("matrix_instructions", ()))
    yield "load bits", _widths(one.get("global_load_bits", {}))
    yield "store bits", _widths(one.get("global_store_bits", {}))
    mca = one.get("mca") or {}
    if "cycles_per_pass" in mca:
        yield "cycles a pass", f"{mca['cycles_per_pass']:,.0f}"
        yield "busiest unit", str(mca.get("critical_resource") or ABSENT)


def _target_notes(targets: Mapping[str, Mapping[str, Json]]) -> Iterator[str]:
    for name, found in targets.items():
        if found.get("error"):
            yield f"{name}: {found['error']}"
        tried = sum(not _is_kept(one) for one in found.get("kernels", ()))
        if tried:
            yield f"{name}: configurations that tuning tried and did not keep: {tried}"
        if found.get("skipped_configs"):
            yield f"{name}: configurations that were not compiled: {found['skipped_configs']}"


def _size(size_bytes: int | None) -> str:
    return show_bytes(size_bytes) if size_bytes else _count(size_bytes)


def _count(value: object) -> str:
    return ABSENT if value is None else str(value)


def _matrix(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return each matrix instruction by its shape, or by its name if the shape is unknown."""
    shown = []
    for row in rows:
        shape = "x".join(str(extent) for extent in row.get("shape", ()))
        name = f"{shape} {row['in_type']}" if shape else str(row["name"])
        shown.append(f"{row['count']} × {name}")
    return ", ".join(shown) or ABSENT


def _widths(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {bits}" for bits, count in widths.items()) or ABSENT


def _bounds(bounds: Sequence[Mapping[str, Json]], document: Mapping[str, Json]) -> m.ReportSection:
    formulas = dict.fromkeys(str(bound["formula"]) for bound in bounds)
    rows = [
        (
            str(bound["device"]),
            show_time(bound["time_s"]),
            show_time(bound["matrix_s"]) if bound["matrix_s"] else ABSENT,
            show_time(bound["memory_s"]),
            str(bound["limit"]),
        )
        for bound in bounds
    ]
    table = _texts(("device", "time", "matrix", "memory", "limit"), rows)
    said = _notes([*formulas, str(document.get("assumes", ""))])
    return m.section("No faster than (estimate)", table, *said)
