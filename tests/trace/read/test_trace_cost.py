"""Four times the events cost four times as much: counted in bytes, calls and memory, not timed."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest

from ratchet.trace.answers.report import report
from ratchet.trace.read import read, stream

FEW, MANY = 1_500, 6_000


def steps(count: int) -> list[dict]:
    """Ops that launch kernels, in steps of ten."""
    events = []
    for number in range(count // 3):
        at = 20 * number
        events += [
            mt.op(f"aten::mm{number % 5}", at, 8, Input_Dims=[[4, 8], [8, 2]]),
            mt.launch(at + 1, 2, number + 1),
            mt.kernel(f"gemm{number % 5}", at + 4, 10, number + 1),
        ]
    return [*(mt.step(n, 200 * n, 200) for n in range(count // 30)), *events]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cost")
    few, many = (mt.write(folder / f"{count}.json", steps(count)) for count in (FEW, MANY))
    read(few)
    report(read(few))
    return few, many


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each text that is decoded, in blocks that are small beside a file."""
    sizes: list[int] = []
    decode: Callable[[bytes], Sequence[Any]] = stream._decoded

    def counting(text: bytes) -> Sequence[Any]:
        sizes.append(len(text))
        return decode(text)

    monkeypatch.setattr(stream, "BLOCK", 20_000)
    monkeypatch.setattr(stream, "_decoded", counting)
    return sizes


def test_each_byte_is_decoded_once(files: tuple[Path, Path], decoded: list[int]) -> None:
    for path in files:
        decoded.clear()
        read(path)
        assert sum(decoded) < 1.01 * path.stat().st_size
        assert max(decoded) < 2.1 * stream.BLOCK


def test_an_event_longer_than_any_block_is_not_decoded_again_and_again(
    tmp_path: Path, decoded: list[int]
) -> None:
    costs = []
    for count in (FEW, MANY):
        inner = [{"name": f"inner {number}", "of": [{}, {"a": {}}]} for number in range(4 * count)]
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps({"traceEvents": [mt.op("long", 1, 2, inner=inner)] * 2}))
        decoded.clear()
        trace = read(path)
        assert (len(trace), trace.faults) == (2, ())
        costs.append(sum(decoded) / path.stat().st_size)
    assert costs[1] < 1.5 * costs[0]


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_events(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCK", 20_000)
    few, many = (peak_bytes(lambda path=path: report(read(path))) for path in files)
    assert few / FEW < 500
    assert many / MANY < 1.1 * few / FEW


def calls(work: Callable[[], object]) -> int:
    """Functions called, those of C among them."""
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_calls_grow_no_faster_than_the_events(files: tuple[Path, Path]) -> None:
    few, many = (calls(lambda path=path: report(read(path))) for path in files)
    assert many < 4.2 * few
