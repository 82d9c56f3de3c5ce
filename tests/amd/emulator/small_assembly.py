"""Small kernels in assembly: a lane loads three words, runs a few lines, stores v4 and v5.

A wave has 64 lanes on `gfx9` targets and 32 on the others.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping, Sequence

from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.launch import Emulator, KernelLaunch, LaunchCounts, LaunchMemory
from ratchet.amd.emulator.linking import linked_kernel

TEXT = """\
	.amdgcn_target "amdgcn-amd-amdhsa--{target}"
	.type	small,@function
small:
	.file	1 "/tmp" "small.py"
	.loc	1 7 0
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v0, 2, v0
	s_waitcnt lgkmcnt(0)
	global_load_dword v1, v0, s[4:5]
	global_load_dword v2, v0, s[4:5] offset:{lane_bytes}
	global_load_dword v3, v0, s[4:5] offset:{two_lane_bytes}
	s_waitcnt vmcnt(0)
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 0
	.loc	1 8 0
{body}
	.loc	1 9 0
	global_store_dword v0, v4, s[6:7]
	global_store_dword v0, v5, s[6:7] offset:{lane_bytes}
	s_endpgm
.Lfunc_end0:
{beside}
	.section	.rodata
	.amdhsa_user_sgpr_count 2
	.amdhsa_system_sgpr_workgroup_id_x 1
	.amdgpu_metadata
amdhsa.kernels:
  - .args:
      - .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           8
        .value_kind:     global_buffer
    .group_segment_fixed_size: {lds}
    .kernarg_segment_size: 16
    .name:           small
    .private_segment_fixed_size: {scratch}
    .wavefront_size: {wave}
	.end_amdgpu_metadata
"""


RDNA = {
    "s_load_dwordx4": "s_load_b128",
    "global_load_dword": "global_load_b32",
    "global_store_dword": "global_store_b32",
}
RDNA4 = RDNA | {
    "s_waitcnt lgkmcnt(0)": "s_wait_kmcnt 0x0",
    "s_waitcnt vmcnt(0)": "s_wait_loadcnt 0x0",
}
MI200 = {
    "s[0:1], 0x0": "s[4:5], 0x0",
    "user_sgpr_count 2": "user_sgpr_count 6\n\t.amdhsa_user_sgpr_private_segment_buffer 1",
}
"""A buffer for scratch memory stands before the address of the arguments."""
FRAMES = {"gfx90a": MI200, "gfx1100": RDNA, "gfx1201": RDNA4}
"""What other targets have in place of the frame's lines."""


WAITS = {"gfx1201": "s_wait_idle", "gfx1100": "s_waitcnt 0\ns_waitcnt_vscnt null, 0"}
ACCESS = re.compile(
    r"^\s*(?:ds_|(?:global|buffer|flat|scratch)_(?:load|store|atomic)_|s_(?:buffer_)?load_)"
)


def with_waits(body: str, target: str) -> str:
    """The lines with a wait for everything after each access to memory, if they have no wait."""
    if re.search(r"\bs_wait(?:cnt|_(?!alu))", body):
        return body
    lines: list[str] = []
    for line in body.splitlines():
        lines.append(line)
        if ACCESS.match(line):
            lines.append(WAITS.get(target, "s_waitcnt 0"))
    return "\n".join(lines)


@functools.cache
def emulator(target: str) -> Emulator:
    return Emulator(compiled_machine(target))


def text_of(
    body: str,
    *,
    target: str = "gfx942",
    lds: int = 1024,
    scratch: int = 0,
    threads: int = 64,
    beside: str = "",
    waits: bool = True,
) -> str:
    """The assembly of a kernel; `beside` are functions and data.

    With `waits`, lines that wait for nothing get a wait after each access.
    """
    body = with_waits(body, target) if waits else body
    lines = "\n".join(
        f"\t{line.strip()}" if line.strip()[-1:] != ":" else line.strip()
        for line in body.strip().splitlines()
    )
    frame = TEXT
    for old, new in FRAMES.get(target, {}).items():
        frame = frame.replace(old, new)
    return frame.format(
        wave=64 if target.startswith("gfx9") else 32,
        body=lines,
        target=target,
        beside=beside,
        lds=lds,
        scratch=scratch,
        lane_bytes=4 * threads,
        two_lane_bytes=8 * threads,
    )


def aligned(count: int) -> ctypes.Array[ctypes.c_uint32]:
    """Return words that begin a line of 128 bytes."""
    whole = (ctypes.c_uint32 * (count + 32))()
    first = -ctypes.addressof(whole) % 128
    return (ctypes.c_uint32 * count).from_buffer(whole, first)


def run(
    body: str,
    a: Sequence[int] = (),
    b: Sequence[int] = (),
    c: Sequence[int] = (),
    *,
    threads: int = 64,
    limit: int = 100_000,
    backwards: bool = False,
    **given: object,
) -> tuple[list[int], list[int], LaunchCounts]:
    """v4 and v5 of each lane, from v1, v2 and v3; shorter inputs repeat."""
    words = [one[lane % len(one)] if one else 0 for one in (a, b, c) for lane in range(threads)]
    stored, counts = _launched(body, words, 2, threads, limit, backwards, **given)
    return stored[:threads], stored[threads:], counts


def run_words(
    body: str, inputs: Mapping[int, Sequence[int]], results: Sequence[int], *, target: str
) -> dict[int, list[int]]:
    """The words of vector registers after some lines, by register, from those of `inputs`."""
    lanes = 64 if target.startswith("gfx9") else 32
    load, store = (
        ("global_load_dword", "global_store_dword")
        if lanes == 64
        else ("global_load_b32", "global_store_b32")
    )
    before = [
        f"{load} v{register}, v0, s[4:5] offset:{4 * lanes * at}"
        for at, register in enumerate(inputs)
    ]
    after = [
        f"{store} v0, v{register}, s[6:7] offset:{4 * lanes * (2 + at)}"
        for at, register in enumerate(results)
    ]
    words = [word for one in inputs.values() for word in one]
    words += [0] * (3 * lanes - len(words))
    stored, _ = _launched(
        "\n".join([*before, body, *after]), words, 2 + len(results), lanes, 100_000, target=target
    )
    return {
        register: stored[lanes * (2 + at) : lanes * (3 + at)] for at, register in enumerate(results)
    }


def _launched(
    body: str,
    words: Sequence[int],
    stored: int,
    threads: int,
    limit: int,
    backwards: bool = False,
    **given: object,
) -> tuple[list[int], LaunchCounts]:
    """Run with the words at s[4:5]; return what lies at s[6:7], `stored` words of each lane."""
    text = text_of(body, threads=threads, **given)  # type: ignore[arg-type]
    kernel, placed = linked_kernel(text, "small")
    source, target = aligned(len(words)), aligned(stored * threads)
    source[:] = words
    memories = [LaunchMemory(ctypes.addressof(one), ctypes.sizeof(one)) for one in (source, target)]
    values = [("*i32", one.address) for one in memories]
    memories += placed.memories if placed is not None else []
    launch = KernelLaunch(
        kernel=kernel,
        grid=(1, 1, 1),
        threads=threads,
        shared_bytes=0,
        values=values,
        memories=memories,
    )
    counts = emulator(kernel.target).run(launch, limit=limit, backwards=backwards)
    return list(target), counts
