"""Reading: spellings, damage, pieces of any size."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import made_traces as mt
import numpy as np
import pytest

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.export import document
from ratchet.trace.read import read, stream
from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.show.words import headline


def whole_step() -> list[dict]:
    """Events of each sort that Kineto writes."""
    return [
        mt.step(1, 0, 60),
        mt.op("aten::mm", 1, 8, Input_Dims=[[4, 8], [8, 2]], Input_type=["float", "float"]),
        mt.launch(2, 1, 11),
        mt.kernel("gemm {a},  {b}", 5, 10, 11),
        mt.kernel("ncclDevKernel_AllReduce", 12, 10, 12, **{
            "Collective name": "all_reduce", "In msg nelems": 256, "Out msg nelems": 256,
            "Group size": 4, "dtype": "Float",
        }),
        mt.copy(30, 5, 13),
        mt.allocation(3, 512, 1000, 4096),
        {"ph": "s", "id": 11, "pid": 100, "tid": 1, "ts": 2, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 11, "pid": 0, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        mt.op("odd", 50, 1, nested=[{"a": 1}, {"b": {"c": [1, 2]}}, {"d": "},  {"}]),
        mt.op("last", 55, 1),
    ]  # fmt: skip


def same(a: Trace, b: Trace) -> bool:
    columns = ("kind", "start", "duration", "correlation", "stream", "size")
    equal = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in columns)
    return equal and [a.string(i) for i in range(len(a))] == [b.string(i) for i in range(len(b))]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("block", [200, 333, 1000, 5000])
def test_pieces_of_any_size_give_the_same_columns(
    tmp_path: Path, name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mt.write(tmp_path / name, whole_step() * 5, distributedInfo={"rank": 3, "world_size": 8})
    expected = read(path)
    monkeypatch.setattr(stream, "BLOCK", block)
    found = read(path)
    assert expected.faults == found.faults == ()
    assert len(found) == 5 * 8
    assert same(found, expected)
    assert found.rank == 3
    assert found.metadata["traceName"] == "made"


@pytest.mark.parametrize(
    ("old", "new"),
    [("Kernel", "kernel"), ("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset"),
     ("Operator", "cpu_op"), ("Runtime", "cuda_runtime"), ("hip_api", "cuda_runtime")],
)  # fmt: skip
def test_old_category_names(tmp_path: Path, old: str, new: str) -> None:
    kinds = [
        mt.made(tmp_path, [mt.span(cat, "x", 0, 1), mt.span("kernel", "y", 2, 1)]).kind[0]
        for cat in (old, new)
    ]
    assert kinds[0] == kinds[1] != Kind.OTHER


def test_a_json_array_needs_no_object_around_it_nor_its_end(tmp_path: Path) -> None:
    events = ",\n".join(json.dumps(event) for event in whole_step())
    for ending in ("]", "", ","):
        path = tmp_path / "array.json"
        path.write_text(f"[{events}{ending}")
        found = read(path)
        assert (len(found), found.faults) == (8, ())


def test_keys_in_any_order_and_the_array_first(tmp_path: Path) -> None:
    path = tmp_path / "first.json"
    body = {"traceEvents": whole_step(), "distributedInfo": {"rank": 2}, "deviceProperties": [
        {"id": 0, "name": "AMD Instinct MI300X", "numSms": 304, "totalGlobalMem": 1}]}  # fmt: skip
    path.write_text(json.dumps(body))
    found = read(path)
    assert found.rank == 2
    assert found.devices[0].name == "AMD Instinct MI300X"


def test_a_truncated_file_gives_what_stands_before_the_cut(tmp_path: Path) -> None:
    text = mt.text(whole_step()).encode()
    full = len(read(mt.write(tmp_path / "full.json", whole_step())))
    path = tmp_path / "cut.json"
    counts = []
    first_end = text.index(b"},\n{") + 1
    for cut in range(first_end, len(text) - 20, 37):
        path.write_bytes(text[:cut])
        found = read(path)
        counts.append(len(found))
        assert len(found) == full or any("the file" in str(f) for f in found.faults)
    assert counts == sorted(counts)
    assert counts[0] >= 1


def test_a_truncated_gzip_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    noise = random.Random(0)
    events = [mt.op(f"op{noise.random()}", i, 1) for i in range(3000)]
    path.write_bytes(gzip.compress(mt.text(events).encode())[:-2000])
    found = read(path)
    assert 1000 < len(found) < 3000
    assert any("gzip file is cut off" in str(fault) for fault in found.faults)


def test_a_gzip_file_of_several_members(tmp_path: Path) -> None:
    text = mt.text(whole_step()).encode()
    path = tmp_path / "members.json.gz"
    path.write_bytes(gzip.compress(text[:700]) + gzip.compress(text[700:]))
    found = read(path)
    assert (len(found), found.faults) == (8, ())


@pytest.mark.parametrize(
    ("damage", "kept"),
    [('{"ph": "X", "cat": "cpu_op"', 4), ('{"ph": \x01}', 4), ('{"a" "b"}', 4),
     ("null", 8), ("[]", 8), ('"text"', 8)],
)  # fmt: skip
def test_what_stands_before_damage_is_read_and_no_event_is_left_out_alone(
    tmp_path: Path, damage: str, kept: int
) -> None:
    events = whole_step()
    parts = [json.dumps(event) for event in events]
    path = tmp_path / "damaged.json"
    path.write_text('{"traceEvents": [' + ", ".join([*parts[:4], damage, *parts[4:]]) + "]}")
    found = read(path)
    assert len(found) == kept
    assert found.faults


def test_not_a_number_is_read_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "nan.json"
    text = mt.text(whole_step()).replace('"bytes": 64', '"bytes": NaN')
    assert "NaN" in text
    path.write_text(text)
    assert len(read(path)) == 8


def test_wrong_values_are_named_and_counted(tmp_path: Path) -> None:
    events = [
        mt.op("negative", 0, -5), mt.op("good", 1, 2), {"ph": "X", "name": "no time", "cat": "op"},
        {"ph": "X", "name": "no duration", "cat": "cpu_op", "ts": 4},
        {"ph": "E", "name": "", "pid": 1, "tid": 1, "ts": 3}, {"name": "no phase"},
        {"ph": "X", "name": ["odd"], "cat": {"odd": 1}, "pid": [1], "tid": None, "ts": 9, "dur": 1,
         "args": {"correlation": "x", "External id": None}},
    ]  # fmt: skip
    found = mt.made(tmp_path, events)
    said = " ".join(str(fault) for fault in found.faults)
    for words in ("negative duration", "without a start", "without a duration", "end event",
                  "without a phase"):  # fmt: skip
        assert words in said
    assert (found.duration >= 0).all()
    assert report(found).identity.window > 0


def test_begin_and_end_events_make_one(tmp_path: Path) -> None:
    def half(ph: str, name: str, ts: float) -> dict:
        return {"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts}

    found = mt.made(tmp_path, [half("B", "outer", 1), half("B", "inner", 2), half("E", "", 3),
                               half("E", "", 8), half("B", "open", 9)])  # fmt: skip
    assert [found.string(i) for i in range(2)] == ["outer", "inner"]
    assert found.duration.tolist() == [7000, 1000]
    assert "begin event without its end" in str(found.faults[0])


def test_a_gpu_run_without_gpu_events_says_why(tmp_path: Path) -> None:
    events = [mt.op("aten::mm", 0, 5), mt.launch(1, 1, 5, "hipLaunchKernel")]
    said = str(mt.made(tmp_path, events).faults[0])
    assert "no GPU events on a rocm run with 1 runtime calls" in said
    assert "roctracer" in said
    assert mt.made(tmp_path, [mt.op("aten::mm", 0, 5)]).faults == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"hello", "no traceEvents"),
        (b'{"other": 1}', "no traceEvents"),
        (b'{"traceEvents": []}', "no event with a duration"),
        (b"\x1f\x8bgarbage", "is empty"),
        (b"SQLite format 3\0rubbish", "cannot be read as SQLite"),
        (b'{"rocprofiler-sdk-tool":[{', "cannot be decoded"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "not.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none.json")
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_a_fuzzed_trace_never_crashes(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    data = bytearray(mt.text(whole_step() * 2).encode())
    for _ in range(noise.randint(1, 12)):
        at = noise.randrange(len(data))
        choice = noise.randrange(3)
        if choice == 0:
            data[at] = noise.randrange(256)
        elif choice == 1:
            del data[at : at + noise.randint(1, 40)]
        else:
            data[at:at] = noise.choice([b"{", b"}", b"[", b"]", b",", b'"', b"1e9", b"-", b"null"])
    path = tmp_path / "fuzzed.json"
    path.write_bytes(data)
    try:
        found = document(report(read(path)))
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert sum(found["identity_ns"].values()) == found["window_ns"]


def test_impossible_times_are_left_out(tmp_path: Path) -> None:
    events = [mt.op("far", 8e15, 1), mt.op("near", 2, 9e15), mt.op("early", -9e15, 1)]
    found = mt.made(tmp_path, [*events, mt.op("good", 1_700_000_000_000_000, 1)])
    assert len(found) == 2
    assert sum(report(found).identity.parts) == found.start[1] + 1000 - 2000


def test_the_reader_takes_wrongly_typed_numbers(tmp_path: Path) -> None:
    events = [mt.launch(0, 1, 5), mt.kernel("k", 2, 3, 5)]
    events[1]["args"] |= {"stream": "0x7f", "device": "1", "correlation": "5"}
    found = mt.made(tmp_path, events)
    row = found.rows(Kind.KERNEL)[0]
    assert (found.stream[row], found.device[row], found.correlation[row]) == (0x7F, 1, 5)


@pytest.mark.parametrize(
    "header",
    [
        '"deviceProperties": 3, "distributedInfo": [1], "baseTimeNanoseconds": "x"',
        '"deviceProperties": [{"id": "a", "name": 3}, 4], "distributedInfo": {"rank": "a"}',
        f'"distributedInfo": {"[" * 200_000}',
    ],
)
def test_what_stands_around_the_events_may_be_anything(tmp_path: Path, header: str) -> None:
    event = json.dumps(mt.kernel("gemm", 1, 2))
    (tmp_path / "t.json").write_text(f'{{{header}, "traceEvents": [{event}]}}')
    try:
        found = read(tmp_path / "t.json")
    except TraceError:
        return  # one line
    assert len(found) == 1


def test_slices_of_other_programs_are_no_idle_gpu(tmp_path: Path) -> None:
    slices = [{"ph": "X", "pid": 1, "tid": 2, "ts": 1, "dur": 9, "name": "RunTask", "cat": "task"}]
    with pytest.raises(TraceError, match="without an operator, a kernel or a mark: give one"):
        read(mt.write(tmp_path / "browser.json", slices))
    named = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}
    with pytest.raises(TraceError, match=r"copy for Chrome.*: give the \.xplane\.pb beside it"):
        read(mt.write(tmp_path / "host.trace.json", [named, *slices]))
    first = [slices[0] | {"args": {"BeginNs": "27380000"}}]
    with pytest.raises(TraceError, match=r"first rocprof.*record it with rocprofv3"):
        read(mt.write(tmp_path / "results.json", first))
    marked = mt.write(tmp_path / "marks.json", [mt.step(1, 0, 60)])
    assert headline(report(read(marked))).startswith("60.0 µs without an operator or a kernel")
