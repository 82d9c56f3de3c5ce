"""Counters of memory operations in flight, what an instruction waits for, and its registers.

A wave goes on after it has issued a load. Its counters tell how many operations are not done, and
`s_waitcnt` and its kin wait until a counter is small enough (chapter "Data Dependency Resolution"
of the manuals).
"""

from __future__ import annotations

import functools
import re
from typing import Final

from ratchet.amd.emulator.operands import RETURNS, TO_LDS, MachineOp
from ratchet.base.errors import KernelError

LOADS, STORES, SHARED, UNORDERED = range(4)
"""Queues of the machine, as in flight.hpp."""
QUEUES: Final = {
    "vmcnt": (LOADS,), "vscnt": (STORES,), "lgkmcnt": (SHARED, UNORDERED), "expcnt": (),
    "loadcnt": (LOADS,), "storecnt": (STORES,), "dscnt": (SHARED,), "kmcnt": (UNORDERED,),
    "samplecnt": (), "bvhcnt": (),
}  # fmt: skip
"""Queues that each counter counts. On gfx9 all of vector memory is in LOADS."""
NAMES: Final = {
    "gfx9": ("vmcnt", "vmcnt", "lgkmcnt", "lgkmcnt"),
    "gfx11": ("vmcnt", "vscnt", "lgkmcnt", "lgkmcnt"),
    "gfx12": ("loadcnt", "storecnt", "dscnt", "kmcnt"),
}
"""The counter of each queue, by the family of a target."""
FIELDS: Final[dict[str, dict[str, tuple[tuple[int, int], ...]]]] = {
    "gfx9": {"vmcnt": ((0, 4), (14, 2)), "expcnt": ((4, 3),), "lgkmcnt": ((8, 4),)},
    "gfx11": {"expcnt": ((0, 3),), "lgkmcnt": ((4, 6),), "vmcnt": ((10, 6),)},
}
"""Bits of `s_waitcnt` as a number: where a counter's parts begin, and their lengths."""
PAIRS: Final = {"loadcnt_dscnt": ("loadcnt", "dscnt"), "storecnt_dscnt": ("storecnt", "dscnt")}
"""Waits of RDNA 4 for two counters: the first in bits 8 to 13, the second in bits 0 to 5."""
COUNTED: Final = {
    "buffer_wbl2": LOADS, "global_inv": LOADS, "global_wb": STORES, "global_wbinv": STORES,
}  # fmt: skip
"""Instructions of the caches that count as an access."""
ONE: Final = re.compile(r"(\w+?cnt)(?:_sat)?\s*\(\s*(\w+)\s*\)")
WAIT: Final = re.compile(r"^s_wait(?:cnt)?_(\w+?)$")
REGISTER: Final = re.compile(r"\b([vas])(?:(\d+)\b|\[(\d+):(\d+)\])|\b(vcc)(?:_(lo|hi))?\b")
FIRST: Final = {"v": 0, "a": 256, "s": 512}
VCC: Final = {None: 3 << 512 + 106, "lo": 1 << 512 + 106, "hi": 2 << 512 + 106}
BYTES: Final = 80  # one bit for each of 512 vector and 128 scalar registers
IMPLICIT: Final = ("s_cbranch_vcc", "v_div_fmas_", "v_dual_cndmask_")
"""Instructions that may read vcc without naming it. RDNA may have other values in vcc_hi."""
LOADING: Final = re.compile(r"^(?:s_buffer|s|buffer|global|flat|scratch|ds)_load$")
ACROSS: Final = ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32")


def family(target: str) -> str:
    return "gfx9" if target.startswith("gfx9") else target[:5]


def wait(name: str, rest: str, target: str) -> MachineOp | None:
    """Return an instruction that waits for counters, or counts in one; None for others."""
    if name in COUNTED:
        return MachineOp("counted", aux=[COUNTED[name]])
    limits = _limits(name, rest, target)
    if limits is None:
        return None
    left = [-1] * 4
    for counter, limit in limits.items():
        for queue in QUEUES[counter]:
            left[queue] = limit
    return MachineOp("wait_for", aux=left)


def _limits(name: str, rest: str, target: str) -> dict[str, int] | None:
    """Return what each counter may stay at."""
    own = family(target)
    if name == "s_wait_idle":
        return dict.fromkeys(NAMES[own], 0)
    if name == "s_waitcnt":
        if rest[:1].isdigit():
            number = int(rest, 0)
            return {
                counter: _field(number, parts) for counter, parts in FIELDS.get(own, {}).items()
            }
        found = {one[1]: int(one[2], 0) for one in ONE.finditer(rest)}
        if not found or not found.keys() <= FIELDS.get(own, {}).keys():
            raise KernelError(f"a wait for {rest!r:.60} is not known")
        return found
    told = WAIT.match(name)
    if told is None or not told[1].endswith("cnt"):
        return None
    limit = int(rest.rpartition(",")[2], 0)
    if told[1] in PAIRS:
        first, second = PAIRS[told[1]]
        return {first: limit >> 8 & 63, second: limit & 63}
    return {told[1]: limit} if told[1] in QUEUES else None


def _field(number: int, parts: tuple[tuple[int, int], ...]) -> int:
    value, shift = 0, 0
    for first, length in parts:
        value |= (number >> first & (1 << length) - 1) << shift
        shift += length
    return value


def counter(mnemonic: str, target: str) -> str:
    """Return the counter that tells when an instruction of this name is done."""
    loads, stores, shared, unordered = NAMES[family(target)]
    if mnemonic.startswith("s_"):
        return unordered
    if mnemonic.startswith("ds_"):
        return shared
    if mnemonic.startswith("flat_"):
        return f"{loads} and {shared}"
    return stores if "_store_" in mnemonic else loads


def registers(record: MachineOp, name: str, rest: str) -> bytes:
    """Return a bit for each register that an instruction reads, or writes without delay."""
    is_load = LOADING.match(record.operation) and not record.flags & TO_LDS
    returns = record.flags & RETURNS and not name.startswith("buffer_")
    if is_load or returns or record.operation in ("ds_read2", *ACROSS) or "_tr_" in name:
        rest = rest.partition(",")[2]  # what it loads comes later
    found = _registers(rest)
    if name.startswith(IMPLICIT):
        found |= VCC["lo"]
    return found.to_bytes(BYTES, "little")


@functools.lru_cache(maxsize=1 << 14)
def _registers(text: str) -> int:
    found = 0
    for one in REGISTER.finditer(text):
        if one[5]:
            found |= VCC[one[6]]
        else:
            first = int(one[2] or one[3])
            count = int(one[2] or one[4]) - first + 1
            found |= (1 << count) - 1 << FIRST[one[1]] + first
    return found
