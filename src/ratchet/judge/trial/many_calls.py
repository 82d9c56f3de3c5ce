"""Check the results of several calls together, and of hundreds in one process.

A kernel may return the same buffer from every call, or from every second: right one call at a time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ratchet.judge.sandbox.shared_memory import Handing
from ratchet.judge.trial.candidate import CandidateProcess, Held
from ratchet.judge.trial.kernel_checks import (
    INEXACT,
    CheckedCases,
    check_call,
    check_calls,
    make_calls,
)
from ratchet.judge.trial.open_problem import DrawnBatch, OpenProblem, Record
from ratchet.judge.trial.orders import Dealt, Orders
from ratchet.judge.verdict import Evidence, fault

FEWEST, MOST = 4, 8
"""Calls on a timed case whose results are compared together, always an even number."""
HELD_BYTES: Final = 64 << 20
ALIKE_PAIR: Final = (2, 1)
"""A call, and the earlier one whose inputs it repeats but for a few elements, in the same tensors:
a kernel that remembers its last result by their address would repeat that."""
COMPARED_S: Final = 0.3  # Seconds for comparing them, after the first two


def check_together(candidate: CandidateProcess, opened: OpenProblem, record: Record) -> None:
    """Compare the results of several calls on different inputs, held together, on a timed case.

    The evidence says if the last call, on the first one's inputs, repeats its bits.
    """
    if not opened.timed:
        return
    index = opened.timed[0]
    facts, name = opened.cases[index], opened.problem.cases[index].name
    calls = max(FEWEST, min(MOST, 2 * int(HELD_BYTES / max(1.0, 2 * facts.bytes))))

    def run(calls: int) -> tuple[bool, str]:
        handing = [Handing.UNTOLD if call in ALIKE_PAIR else Handing.OWN for call in range(calls)]
        drawn = opened.draw(
            index,
            calls,
            writable_inputs=False,
            distinct=calls - 1,
            alike=[ALIKE_PAIR],
            handing=handing,
        )
        with drawn as batch:
            codes = make_calls(candidate, opened, batch)
            for call in (0, calls - 1):
                candidate.deliver(call)
            same = opened.ask(do="repeats", batch=batch.number, calls=[0, calls - 1])["same"]
            first = [1, 0, ALIKE_PAIR[0]]  # each parity first
            rest = [call for call in range(2, calls - 1) if call not in first]
            order = [*first, *opened.rng.sample(rest, len(rest))]
            return same, first_wrong(candidate, opened, batch, codes, order, least=len(first))

    with candidate.uncounted():
        same, detail = opened.with_fewer_calls(calls, run, least=FEWEST)
    if detail:
        why = (
            f"case {name}: right one call at a time, and wrong where the results of several calls "
            "are held together (one buffer for all of them, or an old answer)"
        )
        raise fault("wrong", f"{why}: {detail}")
    words = "equal bit for bit" if same else "not equal bit for bit, which is allowed"
    record.note("repeatability", f"two calls on the same inputs of {name}: {words}")


def first_wrong(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    codes: Sequence[int],
    order: Sequence[int],
    *,
    least: int = 2,
    again: bool = False,
) -> str:
    """Compare calls in this order while there is time; return how the first wrong one is wrong.

    At least so many are compared, if there are as many. With `again`, the right answers are kept
    for other kernels' calls on the same values.
    """
    began = time.perf_counter()
    together, alone = order[:least], order[least:]
    for answer in check_calls(
        candidate, opened, batch, {call: codes[call] for call in together}, again=again
    ):
        if not answer.passed:
            return answer.detail
    for call in alone:
        if time.perf_counter() - began > COMPARED_S:
            break
        answer = check_call(candidate, opened, batch, call, codes[call], again=again)
        if not answer.passed:
            return answer.detail
    return ""


# Wear: hundreds of calls in one process before any answer that a kernel is right.
#
# Inputs, weights and sizes change from call to call, and each batch of a case lies at addresses
# that earlier ones had with other values. Some calls repeat an earlier one's inputs but for a few
# elements. So a kernel that repeats an old answer after its first dozens of calls is wrong, and so
# is one that looks results up by an address, a shape, or a part of its inputs. Within a batch calls
# come as programs make them (`orders`), and each way is compared on every cheap case. A case that
# was taken before may not be declined. Memory that grows from call to call is told.
#
# A timed case that is not cheap is called as often as LATE_S allows, mostly on the same few
# values, and its last calls are compared.
#
# Cheap cases get their calls however slow the machine is: a kernel is `unmeasured` if they do not
# fit into a share of the time limit. If its own calls are that slow, its reason says how few were
# made, and it is never `proven`.

FEWEST_CALLS, MOST_CALLS = 300, 500
"""Calls before the last ones are compared; a kernel cannot know their number."""
WORN_S = 2.0
"""Seconds that calls on cases that are not cheap may take if they are not that many by then, by the
quickest round: a machine that stands still for a moment spares no kernel its calls."""
WORN_SHARE: Final = 0.25
"""The share of the time left that calls on cheap cases may take, by the quickest round."""
CASES: Final = 3
CHEAP_BYTES, CHEAP_S = 1 << 20, 0.003
SLOWEST_S: Final = 0.25  # A case whose call takes longer is not called that often
BATCH, LAST_BATCH = 32, 128
BATCH_BYTES: Final = 64 << 20
SLOW_BATCH_S: Final = 1.0  # Seconds that a batch may take, if two calls do
LEAST_ROUNDS: Final = 2
LEAST_COMPARED: Final = 8
"""Calls of the last batch of a cheap case that are compared, however long that takes."""
LATE_CALLS: Final = 256
LATE_S: Final = 1.0
"""Calls of a timed case that is not cheap, or their seconds, by the quickest batch."""
GROWN_BYTES, GROWN_SHARE = 8 << 20, 0.25
"""Memory that a process may take for good within these calls: caches, arenas of threads. Of
descriptors, threads and processes it may keep one in so many calls: some share of a pool's."""
WORN: Final = "wear"  # The evidence of the calls; `passed` is None if there were none
ALIKE: Final = 2
"""Calls of a batch of a cheap case that repeat an earlier call's inputs but for a few elements; of
the last, one for each way in which a call gets its inputs."""
LEAST_WAYS, WAYS_S = 2, 0.5
"""Ways that are compared in the last batches of a case that is not cheap, and the seconds within
which all of them are, at four calls of the reference for each."""
FEW: Final = "wear, calls"  # The evidence of a kernel that is too slow for its calls, if it is
GREW: Final = "memory"  # The evidence of a process that keeps more with each call, if it does
RESTLESS: Final = "at rest"  # The evidence of a process that works between calls, if it does
REST_S, REST_LOOKS, REST_SHARE = 0.03, 2, 0.1
"""Seconds of a look at a process without an order, the looks, and the share that it may work."""


