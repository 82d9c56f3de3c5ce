"""Collect honest kernels: handwritten C++ and torch, shipped kernels, and torch's references.

The same sum in another order, with other threads or widths, is as right as the reference's. A judge
that calls one of these kernels wrong has too narrow a bound.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import honest_backwards
import honest_backwards_torch
import torch
from honest_case import Honest
from torch import Tensor

from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.kernels.library import LIBRARY, kernels_for
from ratchet.judge.kernels.library.sources import ISAS
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.suites import find_problem, load_suite
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.judge.problems.suites.shipped.linear import ENTRIES
from ratchet.judge.problems.suites.shipped.linear import ENTRY as LOSS

DISTRIBUTIONS = ("heavy_tailed", "shifted", "tiny", "large")
SHAPES = {
    "batch": 2,
    "sequence": 64,
    "hidden": 128,
    "intermediate": 192,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "vocabulary": 500,
    "parameters": ((257, 65), (65,)),
}

HEAD = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
struct tensor { void* data; int64_t dtype, ndim, size[6], stride[6]; };
static int64_t elements(const tensor& t) {
    int64_t n = 1;
    for (int d = 0; d < t.ndim; ++d) n *= t.size[d];
    return n;
}
#define ENTRY extern "C" int64_t answer(const tensor* t, int64_t, const double* s, int64_t)
#define IN(at) ((const float*)t[at].data)
#define OUT(at) ((float*)t[at].data)
"""
LOOPS = {
    "forward": "for (int64_t i = 0; i < n; ++i)",
    "backward": "for (int64_t i = n; i-- > 0;)",
    "chunks": "for (int64_t c = 0; c < n; c += 37) for (int64_t i = c; i < c + 37 && i < n; ++i)",
    "strided": "for (int64_t f = 0; f < 16; ++f) for (int64_t i = f; i < n; i += 16)",
    "halves": "for (int64_t h = 0; h < 2; ++h) for (int64_t i = h; i < n; i += 2)",
    "simd": '_Pragma("omp simd") for (int64_t i = 0; i < n; ++i)',
    "threads": '_Pragma("omp parallel for") for (int64_t i = 0; i < n; ++i)',
    "dynamic": '_Pragma("omp parallel for schedule(dynamic, 64)") for (int64_t i = 0; i < n; ++i)',
    "double": "for (int64_t i = 0; i < n; ++i)",
}
ELEMENTWISE = {
    "scaled_silu": "const real x = IN(0)[i]; OUT(1)[i] = (float)(k * x / (1 + exp(-x)));",
    "gelu": "const real x = IN(0)[i], u = (real)0.7978845608028654 * (x + (real)0.044715 * x * x * "
    "x); OUT(1)[i] = (float)((real)0.5 * x * (1 + tanh(u)));",
    "squared_relu": "const real x = IN(0)[i] > 0 ? IN(0)[i] : 0; OUT(1)[i] = (float)(x * x);",
    "leaky": "const real x = IN(0)[i]; OUT(1)[i] = (float)(x > 0 ? x : k * x);",
    "gated": "const real x = IN(0)[i]; OUT(2)[i] = (float)(x / (1 + exp(-x)) * (real)IN(1)[i]);",
    "residual": "OUT(2)[i] = (float)((real)IN(0)[i] + k * (real)IN(1)[i]);",
    "momentum": "OUT(0)[i] = (float)(k * (real)IN(0)[i] + (real)IN(1)[i]);",
}
SUMS = {
    "sequential": "float sum = 0; for (int64_t i = 0; i < n; ++i) sum += v[i]; return sum;",
    "double": "double sum = 0; for (int64_t i = 0; i < n; ++i) sum += v[i]; return (float)sum;",
    "lanes": "float lane[8] = {}; int64_t i = 0; for (; i + 8 <= n; i += 8) for (int l = 0; l < 8; "
    "++l) lane[l] += v[i + l]; for (; i < n; ++i) lane[i % 8] += v[i]; for (int w = 4; w; w /= 2) "
    "for (int l = 0; l < w; ++l) lane[l] += lane[l + w]; return lane[0];",
    "wide": "float lane[32] = {}; int64_t i = 0; for (; i + 32 <= n; i += 32) for (int l = 0; l < "
    "32; ++l) lane[l] += v[i + l]; for (; i < n; ++i) lane[i % 32] += v[i]; for (int w = 16; w; "
    "w /= 2) for (int l = 0; l < w; ++l) lane[l] += lane[l + w]; return lane[0];",
    "pairwise": "if (n <= 8) { float sum = 0; for (int64_t i = 0; i < n; ++i) sum += v[i]; return "
    "sum; } return total(v, n / 2) + total(v + n / 2, n - n / 2);",
    "kahan": "float sum = 0, rest = 0; for (int64_t i = 0; i < n; ++i) { const float y = v[i] - "
    "rest; volatile float next = sum + y; volatile float high = next - sum; rest = high - y; sum = "
    "next; } return sum;",
    "simd": 'float sum = 0; _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; ++i) '
    "sum += v[i]; return sum;",
}
ROWS = {
    "row_sum": "OUT(1)[r] = total(x, n);",
    "rms_norm": "for (int64_t i = 0; i < n; ++i) v[i] = x[i] * x[i]; const float scale = 1 / "
    "std::sqrt(total(v, n) / n + 1e-5f); for (int64_t i = 0; i < n; ++i) OUT(1)[r * n + i] = x[i] "
    "* scale;",
    "softmax": "float top = x[0]; for (int64_t i = 1; i < n; ++i) top = std::max(top, x[i]); for "
    "(int64_t i = 0; i < n; ++i) v[i] = std::exp(x[i] - top); const float sum = total(v, n); for "
    "(int64_t i = 0; i < n; ++i) OUT(1)[r * n + i] = v[i] / sum;",
    "centred": "const float mean = total(x, n) / n; for (int64_t i = 0; i < n; ++i) OUT(1)[r * n + "
    "i] = x[i] - mean;",
}
TEXTBOOK = {
    "mean": "OUT(1)[r] = total(x, n) / n;",
    "norm": "for (int64_t i = 0; i < n; ++i) v[i] = x[i] * x[i]; OUT(1)[r] = "
    "std::sqrt(total(v, n));",
    "variance": "const float mean = total(x, n) / n; for (int64_t i = 0; i < n; ++i) v[i] = (x[i] "
    "- mean) * (x[i] - mean); OUT(1)[r] = total(v, n) / n;",
    "layer_norm": "const float mean = total(x, n) / n; for (int64_t i = 0; i < n; ++i) v[i] = (x[i]"
    " - mean) * (x[i] - mean); const float scale = 1 / std::sqrt(total(v, n) / n + 1e-5f); for "
    "(int64_t i = 0; i < n; ++i) OUT(1)[r * n + i] = (x[i] - mean) * scale;",
    "logsumexp": "const float top = *std::max_element(x, x + n); for (int64_t i = 0; i < n; ++i) "
    "v[i] = std::exp(x[i] - top); OUT(1)[r] = top + std::log(total(v, n));",
    "cross_entropy": "const float top = *std::max_element(x, x + n); for (int64_t i = 0; i < n; "
    "++i) v[i] = std::exp(x[i] - top); OUT(1)[r] = top + std::log(total(v, n)) - x[r % n];",
    "cumulative_sum": "float sum = 0; for (int64_t i = 0; i < n; ++i) OUT(1)[r * n + i] = sum += "
    "x[i];",
    "squared_error": "const float* y = IN(1) + r * n; for (int64_t i = 0; i < n; ++i) v[i] = (x[i] "
    "- y[i]) * (x[i] - y[i]); OUT(2)[r] = total(v, n) / n;",
    "products": "for (int64_t c = 0; c < rows; ++c) { const float* y = IN(1) + c * n; float sum = "
    "0; for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i]; OUT(2)[r * rows + c] = sum; }",
    "attention": "std::vector<float> p(rows); for (int64_t c = 0; c < rows; ++c) { for (int64_t i "
    "= 0; i < n; ++i) v[i] = x[i] * IN(1)[c * n + i]; p[c] = total(v, n) / std::sqrt((float)n); } "
    "const float top = *std::max_element(p.begin(), p.end()); for (float& one : p) one = "
    "std::exp(one - top); const float sum = total(p.data(), rows); for (int64_t i = 0; i < n; ++i)"
    " { float mixed = 0; for (int64_t c = 0; c < rows; ++c) mixed += p[c] / sum * IN(2)[c * n + i];"
    " OUT(3)[r * n + i] = mixed; }",
}
"""Textbook kernels: one float32 accumulator, which loses more precision than torch does."""
TEXTBOOK_INPUTS = {"squared_error": 2, "products": 2, "attention": 3}
LONGEST = {"attention": 256}
"""Row length where it is not 4099: heads are no wider."""
THREADS = {"one thread": "", "threads": '_Pragma("omp parallel for")'}


