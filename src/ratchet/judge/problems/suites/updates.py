"""Optimizers, and a step's operations on gradients: clipping, averaging, accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    Make,
    Scalars,
    Tensors,
    problem,
    real,
    sizes,
    uniform,
    whole,
)
from ratchet.judge.problems.suites.quantisation import code_check
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance, widen

FLAT = sizes((64, 64), (2048, 1024), (16384, 8192))
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's quintic iteration (K. Jordan, 2024)."""
BLOCK = 256
INT8_MAX, UINT8_MAX = 127.0, 255.0
LEAST_SCALE = 1e-12
HALF_WAY = 0.5 + 5e-4
"""Largest distance of a code from its value, in steps: 255 steps in fp32 after about ten roundings,
some of them before terms cancel, are off by 255 x 10 x 6e-8 = 1.5e-4."""
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
    """Five steps of Muon's iteration, which approximate the nearest semi-orthogonal matrix."""
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


def adam_8_bit(
    w: Tensor,
    g: Tensor,
    m_codes: Tensor,
    m_scales: Tensor,
    v_codes: Tensor,
    v_scales: Tensor,
    scalars: Scalars,
) -> tuple[Tensor, ...]:
    """A step of AdamW whose moments are byte codes, with a scale per block of 256.

    w [n] fp32, g [n] bf16, m_codes [n] int8, v_codes [n] uint8, scales [ceil(n / 256)] fp32;
    (lr, beta1, beta2, eps, decay, step) -> new w, m_codes, m_scales, v_codes, v_scales, in place.
    Blocks are those of 8-bit Optimizers via Block-wise Quantization (Dettmers et al. 2022,
    arXiv:2110.02861). Codes are linear, while bitsandbytes maps them by a table: m is
    code x scale / 127, and the root of v is code x scale / 255, with the block's largest as scale.
    The root of v is coded, since small values of v would vanish beside the block's largest.
    """
    lr, _, _, eps, decay, step = scalars
    m, v = _moments(g, (m_codes, m_scales, v_codes, v_scales), scalars)
    size = (v / (1 - scalars[2] ** step)).sqrt() + eps
    moved = w * (1 - lr * decay) - lr * m / (1 - scalars[1] ** step) / size
    m_code, m_scale = _encoded(m, INT8_MAX, torch.int8)
    v_code, v_scale = _encoded(v.sqrt(), UINT8_MAX, torch.uint8)
    return moved, m_code, m_scale, v_code, v_scale


def _moments(g: Tensor, state: Sequence[Tensor], scalars: Scalars) -> tuple[Tensor, Tensor]:
    """Return the new moments before coding, in the scales' dtype."""
    m_codes, m_scales, v_codes, v_scales = state
    _, beta1, beta2, *_ = scalars
    g = g.to(m_scales.dtype)
    m = m_codes.to(g.dtype) * _of_blocks(m_scales / INT8_MAX, g)
    root = v_codes.to(g.dtype) * _of_blocks(v_scales / UINT8_MAX, g)
    return beta1 * m + (1 - beta1) * g, beta2 * root.square() + (1 - beta2) * g.square()


def _of_blocks(scales: Tensor, like: Tensor) -> Tensor:
    return scales.repeat_interleave(BLOCK)[: like.shape[0]]


def _encoded(values: Tensor, most: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return codes and the largest magnitude of each block; the last block may be short."""
    blocks = F.pad(values, (0, -values.shape[0] % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(-1)
    steps = blocks / (scales.clamp(min=LEAST_SCALE) / most).unsqueeze(-1)
    codes = steps.round().clamp(-most, most).to(dtype)
    return codes.flatten()[: values.shape[0]].contiguous(), scales


def check_adam_8_bit(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Accept a neighbouring code for a value half-way between two; check the rest as usual."""
    found = Tolerance(ulps=4.0).check_all(got, own, oracle)
    g, *state = map(widen, inputs[1:])
    m, v = _moments(g, state, scalars)
    whole = ((m, INT8_MAX, (-INT8_MAX, INT8_MAX)), (v.sqrt(), UINT8_MAX, (0.0, UINT8_MAX)))
    for place, (exact, most, bounds) in zip((1, 3), whole, strict=True):
        if got[place].shape != own[place].shape or got[place].dtype != own[place].dtype:
            continue  # the check has failed already
        scales = oracle[place + 1].double().clamp(min=LEAST_SCALE)
        steps = exact / _of_blocks(scales / most, exact)
        found[place] = code_check(got[place], steps, bounds=bounds, half_way=HALF_WAY)
    return found


def clip_by_norm(g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """g clipped to norm scalars[0], and its original norm."""
    norm = g.norm()
    return g * (scalars[0] / (norm + 1e-6)).clamp(max=1.0), norm.reshape(1)


def moving_average(average: Tensor, w: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (average + (w - average) * (1 - scalars[0]),)


def accumulate(total: Tensor, g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """bf16 gradients added to an fp32 sum, scaled."""
    return (total + g.to(total.dtype) * scalars[0],)


def unscale(g: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """A gradient scaler's unscaling: g over the scale, and whether all of it is finite."""
    found = g / scalars[0]
    return found, torch.isfinite(found).all().reshape(1)


_positive = partial(real, distribution="positive")
_form = partial(Form, module=__name__, sizes=FLAT, ragged=(13, 21), variations=VALUES)


def _step(tensors: int) -> Make:
    return lambda rows, width: (real(rows, width),) * tensors


def _in_bytes(rows: int, width: int) -> tuple[TensorSpec, ...]:
    n = rows * width
    scales = uniform(-(-n // BLOCK), low=0.5, high=1.5, in_place=True)
    m = replace(whole(n, low=-127, below=128, dtype="int8"), in_place=True)
    v = replace(whole(n, low=8, below=256, dtype="uint8"), in_place=True)
    return (real(n, in_place=True), real(n, dtype="bfloat16"), m, scales, v, scales)


def problems() -> tuple[Problem, ...]:
    """Return every update; none has a gradient."""
    adam = (1e-3, 0.9, 0.95, 1e-8, 0.1, 10.0)
    forms = [
        _form(
            name="adam_w",
            make=lambda r, c: (*(real(r, c),) * 3, _positive(r, c)),
            scalars=adam,
            varied=(1,),
        ),
        _form(name="lion", make=_step(3), scalars=(1e-4, 0.9, 0.99, 0.1), varied=(1,)),
        _form(name="sgd_momentum", make=_step(3), scalars=(0.1, 0.9, 1e-4), varied=(1,)),
        _form(
            name="row_factored_second_moment",
            make=lambda r, c: (real(r, c), _positive(r), _positive(c)),
            scalars=(0.99, 1e-30),
        ),
        _form(
            name="adam_8_bit",
            make=_in_bytes,
            scalars=adam,
            varied=(1,),
            check=f"{__name__}:check_adam_8_bit",
        ),
        _form(name="clip_by_norm", make=_step(1), scalars=(1.0,)),
        _form(name="moving_average", make=_step(2), scalars=(0.999,), varied=(1,)),
        _form(
            name="accumulate",
            make=lambda r, c: (real(r, c), real(r, c, dtype="bfloat16")),
            scalars=(0.25,),
            varied=(1,),
        ),
        _form(name="unscale", make=_step(1), scalars=(1024.0,)),
        _form(
            name="newton_schulz",
            make=_step(1),
            sizes=sizes((32, 48), (256, 512), (4096, 4096)),
            scalars=(1e-7,),
            libraries=("matmul",),
            variations=VALUES[:1],
        ),
    ]
    return tuple(map(problem, forms))
