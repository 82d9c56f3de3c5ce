"""Settings of torch under which a script compiles: what fails, what takes long, backward twice."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ratchet.base.errors import told

TORCH_LOG = logging.getLogger("torch._dynamo.convert_frame")
LONG_S = 60.0
"""Time after which compiling is told, then again after twice as long each time."""
COMPILERS = ("torch._dynamo.convert_frame", "torch._inductor.compile_fx")
"""Modules of torch that are on the stack while it compiles, and not while compiled code runs."""


@contextmanager
def parts_as_written(tell: Callable[[str], None]) -> Iterator[None]:
    """Let frames that fail to compile run as written, each with one line instead of a traceback.

    Backward graphs are compiled with their forward ones, since no frame is left to run as written
    once the script calls `backward()`.
    """
    import torch._dynamo
    import torch._functorch.config

    def one_line(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.levelno < logging.WARNING:
            return True
        tell(f"torch.compile fails on a part of the model, which runs as written ({told(error)})")
        return False

    TORCH_LOG.addFilter(one_line)
    try:
        with (
            torch._dynamo.config.patch(suppress_errors=True),
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        ):
            yield
    finally:
        TORCH_LOG.removeFilter(one_line)


@contextmanager
def told_while_long(tell: Callable[[str], None], first_s: float = LONG_S) -> Iterator[None]:
    """Tell that torch.compile is at work, each time that it has been for twice as long."""
    mine, ended = threading.get_ident(), threading.Event()

    def watch() -> None:
        waited_s, next_s = 0.0, first_s
        while not ended.wait(next_s - waited_s):
            waited_s, next_s = next_s, 2 * next_s
            if is_compiling(mine):
                tell(
                    f"torch.compile has been at work for {waited_s:g} s; the step goes on when it "
                    "is done, and the next start finds the code in torch's cache"
                )

    threading.Thread(target=watch, name="ratchet-compiling", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def is_compiling(thread: int) -> bool:
    """Return True while torch makes code in a thread."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__") in COMPILERS:
            return True
        frame = frame.f_back
    return False


def kept_graphs(keep: bool) -> AbstractContextManager[object]:
    """Let what is compiled be differentiated again, as by `backward(retain_graph=True)`."""
    return _kept_graphs() if keep else nullcontext()


@contextmanager
def _kept_graphs() -> Iterator[None]:
    """Let no backward graph write into what the forward pass has saved for it.

    Where a backward graph is compiled with its forward one, torch 2.13 leaves the list of what it
    may write into at None, and takes that for a list that is not empty.
    """
    import torch._functorch.config
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

    own = ViewAndMutationMeta.__post_init__

    def with_a_list(meta: ViewAndMutationMeta) -> None:
        own(meta)
        meta.bw_donated_idxs = meta.bw_donated_idxs or []

    ViewAndMutationMeta.__post_init__ = with_a_list  # type: ignore[method-assign,assignment]
    try:
        with torch._functorch.config.patch(donated_buffer=False):
            yield
    finally:
        ViewAndMutationMeta.__post_init__ = own  # type: ignore[method-assign]
