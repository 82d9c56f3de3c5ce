"""Call sites with their shapes, and the report of an installation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import msgspec

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
Scalar = bool | int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedSite:
    """Call sites of one pattern that share shapes, dtypes and scalars."""

    pattern: str
    """The pattern's name; `kernel` may be a narrower one."""
    kernel: str
    """The custom op that takes the site, without its namespace."""
    shapes: Mapping[str, tuple[int, ...]]
    """Sizes of each tensor argument, by the op's argument name."""
    dtypes: Mapping[str, str]
    """`fp32`, `bf16` and so on, by the op's argument name."""
    scalars: Mapping[str, Scalar]
    """The other arguments."""
    count: int = 1

    @staticmethod
    def from_json(site: object) -> CapturedSite:
        """Rebuild a site from the JSON form of `dataclasses.asdict(site)`."""
        return msgspec.convert(site, CapturedSite)

    def dtype(self, name: str) -> str:
        """Return an argument's dtype by torch's name."""
        return DTYPES[self.dtypes[name]]

    def rows(self, name: str) -> dict[str, object]:
        """Return batch, sequence and dtype of [B, T, H] or [N, H] activations.

        Inner sizes join T.
        """
        sizes = self.shapes[name]
        batch = sizes[0] if len(sizes) > 2 else 1
        dtype = self.dtype(name)
        return {"batch": batch, "sequence": prod(sizes[:-1]) // batch, "dtype": dtype}

    def alike(self, other: CapturedSite) -> bool:
        """Return True if the two sites differ only in their count."""
        return replace(self, count=other.count) == other


def merge_sites(sites: Iterable[CapturedSite]) -> list[CapturedSite]:
    """Merge equal sites and add up their counts, in order of first appearance."""
    merged: list[CapturedSite] = []
    for site in sites:
        for place, seen in enumerate(merged):
            if seen.alike(site):
                merged[place] = replace(seen, count=seen.count + site.count)
                break
        else:
            merged.append(site)
    return merged


@dataclass(kw_only=True, slots=True)
class InstallReport:
    """Results of one pass so far; it grows with every compiled graph."""

    kernels: tuple[str, ...] = ()
    graphs: int = 0
    """Graphs seen. A step with graph breaks has several, and each recompilation counts again."""
    declined: list[tuple[str, str]] = field(default_factory=list)
    """(pattern, reason) for every call site that was declined."""
    sites: list[CapturedSite] = field(default_factory=list)

    @property
    def installed(self) -> dict[str, int]:
        """Count sites taken, by pattern; a requested pattern that found none is absent."""
        counts: Counter[str] = Counter()
        for site in self.sites:
            counts[site.pattern] += site.count
        return dict(counts)

    def add_graph(self, sites: Iterable[CapturedSite], declined: Iterable[tuple[str, str]]) -> None:
        """Add the results of one more compiled graph."""
        self.graphs += 1
        self.sites.extend(sites)
        self.declined.extend(declined)
