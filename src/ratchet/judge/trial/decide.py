"""Decide from samples: the A/A floor, the interval, the physics, and the status."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median

import msgspec

from ratchet.base.errors import RatchetError
from ratchet.base.measure import Ratio, Sample, span, why_undecided
from ratchet.base.measure.contest import confidence_of
from ratchet.base.measure.estimate import aa_floor, compare
from ratchet.judge.trial.arms import CANDIDATE, ONE_THREAD, REFERENCE, TWIN
from ratchet.judge.trial.open_problem import OpenProblem, Rivalry
from ratchet.judge.trial.plan import LOOKS
from ratchet.judge.trial.reference import COMPILED
from ratchet.judge.trial.sample import CaseTiming
from ratchet.judge.verdict import Decided, Evidence, Speedups, Status

FALSE_RATE = 0.05  # Chance of a false answer over all looks at a case (`looks`), at most
LOOK_CONFIDENCE = confidence_of(FALSE_RATE, looks=LOOKS)
SYSTEMATIC = 1.05
"""The judge's own systematic error. Equal code in the two arms has read up to 1.04x: the processes
differ, and more pairs do not average that out (`judge_aa.py`). So a kernel is faster
only if the whole interval lies above this."""
CROWDED, CROWDED_ERROR = 0.1, 1.25
"""The judge's own error where the reference waited for cores for a larger share of its time. The
scheduler serves arms unequally then: beside a load of 8 on two cores, 55 blocks of torch that were
judged against themselves read 1.15x in the mean (standard error 0.03), with an interval from 1.15x
in one. For the same CPU time the reference had waited 42 ms for cores, and the candidate 19."""
SHORTEST_IN_PYTHON_S = 0.0002
"""A Python kernel can replace the worker's loop over a batch and make one call of all. That saves
dispatch, 5 to 10 us per operation and call, which is a few per cent of longer calls."""
AGAIN = ": judge again"
CEILING_SLACK = 4.0
"""A time is impossible if it needs this many times the best rates measured here. Those rates can be
reached but are no peaks, and first-level caches are faster."""


def conclude(
    timings: Sequence[CaseTiming], rivalry: Rivalry, *, by_dispatch: bool = False
) -> Decided:
    """Decide on a kernel whose answers were all right: status, reason and speed-up.

    `by_dispatch`: it calls torch's operations, and short calls of a batch could share dispatch.
    """
    if not timings:
        return Decided("correct", "right; no case of the problem is timed")
    comparisons = [compare_case(timing) for timing in timings]
    compiled = _against_compile(timings)
    evidence = rivalry.record.evidence
    evidence += [_speed(timing, one) for timing, one in zip(timings, comparisons, strict=True)]
    evidence += [_speed(timing, one, " against torch.compile") for timing, one in compiled]
    speedup = Speedups(
        vs_reference=_together(comparisons),
        vs_compile=_together([one for _, one in compiled]) if compiled else None,
    )
    status, reason = _answer(timings, comparisons, speedup)
    try:
        evidence += _physics(timings, rivalry.opened)
    except RatchetError as error:
        detail = f"not checked: no ceilings ({error})"
        rivalry.record.note("physics", detail, passed=None)
        if status == "proven":  # without measured rates there is no win
            why = f"right, but whether its time can be true was {detail}"
            return Decided("unmeasured", why)
    if evidence[-1].passed is False:
        why = f"a time that this machine cannot reach: {evidence[-1].detail}"
        return Decided("unmeasured", why)
    noise = _noise(timings, comparisons) if status == "correct" else ""
    found = Decided(status, reason, not_timed=noise, speedup=speedup)
    if status != "proven":
        return found
    unseen = next((one.unseen for one in timings if one.unseen), "")
    if unseen:
        return without_gain(found, unseen)
    too_short = _too_short(timings) if by_dispatch else ""
    if too_short:
        rivalry.record.note("long enough", too_short, passed=False)
        return without_gain(found, too_short)
    return found


def without_gain(found: Decided, why: str) -> Decided:
    """Return the answer on a kernel whose measured gain cannot be relied on."""
    reason = f"right, and its speed counts as the reference's: {why}"
    speedup = _changed(found.speedup, lambda ratio: min(1.0, ratio))
    return replace(found, status="correct", reason=reason, speedup=speedup)


def with_less_gain(found: Decided, share: float, why: str) -> Decided:
    """Return a `proven` kernel's answer with ratios of this share of those that were measured."""
    cut = _changed(found.speedup, lambda ratio: share * ratio)
    ratio = cut.vs_reference
    assert ratio is not None
    if ratio.low <= SYSTEMATIC:
        return without_gain(found, why)
    reason = f"right on every case, and faster: {_shown(ratio)}; {why}"
    return replace(found, reason=reason, speedup=cut)


