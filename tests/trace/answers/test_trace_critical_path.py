"""The critical path: a chain that sums to the window, and on made-up runs the longest there is."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import made_traces as mt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.trace.analysis import Analysis, analyse
from ratchet.trace.answers.critical_path import (
    KINDS,
    CriticalPath,
    PathWindow,
    arrival,
    binding_edges,
    critical_path,
)
from ratchet.trace.answers.dependencies import dependencies

LAUNCH, TURN = 5, 2
"""From a call's start to its kernel's, and between kernels of a stream, in us."""
Step = tuple[str, int, int]
PROGRAM = st.lists(
    st.tuples(
        st.sampled_from(["first", "second", "second after first", "sync"]),
        st.integers(1, 9),
        st.integers(1, 40),
    ),
    min_size=2,
    max_size=7,
)
BEGIN: list[Step] = [("first", 3, 30), ("first", 1, 4)]
"""A kernel that begins as soon as it is launched, and one that is queued behind it."""
AGAIN = settings(max_examples=30, deadline=None, derandomize=True,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@dataclass
class Run:
    """A program that was run as soon as its dependencies allow, by hand: the oracle."""

    program: list[Step]
    events: list[dict] = field(default_factory=list)
    time: dict[str, int] = field(default_factory=dict)
    edges: list[tuple[str, str, int, str]] = field(default_factory=list)
    """(from, to, least time, kind) between moments with a name."""

    def __post_init__(self) -> None:
        self.time["begin"] = 0
        cpu, last = "begin", {"first": "", "second": ""}
        for number, (what, cpu_us, kernel_us) in enumerate(self.program):
            if what == "sync":
                cpu = self._sync(number, cpu, cpu_us, [one for one in last.values() if one])
            else:
                cpu = self._kernel(number, what, cpu, cpu_us, kernel_us, last)
        self.ends = [one for one in last.values() if one]

    def _at(self, name: str, *reached: tuple[str, int, str]) -> str:
        self.edges += [(source, name, least, kind) for source, least, kind in reached]
        self.time[name] = max(self.time[source] + least for source, least, _ in reached)
        return name

    def _kernel(
        self, number: int, what: str, cpu: str, cpu_us: int, kernel_us: int, last: dict[str, str]
    ) -> str:
        stream = "first" if what == "first" else "second"
        call = self._at(f"call {number}", (cpu, cpu_us, "cpu"))
        begun = self.time[cpu]
        self.events.append(mt.op(f"op {number}", begun, cpu_us))
        waits = [(call, LAUNCH, "launch_delay")]
        if last[stream]:
            waits.append((last[stream], TURN, "kernel_gap"))
        if what == "second after first" and last["first"]:
            waits.append((last["first"], 0, "kernel_gap"))
            self.events.append(mt.span("cuda_runtime", "cudaStreamWaitEvent", self.time[call], 0))
        start = self._at(f"start {number}", *waits)
        last[stream] = self._at(f"end {number}", (start, kernel_us, "compute"))
        self.events += [
            mt.launch(self.time[call], 1, number + 1),
            mt.kernel(f"kernel {number}", self.time[start], kernel_us, number + 1,
                      {"first": 7, "second": 8}[stream]),
        ]  # fmt: skip
        return self._at(f"called {number}", (call, 1, "cpu"))

    def _sync(self, number: int, cpu: str, cpu_us: int, running: list[str]) -> str:
        call = self._at(f"call {number}", (cpu, cpu_us, "cpu"))
        self.events.append(mt.op(f"op {number}", self.time[cpu], cpu_us))
        back = self._at(f"back {number}", (call, 0, "cpu"), *((one, 0, "sync") for one in running))
        self.events.append(
            mt.span("cuda_runtime", "cudaDeviceSynchronize", self.time[call],
                    self.time[back] - self.time[call])
        )  # fmt: skip
        return back

    def longest(self) -> list[Counter[str]]:
        """The time by kind of every longest path to the last end, from the first start on."""
        end = max(self.ends, key=lambda name: self.time[name])
        first = min(self.time[name] for name in self.time if name.startswith("start"))
        into: dict[str, list[tuple[str, int, str]]] = {}
        for source, target, least, kind in self.edges:
            into.setdefault(target, []).append((source, least, kind))

        def paths(name: str) -> list[tuple[int, Counter[str]]]:
            if name == "begin":
                return [(0, Counter())]
            found = []
            for source, least, kind in into[name]:
                for length, kinds in paths(source):
                    inside = max(length + least, first) - max(length, first)
                    found.append((length + least, kinds + Counter({kind: inside})))
            return found

        every = paths(end)
        most = max(length for length, _ in every)
        assert most == self.time[end], "nothing waits longer than it has to"
        return [+kinds for length, kinds in every if length == most]


def analysed(events: list[dict], folder: Path) -> tuple[Analysis, CriticalPath]:
    found = analyse(mt.made(folder, events))
    return found, critical_path(
        found.trace, found.links, found.communication, found.activity, found.steps
    )


def by_kind(window: PathWindow) -> Counter[str]:
    return +Counter({kind: getattr(window, kind) for kind in KINDS})


def chain_of(found: Analysis) -> None:
    """The path follows edges of the graph from the end to the start, and no edge goes back."""
    graph = dependencies(found.trace, found.links, found.activity)
    assert (graph.source < graph.target).all()
    length = graph.time[graph.target] - graph.time[graph.source]
    assert (graph.least >= 0).all() and (graph.least <= length).all()
    edges = binding_edges(graph, found.activity.start)
    assert (graph.target[edges[:-1]] == graph.source[edges[1:]]).all()
    if edges.size:
        assert graph.target[edges[-1]] == graph.sink
        assert int(length[edges].sum()) == found.activity.end - found.activity.start
    assert arrival(graph, graph.weight) == graph.time[graph.sink], "no path is longer"


@AGAIN
@given(program=PROGRAM)
def test_the_path_is_the_longest_of_all(tmp_path: Path, program: list[Step]) -> None:
    program = [*BEGIN, *program]
    run = Run(program)
    found, path = analysed(run.events, tmp_path)
    chain_of(found)
    mine = by_kind(path.whole)
    mine["cpu"] += mine.pop("between_ops", 0)
    assert sum(mine.values()) == path.whole.window
    assert Counter({kind: time // 1000 for kind, time in mine.items() if time}) in run.longest()


@AGAIN
@given(program=PROGRAM)
def test_what_a_kernel_gives_is_what_the_run_without_it_takes(
    tmp_path: Path, program: list[Step]
) -> None:
    program = [*BEGIN, *program]
    _, path = analysed(Run(program).events, tmp_path)
    for row in path.rows:
        number = int(row.name.split()[-1]) if row.name.startswith("kernel ") else 0
        if number >= len(BEGIN):
            what, cpu_us, _ = program[number]
            shorter = Run([*program[:number], (what, cpu_us, 0), *program[number + 1 :]])
            ends = [max(run.time[end] for end in run.ends) for run in (Run(program), shorter)]
            assert row.gain == 1000 * (ends[0] - ends[1])
            assert 0 <= row.gain <= row.time


def test_the_kinds_of_a_small_run(tmp_path: Path) -> None:
    events = [
        mt.op("aten::mm", 0, 20), mt.launch(10, 2, 1), mt.kernel("gemm", 15, 30, 1),
        mt.op("aten::add", 25, 10), mt.launch(28, 2, 2), mt.kernel("add", 47, 5, 2),
        mt.span("cuda_runtime", "cudaStreamSynchronize", 40, 14),
        mt.op("aten::relu", 60, 10), mt.launch(64, 1, 3), mt.kernel("relu", 70, 2, 3),
        mt.step(0, 0, 58), mt.step(1, 58, 20),
    ]  # fmt: skip
    found, path = analysed(events, tmp_path)
    chain_of(found)
    # gemm, 2 of gap, add, 2 until the call returns, 6 of Python, 4 of relu, launch, relu.
    assert by_kind(path.whole) == {
        "compute": 37_000, "kernel_gap": 2000, "sync": 2000, "between_ops": 6000, "cpu": 4000,
        "launch_delay": 6000,
    }  # fmt: skip
    assert [(s.kind, s.name, s.where) for s in path.chain][:3] == [
        ("compute", "gemm", "stream 7"), ("kernel_gap", "", ""), ("compute", "add", "stream 7"),
    ]  # fmt: skip
    ends = [(step.start, step.start + step.window) for step in path.steps]
    assert ends[0][1] == ends[1][0] and len(ends) == 2
    for kind in KINDS:
        assert sum(getattr(step, kind) for step in path.steps) == getattr(path.whole, kind)
    rows = {(row.kind, row.name): row for row in path.rows}
    assert rows["cpu", "aten::relu"].time == 4000
    assert rows["compute", "gemm"].gain == 14_000, "the call begins at 40"


def test_another_chain_that_is_nearly_as_long_limits_what_is_won(tmp_path: Path) -> None:
    events = [
        mt.op("aten::two", 0, 4), mt.launch(1, 1, 1), mt.launch(2, 1, 2),
        mt.kernel("long", 10, 100, 1, 7), mt.kernel("nearly", 11, 90, 2, 8),
    ]  # fmt: skip
    _, path = analysed(events, tmp_path)
    (row,) = (row for row in path.rows if row.name == "long")
    assert (row.time, row.gain) == (100_000, 9000)


def test_the_backward_runs_on_a_thread_of_its_own(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        mt.op("aten::mm", 0, 30), mt.launch(5, 1, 1), mt.kernel("gemm", 10, 5, 1),
        mt.op(node, 40, 20, tid=mt.AUTOGRAD), mt.op(node, 70, 20, tid=mt.AUTOGRAD),
        mt.op("aten::add", 100, 10), mt.launch(105, 1, 2), mt.kernel("add", 112, 3, 2),
    ]  # fmt: skip
    found, path = analysed(events, tmp_path)
    chain_of(found)
    rows = {(row.kind, row.name): row.time for row in path.rows}
    assert rows["cpu", node] == 40_000, "not the forward's thread, which waited"
    assert rows["between_ops", ""] == (10 + 10 + 10) * 1000
    assert rows["cpu", "aten::mm"] == 20_000, "from the window's start"


def test_a_wait_for_another_stream_is_not_the_launch(tmp_path: Path) -> None:
    events = [
        mt.op("aten::mm", 0, 30), mt.launch(1, 1, 1), mt.kernel("gemm", 10, 50, 1, 7),
        mt.span("cuda_runtime", "cudaStreamWaitEvent", 5, 1), mt.launch(8, 1, 2),
        mt.kernel("ncclDevKernel_AllReduce", 63, 20, 2, 9),
    ]  # fmt: skip
    _, path = analysed(events, tmp_path)
    assert by_kind(path.whole) == {"compute": 50_000, "kernel_gap": 3000, "communication": 20_000}


def test_traces_with_little_in_them(tmp_path: Path) -> None:
    """No launches, no device, no ops, nothing at all that takes time: the window is accounted."""
    cases = {
        "kernels": [mt.kernel("a", 0, 5), mt.kernel("b", 9, 5, stream=8)],
        "cpu": [mt.op("aten::mm", 0, 5), mt.op("aten::add", 7, 5)],
        "marks": [mt.span("user_annotation", "only", 0, 9)],
        "no time": [mt.op("aten::mm", 3, 0)],
    }
    kinds = {}
    for name, events in cases.items():
        found, path = analysed(events, tmp_path)
        chain_of(found) if name in ("kernels", "cpu") else None
        kinds[name] = by_kind(path.whole)
    assert kinds == {
        "kernels": {"compute": 10_000, "kernel_gap": 4000},
        "cpu": {"cpu": 10_000, "between_ops": 2000},
        "marks": {"unknown": 9000},
        "no time": {},
    }


@pytest.mark.parametrize(
    "name",
    ["mi300x-resnet-ddp-rank0of8", "mi250-minitoy-rocm6.2",
     "h100-bert-small", "v100-oldnames-unlinked-nccl"],
)  # fmt: skip
def test_on_real_traces_it_sums_to_the_window(name: str) -> None:
    found = analyse(mt.recorded(name))
    chain_of(found)
    path = critical_path(found.trace, found.links, found.communication, found.activity, found.steps)
    whole = found.activity.whole()
    assert path.whole.window == whole.window == sum(by_kind(path.whole).values())
    assert sum(step.window for step in path.steps) in (0, whole.window)
    assert all(a.start + a.duration <= b.start for a, b in itertools.pairwise(path.chain))
    assert path.whole.unknown <= 0.001 * whole.window
    if name == "mi300x-resnet-ddp-rank0of8":
        # The all-reduces wait for the backward: all of what nothing hides is on the path.
        assert path.whole.communication >= whole.exposed_communication > 0.5 * whole.window
