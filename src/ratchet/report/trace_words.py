"""What a trace says, in words and numbers, the same on the terminal and on the page."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ratchet.report.words import ABSENT, show_bytes, show_share, show_time

PARTS = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_copy": "exposed copies",
    "idle": "idle",
}
"""The identity's parts by their name in a document."""
PART_MEANS = {
    "compute": "kernels that do not communicate",
    "exposed_communication": "communication that no compute hides",
    "exposed_copy": "copies and fills that neither hides",
    "idle": "nothing runs",
}
IDLE = {
    "data_loading": "data loading",
    "synchronisation": "synchronisation",
    "host_bound": "host-bound",
    "kernel_gap": "kernel gap",
}
IDLE_MEANS = {
    "data_loading": "the CPU was in a data loader",
    "synchronisation": "the CPU had waited for the device and queued nothing",
    "host_bound": "the next work was launched late",
    "kernel_gap": "the next work was queued already, or its launch is not known",
}
_NAMESPACE = re.compile(r"(?:\b[A-Za-z_]\w*|\(anonymous namespace\)|\{[^}]*\})::(?=[\w~(<{])")
_PART = re.compile(r"(\d+)(.*)", re.DOTALL)
_RETURNS = re.compile(r"^(?:void|auto|decltype\(auto\)) ")


def milliseconds(time_ns: int) -> str:
    """Nanoseconds as milliseconds to the microsecond."""
    return f"{time_ns / 1e6:,.3f}"


def change_ms(time_ns: int) -> str:
    """A difference in milliseconds, with its sign."""
    return f"{time_ns / 1e6:+,.3f}" if time_ns else "0"


def show_ns(time_ns: float) -> str:
    """A time with the unit that suits it; 0 as 0."""
    return show_time(time_ns * 1e-9) if time_ns else "0"


def share_of(part: float, whole: float) -> str:
    """A part as a percentage to a tenth; 0 as 0."""
    if not whole:
        return ABSENT
    return f"{part / whole:.1%}" if part else "0"


def bandwidth(bytes_per_s: float) -> str:
    """GB a second; a dash where it is not known."""
    return f"{bytes_per_s / 1e9:,.1f} GB/s" if bytes_per_s else ABSENT


def size(size_bytes: int) -> str:
    return show_bytes(size_bytes)


def short_kernel(name: str, width: int = 56) -> str:
    """A kernel's name without namespaces, return type and argument list, cut to a width."""
    if name.startswith("_ZN"):
        name = _unmangled(name)
    elif "<" in name or ("::" in name and "(" in name):
        name = _NAMESPACE.sub("", _without_arguments(_RETURNS.sub("", name)))
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _unmangled(name: str) -> str:
    """The function of a mangled nested name, such as `_ZN2ck6device4gemmE`: its last part."""
    rest, last = name[3:], name
    while found := _PART.match(rest):
        length = int(found[1])
        last, rest = found[2][:length], found[2][length:]
    return last


def _without_arguments(name: str) -> str:
    """A demangled name without the parameters that follow its template's."""
    depth = 0
    for place, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0 and place and name[place - 1] not in " :":
            return name[:place]
    return name


def short_shapes(text: str) -> str:
    """`Input Dims` as [2, 3] × [3, 4]: scalars and absent inputs left out."""
    try:
        found = json.loads(text) if text else []
    except ValueError:
        return text
    return " × ".join(_shape_words(found)) if isinstance(found, list) else text


def _shape_words(entries: Sequence[Any]) -> Iterator[str]:
    """Each shape that stands in `Input Dims`, those inside lists of tensors too."""
    for entry in entries:
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            yield from _shape_words(entry)
        elif entry:
            whole = isinstance(entry, list)
            yield f"[{', '.join(str(extent) for extent in entry)}]" if whole else str(entry)


def last_modules(path: str, depth: int = 2) -> str:
    """The innermost modules of a path."""
    names = path.split(" > ")
    return " > ".join(names[-depth:]) if len(names) <= depth else f"… {' > '.join(names[-depth:])}"


def module_words(row: Mapping[str, Any]) -> str:
    """The innermost modules of a group, and how many they are."""
    name = last_modules(row["module"])
    return f"{name} ({row['modules']:,} of them)" if name and row["modules"] > 1 else name


def headline(document: Mapping[str, Any]) -> str:
    """The identity in one sentence, the largest part first."""
    window, parts = document["window_ns"], document["identity_ns"]
    ranks = f" over {len(document['ranks'])} ranks" if "ranks" in document else ""
    said = {
        "compute": "compute",
        "exposed_communication": "communication that nothing hides",
        "exposed_copy": "copies",
        "idle": "idle",
    }
    clauses = [
        f"{share_of(time, window)} is {said[name]}"
        for name, time in sorted(parts.items(), key=lambda item: -item[1])
        if time
    ]
    if not clauses:
        return "Nothing ran in this window."
    return f"Of {show_ns(window)}{ranks}, {_joined(clauses)}."


