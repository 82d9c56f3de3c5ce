"""Use jemalloc instead of the C library's allocator, if it is installed."""

from ratchet.optimize.levers.base import Situation, field_lever
from ratchet.optimize.step.allocators import find_library


def _applies(situation: Situation) -> str | None:
    if situation.device_kind != "cpu":
        return "it applies only to CPUs"
    return None if find_library("jemalloc") else "libjemalloc is not installed"


LEVER = field_lever(
    "allocator",
    "jemalloc",
    name="allocator-jemalloc",
    summary="jemalloc preloaded",
    expected="blocks are reused instead of going back to the kernel",
    source="PyTorch documentation, Performance Tuning Guide, memory allocators",
    applies=_applies,
    default=False,
    acts_on=("system",),
)
