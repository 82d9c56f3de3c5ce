"""The graphs that torch.compile compiled, in a folder that only the reference worker fills.

The folder holds the reference's graphs. A candidate's worker works on a copy in its private /tmp,
which nobody else reads. Graphs hold code and shapes, but no values, seeds or answers.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ratchet.base.errors import KernelError

OWN: Final = "/tmp/compilations"
CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
ENVIRONMENT: Final = {CACHE: OWN, "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""The environment of a candidate's worker that gets the files. Making a precompiled header (100 MB)
takes longer than it saves once the code exists, and its place is part of a graph's key.
"""


@contextlib.contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """Keep what is compiled inside in the folder, with the checks of the CPU's vectors."""
    import torch._inductor.config as config

    before = os.environ.get(CACHE)
    os.environ[CACHE] = folder
    try:
        with config.patch(cpp_cache_precompile_headers=False):
            yield
            _check_vectors()
    finally:
        if before is None:
            os.environ.pop(CACHE, None)
        else:
            os.environ[CACHE] = before


def _check_vectors() -> None:
    """Compile Inductor's checks of the CPU's vectors, whose result this process may have cached."""
    from torch._inductor import cpu_vec_isa

    for isa in cpu_vec_isa.valid_vec_isa_list():
        isa.check_build(cpu_vec_isa.VecISA._avx_code)


def warm(compiled: Callable[..., Any], case: Any, draw: Callable[[], Sequence[Any]]) -> None:
    """Call it twice on inputs of a case: the first call compiles, and the second may again."""
    for _ in range(2):
        own = [
            tensor.clone() if spec.in_place else tensor
            for spec, tensor in zip(case.inputs, draw(), strict=True)
        ]
        compiled(*own, case.scalars)


@contextlib.contextmanager
def alarm(limit_s: float) -> Iterator[None]:
    """Raise KernelError inside if it takes longer than the limit."""

    def ring(number: int, frame: Any) -> None:
        raise KernelError(f"torch.compile took longer than {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
