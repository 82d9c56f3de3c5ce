"""Checks that only a GPU needs: the census of a batch, and its own clock beside the judge's."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.base.measure.estimate import summarise
from ratchet.judge.integrity.device_work import DeviceCount
from ratchet.judge.integrity.library_ops import told_as
from ratchet.judge.trial import device_clock
from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.timing.arms import CANDIDATE, REFERENCE
from ratchet.judge.trial.timing.decide import SYSTEMATIC
from ratchet.judge.trial.timing.fewer_calls import with_fewer_calls
from ratchet.judge.trial.timing.sample import CaseTiming, time_alone
from ratchet.judge.verdict import fault

CALLS = 6
"""Calls of the batch that is counted."""


def count_on_device(candidate: CandidateProcess, opened: OpenProblem) -> DeviceCount:
    """Count what one untimed batch does. Raises CandidateFault."""
    index = (opened.timed or [0])[0]
    candidate.censuses = []

    def run(calls: int) -> None:
        with opened.draw(index, calls, writable_inputs=False) as batch:
            candidate.resume()
            candidate.prepare(batch.layout, batch.memories, batch.read)
            candidate.go(batch.memories, calls, limit_s=2 * opened.cases[index].limit_s(calls))

    with_fewer_calls(opened, CALLS, run)
    told, candidate.censuses = candidate.censuses[-1][1], None
    return told_as(DeviceCount, told)


def check_clocks(timings: Sequence[CaseTiming], opened: OpenProblem, *, won: bool) -> None:
    """Raise `unmeasured` if the GPU's own clock, or the reference alone, contradicts a time.

    The reference is timed alone only if the kernel won. The kernel's processes are gone by now.
    """
    evidence = opened.evidence
    evidence.append(opened.flushes())
    doubts = []
    for timing in timings:
        found, doubt = opened.device_clock.compare(timing.case, timing.name, candidate=CANDIDATE)
        evidence.append(found)
        doubts.append(doubt)
    if won and not any(doubts):
        for timing in timings:
            calls = min(one.iterations for one in timing.samples)
            medians = [summarise(timing.samples, arm).median_s for arm in (REFERENCE, CANDIDATE)]
            found, doubt = opened.device_clock.exceeds_round_trip(
                timing.case, timing.name, calls * (medians[0] - medians[1])
            )
            evidence.append(found)
            doubts.append(doubt)
            found, doubt = device_clock.undisturbed(
                timing.name,
                alone=time_alone(timing.case, opened),
                beside_s=summarise(timing.samples, REFERENCE).median_s,
                candidate_s=summarise(timing.samples, CANDIDATE).median_s,
                least=SYSTEMATIC,
            )
            evidence.append(found)
            doubts.append(doubt)
    if any(doubts):
        raise fault("unmeasured", f"right, but {next(filter(None, doubts))}")
