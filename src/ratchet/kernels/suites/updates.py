"""Optimizers and what a step does to gradients: clipping, averaging, accumulation."""

from __future__ import annotations

import torch
from torch import Tensor

from ratchet.kernels.problem import Problem, TensorSpec
from ratchet.kernels.suites.forms import Form, Make, problem, real, sizes
from ratchet.kernels.suites.scalars import Scalars

FLAT = sizes((64, 64), (2048, 1024), (16384, 8192))
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic iteration (K. Jordan, 2024)."""
BLOCK = 64
VALUES = (("heavy_tailed", "contiguous"), ("tiny", "contiguous"), ("large", "contiguous"))


def adam_w(w: Tensor, g: Tensor, m: Tensor, v: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """(lr, beta1, beta2, eps, decay, step) -> new w, m, v (arXiv:1711.05101)."""
    lr, beta1, beta2, eps, decay, step = scalars
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g.square()
    size = (v / (1 - beta2**step)).sqrt() + eps
    return w * (1 - lr * decay) - lr * m / (1 - beta1**step) / size, m, v


def lion(w: Tensor, g: Tensor, m: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """(lr, beta1, beta2, decay) -> new w, m (arXiv:2302.06675)."""
    lr, beta1, beta2, decay = scalars
    direction = torch.sign(beta1 * m + (1 - beta1) * g)
    return w * (1 - lr * decay) - lr * direction, beta2 * m + (1 - beta2) * g


def sgd_momentum(w: Tensor, g: Tensor, m: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """(lr, momentum, decay), Nesterov's form -> new w, m."""
    lr, momentum, decay = scalars
    g = g + decay * w
    m = momentum * m + g
    return w - lr * (g + momentum * m), m


def newton_schulz(g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Five steps of Muon's iteration: the nearest semi-orthogonal matrix, about."""
    a, b, c = NEWTON_SCHULZ
    x = g / (g.norm() + scalars[0])
    for _ in range(5):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x,)


def row_factored_second_moment(
    g: Tensor, row: Tensor, column: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """Adafactor's factored mean of squares (arXiv:1804.04235): new row, new column, g scaled."""
    decay, eps = scalars
    squared = g.square() + eps
    row = decay * row + (1 - decay) * squared.mean(-1)
    column = decay * column + (1 - decay) * squared.mean(-2)
    scale = torch.outer(row / row.mean(), column).rsqrt()
    return row, column, g * scale


def adam_8_bit_moment(
    codes: Tensor, scales: Tensor, g: Tensor, scalars: Scalars
) -> tuple[Tensor, ...]:
    """The first moment kept as signed bytes and a scale for each 64 (after arXiv:2110.02861).

    codes: [N, 64] in -127..127, scales: [N], g: [N, 64] -> the new moment in full precision and the
    new scales; how codes are rounded is the quantise problems' matter.
    """
    moment = scalars[0] * codes.to(g.dtype) * (scales / 127).unsqueeze(-1) + (1 - scalars[0]) * g
    return moment, moment.abs().amax(-1)


def clip_by_norm(g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """g brought down to norm scalars[0], and the norm it had."""
    norm = g.norm()
    return g * (scalars[0] / (norm + 1e-6)).clamp(max=1.0), norm.reshape(1)


def moving_average(average: Tensor, w: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (average + (w - average) * (1 - scalars[0]),)


def accumulate(total: Tensor, g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """bf16 gradients added to an fp32 sum, scaled."""
    return (total + g.to(total.dtype) * scalars[0],)


def unscale(g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A gradient scaler's end of the step: g over the scale, and whether all of it is finite."""
    found = g / scalars[0]
    return found, torch.isfinite(found).all().reshape(1)


def _positive(*shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", distribution="positive")


def _step(tensors: int, second_moment: bool = False) -> Make:
    def make(rows: int, width: int) -> tuple[TensorSpec, ...]:
        each = real(rows, width)
        state = (_positive(rows, width),) if second_moment else ()
        return (*(each,) * tensors, *state)

    return make


def _blocks(rows: int, width: int) -> tuple[TensorSpec, ...]:
    codes = TensorSpec(
        shape=(rows * width // BLOCK + 1, BLOCK),
        dtype="int64",
        distribution="integers",
        low=-127.0,
        high=128.0,
    )
    return (codes, _positive(codes.shape[0]), real(*codes.shape))


def _factored(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows, width), _positive(rows), _positive(width))


def _mixed(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows, width), real(rows, width, dtype="bfloat16"))


def problems() -> tuple[Problem, ...]:
    """Every update; none has a gradient."""
    square = sizes((32, 48), (256, 512), (4096, 4096))
    rows = [
        ("adam_w", _step(3, True), FLAT, (1e-3, 0.9, 0.95, 1e-8, 0.1, 10.0), (1,)),
        ("lion", _step(3), FLAT, (1e-4, 0.9, 0.99, 0.1), (1,)),
        ("sgd_momentum", _step(3), FLAT, (0.1, 0.9, 1e-4), (1,)),
        ("row_factored_second_moment", _factored, FLAT, (0.99, 1e-30), (0,)),
        ("adam_8_bit_moment", _blocks, FLAT, (0.9,), (2,)),
        ("clip_by_norm", _step(1), FLAT, (1.0,), (0,)),
        ("moving_average", _step(2), FLAT, (0.999,), (1,)),
        ("accumulate", _mixed, FLAT, (0.25,), (1,)),
        ("unscale", _step(1), FLAT, (1024.0,), (0,)),
        ("newton_schulz", _step(1), square, (1e-7,), (0,)),
    ]
    return tuple(
        problem(
            Form(
                name=name,
                module=__name__,
                make=make,
                sizes=tier_sizes,
                ragged=(13, 21),
                scalars=scalars,
                libraries=("matmul",) if name == "newton_schulz" else (),
                variations=VALUES[:1] if name == "newton_schulz" else VALUES,
                varied=varied,
            )
        )
        for name, make, tier_sizes, scalars, varied in rows
    )
