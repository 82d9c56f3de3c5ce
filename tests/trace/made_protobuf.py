"""Protobuf's wire format, written by hand: XPlane profiles and Perfetto traces for tests."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

Value = int | bytes | str


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    text = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(text)) + text


def message(*fields: tuple[int, Value]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


class Names(dict[str, int]):
    """Numbers for names, from 1."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self) + 1
        return self[name]


# XPlane: openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto.


def plane(name: str, lines: dict[str, Sequence[tuple[Any, ...]]], **own: Value) -> bytes:
    """A plane; an event is (name, offset ns, duration ns, stats); a text stat is a reference."""
    events, stats = Names(), Names()

    def stat(key: str, value: Value) -> bytes:
        if isinstance(value, str):
            return message((1, stats[key]), (7, stats[value]))
        return message((1, stats[key]), (4 if isinstance(value, int) else 6, value))

    made = [(2, name)]
    for number, (title, rows) in enumerate(lines.items()):
        own_events = [
            (4, message(
                (1, events[event]), (2, start * 1000), (3, duration * 1000),
                *((4, stat(key, value)) for key, value in said.items()),
            ))
            for event, start, duration, said in rows
        ]  # fmt: skip
        made.append((3, message((1, number), (2, title), (3, 1_000_000), *own_events)))
    made += [(6, stat(key, value)) for key, value in own.items()]
    for table, names in ((4, events), (5, stats)):
        for text, number in list(names.items()):
            entry = message((1, number), (2, message((1, number), (2, text))))
            made.append((table, entry))
    return field(1, message(*made))


def jax_profile() -> bytes:
    """Two kernels and a copy on a GPU, their launches, a step, and a line that shows them again."""
    gemm = {"correlation_id": 7, "hlo_op": "dot.3", "hlo_module": "jit_f"}
    device = {
        "Stream #3(Kernel)": [("gemm.kd", 100, 50, gemm), ("add", 160, 10, {"correlation_id": 8})],
        "Stream #4(MemcpyH2D)": [
            ("MemcpyH2D", 20, 30, {"correlation_id": 9,
                                   "memcpy_details": "kind:HostToDevice size:4096 dest:0"}),
        ],
        "XLA Modules": [("jit_f(1)", 100, 70, {})],
    }  # fmt: skip
    host = {
        "main": [
            ("train", 0, 190, {"step_num": 5}), ("$train.py:3 step", 1, 180, {}),
            ("hipLaunchKernel", 90, 5, {"correlation_id": 7}),
            ("hipLaunchKernel", 96, 5, {"correlation_id": 8, "hlo_op": "add.1"}),
            ("hipMemcpyAsync", 10, 5, {"correlation_id": 9}),
        ],
    }  # fmt: skip
    about = {"device_vendor": "AMD", "core_count": 304, "memory_size": 206141652992,
             "compute_cap_major": 9, "compute_cap_minor": 4}  # fmt: skip
    return plane("/device:GPU:0", device, **about) + plane("/host:CPU", host) + field(4, "host")


# Perfetto: google/perfetto, protos/perfetto/trace.


def packet(*fields: tuple[int, Value]) -> bytes:
    return field(1, message((10, 1), *fields))


def track(uuid: int, name: str, *, pid: int = 0, tid: int = 0) -> bytes:
    thread = [(4, message((1, pid), (2, tid)))] if pid else []
    return packet((60, message((1, uuid), (2, name), *thread)))


def argument(name: str, value: int | str, interned: dict[str, int] | None = None) -> bytes:
    named = (1, interned[name]) if interned else (10, name)
    return message(named, (3 if isinstance(value, int) else 6, value))


def begin(
    time: int, uuid: int, name: str, category: str, *extra: tuple[int, Value], **said: int | str
) -> bytes:
    arguments = [(4, argument(key, value)) for key, value in said.items()]
    event = message((9, 1), (11, uuid), (22, category), (23, name), *arguments)
    return packet((8, time), (11, event), *extra)


def end(time: int, uuid: int, *extra: tuple[int, Value]) -> bytes:
    return packet((8, time), (11, message((9, 2), (11, uuid))), *extra)


def pftrace() -> bytes:
    """A kernel, a copy and the calls that started them, as rocprofv3 writes them."""
    return b"".join([
        track(1, "", pid=40, tid=41), track(2, "THREAD 1 (77)"),
        track(3, "COMPUTE AGENT [4] STREAM [2] (GPU)"),
        track(4, "COPY to AGENT [4] STREAM [1] (GPU)"),
        begin(1000, 1, "hipLaunchKernel", "hip_api", corr_id=5), end(1010, 1),
        begin(1020, 2, "hipMemcpyAsync", "hip_api", corr_id=6), end(1030, 2),
        begin(1040, 2, "forward", "marker_api"), end(1090, 2),
        begin(1050, 3, "gemm", "kernel_dispatch", corr_id=5, begin_ns=1050, end_ns=1080,
              agent="4"), end(1080, 3),
        begin(1060, 4, "MEMORY_COPY_HOST_TO_DEVICE", "memory_copy", corr_id=6, copy_bytes=512),
        end(1070, 4),
    ])  # fmt: skip


def packed(text: bytes) -> bytes:
    return packet((50, zlib.compress(text)))
