"""Take gradients for comparison: by the draws of uncompiled code, into a file, off the timed heap.

glibc raises its threshold for mmap to the largest mapped block that was ever freed (mallopt(3)).
Once a model's gradients or copies of them are freed, a process keeps the memory of its steps: for
moe-42m with the AdamW kernel, which keeps gradients, that saved 20,000 page faults and a tenth of
each step, in every arm whose gradients were checked, and hid what an allocator wins. So every value
goes straight into the mapped file (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ALIGNED = 8


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


def write_gradients(gradients: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors of any dtype, layout and device as float32, by name.

    A complex one has a last dimension of two: its real and its imaginary part.
    """
    header, end = {}, 0
    for name, gradient in gradients.items():
        shape = [*gradient.shape, *([2] if gradient.is_complex() else [])]
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNED)
    start = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(start + end)
    if not end:
        return
    values, at = torch.from_numpy(np.memmap(path, np.float32, "r+", start, (end // 4,))), 0
    for gradient in gradients.values():
        real = _dense_and_real(gradient.detach())
        values[at : at + real.numel()].view(real.shape).copy_(real)
        at += real.numel()


def _dense_and_real(gradient: Tensor) -> Tensor:
    dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
