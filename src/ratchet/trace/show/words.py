"""A trace's answers in words and numbers, the same on the terminal and on the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.base.show.words import counted, share_of, show_bytes, show_ns, show_share
from ratchet.trace.ranks import Ranks
from ratchet.trace.read.columns import PLATFORMS

if TYPE_CHECKING:
    from ratchet.trace.advice import Advice
    from ratchet.trace.analysis import Identity
    from ratchet.trace.answers.collectives import CollectiveRow
    from ratchet.trace.answers.report import Report
    from ratchet.trace.answers.roofline import RooflineRow
    from ratchet.trace.compare import Diff

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
    "exposed_copy": "copies and fills that neither compute nor communication hides",
    "idle": "nothing runs",
}
ON_CPU_MEANS = PART_MEANS | {
    "compute": "operators that do not communicate, over all threads",
    "idle": "no operator runs",
}
IDLE = {
    "data_loading": "data loading",
    "synchronisation": "synchronisation",
    "host_bound": "host-bound",
    "kernel_gap": "kernel gap",
}
IDLE_MEANS = {
    "data_loading": "the CPU was in a data loader",
    "synchronisation": "the CPU waited for the device and had nothing queued",
    "host_bound": "the next work was launched late",
    "kernel_gap": "the next work was already queued, or its launch is unknown",
}
PATH = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "kernel_gap": "kernel gap",
    "launch_delay": "launch delay",
    "cpu": "CPU ops",
    "between_ops": "between ops",
    "sync": "synchronisation",
    "unknown": "unknown",
}
"""The kinds of a critical path, as they are drawn."""
PATH_MEANS = {
    "compute": "kernels that do not communicate",
    "communication": "communication kernels",
    "copy": "copies and fills",
    "kernel_gap": "between two pieces of work that were launched in time",
    "launch_delay": "from the call to the work, while the stream had nothing to do",
    "cpu": "a thread was in an op or a runtime call",
    "between_ops": "a thread was outside of any op: Python, or a wait for another thread",
    "sync": "from the end of device work to the return of the call that waited for it",
    "unknown": "the trace does not say what was waited for",
}
NO_LAUNCHES = "This trace links no launches to device work, so all idle time counts as kernel gap."


def headline(found: Report | Ranks) -> str:
    """Return the identity in one sentence, the largest part first."""
    window, parts = found.identity.window, found.identity.times
    ranks = f" over {len(found.reports)} ranks" if isinstance(found, Ranks) else ""
    names = PARTS | {
        "exposed_communication": "communication that nothing hides",
        "exposed_copy": "copies",
    }
    clauses = [
        f"{share_of(time, window)} is {names[name]}"
        for name, time in sorted(parts.items(), key=lambda item: -item[1])
        if time
    ]
    if not clauses:
        return "Nothing ran in this window."
    several = found.reports if isinstance(found, Ranks) else (found,)
    if parts["idle"] == window and not any(one.on_device or one.ops for one in several):
        return f"{show_ns(window)}{ranks} without an operator or a kernel: only marks."
    *most, last = clauses
    said = f"{', '.join(most)} and {last}" if most else last
    if lacks_device_work(several):
        said = said.replace(names["compute"], "operators on the CPU")
        said = said.replace(names["idle"], "outside of them")
        return f"No device work was recorded. Of {show_ns(window)}{ranks}, {said}."
    return f"Of {show_ns(window)}{ranks}, {said}."


def lacks_device_work(reports: Sequence[Report]) -> bool:
    """Return whether a run computed on a device, and its recording holds the CPU's side alone."""
    return not any(one.on_device or one.platform == "cpu" for one in reports)


def nothing_found(reports: Sequence[Report]) -> str:
    """Say why there is no finding."""
    if lacks_device_work(reports):
        return "Unknown without the device's work: record that first."
    return "Nothing stands out."


def part_means(document: Report) -> dict[str, str]:
    """Return the meaning of each part, on a device or on a CPU-only trace."""
    return PART_MEANS if document.on_device else ON_CPU_MEANS


def _device(document: Report) -> str:
    platform = document.platform
    return document.device or ("CPU only" if platform == "cpu" else PLATFORMS[platform])


