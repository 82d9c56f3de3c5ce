"""Softmax in its variants, and losses from logits, with their gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.judge.problems.problem import Problem, TensorSpec
from ratchet.judge.problems.suites.forms import (
    Form,
    Scalars,
    Tensors,
    backward,
    gradient_of,
    in_bfloat16,
    paired,
    problem,
    real,
    sizes,
    uniform,
    whole,
    wide,
)
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance, checked, same_form

ROWS = sizes((32, 256), (1024, 2048), (8192, 8192))
LOGITS = sizes((32, 320), (256, 8192), (8192, 128256))
PAIRS = sizes((64, 64), (1024, 1024), (16384, 4096))
FROM_LOGITS = ("cross_entropy", "smoothed_cross_entropy", "cross_entropy_z_loss", "kl_distillation")
"""Losses that a step in bf16 computes from logits in bf16."""
NO_TINY = (
    ("shifted", "contiguous"),
    ("heavy_tailed", "strided"),
    ("outliers", "contiguous"),
)
"""Distributions without tiny and large values: they make the answer a constant or a copy."""


def softmax(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.softmax(x, dim=-1),)


def log_softmax(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.log_softmax(x, dim=-1),)


def masked_softmax(x: Tensor, mask: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Softmax over the positions with mask 1; the first position of a row always has it."""
    allowed = mask.bool().clone()
    allowed[..., 0] = True
    return (F.softmax(x.masked_fill(~allowed, float("-inf")), dim=-1),)


def capped_softmax(x: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Softmax of cap tanh(x / cap), as in Gemma 2 (arXiv:2408.00118)."""
    return (F.softmax(scalars[0] * torch.tanh(wide(x) / scalars[0]), dim=-1).to(x.dtype),)


def cross_entropy(logits: Tensor, targets: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Return a loss per row, so that a wrong row shows."""
    return (F.cross_entropy(wide(logits), targets, reduction="none"),)


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Label smoothing by scalars[0] (arXiv:1512.00567)."""
    return (F.cross_entropy(wide(logits), targets, reduction="none", label_smoothing=scalars[0]),)


def cross_entropy_z_loss(logits: Tensor, targets: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Cross-entropy plus scalars[0] times the squared log of the partition sum (PaLM)."""
    logits = wide(logits)
    total = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (total - chosen + scalars[0] * total.square(),)


def binary_cross_entropy(logits: Tensor, targets: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1),)


