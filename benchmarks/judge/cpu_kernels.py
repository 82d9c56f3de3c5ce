"""Time the library's CPU kernels at a workload's call sites, beside what torch.compile runs.

    python benchmarks/judge/cpu_kernels.py llama-8m gpt2-23m vit-11m [--only linear,attention]
                                           [--rounds 15] [--threads 2]

A row is one entry at one shape, called as the step calls it: `ours` and `torch` are medians of
adjacent calls in ms, `ratio` is torch / ours with the 95 % interval of the median (order
statistics), `limit` is the share of the machine's limit that ours reaches: the larger of its
operations at the peak of a loop of multiply-adds and its bytes at the copy rate of the smallest
cache that holds them. `win` is what a step gains at all sites, in ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor

from ratchet.base.devices import rates
from ratchet.base.devices.probe import probe
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.graph.capture import CapturedSite, capture
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load

Call = Callable[[], object]
PEAK_SOURCE = """
#include "ratchet_abi.h"
#include <omp.h>
typedef float wide __attribute__((vector_size(WIDTH)));
RATCHET_ENTRY peak(const ratchet_tensor* t, int64_t, const double* s, int64_t) {
#pragma omp parallel
    {
        wide sum[10] = {}, x = {}, y = {};
        asm volatile("" : "+x"(x), "+x"(y));
        for (int64_t i = 0; i < (int64_t)s[0]; ++i)
#pragma GCC unroll 10
            for (int k = 0; k < 10; ++k) {
                sum[k] += x * y;
                asm volatile("" : "+x"(sum[k]));
            }
    }
    *(float*)t[0].data = 0;
    return RATCHET_DONE;
}
"""
PEAK_LOOPS = 40_000


@dataclass(kw_only=True)
class Entry:
    """One entry at one shape: ours, what torch.compile would run, and the work in it."""

    name: str
    shape: str
    count: int
    ours: Call
    torch: Call
    gflop: float = 0.0
    mbytes: float = 0.0


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape) * scale


def compiled(function: Callable[..., object], *given: object) -> Call:
    """Return a call of the function as Inductor compiles it."""
    made = torch.compile(function, dynamic=False)
    made(*given)
    return lambda: made(*given)


def compiled_backward(
    function: Callable[..., Tensor], leaves: Sequence[Tensor], grad: Tensor
) -> Call:
    """Return a call of the function's backward as Inductor compiles it."""
    own = [one.detach().requires_grad_() for one in leaves]
    y = torch.compile(function, dynamic=False)(*own)
    return lambda: torch.autograd.grad(y, own, grad, retain_graph=True)


def linear(site: CapturedSite) -> Iterator[Entry]:
    *leading, inner = site.shapes["x"]
    outer, rows = site.shapes["weight"][0], torch.Size(leading).numel()
    x, weight, grad = drawn(rows, inner), drawn(outer, inner, scale=0.05), drawn(rows, outer)
    bias = drawn(outer) if "bias" in site.shapes else None
    ops, work = torch.ops.ratchet, 2e-9 * rows * inner * outer

    def torch_forward() -> object:
        if bias is None:
            return torch.mm(x, weight.t())
        return torch.addmm(bias, x, weight.t())

    def torch_wgrad() -> object:
        return torch.mm(grad.t(), x), None if bias is None else grad.sum(0)

    text = f"{rows}x{inner}x{outer}" + (" +bias" if bias is not None else "")
    calls: dict[str, tuple[Call, Call]] = {
        "linear_forward": (lambda: ops.linear(x, weight, bias), torch_forward),
        "linear_dgrad": (
            lambda: ops.linear_dgrad(grad, weight, "float32"),
            lambda: torch.mm(grad, weight),
        ),
        "linear_wgrad": (
            lambda: ops.linear_wgrad(grad, x, "float32", bias is not None),
            torch_wgrad,
        ),
    }
    for name, (ours, theirs) in calls.items():
        yield Entry(name=name, shape=text, count=site.count, ours=ours, torch=theirs, gflop=work)


