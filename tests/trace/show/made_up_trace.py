"""Traces written by hand: the answers are the library's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_traces as mt

from ratchet.trace.analysis import analyse
from ratchet.trace.answers.report import Report, report
from ratchet.trace.compare import Diff, diff
from ratchet.trace.ranks import Ranks, read_ranks

H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
LONG = (
    "void at::native::(anonymous namespace)::vectorized_kernel<4, at::native::AddFunctor<float>, "
    "std::array<char*, 3ul> >(int, at::native::AddFunctor<float>)"
)


def steps(slower: float = 0.0, late: float = 0.0) -> list[dict]:
    """Two steps of one layer: a product, an all-reduce half behind it, a copy, a gap, memory."""
    events = []
    for number in range(2):
        at = 200.0 * number
        product = 40 + slower
        events += [
            mt.step(number, at, 190), mt.module("Net_0", at + 1, 60),
            mt.module("Linear_0", at + 2, 50),
            mt.op("aten::mm", at + 3, 20, Input_Dims=[[512, 1024], [1024, 256]],
                  Input_type=["c10::BFloat16", "c10::BFloat16"]),
            mt.launch(at + 4, 2, 10 * number + 1),
            mt.kernel("nvjet_gemm_bf16", at + 10, product, 10 * number + 1),
            mt.kernel("ncclDevKernel_AllReduce", at + 30 + late, 60 - late, 10 * number + 2, 9,
                      **{"Collective name": "allreduce", "In msg nelems": 1 << 20,
                         "Out msg nelems": 1 << 20, "Group size": 2, "dtype": "BFloat16",
                         "Process Group Name": "dp"}),
            mt.copy(at + 95, 5, 10 * number + 3, 1 << 20),
            mt.op("aten::add", at + 60, 5), mt.launch(at + 61, 2, 10 * number + 4),
            mt.kernel(LONG, at + 120, 8, 10 * number + 4),
            mt.allocation(at + 3, 1 << 22, 7 + number, (number + 1) << 22),
        ]  # fmt: skip
    return events


def made_up_trace(folder: Path, **changes: Any) -> Report:
    """The report of one rank."""
    return report(mt.made(folder, steps(**changes), "trace.json", **H100))


def made_up_cpu_trace(folder: Path) -> Report:
    """The report of a trace without a device."""
    ops = [mt.op("aten::mm", 10 * i, 8, Input_Dims=[[8, 8], [8, 8]], Input_type=["float", "float"])
           for i in range(3)]  # fmt: skip
    return report(mt.made(folder, ops, "cpu.json"))


def write_ranks(folder: Path) -> Path:
    """A folder of two ranks; the second comes late to the collectives."""
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        about = H100 | {"distributedInfo": {"rank": rank, "world_size": 2}}
        mt.write(folder / f"r{rank}.json", steps(late=20.0 * rank), **about)
    return folder


def made_up_ranks(folder: Path) -> Ranks:
    """The reports of two ranks."""
    return read_ranks(write_ranks(folder))


def made_up_diff(folder: Path) -> Diff:
    """A comparison in which one product got slower, one kernel is new and one went away."""
    extra = [mt.op("aten::relu", 380, 4), mt.launch(381, 1, 99), mt.kernel("relu", 385, 6, 99)]
    gone = [mt.op("aten::tanh", 380, 4), mt.launch(381, 1, 98), mt.kernel("tanh", 385, 3, 98)]
    before = mt.made(folder, [*steps(), *gone], "before.json", **H100)
    after = mt.made(folder, [*steps(slower=9.0), *extra], "after.json", **H100)
    return diff(analyse(before), analyse(after))