class _Coming(NamedTuple):
    """A batch of a case that is dealt: its place, and the ways in which its calls come."""

    case: int
    place: int
    dealt: Dealt


@dataclass(kw_only=True)
class _Worn:
    """The calls that one process has made, and its memory after each round."""

    candidate: CandidateProcess
    opened: OpenProblem
    declined: Set[int]  # The cases that the kernel declines
    made: int = 0
    call_s: dict[int, float] = field(default_factory=dict)
    """Seconds of a case's call in its quickest batch."""

    def __post_init__(self) -> None:
        self.orders = Orders(self.candidate, self.opened)
        self._coming: _Coming | None = None

    def round(self, places: dict[int, int]) -> str:
        """Call each case once more; return how a call is wrong, of which one is compared."""
        following = [*list(places)[1:], next(iter(places))]
        for index, then in zip(places, following, strict=True):
            now = self._coming or self._deal(index, places[index])
            self._coming = self._deal(then, places[then])
            if detail := self._run_fitting(now, self._coming):
                return detail
        return ""

    def _run_fitting(self, now: _Coming, then: _Coming) -> str:
        """Run a batch of a round, with fewer calls if memory is refused."""
        dealt = now.dealt

        def run(calls: int) -> str:
            fewer = calls < len(dealt.handing)
            one = now._replace(dealt=self.orders.deal(calls, dealt.kinds)) if fewer else now
            return self._run(one, most=int(is_cheap(self.opened, now.case)), then=then)

        return self.opened.with_fewer_calls(len(dealt.handing), run, least=2)

    def _deal(self, index: int, place: int) -> _Coming:
        ways = self.orders.next(ALIKE if is_cheap(self.opened, index) else 0)
        return _Coming(index, place, self.orders.deal(self._calls(index, BATCH), ways))

    def last(self, places: dict[int, int]) -> str:
        """Call each case once more; return how a call is wrong, of which most are compared.

        The smallest of cheap cases has many calls: a kernel may have buffers for some dozens.
        """
        smallest = min(places, key=lambda index: self.opened.cases[index].bytes)
        for index, place in places.items():
            is_one = is_cheap(self.opened, index)
            calls = LAST_BATCH if is_one and index == smallest else BATCH
            ways = list(self.orders.kinds) if is_one else self._ways(index)
            most = max(LEAST_COMPARED, BATCH - len(ways))
            while ways:  # a batch of large calls has room for one way
                if detail := self.batch(index, place, most=most, ways=ways, calls=calls):
                    return detail
                most = 0
        return ""

    def _ways(self, index: int) -> list[Handing]:
        """Return the ways that are compared of a case that is not cheap, the hardest first."""
        facts, opened = self.opened.cases[index], self.opened
        each_s = 4 * facts.time_s + opened.check_time_s[index]
        count = max(LEAST_WAYS, min(len(self.orders.kinds), int(WAYS_S / max(1e-6, each_s))))
        others = [one for one in self.orders.kinds if one is not Handing.UNTOLD]
        return [Handing.UNTOLD, *opened.rng.sample(others, count - 1)]

    def batch(
        self, index: int, place: int, *, most: int, ways: list[Handing], calls: int | None = None
    ) -> str:
        """Run a batch of a case, whose layout `place` decides; compare at most so many calls.

        One more is compared for each of the `ways` in which its calls get their inputs, which
        are taken from the list as far as there is room. These mostly repeat an earlier call's
        inputs but for a few elements.
        """

        def run(calls: int) -> str:
            dealt = self.orders.deal(calls, ways)
            detail = self._run(_Coming(index, place, dealt), most=most)
            ways[:] = [one for one in ways if one not in dealt.kinds]
            return detail

        wanted = self._calls(index, BATCH if calls is None else calls)
        return self.opened.with_fewer_calls(wanted, run, least=2)

    def _run(self, now: _Coming, *, most: int, then: _Coming | None = None) -> str:
        """Run a dealt batch while another is drawn; return how a call is wrong."""
        opened, index, calls = self.opened, now.case, len(now.dealt.handing)
        drawn = opened.draw(
            index,
            calls,
            writable_inputs=False,
            places=now.place,
            alike=sorted(now.dealt.pairs),
            handing=now.dealt.handing,
        )
        with drawn as batch:
            if then is not None:
                pairs, count = sorted(then.dealt.pairs), len(then.dealt.handing)
                opened.draw_ahead(then.case, count, places=then.place, alike=pairs)
            began = time.perf_counter()
            codes = make_calls(self.candidate, opened, batch)
            took_s = (time.perf_counter() - began) / calls
            self.call_s[index] = min(self.call_s.get(index, math.inf), took_s)
            self.made += calls
            self._check_taken(index, codes)
            detail = self._compared(batch, codes, most, [call for call, _ in now.dealt.pairs])
        name = opened.problem.cases[index].name
        why = f"after {self.made} calls in one process with changing inputs, case {name}"
        return f"{why}{detail}" if detail else ""

    def late(self, index: int, wanted: int) -> str:
        """Call a case so often, or LATE_S long; return how one of the last calls is wrong.

        Drawing large values takes longer than a call: all but the last batch have the same.
        """
        opened = self.opened

        def run(calls: int) -> None:
            drawn = opened.draw(
                index,
                calls,
                writable_inputs=False,
                handing=self.orders.deal(calls, ()).handing,
            )
            with drawn as batch:
                rounds, quickest_s = 0, math.inf
                while rounds < LEAST_ROUNDS or (
                    rounds * calls < wanted and rounds * quickest_s < LATE_S
                ):
                    began = time.perf_counter()
                    self._check_taken(index, make_calls(self.candidate, opened, batch))
                    rounds, quickest_s = rounds + 1, min(quickest_s, time.perf_counter() - began)
                self.made += rounds * calls

        self.call_s.setdefault(index, opened.cases[index].time_s)
        opened.with_fewer_calls(self._calls(index, BATCH), run, least=2)
        return self.batch(index, opened.rng.getrandbits(32), most=2, ways=self.orders.next(1))

    @property
    def mean_s(self) -> float:
        """Seconds of the kernel's own work in a call, over the cases."""
        return sum(self.call_s.values()) / max(1, len(self.call_s))

    def _calls(self, index: int, most: int) -> int:
        """Return the calls of a case's next batch: two at first, until their time is known."""
        fitting = int(BATCH_BYTES / max(1.0, self.opened.cases[index].bytes))
        quick = int(SLOW_BATCH_S / max(1e-6, self.call_s.get(index, SLOW_BATCH_S)))
        return max(2, min(most, fitting, quick))

    def _check_taken(self, index: int, codes: Sequence[int]) -> None:
        """Raise CandidateFault if a case is declined that was not before."""
        code = max(codes)
        if code > 0 and index not in self.declined:
            name = self.opened.problem.cases[index].name
            raise fault(
                "refused",
                f"the kernel took the case {name}, and declines it (code {code}) after "
                f"{self.made} calls in one process: decline a case from its first call on",
            )

    def _compared(
        self, batch: DrawnBatch, codes: Sequence[int], most: int, chosen: Sequence[int]
    ) -> str:
        """Return how a call is wrong that was not declined; the chosen ones come first."""
        opened, handing = self.opened, batch.layout.handing
        taken = [call for call in self.orders.comparable(handing) if codes[call] <= 0]
        for call in (one for one in chosen if one in taken):
            if detail := first_wrong(self.candidate, opened, batch, codes, [call]):
                few = " that differ from an earlier call's in few elements"
                words = f"inputs{few if call in batch.alike else ''} {handing[call].words}"
                return f", {words}: {detail}"
        order = opened.rng.sample(taken, min(most, len(taken)))
        least = LEAST_COMPARED if is_cheap(opened, batch.case) else max(0, 2 - len(chosen))
        detail = first_wrong(self.candidate, opened, batch, codes, order, least=least)
        return f": {detail}" if detail else ""