def ranks_words(ranks: Sequence[Report]) -> str:
    """Describe the source of several ranks' reports."""
    devices = ", ".join(dict.fromkeys(_device(one) for one in ranks))
    return f"{devices} · {len(ranks)} ranks · {sum(one.events for one in ranks):,} events"


def source_words(document: Report) -> str:
    """Describe the source of one rank's report: device, rank, events, steps."""
    rank = document.rank
    steps = len(document.steps)
    facts = [
        _device(document),
        f"rank {rank}" if rank is not None else "",
        f"{document.events:,} events",
        counted(steps, "step") if steps else "no steps marked",
    ]
    return " · ".join(fact for fact in facts if fact)


def overlap_words(found: Identity) -> str:
    """Say how much of the communication is hidden; empty without communication."""
    if found.overlap is None:
        return ""
    return (
        f"{found.overlap:.2%} of {show_ns(found.communication)} of communication is hidden "
        "behind compute."
    )


def reasons(document: Report) -> list[tuple[str, str]]:
    """Return the reasons for graph breaks and recompilations that the recording kept."""
    if (found := document.compiled) is None:
        return []
    kinds = {"graph break": found.break_reasons, "recompilation": found.recompile_reasons}
    return [
        (name, f"{count:,} times: {reason}")
        for name, counts in kinds.items()
        for reason, count in counts.items()
    ]


def ceiling_words(rows: Iterable[RooflineRow]) -> str:
    """Name the source of the ceilings, or say why there are none and how to get them."""
    rows = list(rows)
    if not rows:
        return ""
    share = sum(row.time for row in rows if row.known) / max(sum(row.time for row in rows), 1)
    said = f"FLOPs or bytes are known for {share:.1%} of the time, communication aside."
    if known := "; ".join(dict.fromkeys(row.ceiling for row in rows if row.least)):
        return f"Ceilings: {known}. {said}"
    if not any(row.known for row in rows):
        return "The trace has no shapes of ops: no FLOPs and no bytes are known."
    why = "; ".join(dict.fromkeys(row.ceiling for row in rows))
    return f"No ceilings: {why}. --device NAME, FILE or here gives them. {said}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationRow:
    """The collectives of one operation and group; times in ns."""

    operation: str
    group: str
    count: int
    size_bytes: int
    duration: int
    exposed: int
    bus_bandwidth: float  # The mean over the time of those that have one; 0 without any


def communication_rows(collectives: Iterable[CollectiveRow]) -> list[CommunicationRow]:
    """Sum collectives by operation and group, those with most exposed time first."""
    found: dict[tuple[str, str, int], list[CollectiveRow]] = defaultdict(list)
    for row in collectives:
        found[row.operation, row.group, row.ranks].append(row)
    rows = []
    for (operation, group, _), own in found.items():
        timed = sum(row.duration for row in own if row.bus_bandwidth)
        sent = sum(row.bus_bandwidth * row.duration for row in own)
        rows.append(
            CommunicationRow(
                operation=operation,
                group=group,
                count=len(own),
                size_bytes=sum(row.size_bytes for row in own),
                duration=sum(row.duration for row in own),
                exposed=sum(row.exposed for row in own),
                bus_bandwidth=sent / timed if timed else 0.0,
            )
        )
    return sorted(rows, key=lambda row: (-row.exposed, -row.duration))