def _joined(clauses: Sequence[str]) -> str:
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def source_words(document: Mapping[str, Any]) -> str:
    """Where one rank's report is from: device, rank, events, steps."""
    rank = document["rank"]
    steps = len(document["steps"])
    device = document["device"] or {"cpu": "CPU only"}.get(
        document["platform"], document["platform"].upper()
    )
    facts = [
        device,
        f"rank {rank}" if rank is not None else "",
        f"{document['events']:,} events",
        f"{steps} step{'' if steps == 1 else 's'}" if steps else "no steps marked",
    ]
    return " · ".join(fact for fact in facts if fact)


def overlap_words(document: Mapping[str, Any]) -> str:
    """How much of the communication is hidden; empty without communication."""
    found = document["communication"]
    if found["overlap"] is None:
        return ""
    return (
        f"{found['overlap']:.2%} of {show_ns(found['total_ns'])} of communication is hidden "
        "behind compute."
    )


def overlap(share: float | None) -> str:
    """The hidden share of communication; a dash without communication."""
    return ABSENT if share is None else f"{share:.2%}"


def sentence(text: str) -> str:
    """A clause that begins a sentence."""
    return text[:1].upper() + text[1:]


def reasons(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Why torch.compile broke graphs and compiled again, where the recording kept it."""
    found = document["compiled"] or {"break_reasons": {}, "recompile_reasons": {}}
    return [
        (name, f"{count:,} times: {reason}")
        for name, key in (("graph break", "break_reasons"), ("recompilation", "recompile_reasons"))
        for reason, count in found[key].items()
    ]


def communication_rows(collectives: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Collectives summed by operation and group, those that cost the window most first."""
    sums: dict[tuple[str, str, int], dict[str, Any]] = defaultdict(
        lambda: {"count": 0, "size_bytes": 0, "duration": 0, "exposed": 0, "sized": 0, "bus": 0.0}
    )
    for row in collectives:
        one = sums[row["operation"], row["group"], row["ranks"]]
        one["count"] += 1
        for name in ("size_bytes", "duration", "exposed"):
            one[name] += row[name]
        if row["bus_bandwidth"]:
            one["sized"] += row["duration"]
            one["bus"] += row["bus_bandwidth"] * row["duration"]
    rows = [
        {
            "operation": operation,
            "group": group,
            "ranks": ranks,
            **one,
            "bus_bandwidth": one["bus"] / one["sized"] if one["sized"] else 0.0,
        }
        for (operation, group, ranks), one in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["exposed"], -row["duration"]))


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One line each: launches, memory, recompute, torch.compile, the bubble, carried-in work."""
    found = [("launches", _launch_words(document["launches"]))]
    found.append(("memory", _memory_words(document["memory"])))
    again = document["recompute"]
    if again["device"]:
        found.append(
            (
                "recompute",
                f"{show_ns(again['device'])} ({show_share(again['share'])} of linked device time) "
                "is forward work that the backward runs again",
            )
        )
    found.append(("torch.compile", _compile_words(document["compiled"])))
    bubble = document["bubble"]
    if bubble:
        found.append(
            (
                "pipeline",
                f"{share_of(bubble['share'], 1)} bubble: {show_ns(bubble['waiting'])} waiting for "
                f"a neighbour and {show_ns(bubble['idle'])} idle",
            )
        )
    carried = document["carried_in"]
    if carried["count"]:
        found.append(
            (
                "carried in",
                f"{carried['count']:,} pieces of work ({show_ns(carried['time'])}) from before the "
                "recording stand outside the window",
            )
        )
    unlinked = sum(row["unlinked"] for row in document["kernels"])
    if unlinked:
        found.append(("unlinked", f"{unlinked:,} pieces of work that no CPU op here launched"))
    return [(name, words) for name, words in found if words]


def _launch_words(found: Mapping[str, Any]) -> str:
    if not found["count"]:
        return ""
    return (
        f"{found['count']:,}, {show_ns(found['cpu'])} of CPU time; delay "
        f"{show_ns(found['delay_median'])} in the median, {show_ns(found['delay_90'])} in the "
        f"slowest tenth; {found['small']:,} pieces of work are shorter than "
        f"{show_ns(found['small_below'])}"
    )


def _memory_words(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    where = "" if found["on_device"] else " on the CPU"
    return (
        f"peak {size(found['peak_bytes'])}{where}, {found['allocations']:,} allocations, "
        f"{size(found['churn_bytes'])} allocated and freed again"
    )


def _compile_words(found: Mapping[str, Any] | None) -> str:
    if not found:
        return ""
    return (
        f"{found['regions']} regions, {found['graphs']} graphs, {found['graph_breaks']} graph "
        f"breaks, {found['recompilations']} recompilations, {show_ns(found['compile_time'])} in "
        "compilation"
    )


def advice_words(finding: Mapping[str, Any], window_ns: int) -> str:
    """What a finding would give at most."""
    gain = finding["gain"]
    return f"{finding['name']}: up to {show_ns(gain)} ({share_of(gain, window_ns)} of the window)"


def lever_words(finding: Mapping[str, Any]) -> str:
    """The command that tries a finding; empty where no lever does."""
    if not finding["levers"]:
        return ""
    return (
        "try: "
        + ", ".join(f"ratchet optimize WORKLOAD --try {lever}" for lever in finding["levers"][:1])
        + ("" if len(finding["levers"]) < 2 else f" (or {', '.join(finding['levers'][1:])})")
    )


def diff_headline(document: Mapping[str, Any]) -> str:
    """What the second side takes where the first took its time."""
    before, after = document["window_before_ns"], document["window_after_ns"]
    change = after - before
    if not change:
        return f"Both take {show_ns(before)}."
    word = "longer" if change > 0 else "less"
    return (
        f"{document['after']} takes {show_ns(after)} where {document['before']} took "
        f"{show_ns(before)}: {show_ns(abs(change))} {word} ({share_of(abs(change), before)})."
    )


_NUMBER = re.compile(r"_\d+(?= > |$)")


def grouped(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A comparison's rows with repeated modules (the layers of a model) together.

    The largest change first, in either direction; `modules` counts what a row stands for.
    """
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        path = _NUMBER.sub("", row["module"])
        one = sums.setdefault(
            (path, row["op"]),
            {"module": path, "op": row["op"], "before": 0, "after": 0, "count_before": 0,
             "count_after": 0, "modules": 0, "kernels_before": {}, "kernels_after": {}},
        )  # fmt: skip
        for name in ("before", "after", "count_before", "count_after"):
            one[name] += row[name]
        one["modules"] += 1
        for name in ("kernels_before", "kernels_after"):
            one[name] |= dict.fromkeys(row[name])
    for one in sums.values():
        one["change"] = one["after"] - one["before"]
        one["state"] = _state(one)
        # What another layer still runs is neither new nor gone.
        both = one["kernels_before"].keys() & one["kernels_after"].keys()
        for name in ("kernels_before", "kernels_after"):
            one[name] = [kernel for kernel in one[name] if kernel not in both]
    return sorted(sums.values(), key=lambda row: -abs(row["change"]))