def _changed(speedup: Speedups, change: Callable[[float], float]) -> Speedups:
    """Return the speed-ups with each ratio and its ends changed."""

    def made(one: Ratio | None) -> Ratio | None:
        if one is None:
            return None
        ends = {name: change(getattr(one, name)) for name in ("ratio", "low", "high")}
        return msgspec.structs.replace(one, **ends)

    return Speedups(vs_reference=made(speedup.vs_reference), vs_compile=made(speedup.vs_compile))


def _shown(ratio: Ratio) -> str:
    return f"{ratio.ratio:.2f}x ({span(ratio.low, ratio.high)}) against the reference"


def _too_short(timings: Sequence[CaseTiming]) -> str:
    """Return why calls are too short to prove a kernel in Python faster, or ""."""
    for timing in timings:
        time_s = median_s(timing, faster_reference(timing))
        if time_s < SHORTEST_IN_PYTHON_S:
            return (
                f"a call of the reference on {timing.name} takes {1e6 * time_s:.0f} us, and under "
                f"{1e6 * SHORTEST_IN_PYTHON_S:.0f} a gain in Python may be one of calls that were "
                "made together; give the problem a larger case"
            )
    return ""


def compare_case(timing: CaseTiming) -> Ratio:
    """Compare the candidate with the reference, at the confidence of each look.

    It is `faster` only beyond the judge's own error. The ratio is relative to the mean of both
    processes of the reference; `faster` and `slower` must hold against each of them. If the
    reference was also timed on one thread, a ratio over 1 is capped by that one: a saved wake-up is
    no gain.
    """
    found = _compare_with_rivals(tuple(timing.samples), timing.among)
    error = own_error(timing)
    if found.low > error:
        return found
    may_be = f"up to {error:g}x may be the judge's own error"
    return _undecided(found, f"{_crowd(timing)}, and {may_be} then" if _crowd(timing) else may_be)


def own_error(timing: CaseTiming) -> float:
    """Return the ratio up to which a gain may be the judge's own error."""
    return CROWDED_ERROR if _crowd(timing) else SYSTEMATIC


def _crowd(timing: CaseTiming) -> str:
    """Return how long rivals waited for cores, or "" if they hardly did."""
    if timing.waited <= CROWDED:
        return ""
    return f"other work ran: the reference waited for cores {timing.waited:.0%} of its time"


@functools.lru_cache(maxsize=4)  # a look's answer is also that of the verdict
def _compare_with_rivals(samples: Sequence[Sample], among: int) -> Ratio:
    level = _level(among)
    floor = aa_floor(samples, REFERENCE, TWIN, confidence=level)

    def against(rival: str, twin: str | None = None) -> Ratio:
        return compare(
            samples, baseline=rival, twin=twin, new=CANDIDATE, floor=floor, confidence=level
        )

    found = _agreed(against(REFERENCE, TWIN), {arm: against(arm) for arm in (REFERENCE, TWIN)})
    if found.ratio <= 1 or all(sample.arm != ONE_THREAD for sample in samples):
        return found
    alone = against(ONE_THREAD)
    if alone.ratio >= found.ratio:
        return found if alone.answer == "faster" else _undecided(found, _beside(ONE_THREAD, alone))
    low, ratio = min(alone.low, found.low), max(1.0, alone.ratio)
    high = max(alone.high, ratio)
    why = why_undecided(ratio, low, high, floor) if found.answer == "undecided" else found.why
    capped = msgspec.structs.replace(found, ratio=ratio, low=low, high=high, why=why)
    return capped if alone.answer == "faster" else _undecided(capped, _beside(ONE_THREAD, alone))


