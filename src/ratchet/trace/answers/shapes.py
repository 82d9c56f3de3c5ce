"""FLOPs, compulsory bytes and precision of ops, from the shapes and types that were recorded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod

import numpy as np

from ratchet.base import Json
from ratchet.trace.analysis.intervals import alike, sums_by
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.collectives import ELEMENT_BYTES
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.read.columns import Bool, Kind, Trace

Shape = tuple[int, ...]
MATMULS = frozenset(
    {
        "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm",
        "aten::_grouped_mm", "aten::_addmm_activation",
    }
)  # fmt: skip
CONVOLUTIONS = frozenset(
    {"aten::cudnn_convolution", "aten::miopen_convolution", "aten::convolution_overrideable",
     "aten::_slow_conv2d_forward", "aten::mkldnn_convolution"}
)  # fmt: skip
CONVOLUTION_BACKWARD = frozenset({"aten::convolution_backward"})
ATTENTION = frozenset(
    {"aten::_flash_attention_forward", "aten::_efficient_attention_forward",
     "aten::_scaled_dot_product_cudnn_attention",
     "aten::_scaled_dot_product_flash_attention_for_cpu"}
)  # fmt: skip
ATTENTION_BACKWARD = frozenset(
    {"aten::_flash_attention_backward", "aten::_efficient_attention_backward",
     "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}
)  # fmt: skip
_FLOATS = re.compile("float|half|double", re.IGNORECASE)
HEADS_FIRST = ("cudnn", "for_cpu")
"""Attention ops with these in their names take (batch, heads, tokens, width)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpWork:
    """The least that one call must do."""

    flops: int
    size_bytes: int  # Every input read once and every output written once
    dtype: str  # Type of the first floating-point input, as the profiler wrote it


def parse_shapes(text: str) -> list[Json]:
    """Parse `Input Dims` into nested lists; empty if there is nothing to parse."""
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def work(name: str, dims: str, types: str, concrete: str = "") -> OpWork | None:
    """Return the FLOPs and bytes of one call; None if they do not follow from the recording."""
    shapes = [_shape(entry) for entry in parse_shapes(dims)]
    kinds = [str(entry) for entry in parse_shapes(types)]
    tensors = [(s, k) for s, k in zip(shapes, kinds, strict=False) if s and _width(k)]
    if not tensors:
        return None
    dtype = next((k for _, k in tensors if _FLOATS.search(k)), tensors[0][1])
    read = sum(prod(shape) * _width(kind) for shape, kind in tensors)
    flops_and_output = _arithmetic(name, shapes, parse_shapes(concrete))
    if flops_and_output is None:
        return None
    flops, output = flops_and_output
    return OpWork(flops=flops, size_bytes=read + output * _width(dtype), dtype=dtype)


def _arithmetic(name: str, shapes: list[Shape], concrete: list[Json]) -> tuple[int, int] | None:
    """Return (FLOPs, elements written); None for an op without a rule here."""
    if name in MATMULS:
        return _matmul(name, shapes)
    if name in CONVOLUTIONS:
        return _convolution(shapes, concrete)
    if name in CONVOLUTION_BACKWARD and len(shapes) >= 3 and min(map(len, shapes[:3])) >= 3:
        grad, inputs, weight = shapes[:3]
        one = 2 * prod(grad) * prod(weight[1:])
        return 2 * one, prod(inputs) + prod(weight)
    if name in ATTENTION and len(shapes) >= 3 and all(len(s) == 4 for s in shapes[:3]):
        return _attention(name, shapes[0], shapes[1])
    if name in ATTENTION_BACKWARD and len(shapes) >= 4 and all(len(s) == 4 for s in shapes[:4]):
        flops, _ = _attention(name, shapes[1], shapes[2])
        return flops * 5 // 2, sum(prod(s) for s in shapes[1:4])
    return None


def _matmul(name: str, shapes: list[Shape]) -> tuple[int, int] | None:
    adds = name.startswith(("aten::addmm", "aten::baddbmm", "aten::_addmm"))
    pair = shapes[1:3] if adds else shapes[:2]
    if len(pair) < 2 or len(pair[0]) < 2 or len(pair[1]) < 2 or pair[0][-1] != pair[1][-2]:
        return None
    left, right = pair
    batch = prod(left[:-2])
    out = batch * left[-2] * right[-1]
    return 2 * out * left[-1], out


def _convolution(shapes: list[Shape], concrete: list[Json]) -> tuple[int, int] | None:
    if len(shapes) < 2 or len(shapes[0]) < 3 or len(shapes[0]) != len(shapes[1]):
        return None
    inputs, weight = shapes[:2]
    lists = [_numbers(entry) for entry in concrete]
    found = [entry for entry in lists if len(entry) == len(inputs) - 2]
    if len(found) < 3:
        return None
    # cuDNN and MIOpen take padding first; the general form takes stride first.
    padding, stride, dilation = found[:3] if min(found[1]) >= 1 else (found[1], found[0], found[2])
    out_size = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, p, s, d in zip(inputs[2:], weight[2:], padding, stride, dilation, strict=True)
        if s > 0
    ]
    if len(out_size) != len(inputs) - 2 or min(out_size) < 1:
        return None
    out = inputs[0] * weight[0] * prod(out_size)
    return 2 * out * prod(weight[1:]), out


def _attention(name: str, query: Shape, key: Shape) -> tuple[int, int]:
    """Count full attention. A causal mask halves it, but the trace does not show the mask."""
    # Flash and efficient attention take (batch, tokens, heads, width).
    tokens = 2 if any(word in name for word in HEADS_FIRST) else 1
    return 4 * prod(query) * key[tokens], prod(query)


def _shape(entry: Json) -> Shape:
    whole = isinstance(entry, list) and all(isinstance(n, int) and n >= 0 for n in entry)
    return tuple(entry) if whole else ()


def _numbers(entry: Json) -> list[int]:
    value = parse_shapes(entry) if isinstance(entry, str) else entry
    ok = isinstance(value, list) and all(isinstance(n, int) for n in value)
    return value if ok else []


def _width(kind: str) -> int:
    return ELEMENT_BYTES.get(kind.lower(), 0)


_KERNEL = re.compile(
    r"gemm|gemv|Cijk_|cutlass|xmma|wgmma|nvjet|matmul|_mm_|splitK|conv|flash|fmha|attention",
    re.IGNORECASE,
)
_MOVES_DATA = re.compile(
    r"at::native::(?!.*(gemm|conv_depthwise))|elementwise|nccl|transpose|OpTensor|SubTensor|"
    r"computeOffsets|nchwToNhwc|nhwcToNchw|splitKreduce|cast",
    re.IGNORECASE,
)
_PRODUCTS = MATMULS | CONVOLUTIONS | CONVOLUTION_BACKWARD | ATTENTION | ATTENTION_BACKWARD
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
    matrix_op = np.array([s in _PRODUCTS for s in trace.strings], dtype=bool)
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
