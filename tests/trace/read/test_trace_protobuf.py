"""XPlane profiles and Perfetto traces: what is read, what damage leaves, what else is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_protobuf import (
    argument,
    begin,
    end,
    field,
    jax_profile,
    message,
    packed,
    packet,
    pftrace,
    plane,
    track,
    varint,
)

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.merge import merge
from ratchet.trace.read import protobuf_sort, read
from ratchet.trace.read.columns import Kind, Trace
from ratchet.trace.read.wire import CUT_OFF, DAMAGED, fields


def written(path: Path, text: bytes) -> Trace:
    path.write_bytes(text)
    return read(path)


def rows(trace: Trace, *kinds: Kind) -> list[tuple[str, int, int]]:
    return [
        (trace.string(row), int(trace.start[row]), int(trace.duration[row]))
        for row in trace.rows(*kinds)
    ]


@pytest.mark.parametrize("pack", [False, True])
def test_a_profile_of_jax(tmp_path: Path, pack: bool) -> None:
    text = gzip.compress(jax_profile()) if pack else jax_profile()
    trace = written(tmp_path / "a.xplane.pb", text)
    zero = 1_000_000
    assert rows(trace, Kind.KERNEL) == [("gemm", zero + 100, 50), ("add", zero + 160, 10)]
    assert rows(trace, Kind.COPY) == [("MemcpyH2D", zero + 20, 30)]
    assert rows(trace, Kind.OP) == [("dot.3", zero + 90, 5), ("add.1", zero + 96, 5)]
    assert rows(trace, Kind.ANNOTATION) == [("ProfilerStep#5", zero, 190)]
    assert rows(trace, Kind.PYTHON) == [("train.py:3 step", zero + 1, 180)]
    assert (trace.platform, trace.device_name, trace.faults) == ("rocm", "MI300X", ())
    assert int(trace.size[trace.rows(Kind.COPY)[0]]) == 4096
    found = report(trace)
    assert [(row.name, row.op, row.unlinked) for row in found.kernels if row.sort == "compute"] == [
        ("gemm", "dot.3", 0), ("add", "add.1", 0),
    ]  # fmt: skip
    assert [step.label for step in found.steps] == ["ProfilerStep#5"]
    assert sum(found.identity.parts) == found.identity.window == 150
    assert {(row.device, row.stream) for row in found.streams} == {(0, 3), (0, 4)}


def test_a_tpus_ops_count_once(tmp_path: Path) -> None:
    lines = {"XLA Ops": [("fusion.1", 10, 20, {})], "XLA Modules": [("jit_f", 10, 20, {})],
             "Steps": [("1", 10, 20, {})]}  # fmt: skip
    text = plane("/device:TPU:0", lines, device_type_string="TPU v4")
    trace = written(tmp_path / "a.xplane.pb", text)
    assert rows(trace, Kind.KERNEL) == [("fusion.1", 1_000_010, 20)]
    assert (trace.device_name, trace.platform, len(trace)) == ("TPU v4", "tpu", 1)
    assert report(trace).identity.compute == 20


def test_a_profile_of_the_cpu_has_its_ops(tmp_path: Path) -> None:
    lines = {"tf_XLAEigen/1": [("dot.3", 5, 20, {"hlo_op": "dot.3"})]}
    trace = written(tmp_path / "a.xplane.pb", plane("/host:CPU", lines))
    assert (trace.platform, rows(trace, Kind.OP)) == ("cpu", [("dot.3", 1_000_005, 20)])
    assert report(trace).identity.compute == 20


@pytest.mark.parametrize("how", ["plain", "gzip", "packed"])
def test_a_pftrace_of_rocprofv3(tmp_path: Path, how: str) -> None:
    text = {"plain": pftrace, "gzip": lambda: gzip.compress(pftrace()),
            "packed": lambda: track(9, "x") + packed(pftrace())}[how]()  # fmt: skip
    trace = written(tmp_path / "a.pftrace", text)
    assert rows(trace, Kind.KERNEL) == [("gemm", 1050, 30)]
    assert rows(trace, Kind.COPY) == [("MEMORY_COPY_HOST_TO_DEVICE", 1060, 10)]
    assert rows(trace, Kind.RUNTIME) == [
        ("hipLaunchKernel", 1000, 10),
        ("hipMemcpyAsync", 1020, 10),
    ]
    assert rows(trace, Kind.ANNOTATION) == [("forward", 1040, 50)]
    assert (trace.platform, trace.faults) == ("rocm", ())
    (kernel,), (copy,) = trace.rows(Kind.KERNEL), trace.rows(Kind.COPY)
    assert (trace.device[kernel], trace.stream[kernel]) == (4, 2)
    assert (trace.stream[copy], trace.size[copy]) == (1, 512)
    lanes = {trace.string(row): trace.lanes[trace.lane[row]] for row in range(len(trace))}
    assert lanes["hipLaunchKernel"] == ("40", "41") and lanes["forward"] == ("", "77")
    assert lanes["gemm"] == ("GPU 4", "2")
    found = report(trace)
    assert found.launches.count == 2 and found.identity.window == 30


def test_names_by_number_and_clocks_that_count_on(tmp_path: Path) -> None:
    interned = message(
        (1, message((1, 1), (2, "hip_api"))), (2, message((1, 4), (2, "hipMalloc"))),
        (3, message((1, 2), (2, "corr_id"))),
    )  # fmt: skip
    clock = message((1, message((1, 64), (2, 5000), (3, 1), (4, 10))))
    event = message((9, 1), (3, 1), (10, 4), (4, argument("corr_id", 9, {"corr_id": 2})))
    defaults = message((58, 64), (11, message((11, 7))))
    text = b"".join([
        track(7, "main"),
        packet((13, 1), (59, defaults), (6, clock), (12, interned)),
        packet((8, 3), (11, event)), packet((8, 2), (11, message((9, 2)))),
        packet((8, 123), (58, 6), (11, event)), packet((8, 130), (58, 6), (11, message((9, 2)))),
        packet((13, 1)), packet((8, 7), (11, event)), packet((8, 9), (11, message((9, 2)))),
    ])  # fmt: skip
    trace = written(tmp_path / "a.pftrace", text)
    calls = rows(trace, Kind.RUNTIME)
    assert sorted(calls) == [("hipMalloc", 123, 7), ("hipMalloc", 50_030, 20)]
    assert int(trace.correlation[trace.rows(Kind.RUNTIME)[0]]) == 9
    assert rows(trace, Kind.ANNOTATION) == [("", 7, 2)]  # after the reset, nothing is known


def test_the_sort_is_told_by_the_content(tmp_path: Path) -> None:
    for name, text, sort in (
        ("a.bin", jax_profile(), "xplane"), ("b.bin", pftrace(), "perfetto"),
        ("c.xplane.pb", b"\x12\x00", "xplane"), ("d.pftrace", b"\x00", "perfetto"),
        ("e.json", b'{"traceEvents": []}', ""), ("f.json", b"\n[]", ""), ("g.pftrace", b"", ""),
        ("h.bin", gzip.compress(pftrace()), "perfetto"), ("i.bin", b"\n\xff\xff\xff\xff", ""),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(text)
        assert protobuf_sort(tmp_path / name) == sort, name


@pytest.mark.parametrize("name", ["a.xplane.pb", "a.pftrace"])
@pytest.mark.parametrize("text", [b"", b"\x00", b"\n\x00", b"\xff" * 40, b"\n\x05abc", b"\x0a"])
def test_a_file_with_nothing_to_read_is_one_line(tmp_path: Path, name: str, text: bytes) -> None:
    with pytest.raises(TraceError, match=r"a\.(xplane\.pb|pftrace)") as caught:
        written(tmp_path / name, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [("a.nsys-rep", "Nsight Systems"), ("a.ncu-rep", "Nsight Compute"), ("a.otf2", "OTF2"),
     ("a.pickle", "memory snapshot"), ("a.csv", "table")],
)  # fmt: skip
def test_a_format_that_is_not_read_is_named(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(TraceError, match=f"{what}.*which is not read"):
        written(tmp_path / name, b"NVSR\x00 anything")


def test_what_stands_before_a_cut_is_read(tmp_path: Path) -> None:
    text = pftrace()
    trace = written(tmp_path / "a.pftrace", text[:-3])
    assert rows(trace, Kind.KERNEL) == [("gemm", 1050, 30)] and not rows(trace, Kind.COPY)
    assert CUT_OFF in trace.faults and "a begin event without its end was left out" in trace.faults
    whole = jax_profile()
    trace = written(tmp_path / "a.xplane.pb", whole[:-40])
    assert rows(trace, Kind.KERNEL) and any("cut off" in fault for fault in trace.faults)


def test_damage_inside_a_message_leaves_the_rest(tmp_path: Path) -> None:
    broken = begin(5, 3, "x", "kernel_dispatch", (12, b"\xff\xff"))
    text = pftrace() + broken + end(6, 3) + packet((50, b"not packed"))
    trace = written(tmp_path / "a.pftrace", text)
    assert ("gemm", 1050, 30) in rows(trace, Kind.KERNEL)
    assert {DAMAGED, "packets that were packed are damaged"} <= set(trace.faults)


def test_numbers_that_no_column_holds_are_left_out(tmp_path: Path) -> None:
    huge = 2**64 - 1
    text = pftrace() + begin(huge, 3, "k", "kernel_dispatch", corr_id=huge, begin_ns=huge, end_ns=1)
    trace = written(tmp_path / "a.pftrace", text + end(huge, 3))
    assert ("gemm", 1050, 30) in rows(trace, Kind.KERNEL)
    many = "9" * 5000  # more digits than Python turns into a number
    text = track(9, f"COMPUTE AGENT [{many}] STREAM [{many}] (GPU)") + pftrace()
    text += begin(1, 9, "k", "kernel_dispatch", corr_id=1) + end(2, 9)
    assert ("k", 1, 1) in rows(written(tmp_path / "b.pftrace", text), Kind.KERNEL)
    lines = {f"Stream #{many}": [("k", 1, 5, {"memcpy_details": f"size:{many}"})]}
    assert len(written(tmp_path / "b.xplane.pb", plane("/device:GPU:0", lines))) == 1
    lines = {"Stream #99999999999999(K)": [("k", 2**62, 2**62, {"correlation_id": 2**63})],
             "Stream #1": [("gemm", 1, 5, {})]}  # fmt: skip
    trace = written(tmp_path / "a.xplane.pb", plane("/device:GPU:99999999999", lines))
    assert ("gemm", 1_000_001, 5) in rows(trace, Kind.KERNEL)


def test_the_wire_formats_fields() -> None:
    noted: list[str] = []
    text = (
        field(1, 300) + varint(2 << 3 | 1) + bytes(8) + varint(3 << 3 | 5) + b"\x01\0\0\0"
        + field(4, b"ab") + field(5, -1)
    )  # fmt: skip
    assert list(fields(text, noted.append)) == [
        (1, 300),
        (2, 0),
        (3, 1),
        (4, b"ab"),
        (5, 2**64 - 1),
    ]
    assert not noted
    for bad in (b"\xff" * 11, varint(1 << 3 | 3), varint(1 << 3 | 7), b"\x08", b"\x09\x01"):
        noted.clear()
        list(fields(bad, noted.append))
        assert noted == [DAMAGED], bad
    noted.clear()
    assert list(fields(b"\x0a\x05ab", noted.append, whole=False)) == [(1, b"ab")]
    assert noted == [CUT_OFF]


def test_all_sorts_stand_in_one_merged_file(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "rank0.pftrace").write_bytes(pftrace())
    (folder / "rank1.xplane.pb").write_bytes(jax_profile())
    merged = merge(folder, tmp_path / "all.json")
    assert [one.events for one in merged.ranks] == [5, 10]
    names = {read(merged.path).string(row) for row in read(merged.path).rows(Kind.KERNEL)}
    assert names == {"gemm", "add"}


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.data())
def test_no_damage_ends_in_anything_but_a_line(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, dropped and doubled; each file is read in part, or refused in one line."""
    name, make = data.draw(st.sampled_from([("a.xplane.pb", jax_profile), ("a.pftrace", pftrace)]))
    text = bytearray(make())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        how = data.draw(st.sampled_from(["set", "cut", "drop", "insert", "double"]))
        if how == "set":
            text[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del text[max(at, 1) :]
        elif how == "drop":
            del text[at : at + data.draw(st.integers(1, 20))]
        elif how == "insert":
            text[at:at] = data.draw(st.binary(min_size=1, max_size=12))
        else:
            text[at:at] = text[at : at + 40]
        text = text or bytearray(b"\n")
    path = tmp_path / name
    path.write_bytes(bytes(text))
    try:
        found = report(read(path))
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert sum(found.identity.parts) == found.identity.window