def _state(row: Mapping[str, Any]) -> str:
    if not row["count_before"]:
        return "new"
    if not row["count_after"]:
        return "gone"
    return "slower" if row["change"] > 0 else "faster" if row["change"] < 0 else "same"


STATES = {
    "slower": "ops that got slower",
    "new": "ops that are new",
    "faster": "ops that got faster",
    "gone": "ops that went away",
    "same": "ops that did not change",
}


def reconciliation(document: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(key, words, ns) of every part of the window's change; they sum to it exactly."""
    rows = grouped(document["rows"])
    found = []
    for state, words in STATES.items():
        own = [row for row in rows if row["state"] == state]
        if own and state != "same":
            change = sum(row["change"] for row in own)
            found.append((state, f"{words} ({len(own):,})", change))
    found.append(("hidden", "work that ran beside other work", document["hidden_change_ns"]))
    found.append(("idle", "idle", document["idle_change_ns"]))
    return found


def across_words(document: Mapping[str, Any]) -> list[str]:
    """What only shows between ranks."""
    found = document["communication"]
    said = []
    if found["straggler"] is not None:
        said.append(
            f"Rank {found['straggler']} is the straggler: the others waited for it longest."
        )
    if document["shared_collectives"]:
        said.append(
            f"{len(document['shared_collectives']):,} collectives that all ranks took part in: "
            f"{show_ns(found['wire_ns'])} on the wire, "
            f"{show_ns(sum(found['waiting_ns'].values()))} of waiting over all ranks."
        )
    if found["unmatched"]:
        said.append(f"{found['unmatched']:,} collectives are not in every rank's trace.")
    said.append(f"Compute differs by {share_of(document['skew'], 1)} of its mean over the ranks.")
    return said
