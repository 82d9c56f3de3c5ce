"""A fleet whose machines are a Ray cluster's: `machines.Fleet` over `ray_cluster.Spread`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from ratchet.base import VERSION
from ratchet.base.devices.probe import Device, Software
from ratchet.base.errors import DeviceError, JudgeError, RatchetError
from ratchet.judge.court.machines import FleetOrder, SeatFacts, SeatReply
from ratchet.judge.court.ray_cluster import MOST_LOSSES, RayCluster, Spread
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening, Verdict

LOST = f"{MOST_LOSSES} machines were lost while they judged it"


class ClusterFleet:
    """The largest group of a cluster's devices that are of one kind, so that times compare."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._spread = Spread(cluster, fits=_version_fault)
        try:
            self._spread.meet()
            self._facts = self._chosen()
        except BaseException:
            cluster.close()
            raise

    def _chosen(self) -> SeatFacts:
        """Choose a kind of device, and leave seats of another kind out from now on."""
        spread = self._spread
        if not spread.facts:
            reasons = sorted(set(spread.left_out.values()))
            raise JudgeError(
                "no machine of the cluster can judge: "
                + (reasons[0] if reasons else "none offers a core to Ray (ray start --num-cpus=N)")
            )
        counts = Counter(facts.kind for facts in spread.facts.values())
        kind = max(counts, key=lambda one: (counts[one], one))
        chosen = next(one for one in spread.facts.values() if one.kind == kind)

        def fits(facts: SeatFacts) -> str:
            if facts.kind == kind:
                return _version_fault(facts)
            return f"{facts.host} is left out: {facts.name} or its software is of another kind"

        spread.fits = fits
        for seat, facts in list(spread.facts.items()):
            if facts.kind != kind:
                spread.left_out[seat] = fits(facts)
                del spread.facts[seat]
        return chosen

    @property
    def width(self) -> int:
        """Return how many devices there are now; at least one, as more may come."""
        return max(1, len(self._spread.facts))

    @property
    def versions(self) -> Software:
        return self._facts.software

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each machine that is left out."""
        return tuple(sorted(set(self._spread.left_out.values())))

    def device(self, name: str) -> Device:
        gpu = self._facts.gpu
        if name == "cpu" or (name == "auto" and gpu is None):
            return self._facts.cpu
        if gpu is None:
            raise DeviceError("the fleet judges on cores, not on a GPU: use --device cpu")
        return gpu

    def screen(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        best: Kernel | None = None,
    ) -> Sequence[Screening]:
        """Screen a part of the kernels on each device; each is timed against the reference."""
        count, problem_hash = min(self.width, len(kernels)), problem.hash
        parts = [tuple(kernels[start::count]) for start in range(count)]
        orders = [
            FleetOrder(
                screened=True,
                problem=problem,
                problem_hash=problem_hash,
                kernels=part,
                terms=terms,
                best=best,
            )
            for part in parts
        ]
        found: dict[str, Screening] = {}
        for place, data in self._spread.run(orders):
            asked = parts[place]
            if data is None:
                answers = [
                    Screening(kernel_hash=one.hash, status="unmeasured", reason=LOST)
                    for one in asked
                ]
            else:
                answers = list(self._reply(data).screenings)
            if [one.kernel_hash for one in answers] != [one.hash for one in asked]:
                raise JudgeError("a machine of the fleet answered for other kernels")
            found |= {one.kernel_hash: one for one in answers}
        return [found[one.hash] for one in kernels]

    def judge(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        then: Kernel | None = None,
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Give each kernel a verdict on a device of its own, in the order that they are given."""
        problem_hash = problem.hash
        orders = [
            FleetOrder(
                screened=False,
                problem=problem,
                problem_hash=problem_hash,
                kernels=(one,),
                terms=terms,
            )
            for one in kernels
        ]
        for place, data in self._spread.run(orders):
            kernel = kernels[place]
            if data is None:
                verdict = Verdict(
                    status="unmeasured",
                    reason=LOST,
                    isolation="none",
                    environment={"judge": revision()},
                    kernel_hash=kernel.hash,
                    problem_hash=problem_hash,
                )
            else:
                verdict = msgspec.convert(self._reply(data).verdict, Verdict)
            if (verdict.kernel_hash, verdict.problem_hash) != (kernel.hash, problem_hash):
                raise JudgeError("a machine of the fleet answered for another kernel")
            yield kernel, verdict

    def close(self) -> None:
        self._cluster.close()

    def _reply(self, data: bytes) -> SeatReply:
        """Return a reply of a device of the chosen kind; raises what the machine raised."""
        reply = msgspec.msgpack.decode(data, type=SeatReply)
        if reply.error:
            raise RatchetError(reply.error)
        if reply.facts.kind != self._facts.kind:
            raise JudgeError(f"{reply.facts.host} changed while it judged: {reply.facts.name}")
        return reply


def _version_fault(facts: SeatFacts) -> str:
    """Return why a machine's judge is not this one; empty if it is."""
    if facts.ratchet != VERSION:
        return (
            f"{facts.host} has Ratchet {facts.ratchet}, not {VERSION}: install the same "
            "version on every machine"
        )
    if facts.revision != revision():
        return (
            f"{facts.host} has another revision of the judge ({facts.revision}, not {revision()}): "
            "install the same code on every machine"
        )
    return ""
