"""Make glibc's allocator keep freed memory."""

import platform

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    if situation.device_kind != "cpu":
        return "it applies only to CPUs"
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    return None


LEVER = field_lever(
    "allocator",
    "mallopt",
    name="allocator-mallopt",
    summary="mallopt: large blocks stay in the heap instead of going back to the kernel",
    expected="fresh 64 MB outputs cost their page faults once, not each step (67 ms against 23)",
    source="mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; measured on two AVX-512 cores",
    applies=_applies,
    acts_on=("system",),
)