def facts(document: Report) -> list[tuple[str, str]]:
    """Return one line each on launches, memory, recompute, torch.compile, the bubble and more."""
    launches, memory, made = document.launches, document.memory, document.compiled
    found: dict[str, str] = {}
    if launches.count:
        found["launches"] = (
            f"{launches.count:,}, {show_ns(launches.cpu)} of CPU time; delay "
            f"{show_ns(launches.delay_median)} in the median, {show_ns(launches.delay_90)} in the "
            f"slowest tenth; {launches.small:,} pieces of work are shorter than "
            f"{show_ns(launches.small_below)}"
        )
    if full := sum(row.full for row in document.queues):
        found["full queue"] = (
            f"{show_ns(full)} with {document.queues[0].limit:,} or more pieces of work waiting on "
            f"a stream, {show_ns(sum(row.blocked for row in document.queues))} of it in a "
            "launching call"
        )
    if memory:
        where = "" if memory.on_device else " on the CPU"
        found["memory"] = (
            f"peak {show_bytes(memory.peak_bytes)}{where}, {memory.allocations:,} allocations, "
            f"{show_bytes(memory.churn_bytes)} allocated and freed again"
        )
    if document.recompute.device:
        found["recompute"] = (
            f"{show_ns(document.recompute.device)} ({show_share(document.recompute.share)} of "
            "linked device time) is forward work that the backward repeats"
        )
    if made and (made.regions or made.graphs or made.compile_time):
        found["torch.compile"] = (
            f"{made.regions} regions, {made.graphs} graphs, {made.graph_breaks} graph breaks, "
            f"{made.recompilations} recompilations, {show_ns(made.compile_time)} in compilation"
        )
    if bubble := document.bubble:
        found["pipeline"] = (
            f"{share_of(bubble.share, 1)} bubble: {show_ns(bubble.waiting)} waiting for a "
            f"neighbour and {show_ns(bubble.idle)} idle"
        )
    if document.carried_in.count:
        found["carried in"] = (
            f"{document.carried_in.count:,} pieces of work ({show_ns(document.carried_in.time)}) "
            "from before the recording are outside the window"
        )
    if unlinked := sum(row.unlinked for row in document.kernels):
        found["unlinked"] = f"{unlinked:,} pieces of work that no CPU op launched"
    return list(found.items())


def lever_lines(finding: Advice) -> list[str]:
    """Return the command that tries a finding's first lever, with the names of the others."""
    first, *others = finding.levers
    more = f"  # or {', '.join(others)}" if others else ""
    return [f"ratchet optimize WORKLOAD --try {first}{more}"]


def across_words(found: Ranks) -> list[str]:
    """Return sentences about differences between ranks."""
    said, waited = [], sum(found.waiting.values())
    if found.straggler is not None:
        said.append(f"Rank {found.straggler} is the straggler: the others waited for it longest.")
    elif found.collectives:
        said.append("No rank is a straggler: the ranks waited about as long for each other.")
    if found.collectives:
        said.append(
            f"{len(found.collectives):,} collectives in which all ranks took part: "
            f"{show_ns(found.wire)} on the wire, "
            + (f"{show_ns(waited)} of waiting over all ranks." if waited else "and no waiting.")
        )
    if found.unmatched:
        said.append(
            f"{found.unmatched:,} collectives are not counted: not all other ranks ran one that "
            "overlaps them in time." + ("" if found.collectives else " Do the ranks' clocks agree?")
        )
    compute = f"differs by {share_of(found.skew, 1)} of its mean" if found.skew else "is the same"
    said.append(f"Compute {compute} over the ranks.")
    return said


STATES = {
    "slower": "ops that got slower",
    "new": "ops that are new",
    "faster": "ops that got faster",
    "gone": "ops that went away",
    "same": "ops that did not change",
}


def diff_headline(found: Diff) -> str:
    """Return one sentence that compares the two windows."""
    before, after = found.before.window, found.after.window
    change = after - before
    a_step = " a step" if found.before.is_per_step else ""
    if not change:
        return f"Both take {show_ns(before)}{a_step}."
    word = "longer" if change > 0 else "less"
    return (
        f"{found.after.name} takes {show_ns(after)}{a_step} where {found.before.name} took "
        f"{show_ns(before)}: {show_ns(abs(change))} {word} ({share_of(abs(change), before)})."
    )


def reconciliation(document: Diff) -> list[tuple[str, str, int]]:
    """Return (key, words, ns) of each part of the window's change; they sum to it exactly."""
    rows = document.groups
    found = []
    for state, words in STATES.items():
        own = [row for row in rows if row.state == state]
        if own and state != "same":
            change = sum(row.change for row in own)
            found.append((state, f"{words} ({len(own):,})", change))
    found.append(("hidden", "work that ran beside other work", document.hidden_change))
    found.append(("idle", "idle", document.idle_change))
    return found
