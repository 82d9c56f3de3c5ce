"""Random numbers in compiled code: those of uncompiled code, while gradients are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def eager_draws(*, needed: bool) -> Iterator[None]:
    """Within, what torch.compile compiles draws the numbers that uncompiled code would.

    Inductor has a generator of its own, with the same odds. What was compiled within is dropped at
    the end, so that later steps run what a user's script runs.
    """
    if not needed:
        yield
        return
    import torch._dynamo
    import torch._inductor.config

    with torch._inductor.config.patch(fallback_random=True):
        yield
    torch._dynamo.reset()
