"""Precision of matrix multiplies, convolutions and attention: of the inputs, and of the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.intervals import alike, sums_by
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.answers.work import PRODUCTS, rule_of
from ratchet.trace.answers.work.call import parse_shapes
from ratchet.trace.read.columns import Bool, Kind, Trace

_KERNEL = re.compile(
    r"gemm|gemv|Cijk_|cutlass|xmma|wgmma|nvjet|matmul|_mm_|splitK|conv|flash|fmha|attention",
    re.IGNORECASE,
)
_MOVES_DATA = re.compile(
    r"at::native::(?!.*(gemm|conv_depthwise))|elementwise|nccl|transpose|OpTensor|SubTensor|"
    r"computeOffsets|nchwToNhwc|nhwcToNchw|splitKreduce|cast",
    re.IGNORECASE,
)
_PRECISIONS = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|f8f8|_F8|float8", re.I)),
    ("tf32", re.compile(r"tf32|s1688gemm(?!_bf16|_fp16)|_S_TF|xf32", re.I)),
    ("bf16", re.compile(r"bf16|bfloat16|_BB?S_BH|_B_BS_|_BBS_|nvjet_tst", re.I)),
    ("fp16", re.compile(r"fp16|f16|half|hgemm|h884|h1688|h16816|_HH?S_|_HHH", re.I)),
    ("fp64", re.compile(r"fp64|f64|dgemm|double|_DB_|_DD_", re.I)),
    ("fp32", re.compile(r"sgemm|fp32|f32|float|_SB_|_SS_|Cijk_\w+_S_B", re.I)),
)
TYPES = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "c10::bfloat16": "bf16",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8",
    "c10::float8_e4m3fnuz": "fp8", "c10::float8_e5m2fnuz": "fp8",
}  # fmt: skip
"""Short names of types, by the names that profilers use, in lower case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionRow:
    """Matrix kernels of one op, input precision and kernel precision; time in ns."""

    op: str
    inputs: str  # Precision of the op's inputs; empty if shapes were not recorded
    kernel: str  # Precision that the kernel's name states; `unknown` if it states none
    count: int
    time: int
    example: str


def precision_of_kernel(name: str) -> str:
    """Return the precision that a matrix kernel's name states."""
    found = (precision for precision, pattern in _PRECISIONS if pattern.search(name))
    return next(found, "unknown")


def is_product(trace: Trace, links: Links) -> Bool:
    """Return for each event whether it multiplies matrices: a kernel, or on a CPU-only trace an op.

    These are products, convolutions and fused attention, by the kernel's name or its op's.
    """
    matrix_op = np.zeros(len(trace.strings), dtype=bool)
    for number in np.unique(trace.text[trace.ops.row]).tolist():
        known = rule_of(trace.strings[number])
        matrix_op[number] = known is not None and known[0] in PRODUCTS
    if not trace.on_device:
        return np.asarray(matrix_op[trace.text] & (trace.kind == Kind.OP))
    op = links.op
    by_op = np.where(op >= 0, matrix_op[trace.text[np.maximum(op, 0)]], False)
    named = trace.named(_KERNEL) & ~trace.named(_MOVES_DATA)
    found = (by_op & ~trace.named(_MOVES_DATA)[trace.text]) | named[trace.text]
    return np.asarray(found & (trace.kind == Kind.KERNEL))


def matmuls(trace: Trace, links: Links) -> tuple[PrecisionRow, ...]:
    """Return matrix multiplies, convolutions and attention by precision, the longest first."""
    rows = device_rows(trace, links)
    rows = rows[is_product(trace, links)[rows] & trace.on_device]
    types = np.full(len(trace), -1, dtype=np.int32)
    types[trace.ops.row] = trace.ops.types
    op = links.op[rows]
    op_name = np.where(op >= 0, trace.text[np.maximum(op, 0)], -1)
    op_types = np.where(op >= 0, types[np.maximum(op, 0)], -1)
    first, group = alike(op_name, op_types, trace.text[rows])
    count = np.bincount(group, minlength=first.size)
    time = sums_by(group, trace.duration[rows], first.size)
    sums: dict[tuple[str, str, str], list[int]] = {}
    example: dict[tuple[str, str, str], str] = {}
    # In order of time, so that the example is the first that ran.
    for place in np.argsort(first).tolist():
        at = first[place]
        name = trace.string(rows[at])
        types_of = parse_shapes(trace.strings[op_types[at]]) if op_types[at] >= 0 else []
        inputs = next((TYPES[t] for one in types_of if (t := str(one).lower()) in TYPES), "")
        called = trace.strings[op_name[at]] if op_name[at] >= 0 else ""
        key = (called, inputs, precision_of_kernel(name))
        total = sums.setdefault(key, [0, 0])
        total[0] += int(count[place])
        total[1] += int(time[place])
        example.setdefault(key, name)
    table = [
        PrecisionRow(op=k[0], inputs=k[1], kernel=k[2], count=n, time=t, example=example[k])
        for k, (n, t) in sums.items()
    ]
    return tuple(sorted(table, key=lambda row: -row.time))
