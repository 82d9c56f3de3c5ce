"""The custom op that a region becomes in a compiled graph: `ratchet::region`.

It is one op for all regions. What a region is stands in the call, as text, so that a graph from
torch's cache on disk runs in a process that never saw the region. The op runs the region's
reference until its kernel is activated (`registry.activate`, by its name).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import torch
from torch import Tensor

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import define
from ratchet.judge.problems.model_file import run_source
from ratchet.judge.problems.problem import Reference

HEADER = """import torch
import torch._inductor.inductor_prims

aten = torch.ops.aten
prims = torch.ops.prims


"""
SITES = 4096
calls: Final[Counter[str]] = Counter()
"""Calls that a kernel served in this process, by the region's name. `registry.fallbacks` counts
those that ran the reference. Both also count where torch took the graph from its cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionSite:
    """A call of a region, as it stands in a graph."""

    name: str
    """The name under which the kernel is activated: `region_name` of the region's key."""
    reference: str
    """The source of the region's reference."""
    outputs: tuple[tuple[tuple[int, ...], str, str], ...]
    """Shape, dtype and device of each contiguous output."""

    def to_text(self) -> str:
        return json.dumps([self.name, self.reference, self.outputs])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` returned."""
        name, reference, outputs = json.loads(text)
        forms = tuple((tuple(shape), dtype, device) for shape, dtype, device in outputs)
        return cls(name=name, reference=reference, outputs=forms)

    def empty(self, *, on_meta: bool = False) -> list[Tensor]:
        """Return new outputs without values; without memory too if they are `on_meta`."""
        return [
            torch.empty(shape, dtype=getattr(torch, dtype), device="meta" if on_meta else device)
            for shape, dtype, device in self.outputs
        ]


def made_like(values: Sequence[Tensor]) -> tuple[tuple[tuple[int, ...], str, str], ...]:
    """Return shape, dtype and device of each of `values`."""
    return tuple(
        (tuple(one.shape), str(one.dtype).removeprefix("torch."), str(one.device)) for one in values
    )


@lru_cache(maxsize=SITES)
def _site(text: str) -> RegionSite:
    return RegionSite.from_text(text)


@lru_cache(maxsize=SITES)
def _reference(text: str) -> Reference:
    found: Reference = run_source(f"{HEADER}{_site(text).reference}\n").reference
    return found


def _fake(inputs: list[Tensor], site: str) -> list[Tensor]:
    return _site(site).empty()


def _run(inputs: list[Tensor], site: str) -> list[Tensor]:
    found = _site(site)
    given = [one.contiguous() for one in inputs]
    form = found.empty(on_meta=not given[0].is_cpu)  # Triton's kernels make their own outputs
    results = registry.call(found.name, given, (), form)
    if results is not None:
        calls[found.name] += 1
        return list(results)
    return [one.contiguous() for one in _reference(site)(*given, ())]


define("region", "(Tensor[] inputs, str site) -> Tensor[]", run=_run, fake=_fake)
