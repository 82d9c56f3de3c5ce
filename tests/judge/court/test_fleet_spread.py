"""Orders over the seats of a made-up cluster: machines die, differ, hang and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from ratchet import __version__
from ratchet.base.devices.probe import probe, software
from ratchet.base.errors import DeviceError, JudgeError, RatchetError
from ratchet.judge.court import ray_cluster
from ratchet.judge.court.machines import FleetOrder, SeatFacts, SeatReply, pack
from ratchet.judge.court.ray_cluster import Seat, SeatLost, Spread
from ratchet.judge.court.ray_fleet import LOST, ClusterFleet
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Screening, Verdict

PROBLEM = find_problem("squared_relu").at("ci")
KERNELS = [Kernel(name=f"k{i}", language="cpp", source=f"// {i}", entry="k") for i in range(6)]
CPU = probe("cpu")


def facts(host: str, **other: object) -> SeatFacts:
    given = {
        "host": host,
        "cpu": CPU,
        "gpu": None,
        "software": software(),
        "ratchet": __version__,
        "revision": revision(),
    }
    return SeatFacts(**(given | other))


def seat(host: str) -> Seat:
    return Seat(node=f"node of {host}", index=0, host=host, threads=1, gpus=0)


@dataclass
class MadeUpCluster:
    """Answers at once, unless `dies` says that the seat is lost with an order."""

    hosts: dict[str, SeatFacts]
    dies: Callable[[str, str], bool] = lambda host, kernel: False
    stays: bool = False
    """A machine is there again after it was lost."""
    answers: dict[int, bytes | Exception] = field(default_factory=dict)
    at_work: list[tuple[str, str]] = field(default_factory=list)
    """Host and first kernel of every order, as they were started."""
    most: int = 0
    """Most orders that one host had at once."""
    open: dict[int, str] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    closed: bool = False

    def seats(self) -> list[Seat]:
        return [seat(host) for host in self.hosts]

    def describe(self, seat: Seat) -> int:
        return self._answer(pack(self.hosts[seat.host]))

    def start(self, seat: Seat, data: bytes) -> int:
        order = msgspec.msgpack.decode(data, type=FleetOrder)
        kernels = list(order.kernels)
        self.at_work.append((seat.host, kernels[0].name))
        if self.dies(seat.host, kernels[0].name):
            if not self.stays:
                del self.hosts[seat.host]
            return self._answer(SeatLost("gone"), seat.host)
        said = facts(seat.host) if seat.host not in self.hosts else self.hosts[seat.host]
        if not order.screened:
            verdict = msgspec.to_builtins(
                Verdict(
                    status="correct",
                    reason=f"by {seat.host}",
                    isolation="none",
                    kernel_hash=kernels[0].hash,
                    problem_hash=order.problem_hash,
                )
            )
            return self._answer(pack(SeatReply(facts=said, verdict=verdict)), seat.host)
        found = tuple(
            Screening(kernel_hash=one.hash, status="screened", reason=f"by {seat.host}")
            for one in kernels
        )
        return self._answer(pack(SeatReply(facts=said, screenings=found)), seat.host)

    def _answer(self, answer: bytes | Exception, host: str = "") -> int:
        handle = len(self.answers)
        self.answers[handle] = answer
        if host:
            self.open[handle] = host
            self.most = max(self.most, list(self.open.values()).count(host))
        return handle

    def wait(self, handles: Sequence[int], limit_s: float) -> list[int]:
        return list(handles[:1])

    def result(self, handle: int) -> bytes:
        self.open.pop(handle, None)
        found = self.answers[handle]
        if isinstance(found, Exception):
            raise found
        return found

    def cancel(self, handle: int) -> None:
        self.cancelled.append(handle)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "LOOK_S", 0.0)
    monkeypatch.setattr(ray_cluster, "PATIENCE_S", 0.02)


def judged(fleet: ClusterFleet, kernels: Sequence[Kernel] = KERNELS) -> dict[str, Verdict]:
    found = list(fleet.judge(kernels, PROBLEM, Terms(device="cpu")))
    assert len(found) == len(kernels)
    return {kernel.name: verdict for kernel, verdict in found}


def test_orders_cross_as_bytes_and_come_back_equal() -> None:
    order = FleetOrder(
        screened=False,
        problem=PROBLEM,
        problem_hash=PROBLEM.hash,
        kernels=(replace(KERNELS[0], schedule=(("TILE", "8"),)),),
        terms=Terms(time_limit_s=3.5, among=3),
    )
    back = msgspec.msgpack.decode(pack(order), type=FleetOrder)
    assert back == order and back.problem.hash == PROBLEM.hash
    assert msgspec.msgpack.decode(pack(facts("a")), type=SeatFacts) == facts("a")


def test_kernels_are_spread_and_a_seat_has_one_at_a_time() -> None:
    cluster = MadeUpCluster({"a": facts("a"), "b": facts("b")})
    fleet = ClusterFleet(cluster)
    assert fleet.width == 2
    assert {one.status for one in judged(fleet).values()} == {"correct"}
    assert {host for host, _ in cluster.at_work} == {"a", "b"}
    assert cluster.most == 1
    found = fleet.screen(KERNELS, PROBLEM, Terms(time_limit_s=5.0))
    assert [one.kernel_hash for one in found] == [one.hash for one in KERNELS]
    assert {one.reason for one in found} == {"by a", "by b"}
    fleet.close()
    assert cluster.closed


def test_what_a_dead_machine_had_is_judged_elsewhere_and_once() -> None:
    cluster = MadeUpCluster(
        {"a": facts("a"), "b": facts("b")}, dies=lambda host, kernel: host == "b"
    )
    fleet = ClusterFleet(cluster)
    verdicts = judged(fleet)
    assert {one.reason for one in verdicts.values()} == {"by a"}
    (lost,) = [kernel for host, kernel in cluster.at_work if host == "b"]
    assert ("a", lost) in cluster.at_work
    assert fleet.width == 1


def test_a_lost_process_of_a_machine_that_stays_goes_to_another_machine_first() -> None:
    died: list[str] = []

    def dies(host: str, kernel: str) -> bool:
        first = kernel == "k1" and not died
        died.extend([host] * first)
        return first

    cluster = MadeUpCluster({"a": facts("a"), "b": facts("b")}, dies=dies, stays=True)
    fleet = ClusterFleet(cluster)
    judged(fleet)
    places = [host for host, kernel in cluster.at_work if kernel == "k1"]
    assert len(places) == 2 and places[0] == died[0] != places[1]
    assert fleet.width == 2


def test_a_kernel_that_ends_its_machines_is_unmeasured_and_the_others_go_on() -> None:
    hosts = {name: facts(name) for name in "abcde"}
    cluster = MadeUpCluster(hosts, dies=lambda host, kernel: kernel == "k2")
    verdicts = judged(ClusterFleet(cluster))
    assert verdicts["k2"].status == "unmeasured" and verdicts["k2"].reason == LOST
    assert [one.status for one in verdicts.values()].count("correct") == 5
    assert len(cluster.hosts) == 2


def test_without_a_machine_it_ends_with_one_line() -> None:
    cluster = MadeUpCluster({"a": facts("a")}, dies=lambda host, kernel: True)
    with pytest.raises(JudgeError, match=r"no machine of the cluster is left.*--resume"):
        judged(ClusterFleet(cluster))


def test_a_machine_that_comes_later_takes_part() -> None:
    cluster = MadeUpCluster({"a": facts("a")})
    fleet = ClusterFleet(cluster)
    cluster.hosts["b"] = facts("b")
    judged(fleet)
    assert {host for host, _ in cluster.at_work} == {"a", "b"} and fleet.width == 2


def test_an_order_that_hangs_is_given_up() -> None:
    class Hanging(MadeUpCluster):
        def wait(self, handles: Sequence[int], limit_s: float) -> list[int]:
            return [one for one in handles if self.open.get(one) != "b"][:1]

        def result(self, handle: int) -> bytes:
            if handle in self.cancelled:
                self.answers[handle] = SeatLost("cancelled")
                self.hosts.pop("b", None)
            return super().result(handle)

    cluster = Hanging({"a": facts("a"), "b": facts("b")})
    now = iter(range(0, 10_000_000, 60))
    fleet = ClusterFleet(cluster)
    fleet._spread.clock = lambda: float(next(now))
    fleet._spread._looked = None
    verdicts = judged(fleet)
    assert {one.reason for one in verdicts.values()} == {"by a"} and cluster.cancelled


def test_an_interrupted_run_cancels_what_is_at_work() -> None:
    cluster = MadeUpCluster({"a": facts("a"), "b": facts("b")})
    found: Iterator[object] = ClusterFleet(cluster).judge(KERNELS, PROBLEM, Terms())
    next(found)
    assert cluster.cancelled == []
    found.close()  # type: ignore[attr-defined]
    assert len(cluster.cancelled) == 1


def test_only_devices_of_one_kind_take_part() -> None:
    other = replace(CPU, model="another")
    cluster = MadeUpCluster(
        {"a": facts("a"), "b": facts("b", cpu=other), "c": facts("c", cpu=other)}
    )
    fleet = ClusterFleet(cluster)
    judged(fleet)
    assert {host for host, _ in cluster.at_work} == {"b", "c"}
    assert fleet.device("cpu") == fleet.device("auto") == other
    (note,) = fleet.notes
    assert note.startswith("a is left out")
    with pytest.raises(DeviceError, match="not on a GPU"):
        fleet.device("cuda")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ratchet": "0.0.1"}, f"b has Ratchet 0.0.1, not {__version__}"),
        ({"revision": "f" * 16}, "b has another revision of the judge"),
    ],
)
def test_a_machine_of_another_version_is_left_out_and_named(
    wrong: dict[str, object], words: str
) -> None:
    fleet = ClusterFleet(MadeUpCluster({"a": facts("a"), "b": facts("b", **wrong)}))
    assert fleet.width == 1 and fleet.notes[0].startswith(words)
    cluster = MadeUpCluster({"b": facts("b", **wrong)})
    with pytest.raises(JudgeError, match=f"no machine of the cluster can judge: {words[:20]}"):
        ClusterFleet(cluster)
    assert cluster.closed


def test_a_cluster_without_cores_is_one_line() -> None:
    with pytest.raises(JudgeError, match="none offers a core"):
        ClusterFleet(MadeUpCluster({}))


def test_what_a_machine_refuses_ends_the_run_with_its_words() -> None:
    class Refusing(MadeUpCluster):
        def start(self, seat: Seat, data: bytes) -> int:
            return self._answer(pack(SeatReply(facts=facts("a"), error="no C++ compiler")), "a")

    with pytest.raises(RatchetError, match="no C"):
        judged(ClusterFleet(Refusing({"a": facts("a")})))


def test_a_machine_that_turns_into_another_is_told() -> None:
    class Changing(MadeUpCluster):
        def start(self, seat: Seat, data: bytes) -> int:
            self.hosts["a"] = facts("a", cpu=replace(CPU, threads=CPU.threads + 1))
            return super().start(seat, data)

    with pytest.raises(JudgeError, match="a changed while it judged"):
        judged(ClusterFleet(Changing({"a": facts("a")})))


def test_spread_meets_nobody_that_does_not_fit() -> None:
    cluster = MadeUpCluster({"a": facts("a")})
    met = Spread(cluster, fits=lambda one: f"{one.host} is not wanted")
    met.meet()
    assert met.facts == {} and list(met.left_out.values()) == ["a is not wanted"]
