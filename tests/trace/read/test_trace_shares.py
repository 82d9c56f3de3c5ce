"""A file read by several processes, and by structs of its phases, as in one plain pass."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_traces as mt
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ratchet.base.errors import TraceError
from ratchet.trace.read import read, shares, stream
from ratchet.trace.read.columns import Trace
from ratchet.trace.read.stream import Event


def contents(trace: Trace) -> dict[str, Any]:
    """All that a trace holds, with texts in place of numbers that readers may give otherwise."""
    strings = np.array([*trace.strings, None], dtype=object)
    found: dict[str, Any] = {
        name: getattr(trace, name).tolist()
        for name in ("kind", "start", "duration", "correlation", "external", "stream", "device",
                     "size")
    }  # fmt: skip
    found["name"] = strings[trace.text].tolist()
    found["lane"] = [trace.lanes[lane] for lane in trace.lane]
    texts = ("dims", "types", "concrete", "name", "dtype", "group")
    for table in (trace.ops, trace.collectives, trace.memory):
        for column in table.__slots__:
            values = getattr(table, column)
            values = strings[values] if column in texts else values
            found[f"{type(table).__name__}.{column}"] = values.tolist()
    found["about"] = (trace.rank, trace.platform, trace.devices, trace.metadata)
    # Text that is not UTF-8 is said where it was decoded: not in what a struct leaves out.
    found["faults"] = sorted(f for f in trace.faults if not f.startswith(stream.NOT_UTF8))
    return found


def outcome(path: Path) -> dict[str, Any] | str:
    try:
        return contents(read(path))
    except TraceError as error:
        return str(error)


def plainly(path: Path, patch: pytest.MonkeyPatch) -> dict[str, Any] | str:
    """In one go, every event by the struct that takes any."""
    with patch.context() as context:
        context.setattr(shares, "usable_cpus", lambda: range(1))
        context.setattr(stream, "_decoded", msgspec.json.Decoder(list[Event]).decode)
        return outcome(path)


class Here:
    """In place of another process: the same work in this one."""

    def __init__(self, path: Path, begin: int, end: int | None) -> None:
        self.stdout = io.BytesIO()
        here = io.TextIOWrapper(self.stdout)
        with pytest.MonkeyPatch.context() as context:
            context.setattr(sys, "stdout", here)
            try:
                shares.answer([str(path), str(begin), "" if end is None else str(end)])
            except (TraceError, msgspec.DecodeError):
                self.stdout.truncate(0)
        here.flush()
        here.detach()
        self.stdout.seek(0)

    def kill(self) -> None: ...

    def communicate(self) -> None: ...


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Shares of any size, by as many as the most; blocks of a few events."""
    monkeypatch.setattr(shares, "SMALLEST", 600)
    monkeypatch.setattr(shares, "_START", 100)
    monkeypatch.setattr(shares, "usable_cpus", lambda: range(4))
    monkeypatch.setattr(stream, "BLOCK", 1000)
    return monkeypatch


def some_events(noise: random.Random, count: int) -> list[dict]:
    """Events of every phase, some of them odd."""
    return [some_event(noise, number) for number in range(count)]


def some_event(noise: random.Random, number: int) -> dict:
    time, size = noise.randrange(10**6) / 1000 + 4.6e12, noise.randrange(3000) / 1000
    shape = [[noise.randrange(9), 8]] if noise.random() < 0.5 else []
    collective = {"Collective name": "all_reduce", "In msg nelems": number, "dtype": "Float"}
    half = {"cat": "cpu_op", "name": "half", "pid": 1, "tid": 1, "ts": time}
    common = [
        mt.op(f"aten::{number % 7}", time, size, Input_Dims=shape),
        mt.launch(time, size, number),
        mt.kernel('gemm }, { "ph": ', time, size, number, 7 + number % 3),
        mt.kernel("nccl", time, size, number, **collective),
        mt.allocation(time, 512, number, 4096),
        {"ph": "s", "id": number, "pid": 1, "tid": 2, "ts": time, "cat": "ac2g"},
        {"ph": "M", "name": "thread_name", "pid": 1, "args": {"name": "main"}},
        mt.op("nested", time, size, inner=[{"ph": "X", "ts": 1}] * (number % 30)),
    ]
    odd = [
        {"ph": "B", **half},
        {"ph": "E", **half},
        {"ph": "X", "cat": ["odd"], "name": None, "pid": [1], "ts": str(time), "dur": -size},
        {"ph": 7, "args": None},
    ]
    return noise.choice(odd if noise.random() < 0.04 else common)