def _agreed(found: Ratio, beside: Mapping[str, Ratio]) -> Ratio:
    """Make a `faster` or `slower` undecided if one process of the reference contradicts it."""
    other = next((arm for arm, one in beside.items() if one.answer != found.answer), None)
    if other is None or found.answer in ("equivalent", "undecided"):
        return found
    return msgspec.structs.replace(found, answer="undecided", why=_beside(other, beside[other]))


def _undecided(found: Ratio, why: str) -> Ratio:
    """Return a `faster` answer as undecided."""
    if found.answer != "faster":
        return found
    return msgspec.structs.replace(found, answer="undecided", why=why)


def _beside(rival: str, found: Ratio) -> str:
    """Say that one process of the reference gives another answer than all of them."""
    name = "on one thread" if rival == ONE_THREAD else f"in one process ({rival})"
    return (
        f"beside the reference {name} it is {found.answer}: {found.ratio:.2f}x "
        f"({span(found.low, found.high)})"
    )


def _level(among: int) -> float:
    """Return the confidence of each look, for verdicts that share one rate of false answers."""
    return confidence_of(FALSE_RATE, looks=LOOKS, among=among)


def median_s(timing: CaseTiming, arm: str) -> float:
    """Return the median of an arm's seconds per call."""
    times = [math.log(one.wall_time_s) for one in timing.samples if one.arm == arm]
    return math.exp(median(times))


def faster_reference(timing: CaseTiming) -> str:
    """Return the arm of the reference, or that on one thread if it was timed and faster."""
    arms = {one.arm for one in timing.samples} & {REFERENCE, ONE_THREAD}
    return min(arms, key=lambda arm: median_s(timing, arm))


def _speed(timing: CaseTiming, found: Ratio, against: str = "") -> Evidence:
    detail = f"{found.answer}: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
    if not against:
        assert found.floor is not None
        detail += (
            f", A/A floor {found.floor.low:.3f} to {found.floor.high:.3f}, {found.pairs} pairs in "
            f"{found.launches} launches, at {found.confidence:.1%}"
        )
    detail += f"; {found.why}" if found.why else ""
    check = f"speed{against} on {timing.name}"
    return Evidence(check=check, passed=found.answer == "faster", detail=detail)


def _against_compile(timings: Sequence[CaseTiming]) -> list[tuple[CaseTiming, Ratio]]:
    """Compare with torch.compile of the reference, if it was timed in the same rounds."""
    found = []
    for timing in timings:
        if any(sample.arm == COMPILED for sample in timing.samples):
            samples, level = timing.samples, _level(timing.among)
            floor = aa_floor(samples, REFERENCE, TWIN, confidence=level)
            beside = compare(
                samples, baseline=COMPILED, new=CANDIDATE, floor=floor, confidence=level
            )
            found.append((timing, beside))
    return found


def _together(comparisons: Sequence[Ratio]) -> Ratio:
    """Return geometric means over the timed cases, also of the ends, which is wider than needed."""
    return Ratio(
        ratio=geometric_mean(one.ratio for one in comparisons),
        low=geometric_mean(one.low for one in comparisons),
        high=geometric_mean(one.high for one in comparisons),
        confidence=min(one.confidence or 0.0 for one in comparisons),
    )