def scaled_silu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (scalars[0] * x / (1 + torch.exp(-x)),)


def gelu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.nn.functional.gelu(x, approximate="tanh"),)


def squared_relu(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.relu(x).square(),)


def leaky(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.nn.functional.leaky_relu(x, scalars[0]),)


def gated(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.nn.functional.silu(x) * y,)


def residual(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x + scalars[0] * y,)


def momentum(m: Tensor, g: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """Update in place: m = k m + g."""
    return (scalars[0] * m + g,)


def row_sum(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.sum(-1),)


def rms_norm(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),)


def softmax(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.softmax(x, -1),)


def centred(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x - x.mean(-1, keepdim=True),)


def mean(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.mean(-1),)


def norm(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.linalg.vector_norm(x, dim=-1),)


def variance(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.var(-1, correction=0),)


def layer_norm(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5),)


def logsumexp(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.logsumexp(x, -1),)


def cross_entropy(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    """Return one loss per row; the row's number is its class."""
    targets = torch.arange(len(x)) % x.shape[-1]
    return (torch.nn.functional.cross_entropy(x, targets, reduction="none"),)


def cumulative_sum(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x.cumsum(-1),)


def squared_error(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return ((x - y).square().mean(-1),)


def products(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x @ y.T,)


def attention(q: Tensor, k: Tensor, v: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.softmax(q @ k.T / q.shape[-1] ** 0.5, -1) @ v,)


def honest_kernels(*, with_python: bool = True) -> list[Honest]:
    """Return every honest kernel that this CPU can run; the C++ ones do their own work (`own`)."""
    compiled = [*_elementwise(), *_rows(), *textbook_kernels(), *honest_backwards.compiled()]
    compiled += _shipped()
    found = [replace(one, problem=replace(one.problem, task="own")) for one in compiled]
    if not with_python:
        return found
    in_python = (honest_backwards_torch.kernels(), _shipped_triton(), _references())
    return [*found, *(one for kernels in in_python for one in kernels), *_suite_references()]


def problem(
    name: str, inputs: int, *, in_place: bool = False, longest: int | None = None
) -> Problem:
    """Make a problem with a timed case, a small case per distribution, and a hidden shape.

    `longest` adds cases with rows of that length, where sums lose the most precision.
    """

    def case(title: str, shape: tuple[int, ...], distribution: str, **flags: bool) -> Case:
        specs = [
            TensorSpec(
                shape=shape,
                dtype="float32",
                distribution=distribution,
                in_place=in_place and place == 0,
            )
            for place in range(inputs)
        ]
        return Case(name=title, inputs=tuple(specs), scalars=(0.75,), **flags)

    cases = [case("timed", (64, 256), "normal", timed=True)]
    cases += [case(one, (7, 61), one) for one in DISTRIBUTIONS]
    cases.append(case("hidden", (5, 129), "normal", hidden=True))
    if longest is not None:
        long = ("normal", "shifted", "positive")
        cases += [case(f"long, {one}", (5, longest), one, hidden=True) for one in long]
    return Problem(name=name, reference=f"honest_kernels:{name}", cases=tuple(cases))


def _elementwise() -> Iterator[Honest]:
    for (name, body), (style, loop) in product(ELEMENTWISE.items(), LOOPS.items()):
        real = "double" if style == "double" else "float"
        setup = f"typedef {real} real; const int64_t n = elements(t[0]); const real k = (real)s[0];"
        source = f"{HEAD}using namespace std;\nENTRY {{ {setup} (void)k;\n{loop} {{ {body} }}\n"
        inputs = 2 if name in ("gated", "residual", "momentum") else 1
        yield Honest(
            name=f"{name}, {style}",
            kernel=_cpp(f"{source}return 0; }}"),
            problem=problem(name, inputs, in_place=name == "momentum"),
        )


def _rows() -> Iterator[Honest]:
    for (name, body), (style, total), (how, pragma) in product(
        ROWS.items(), SUMS.items(), THREADS.items()
    ):
        kernel = _by_rows(body, total, pragma)
        yield Honest(name=f"{name}, {style}, {how}", kernel=kernel, problem=problem(name, 1))


def textbook_kernels() -> Iterator[Honest]:
    """Yield kernels that sum in one accumulator, on rows of up to 4099 elements."""
    for name, body in {"softmax": ROWS["softmax"], **TEXTBOOK}.items():
        kernel = _by_rows(body, SUMS["sequential"])
        asked = problem(name, TEXTBOOK_INPUTS.get(name, 1), longest=LONGEST.get(name, 4099))
        yield Honest(name=f"textbook {name}", kernel=kernel, problem=asked)


def _by_rows(body: str, total: str, pragma: str = "") -> Kernel:
    """Make the kernel that runs `body` for each row x of n elements, with room for n more in v."""
    return _cpp(
        f"{HEAD}#include <algorithm>\nstatic float total(const float* v, int64_t n) {{ {total} "
        "}\nENTRY { const int64_t n = t[0].size[t[0].ndim - 1], rows = elements(t[0]) / n;\n"
        f"{pragma} for (int64_t r = 0; r < rows; ++r) {{ std::vector<float> held(n); float* v "
        f"= held.data(); (void)v; const float* x = IN(0) + r * n;\n{body} }}\nreturn 0; }}"
    )


def _rounds(kernel: Kernel) -> bool:
    """Return whether a product has bf16 instructions alone, and so declines fp32."""
    isa, products = dict(kernel.schedule).get("isa"), (*ENTRIES["linear"], LOSS)
    return isa in ("amx", "avx512_bf16") and kernel.entry in products


def _shipped() -> Iterator[Honest]:
    """Yield the library's kernels in every variant that this CPU runs, in both dtypes."""
    from ratchet.base.devices.probe import best_isa

    runnable = reversed(ISAS[ISAS.index(best_isa()) :])  # from the plainest
    for dtype, isa, (name, library) in product(("float32", "bfloat16"), runnable, LIBRARY.items()):
        shapes = WorkloadShapes(**SHAPES, dtype=dtype)
        asked = library.problems(shapes)
        for kernel in library.kernels(isa):
            for one in asked:
                if one.name == kernel.entry and not (dtype == "float32" and _rounds(kernel)):
                    title = f"{name}: {kernel.entry}, {isa}, {dtype}"
                    yield Honest(name=title, kernel=kernel, problem=one)


def _shipped_triton() -> Iterator[Honest]:
    """Yield the Triton library at the suite's smallest sizes; without a GPU it is interpreted."""
    if importlib.util.find_spec("triton") is None:
        return
    for entry, kernel in kernels_for("gpu").items():
        yield Honest(name=f"triton: {entry}", kernel=kernel, problem=find_problem(entry).at("ci"))


def _references() -> Iterator[Honest]:
    """Yield the library's references, called from Python."""
    for library in LIBRARY.values():
        for one in library.problems(WorkloadShapes(**SHAPES, dtype="float32")):
            yield _as_candidate(one, f"reference of {one.name}")


def _suite_references() -> Iterator[Honest]:
    """Yield the references of the training suite, at its smallest sizes."""
    for one in load_suite("training"):
        try:
            yield _as_candidate(one.at("ci"), f"suite: {one.name}")
        except RatchetError:
            continue  # it has no case of that size


def _as_candidate(asked: Problem, name: str) -> Honest:
    kernel = built_in_kernel(asked, "eager")
    # This is torch's work: right, but no answer to a problem that requires own code.
    return Honest(name=name, kernel=kernel, problem=replace(asked, task="any"))


def _cpp(source: str) -> Kernel:
    return Kernel(name="honest", language="cpp", source=source, entry="answer")