def attention(site: CapturedSite) -> Iterator[Entry]:
    batch, heads, length, width = site.shapes["q"]
    groups, causal, scale = site.shapes["k"][1], bool(site.scalars["causal"]), width**-0.5

    def tensor(count: int) -> Tensor:
        return drawn(batch, length, count, width).transpose(1, 2)

    q, k, v, grad = tensor(heads), tensor(groups), tensor(groups), tensor(heads)
    ops, aten = torch.ops.ratchet, torch.ops.aten
    o, lse = ops.attention(q, k, v, causal, scale)
    repeated = [one.repeat_interleave(heads // groups, 1) for one in (k, v)]
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    o2, lse2 = flash(q, *repeated, is_causal=causal)

    def backward() -> object:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, *repeated, o2, lse2, 0.0, causal
        )

    pairs = length * (length + 1) / 2 if causal else length**2
    work = 4e-9 * batch * heads * width * pairs
    text = f"{batch}x{heads}({groups})x{length}x{width}" + (" causal" if causal else "")
    yield Entry(
        name="attention_forward",
        shape=text,
        count=site.count,
        ours=lambda: ops.attention(q, k, v, causal, scale),
        torch=lambda: flash(q, *repeated, is_causal=causal),
        gflop=work,
    )
    yield Entry(
        name="attention_backward",
        shape=text,
        count=site.count,
        ours=lambda: ops.attention_backward(grad, q, k, v, o, lse, causal, scale),
        torch=backward,
        gflop=2.5 * work,
    )


def norm(site: CapturedSite) -> Iterator[Entry]:
    shape = site.shapes["x"]
    width, added = shape[-1], site.kernel.startswith("add_")
    layer = site.kernel.endswith("layer_norm")
    x, grad, weight, bias = drawn(*shape), drawn(*shape), drawn(width), drawn(width)
    ops, eps = torch.ops.ratchet, 1e-5
    vectors = (weight, bias) if layer else (weight,)
    flag = (True,) if layer else ()
    forward, backward = getattr(ops, site.kernel), getattr(ops, site.kernel + "_backward")
    first = (x, x) if added else (x,)

    def plain(x: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        h = x + more[0] if added else x
        function = F.layer_norm if layer else F.rms_norm
        own = more[1:] if added else more
        return function(h, (width,), *own, eps=eps), h  # type: ignore[operator]

    def alone(x: Tensor, *own: Tensor) -> Tensor:
        function = F.layer_norm if layer else F.rms_norm
        y: Tensor = function(x, (width,), *own, eps=eps)  # type: ignore[operator]
        return y

    size = 4e-6 * x.numel()
    more = {"shape": "x".join(map(str, shape)), "count": site.count}
    yield Entry(
        name=site.kernel,
        ours=lambda: forward(*first, *vectors, eps),
        torch=compiled(plain, *first, *vectors),
        mbytes=size * (4 if added else 2),
        **more,
    )
    given = (grad, None) if added else (grad,)
    yield Entry(
        name=site.kernel + "_backward",
        ours=lambda: backward(*given, x, weight, *flag, eps),
        torch=compiled_backward(alone, (x, *vectors), grad),
        mbytes=3 * size,
        **more,
    )


def gated(site: CapturedSite) -> Iterator[Entry]:
    shape, kind = site.shapes["gate"], str(site.scalars["kind"])
    gate, up, grad = drawn(*shape), drawn(*shape), drawn(*shape)
    act = F.silu if kind == "silu" else F.gelu
    ops, size = torch.ops.ratchet, 4e-6 * gate.numel()
    more = {"shape": "x".join(map(str, shape)), "count": site.count}

    def plain(gate: Tensor, up: Tensor) -> Tensor:
        return act(gate) * up

    yield Entry(
        name="gated_activation",
        ours=lambda: ops.gated_activation(gate, up, kind),
        torch=compiled(plain, gate, up),
        mbytes=3 * size,
        **more,
    )
    yield Entry(
        name="gated_activation_backward",
        ours=lambda: ops.gated_activation_backward(grad, gate, up, kind),
        torch=compiled_backward(plain, (gate, up), grad),
        mbytes=5 * size,
        **more,
    )


def rope(site: CapturedSite) -> Iterator[Entry]:
    batch, heads, length, width = site.shapes["x"]
    x = drawn(batch, length, heads, width).transpose(1, 2)
    cos, sin = drawn(length, width), drawn(length, width)

    def plain(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    yield Entry(
        name="rope",
        shape=f"{batch}x{heads}x{length}x{width}",
        count=2 * site.count,  # and its backward
        ours=lambda: torch.ops.ratchet.rope(x, cos, sin),
        torch=compiled(plain, x, cos, sin),
        mbytes=8e-6 * x.numel(),
    )


def loss(site: CapturedSite) -> Iterator[Entry]:
    (rows, inner), classes = site.shapes["x"], site.shapes["weight"][0]
    x, weight = drawn(rows, inner), drawn(classes, inner, scale=0.05)
    target = torch.randint(0, classes, (rows,))

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight), target)

    leaves = [one.detach().requires_grad_() for one in (x, weight)]
    made = torch.compile(plain, dynamic=False)

    def ours() -> object:
        return torch.ops.ratchet.linear_cross_entropy_gradients(x, weight, None, target, -100, 0.0)

    yield Entry(
        name="linear_cross_entropy",
        shape=f"{rows}x{inner}x{classes}",
        count=site.count,
        ours=ours,
        torch=lambda: torch.autograd.grad(made(*leaves), leaves),
        gflop=6e-9 * rows * inner * classes,
    )


def adamw(site: CapturedSite) -> Iterator[Entry]:
    groups = [[drawn(*shape) for shape in site.shapes.values()] for _ in range(4)]
    groups[3] = [one.abs() for one in groups[3]]
    steps = [torch.tensor(3.0) for _ in groups[0]]
    weights, grads, means, squares = groups
    empty = torch.empty(0)
    flat = [
        one for four in zip(grads, means, squares, weights, strict=True) for one in (*four, empty)
    ]

    def fused() -> object:
        return torch._fused_adamw_(
            *groups, [], steps, lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    yield Entry(
        name="adamw_step",
        shape=f"{len(weights)} tensors",
        count=1,
        ours=lambda: registry.call(
            "adamw_step", flat, (1e-4, 0.9, 0.999, 1e-8, 0.1, 4.0, 1.0, 0.0)
        ),
        torch=fused,
        mbytes=28e-6 * sum(one.numel() for one in weights),
    )


BUILDERS: dict[str, Callable[[CapturedSite], Iterator[Entry]]] = {
    "linear": linear,
    "linear_cross_entropy": loss,
    "attention": attention,
    "gated_activation": gated,
    "rms_norm": norm,
    "layer_norm": norm,
    "rope": rope,
    "adamw": adamw,
}


class Limits:
    """The machine's rates: multiply-adds of fp32, and copies out of each memory."""

    def __init__(self, target: str) -> None:
        device = probe("cpu")
        self.copies = rates.copy(device)
        self.sizes = rates.working_sets(device)
        width = "64" if target.startswith(("avx512", "amx")) else "32"
        self.flop = 2.0 * 10 * int(width) / 4 * PEAK_LOOPS * torch.get_num_threads()
        source = PEAK_SOURCE.replace("WIDTH", width)
        kernel = Kernel(name="peak", language="cpp", source=source, entry="peak")
        registry.activate(kernel, registry.build_kernel(kernel))
        self._out = torch.empty(1)

    def gflops(self) -> float:
        """Return the rate of multiply-adds now: it moves with the clock."""
        return max(self.flop / seconds(self._peak) for _ in range(3)) * 1e-9

    def _peak(self) -> object:
        return registry.call("peak", (), (PEAK_LOOPS,), (self._out,))

    def floor_ms(self, entry: Entry, gflops: float) -> float:
        held = entry.mbytes * 1e6
        fitting = [name for name, size in self.sizes.items() if size >= held]
        level = min(fitting, key=self.sizes.__getitem__, default="dram")
        return 1e3 * max(entry.gflop / gflops, held / self.copies[level])


def seconds(call: Call, times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def below_autograd(call: Call) -> Call:
    """Return the call as a compiled graph makes it: its ops are past autograd."""

    def run() -> object:
        with torch._C._AutoDispatchBelowAutograd():
            return call()

    return run


def report(entry: Entry, limits: Limits, rounds: int) -> tuple[str, float]:
    """Return an entry's row, and the ms of a step that ours wins."""
    ours_alone = below_autograd(entry.ours)
    ours_alone(), entry.torch()
    times = max(1, int(2e-3 / max(seconds(ours_alone), 1e-6)))
    pairs, peaks = [], []
    for _ in range(rounds):
        peaks.append(limits.gflops())
        pairs.append((seconds(ours_alone, times), seconds(entry.torch, times)))
    ours, theirs = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    side = int(0.98 * rounds**0.5)
    low, high = ratios[max(0, rounds // 2 - side)], ratios[min(rounds - 1, rounds // 2 + side)]
    floor = limits.floor_ms(entry, statistics.median(peaks))
    win = entry.count * (theirs - ours)
    return (
        f"{entry.name:26} {entry.shape:24} {entry.count:3} {ours:9.3f} {theirs:9.3f} "
        f"{statistics.median(ratios):5.2f}x ({low:.2f} to {high:.2f}) {100 * floor / ours:4.0f} % "
        f"{win:8.2f}"
    ), win


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--only", default=",".join(BUILDERS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch._functorch.config.donated_buffer = False  # a backward runs many times
    torch.manual_seed(0)
    target, only = probe("cpu").target, arguments.only.split(",")
    limits = Limits(target)
    for name in only:
        for kernel in LIBRARY[name].kernels(target):
            registry.activate(kernel, registry.build_kernel(kernel))
    print(f"peak {limits.gflops():.0f} GFLOP/s; copies " + ", ".join(
        f"{name} {rate * 1e-9:.1f} GB/s" for name, rate in limits.copies.items()
    ))  # fmt: skip
    head = ("kernel", "shape", "n", "ours", "torch", "ratio", "limit", "win")
    for workload in arguments.workloads:
        print(f"\n{workload}\n" + "{:26} {:24} {:>3} {:>9} {:>9} {:>22} {:>6} {:>8}".format(*head))
        total = 0.0
        for site in capture(load(workload), StepConfig()):
            if site.pattern in only:
                for entry in BUILDERS[site.pattern](site):
                    line, win = report(entry, limits, arguments.rounds)
                    print(line, flush=True)
                    total += win
        print(f"won in a step: {total:.1f} ms")


if __name__ == "__main__":
    main()
