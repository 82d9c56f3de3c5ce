"""Time a region's installed kernel beside torch.compile's own code for the region."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from ratchet.kernels.inputs import build
from ratchet.kernels.library import registry
from ratchet.kernels.problem import Problem
from ratchet.kernels.source_module import run_source

PAIRS, PAIRS_S, FEWEST = 15, 1.0, 3
"""Pairs of calls, the time that they may take, and how many there are whatever they take."""
STREAMED_BYTES: Final = 64 << 20
"""Memory that is written between two calls. In a step a region's inputs have left the caches."""


def beside_compiled(name: str, problem: Problem) -> float | None:
    """Return torch.compile's time over that of the kernel active as `name`, with cold caches.

    More than 1 if the kernel is faster. None if torch cannot compile the reference, or the kernel
    declines the problem's inputs.
    """
    reference: Callable[..., Any] = run_source(problem.text).reference
    inputs = [one.contiguous() for one in build(problem.cases[0].inputs, 0)]
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            # Where an index lies outside of its tensor this raises; compiled code would crash.
            outputs = reference(*inputs, ())
            compiled: Callable[..., Any] = torch.compile(reference, dynamic=False)
            compiled(*inputs, ())

            def theirs() -> None:
                compiled(*inputs, ())

            def ours() -> None:
                registry.call(name, (*inputs, *(torch.empty_like(one) for one in outputs)))

            if not registry.call(name, (*inputs, *(torch.empty_like(one) for one in outputs))):
                return None
            return _ratio(theirs, ours)
    except Exception as error:  # whatever the compiler raises: then the step alone tells
        del error
        return None


def _ratio(theirs: Callable[[], None], ours: Callable[[], None]) -> float:
    """Return the median ratio of adjacent calls; who comes first alternates."""
    streamed = torch.zeros(STREAMED_BYTES // 4)
    logs: list[float] = []
    began = time.perf_counter()
    while len(logs) < FEWEST or (len(logs) < PAIRS and time.perf_counter() - began < PAIRS_S):
        times_s: dict[Callable[[], None], float] = {}
        for call in (theirs, ours) if len(logs) % 2 else (ours, theirs):
            streamed.add_(1.0)
            started = time.perf_counter()
            call()
            times_s[call] = time.perf_counter() - started
        logs.append(math.log(times_s[theirs] / times_s[ours]))
    return math.exp(statistics.median(logs))
