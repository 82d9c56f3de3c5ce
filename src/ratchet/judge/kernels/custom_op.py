"""Custom ops, declared once: what the kernel gets and writes, what runs without it, derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry

NAMESPACE: Final = "ratchet"
OUT_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "": None}
NO_TENSOR: Final = torch.empty(0)  # Placeholder for a missing optional tensor on the C interface

Given = tuple[tuple[Tensor, ...], tuple[float, ...]]
"""The tensors and the scalars that a kernel gets."""


def declare_op(
    name: str,
    schema: str,
    *,
    entry: str,
    inputs: Callable[..., Given],
    outputs: Callable[..., Any],
    reference: Callable[..., Sequence[Tensor]],
    composite: Callable[..., Sequence[Tensor]] | None = None,
    derivative: str = "",
    sums: Mapping[str, tuple[str, ...]] | None = None,
    autograd: tuple[Callable[..., None], Callable[..., object]] | None = None,
    flat: bool = False,
) -> None:
    """Define `ratchet::NAME`, which runs the active kernel of `entry` or plain torch.

    `inputs` and `outputs` are functions of the op's arguments: what the kernel gets, and new
    tensors that it writes, which also are the op's fake. `reference` is the entry in plain torch
    and takes what the kernel gets; `composite` takes the op's arguments instead, where the op does
    more than its entry.

    `derivative` is the op that computes the gradients (`Derivative`), with `sums` of arguments
    among the outputs. `autograd` is a pair of functions as torch.library.register_autograd takes
    them, for any other derivative. With `flat` the kernel writes the output [..., C] as a matrix.
    """
    single = len(_parsed(name, schema).returns) == 1

    def run(*arguments: object) -> object:
        tensors, scalars = inputs(*arguments)
        made = outputs(*(arguments if tensors[0].is_cpu else map(on_meta, arguments)))
        own = made
        if single:
            own = (made.view(-1, made.shape[-1]) if flat else made,)
        found = registry.call(entry, tensors, scalars, own)
        if found is own:
            return made
        if found is None:
            plain = composite(*arguments) if composite else reference(*tensors, scalars)
            found = registry.filled(own, plain)
        if flat:
            return found[0].view(made.shape)
        return found[0] if single else found

    define(name, schema, run=run, fake=outputs)
    if derivative:
        rule = Derivative(name=name, schema=schema, op=derivative, sums=sums or {})
        autograd = rule.save, rule.differentiate
    if autograd:
        save, differentiate = autograd
        torch.library.register_autograd(f"{NAMESPACE}::{name}", differentiate, setup_context=save)


def define(
    name: str, schema: str, *, run: Callable[..., object], fake: Callable[..., object]
) -> None:
    """Define `ratchet::NAME`: `run` on real tensors of any device, `fake` for shapes alone.

    `schema` is the signature without the name. Ops are pure: outputs are new and share no memory
    with inputs.
    """
    full = f"{NAMESPACE}::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "CompositeExplicitAutograd", run)
    torch.library.register_fake(full, fake)


def _parsed(name: str, schema: str) -> torch._C.FunctionSchema:
    return torch._C.parse_schema(f"{NAMESPACE}::{name}{schema}")


@dataclass(frozen=True, kw_only=True)
class Derivative:
    """An op's derivative by another op, which is matched by the names in both schemas.

    The other op takes `grad`, the gradient of the first output, and `grad_NAME` of any further one;
    an output without such an argument carries no gradient. All else that it takes are arguments and
    outputs of the op, which are saved, or `has_NAME`: whether that argument was given. It returns
    `dNAME` for each argument that has a gradient.
    """

    name: str
    schema: str
    op: str
    sums: Mapping[str, tuple[str, ...]]
    """Outputs that are sums of arguments: `dNAME` of such an output is the gradient of each."""

    @cached_property
    def arguments(self) -> list[str]:
        return [one.name for one in _parsed(self.name, self.schema).arguments]

    @cached_property
    def outputs(self) -> list[str]:
        return [one.name for one in _parsed(self.name, self.schema).returns]

    @cached_property
    def grads(self) -> list[str]:
        """The other op's arguments for the gradients of `outputs`; "" for one that has none."""
        known = {one.name for one in self._backward.arguments}
        named = ["grad", *(f"grad_{name}" for name in self.outputs[1:])]
        return [name if name in known else "" for name in named]

    @cached_property
    def taken(self) -> list[str]:
        """All else that the other op takes."""
        return [one.name for one in self._backward.arguments if one.name not in self.grads]

    @cached_property
    def given(self) -> list[tuple[str, ...]]:
        """The arguments whose gradient each of the other op's results is."""
        named = [one.name.removeprefix("d") for one in self._backward.returns]
        return [self.sums.get(name, (name,)) for name in named]

    @property
    def _backward(self) -> torch._C.FunctionSchema:
        found: torch._C.FunctionSchema = getattr(
            getattr(torch.ops, NAMESPACE), self.op
        ).default._schema
        return found

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        """Keep what the other op takes; a KernelError if an argument needs a missing gradient."""
        produced = output if isinstance(output, tuple) else (output,)
        by_name = dict(zip(self.arguments, inputs, strict=True))
        ctx.dtypes = {}
        for name in (one for several in self.given for one in several):
            value = by_name[name]
            ctx.dtypes[name] = None if value is None else value.dtype
        for name, value in by_name.items():
            if isinstance(value, Tensor) and value.requires_grad and name not in ctx.dtypes:
                raise KernelError(
                    f"{name} of {NAMESPACE}::{self.name} requires a gradient, which the op does "
                    "not compute: detach it, or keep the model's own code"
                )
        has = {f"has_{name}": value is not None for name, value in by_name.items()}
        known = {**by_name, **dict(zip(self.outputs, produced, strict=True)), **has}
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(one for one, grad in zip(produced, self.grads, strict=True) if not grad)
        )
        ctx.others = {
            name: known[name] for name in self.taken if not isinstance(known[name], Tensor)
        }
        ctx.save_for_backward(*(known[name] for name in self.taken if name not in ctx.others))

    def differentiate(self, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return each argument's gradient in its own dtype."""
        saved = iter(ctx.saved_tensors)
        own = [grad for grad, name in zip(grads, self.grads, strict=True) if name]
        found: dict[str, Tensor] = {}
        if own[0] is not None:
            values = [
                ctx.others[name] if name in ctx.others else next(saved) for name in self.taken
            ]
            results = getattr(getattr(torch.ops, NAMESPACE), self.op)(*own, *values)
            several = results if isinstance(results, tuple) else (results,)
            for names, value in zip(self.given, several, strict=True):
                found |= dict.fromkeys(names, value)
        else:  # only an output that is a sum has a gradient
            for output, grad in zip(self.outputs, grads, strict=True):
                if grad is not None:
                    found |= dict.fromkeys(self.sums[output], grad)
        return tuple(
            found[name].to(ctx.dtypes[name]) if name in found and ctx.dtypes[name] else None
            for name in self.arguments
        )


def on_meta(value: object) -> Any:
    """Return a tensor's form without its memory; anything else unchanged."""
    return value.to("meta") if isinstance(value, Tensor) else value


def out_dtype_of(name: str, otherwise: torch.dtype) -> torch.dtype:
    return OUT_DTYPES[name] or otherwise


def empty_like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a new contiguous tensor of the same shape and device."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device)


def or_none(tensor: Tensor | None) -> Tensor:
    """Return a contiguous tensor for the C interface, without elements for None."""
    return NO_TENSOR if tensor is None else tensor.contiguous()


def features_last(tensor: Tensor) -> Tensor:
    """Return `tensor` if its last dimension is contiguous, else a contiguous copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def as_rows(tensor: Tensor) -> Tensor:
    """Return `tensor` if its leading dimensions share one stride, else a contiguous copy."""
    if tensor.is_contiguous() or _shares_stride(tensor):
        return tensor
    return tensor.contiguous()


def _shares_stride(tensor: Tensor) -> bool:
    if tensor.dim() == 0 or tensor.stride(-1) != 1:
        return False
    expected = 0
    for size, stride in zip(
        reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True
    ):
        if size == 1:
            continue
        if stride == 0 or (expected and stride != expected):
            return False
        expected = size * stride
    return True
