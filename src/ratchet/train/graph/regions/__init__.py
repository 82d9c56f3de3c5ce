"""Regions: the problems in a workload's compiled graphs, forward and backward.

ops.py       which ATen operations fuse, which are views, which are products
trace.py     runs one step and takes the graphs that Inductor would compile
cut.py       cuts a graph into regions
dims.py      which sizes follow the batch: two traces compared
form.py      a region's canonical form, its key and its Python text
values.py    how the inputs of a region are drawn
problems.py  a region's problem: timed case, hidden cases
cost.py      compulsory bytes, operations, floor and time
capture.py   all of it: a workload's regions, ranked
op.py        the custom op that a region becomes in a compiled graph
install.py   the pass that puts it there for regions with a kernel
"""

from typing import TYPE_CHECKING

from ratchet.train.graph.regions.region import Region, RegionReport

if TYPE_CHECKING:
    from ratchet.train.graph.regions.capture import capture_regions, region_report

__all__ = ["Region", "RegionReport", "capture_regions", "region_report"]


def __getattr__(name: str) -> object:
    """Import `capture`, and with it Inductor (two seconds), at the first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ratchet.train.graph.regions import capture

    return getattr(capture, name)