def written(noise: random.Random, events: list[dict]) -> bytes:
    """One of the ways in which writers lay a trace out."""
    body = {"distributedInfo": {"rank": 1}, "traceEvents": events, "traceName": "made"}
    layout = noise.randrange(4)
    if layout == 0:
        return json.dumps(body, indent=1).encode()
    if layout == 1:
        return json.dumps(events, separators=(",", ":")).encode()
    if layout == 2:
        return json.dumps(body).encode()
    return mt.text(events, distributedInfo={"rank": 1}).encode()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(seed=491309, damages=0)  # a block ends between an event and its comma
@given(seed=st.integers(0, 2**32), damages=st.sampled_from([0, 0, 0, 1, 3]))
def test_several_shares_give_what_one_pass_gives(
    tmp_path: Path, small_shares: pytest.MonkeyPatch, seed: int, damages: int
) -> None:
    noise = random.Random(seed)
    data = bytearray(written(noise, some_events(noise, noise.randrange(1, 60))))
    for _ in range(damages):
        at = noise.randrange(len(data))
        data[at : at + noise.randrange(40)] = noise.choice([b"", b"}", b'"', b"]", b"\xff"])
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    small_shares.setattr(shares, "_start", Here)
    assert outcome(path) == plainly(path, small_shares)


def test_shares_are_taken_and_meet(tmp_path: Path, small_shares: pytest.MonkeyPatch) -> None:
    events = [mt.kernel("gemm", 10 * i, 5, i) for i in range(200)]
    path = mt.write(tmp_path / "trace.json", events, distributedInfo={"rank": 3})
    small_shares.setattr(shares, "_start", Here)
    gathered = shares.gather_shared(path)
    assert gathered is not None
    assert gathered.gatherer.count == 200
    assert b"traceName" in gathered.header + gathered.footer
    assert contents(read(path))["correlation"] == list(range(200))


def test_other_processes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress(mt.real_trace("a100-nccl-metadata-rank0of2").read_bytes()))
    expected = plainly(path, monkeypatch)
    monkeypatch.setattr(shares, "SMALLEST", 4 << 20)
    monkeypatch.setattr(shares, "_START", 1 << 20)
    monkeypatch.setattr(shares, "usable_cpus", lambda: range(2))
    gathered = shares.gather_shared(path)
    assert gathered is not None and gathered.gatherer.count > 20_000
    assert outcome(path) == expected


@pytest.mark.parametrize("program", ["/bin/false", "/no/such/python", ""])
def test_a_process_that_dies_or_does_not_start_costs_nothing(
    tmp_path: Path, small_shares: pytest.MonkeyPatch, program: str
) -> None:
    path = mt.write(tmp_path / "trace.json", [mt.kernel("k", 9 * i, 5, i) for i in range(99)])
    small_shares.setattr(sys, "executable", program)
    assert shares.gather_shared(path) is None
    assert len(read(path)) == 99


def test_an_array_after_the_events_is_no_share(
    tmp_path: Path, small_shares: pytest.MonkeyPatch
) -> None:
    events = [mt.kernel("k", 9 * i, 5, i) for i in range(20)]
    others = [mt.kernel("no event", 9 * i, 5, i) for i in range(200)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "other": others}))
    small_shares.setattr(shares, "_start", Here)
    assert len(read(path)) == 20


def test_small_and_packed_files_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    events = [mt.kernel("k", 9 * i, 5, i) for i in range(99)]
    assert len(read(mt.write(tmp_path / "small.json", events))) == 99
    monkeypatch.setattr(shares, "SMALLEST", 100)
    monkeypatch.setattr(shares, "_START", 10)
    assert len(read(mt.write(tmp_path / "packed.json.gz", events * 30))) == 99 * 30


@pytest.mark.parametrize(
    "name", ["mi300x-bert-small", "h100-bert-small", "mi250-minitoy-rocm6.2",
             "mi300x-compile-triton", "mi300x-qwen1.5-0.5b"],
)  # fmt: skip
def test_structs_by_phase_lose_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mt.real_trace(name)
    assert contents(read(path)) == plainly(path, monkeypatch)