def is_cheap(opened: OpenProblem, index: int) -> bool:
    facts = opened.cases[index]
    return facts.bytes <= CHEAP_BYTES and facts.time_s <= CHEAP_S


def check_wear(
    candidate: CandidateProcess, opened: OpenProblem, record: Record, checked: CheckedCases
) -> None:
    """Compare the last of several hundred calls in one process; tell if its memory grows."""
    quick = [
        index
        for index, facts in enumerate(opened.cases)
        if index not in checked.apart and facts.time_s <= SLOWEST_S
    ]
    chosen = _chosen(opened, quick)
    if not chosen:
        detail = f"no case was quick enough to be called hundreds of times (at most {SLOWEST_S} s)"
        record.note(WORN, detail, passed=None)
        return
    places = {index: opened.rng.getrandbits(32) for index in chosen}
    wanted = opened.rng.randint(FEWEST_CALLS, MOST_CALLS)
    worn = _Worn(candidate=candidate, opened=opened, declined=checked.declined)
    held: list[tuple[int, Held]] = []
    rounds, quickest_s = 0, math.inf
    are_cheap = all(is_cheap(opened, index) for index in chosen)
    limit_s = max(WORN_S, WORN_SHARE * opened.clock.left_s) if are_cheap else WORN_S
    with candidate.uncounted():
        while rounds < LEAST_ROUNDS or (worn.made < wanted and rounds * quickest_s < limit_s):
            began = time.perf_counter()
            detail = worn.round(places)
            if detail:
                raise fault("wrong", detail)
            held.append((worn.made, candidate.held()))
            rounds, quickest_s = rounds + 1, min(quickest_s, time.perf_counter() - began)
        if are_cheap and worn.made < FEWEST_CALLS:
            if worn.mean_s * FEWEST_CALLS < limit_s:
                raise fault(
                    "unmeasured",
                    f"right so far, but only {worn.made} of {FEWEST_CALLS} calls in one process "
                    f"fit into a quarter of the time limit of {opened.clock.limit_s:.3g} s: an old "
                    "answer would not show; raise --time-limit",
                )
            detail = (
                f"only {worn.made} of {FEWEST_CALLS} calls in one process were made, as the kernel "
                f"takes {1000 * worn.mean_s:.0f} ms a call on cheap cases"
            )
            record.note(FEW, detail, passed=None)
        # The first timed case, if it is none of the cheap ones, which get hundreds of calls.
        for index in opened.timed[:1]:
            if index not in quick or is_cheap(opened, index):
                continue
            if detail := worn.late(index, opened.rng.randint(LATE_CALLS // 2, LATE_CALLS)):
                raise fault("wrong", detail)
        detail = worn.last(places)
        if detail:
            raise fault("wrong", detail)
    detail = f"right after {worn.made} calls on {len(places)} cases in one process"
    raised = [f"{how.words} ({words})" for how, words in candidate.rejected.items()]
    if raised:
        detail += f"; it raised where it got its inputs {', '.join(raised)}: not compared so"
    record.note(WORN, detail)
    if grows := growth(held):
        record.note(GREW, grows, passed=False)
    if opened.accelerator is None and (works := works_at_rest(candidate, REST_S)):
        record.note(RESTLESS, works, passed=False)


def told_of_wear(evidence: Sequence[Evidence]) -> list[str]:
    """Return what a right kernel's reason tells: no calls, few, growth, work at rest, long sums."""
    return [
        one.detail
        for one in evidence
        if one.check in (GREW, FEW, RESTLESS, INEXACT) or (one.check == WORN and one.passed is None)
    ]


def why_no_gain(evidence: Sequence[Evidence]) -> str:
    """Return why a kernel is not `proven` whatever its times, or "": its calls were too few to show
    an old answer, or it works when it is not called, on cores that others need."""
    found = {one.check for one in evidence}
    if FEW in found:
        return "it made too few calls to show an old answer"
    return "it works between its calls" if RESTLESS in found else ""


def _chosen(opened: OpenProblem, quick: Sequence[int]) -> list[int]:
    """Return cheap cases at random, a timed one among them; without any, the cheapest two."""
    cheap = [index for index in quick if is_cheap(opened, index)]
    if not cheap:
        return sorted(quick, key=lambda index: opened.cases[index].bytes)[:2]
    drawn = opened.rng.sample(cheap, min(CASES, len(cheap)))
    timed = [index for index in opened.timed if index in cheap]
    return list(dict.fromkeys([*timed[:1], *drawn]))[:CASES]


def works_at_rest(candidate: CandidateProcess, look_s: float) -> str:
    """Return how a process works although it was not called, in words; "" if it was at rest."""
    worked_s = 0.0
    for _ in range(REST_LOOKS):
        worked_s = candidate.work_at_rest_s(look_s)
        if worked_s <= REST_SHARE * look_s:
            return ""
    words = f"its process works {worked_s / look_s:.0%} of the time between its calls"
    return words if worked_s else ""


def growth(held: list[tuple[int, Held]]) -> str:
    """Return what a process keeps more of with each call, in words; "" if it settles.

    `held` has the calls that were made by then and what the process held. It must grow in each
    third of the calls: what it takes once is no growth. The rounds that are given have batches of
    one size, whose results it holds.
    """
    if len(held) < 4:
        return ""
    marks = [held[len(held) * third // 4] for third in (1, 2, 3)] + [held[-1]]
    calls = marks[-1][0] - marks[0][0]
    for place, what in enumerate(Held._fields):
        counts = [found[place] for _, found in marks]
        grown, is_memory = counts[-1] - counts[0], what == "bytes"
        steady = all(before < after for before, after in itertools.pairwise(counts))
        if not steady or grown < (GROWN_BYTES if is_memory else GROWN_SHARE * calls):
            continue
        each = f"{grown / calls / 1024:.0f} KiB" if is_memory else f"{grown / calls:.2g} {what}"
        total = f"{grown / (1 << 20):.0f} MiB" if is_memory else str(grown)
        return f"its process grows by {each} a call: {total} over {calls} calls"
    return ""
