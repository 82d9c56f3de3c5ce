"""Small traces in Kineto's form, written by hand for tests."""

from __future__ import annotations

import functools
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ratchet.trace.read import read
from ratchet.trace.read.columns import Trace

PROCESS, MAIN, AUTOGRAD = 100, 1, 2
REAL_NAMES = (
    "a100-nccl-metadata-rank0of2", "h100-bert-small", "h100-qwen1.5-0.5b",
    "mi250-minitoy-rocm6.2", "mi300x-bert-small", "mi300x-compile-triton", "mi300x-qwen1.5-0.5b",
    "mi300x-resnet-ddp-rank0of8", "rocprofv3-908", "v100-ddp-rank1of2-2020-collectives",
    "v100-oldnames-unlinked-nccl",
)  # fmt: skip


def real_trace(name: str) -> Path:
    """A recorded trace; skips where the folder is not there."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("RATCHET_TRACES", beside))
    path = folder / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no recorded trace {name}: set RATCHET_TRACES to their folder")
    return path


@functools.cache
def recorded(name: str) -> Trace:
    """A recorded trace, read once."""
    return read(real_trace(name))


def span(cat: str, name: str, start: float, dur: float, tid: int = MAIN, **args: Any) -> dict:
    """One event with a duration; times in microseconds."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": PROCESS, "tid": tid, "ts": start, "dur": dur,
        "args": args,
    }  # fmt: skip


def op(name: str, start: float, dur: float, tid: int = MAIN, **args: Any) -> dict:
    return span(
        "cpu_op", name, start, dur, tid, **{k.replace("_", " "): v for k, v in args.items()}
    )


def launch(start: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> dict:
    return span("cuda_runtime", name, start, dur, correlation=correlation)


def kernel(
    name: str, start: float, dur: float, correlation: int = 0, stream: int = 7, **args: Any
) -> dict:
    made = span("kernel", name, start, dur, stream, correlation=correlation, **args)
    made["args"] |= {"stream": stream, "device": 0}
    made["pid"] = 0
    return made


def copy(start: float, dur: float, correlation: int = 0, size: int = 64) -> dict:
    made = kernel("Memcpy HtoD (Pageable -> Device)", start, dur, correlation, 8)
    made["cat"] = "gpu_memcpy"
    made["args"]["bytes"] = size
    return made


def module(name: str, start: float, dur: float, tid: int = MAIN) -> dict:
    return span("python_function", f"nn.Module: {name}", start, dur, tid)


def step(number: int, start: float, dur: float) -> dict:
    return span("user_annotation", f"ProfilerStep#{number}", start, dur)


def allocation(time: float, size: int, address: int, total: int) -> dict:
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PROCESS,
        "tid": MAIN, "ts": time,
        "args": {"Bytes": size, "Addr": address, "Total Allocated": total,
                 "Total Reserved": 2 * total, "Device Type": 1, "Device Id": 0},
    }  # fmt: skip


def text(events: list[dict], **around: Any) -> str:
    """The file's text, laid out as Kineto does."""
    body = ",\n".join(json.dumps(event, indent=1) for event in events)
    head = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in around.items())
    return f'{{"schemaVersion": 1,\n{head}"traceEvents": [\n{body}\n],\n"traceName": "made"\n}}'


def write(path: Path, events: list[dict], **around: Any) -> Path:
    made = text(events, **around).encode()
    path.write_bytes(gzip.compress(made) if path.suffix == ".gz" else made)
    return path


def made(folder: Path, events: list[dict], name: str = "made.json", **around: Any) -> Trace:
    return read(write(folder / name, events, **around))