def _answer(
    timings: Sequence[CaseTiming], comparisons: Sequence[Ratio], speedup: Speedups
) -> tuple[Status, str]:
    answers = {one.answer for one in comparisons}
    ratio = speedup.vs_reference
    assert ratio is not None
    shown = _shown(ratio)
    if "faster" in answers and answers <= {"faster", "equivalent"} and ratio.low > 1:
        return "proven", f"right on every case, and faster: {shown}"
    if "slower" in answers:
        return "correct", f"right, but slower: {shown}"
    if answers == {"equivalent"}:
        return "correct", f"right, but its speed is equivalent: {shown}"
    cause = _cause(timings, comparisons)
    return "correct", f"right, but its speed is undecided: {shown}; {cause}"


def _cause(timings: Sequence[CaseTiming], comparisons: Sequence[Ratio]) -> str:
    """Return why the speed is undecided, for the noisiest case, and what to do about noise."""
    pairs = zip(timings, comparisons, strict=True)
    undecided = [(timing, one) for timing, one in pairs if one.answer == "undecided"]
    if not undecided:
        return "faster on some cases only, and over all of them the interval holds 1"
    timing, worst = max(
        undecided, key=lambda pair: (bool(pair[1].noise), pair[1].high / pair[1].low)
    )
    place = f"on {timing.name} " if len(timings) > 1 else ""
    causes = "; ".join(dict.fromkeys(text for text in (worst.why, worst.noise) if text))
    return f"{place}{causes}{AGAIN if worst.noise or _crowd(timing) else ''}"


def _noise(timings: Sequence[CaseTiming], comparisons: Sequence[Ratio]) -> str:
    """Return how noise kept the speed from being known, or "" if it is known."""
    if any(one.answer == "slower" for one in comparisons):
        return ""
    told = (
        one.noise or _crowd(timing) * (one.answer == "undecided")
        for timing, one in zip(timings, comparisons, strict=True)
    )
    return next(filter(None, told), "")


def _physics(timings: Sequence[CaseTiming], opened: OpenProblem) -> list[Evidence]:
    """Check that the times can be true, up to the first that cannot.

    Raises RatchetError if there are no ceilings.
    """
    found: list[Evidence] = []
    for timing in timings:
        passed, detail = reachable(timing, opened)
        found.append(Evidence(check="physics", passed=passed, detail=detail))
        if passed is False:
            break
    return found


def reachable(timing: CaseTiming, opened: OpenProblem) -> tuple[bool | None, str]:
    """Return whether this machine can be as fast as a case was timed, and the figures.

    The ceilings are measured anew if anything that was timed is below the minimum. None if the
    reference, or its rival, is still below it, because it reads only a part of a table, for
    example. The bandwidth is that of the cache level in which the inputs and outputs of one call
    fit. Raises a RatchetError if there are no ceilings.
    """
    arms = {one.arm for one in timing.samples}
    medians = {arm: median_s(timing, arm) for arm in arms}
    floor_s, told = least_time_s(opened, timing.case, min(medians.values()))
    time_s = medians.pop(CANDIDATE)
    detail = f"{timing.name}: {time_s:.3g} s a call, at least {floor_s:.3g} s are needed"
    detail += f" ({told})" if told else ""
    rival_s = min(medians.values())
    if rival_s < floor_s:
        return None, f"{detail}, which is no bound here: the reference takes {rival_s:.3g} s"
    return time_s >= floor_s, detail


def least_time_s(opened: OpenProblem, case: int, fastest_s: float) -> tuple[float, str]:
    """Return the least seconds of a call and what is to be said of them.

    They are for its operations or its bytes, at CEILING_SLACK times the best measured rates, which
    are measured anew if a call took `fastest_s` and that is less.
    """
    facts = opened.cases[case]
    found = opened.ask(
        do="ceilings",
        flops=facts.flops,
        bytes=facts.bytes,
        seconds=fastest_s,
        slack=CEILING_SLACK,
    )
    return found["least_s"], found["told"]
