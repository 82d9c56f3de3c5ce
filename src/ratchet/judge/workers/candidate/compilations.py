"""The graphs that torch.compile compiled, in a folder that only the reference worker fills.

It fills it with the reference's own graphs. A candidate's worker gets the files and works on a copy
in its private /tmp, so that nothing it does to its copy is read by anyone else. The folder holds
code and shapes; values, seeds and answers are no part of a graph.
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
"""Of a candidate's worker that gets the files. A precompiled header (100 MB) is slower to make than
it saves, once the code itself is there; where it is looked for is part of what graphs are known by.
"""


@contextlib.contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """Keep what is compiled meanwhile in the folder, with the checks of the CPU's vectors."""
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
    """Compile what inductor compiles to see which vectors there are: this process may know."""
    from torch._inductor import cpu_vec_isa

    for isa in cpu_vec_isa.valid_vec_isa_list():
        isa.check_build(cpu_vec_isa.VecISA._avx_code)


def warm(compiled: Callable[..., Any], case: Any, draw: Callable[[], Sequence[Any]]) -> None:
    """Call it twice on inputs of a case: the first call compiles, the second may once more."""
    for _ in range(2):
        own = [
            tensor.clone() if spec.in_place else tensor
            for spec, tensor in zip(case.inputs, draw(), strict=True)
        ]
        compiled(*own, case.scalars)


@contextlib.contextmanager
def alarm(limit_s: float) -> Iterator[None]:
    """End what runs too long with a KernelError, and this process lives on."""

    def ring(number: int, frame: Any) -> None:
        raise KernelError(f"torch.compile took longer than {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