def kl_distillation(student: Tensor, teacher: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """Row by row, at temperature scalars[0] (arXiv:1503.02531)."""
    student, teacher = wide(student), wide(teacher)
    log_p = F.log_softmax(student / scalars[0], dim=-1)
    q = F.softmax(teacher / scalars[0], dim=-1)
    log_q = F.log_softmax(teacher / scalars[0], dim=-1)
    return ((q * (log_q - log_p)).sum(-1) * scalars[0] ** 2,)


def huber(x: Tensor, target: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return (F.huber_loss(x, target, reduction="none", delta=scalars[0]).mean(-1),)


def mean_squared_error(x: Tensor, target: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    return ((x - target).square().mean(-1),)


def preference(chosen: Tensor, rejected: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """DPO's loss on differences of log probabilities (arXiv:2305.18290), beta scalars[0]."""
    return (-F.logsigmoid(scalars[0] * (chosen - rejected)),)


def clipped_policy(log_ratio: Tensor, advantage: Tensor, scalars: Scalars) -> tuple[Tensor, ...]:
    """PPO's clipped objective, negated (arXiv:1707.06347), clip range scalars[0]."""
    ratio = torch.exp(log_ratio.clamp(-20.0, 20.0))
    clipped = ratio.clamp(1 - scalars[0], 1 + scalars[0])
    return (-torch.minimum(ratio * advantage, clipped * advantage),)


def check_classes(
    inputs: Tensors, got: Tensors, own: Tensors, oracle: Tensors, scalars: Scalars
) -> list[OutputCheck]:
    """Check the gradients of the right classes and of all others, each at its own scale.

    The former are near 1, the latter near 1 over the vocabulary: one ulp of bf16 at a common scale
    would exceed all of the latter. The worse of the two checks counts.
    """
    targets = inputs[2].unsqueeze(-1)
    if not same_form(got[0], own[0]):
        return [checked(False, "a gradient of another shape or dtype")]
    three = (got[0], own[0], oracle[0])
    right = [one.gather(-1, targets) for one in three]
    others = [one.scatter(-1, targets, 0.0) for one in three]
    found = [Tolerance().check(part[0], part[1], part[2]) for part in (right, others)]
    return [max(found, key=lambda one: (not one.passed, one.element_ratio))]


softmax_backward = gradient_of(softmax, inputs=(0,))
log_softmax_backward = gradient_of(log_softmax, inputs=(0,))
masked_softmax_backward = gradient_of(masked_softmax, inputs=(0,))
capped_softmax_backward = gradient_of(capped_softmax, inputs=(0,))
cross_entropy_backward = gradient_of(cross_entropy, inputs=(0,))
smoothed_cross_entropy_backward = gradient_of(smoothed_cross_entropy, inputs=(0,))
cross_entropy_z_loss_backward = gradient_of(cross_entropy_z_loss, inputs=(0,))
binary_cross_entropy_backward = gradient_of(binary_cross_entropy, inputs=(0,))
kl_distillation_backward = gradient_of(kl_distillation, inputs=(0,))
huber_backward = gradient_of(huber, inputs=(0,))
mean_squared_error_backward = gradient_of(mean_squared_error, inputs=(0, 1))
preference_backward = gradient_of(preference, inputs=(0, 1))
clipped_policy_backward = gradient_of(clipped_policy, inputs=(0,))


_form = partial(Form, module=__name__, ragged=(13, 77), variations=NO_TINY)


def _same(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows, width),)


def _per_row(rows: int, width: int) -> tuple[TensorSpec, ...]:
    return (real(rows),)


def _logits(name: str, *scalars: float) -> Form:
    def make(rows: int, words: int) -> tuple[TensorSpec, ...]:
        return (real(rows, words), whole(rows, below=words))

    return _form(name=name, make=make, sizes=LOGITS, scalars=scalars)


def _pairs(name: str, *scalars: float) -> Form:
    def make(rows: int, width: int) -> tuple[TensorSpec, ...]:
        return (real(rows, width),) * 2

    return _form(name=name, make=make, sizes=PAIRS, scalars=scalars)


def problems() -> tuple[Problem, ...]:
    """Return every softmax and loss, forward and backward."""
    rows = [_form(name=name, make=_same, sizes=ROWS) for name in ("softmax", "log_softmax")]
    rows.append(
        _form(
            name="masked_softmax", make=lambda r, w: (real(r, w), whole(r, w, below=2)), sizes=ROWS
        )
    )
    rows.append(_form(name="capped_softmax", make=_same, sizes=ROWS, scalars=(30.0,)))
    per_row = [_logits("cross_entropy"), _logits("smoothed_cross_entropy", 0.1)]
    per_row += [_logits("cross_entropy_z_loss", 1e-4), _pairs("kl_distillation", 2.0)]
    per_row.append(
        _form(
            name="binary_cross_entropy",
            make=lambda r, w: (real(r, w), uniform(r, w, low=0.0, high=1.0)),
            sizes=PAIRS,
        )
    )
    per_row += [_pairs("huber", 1.0), _pairs("mean_squared_error")]
    alike = [_pairs("preference", 0.1), _pairs("clipped_policy", 0.2)]
    forms = [*paired([*rows, *alike]), *paired(per_row, outputs=_per_row)]
    forms += map(in_bfloat16, paired(rows))
    for form in (one for one in per_row if one.name in FROM_LOGITS):
        # A bf16 step has an fp32 loss, with an fp32 gradient.
        low = in_bfloat16(backward(form, outputs=_per_row), keep=(0,))
        check = "" if form.name == "kl_distillation" else f"{__name__}:check_classes"
        forms += [in_bfloat16(form), replace(low, check=check)]
    return tuple(map(problem, forms))
