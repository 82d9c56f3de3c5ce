"""Mark where each block's forward and backward pass begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ratchet.train.memory.events import mark

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OUTSIDE: Final = "outside"
"""Names of marks; those of a block end in its place, as in `forward 3`."""
BEGIN_BACKWARD: Final = "begin backward"
BEGIN_UPDATE: Final = "begin update"
END: Final = "end"


@contextmanager
def block_marks(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Mark the passes of eager blocks while the context is open.

    A block's backward pass begins when the gradient of its output is there, and ends when that of
    its input is.
    """
    with ExitStack() as stack:
        for place, block in enumerate(blocks):
            begins = block.register_forward_pre_hook(_begins(place), with_kwargs=True)
            stack.callback(begins.remove)
            stack.callback(block.register_forward_hook(_ends(place)).remove)
        yield


def _begins(place: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if place == 0:
            _on_gradient((args, kwargs), OUTSIDE)
        _mark(f"{FORWARD} {place}")

    return hook


def _ends(place: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        _on_gradient(output, f"{BACKWARD} {place}")
        _mark(OUTSIDE)

    return hook


def _on_gradient(values: object, name: str) -> None:
    """Put a mark when the gradient of the first differentiable tensor is there."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(lambda _: _mark(name))  # type: ignore[no-untyped-call]
            return


def _mark(name: str) -> None:
    # On a GPU the time between two marks is that of the device only if nothing is under way.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    mark(name)
