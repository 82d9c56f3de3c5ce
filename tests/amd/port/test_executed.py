"""What the port makes of warps of 32 lanes, executed by the emulator on waves of 64 and of 32."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

pytest.importorskip("tree_sitter_cuda", reason="tree-sitter is not installed")

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import HipBinary, build_small, find_hip
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.hip_loading import HipProgram
from ratchet.amd.port.patch import edited
from ratchet.amd.port.scan import scan
from ratchet.amd.profile import hip_interface
from ratchet.judge.sandbox.rocm import find_tool

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_tool("clang") is None or shutil.which("ld") is None, reason="clang is not installed"
    ),
]
THREADS = 128
SOURCE = Path(__file__).parent / "wave_bugs.cu"
KERNELS = re.findall(r"__global__ void (\w+)", SOURCE.read_text())
HIP = r"""
#include <hip/hip_runtime.h>
#include "ratchet_abi.h"
#define __HIP_PLATFORM_AMD__ 1
#define WAVE __builtin_amdgcn_wavefrontsize()
#define ON_GPU static inline __device__ __attribute__((always_inline))
ON_GPU unsigned __lane_id() { return ratchet_lane(); }
ON_GPU int __popc(unsigned x) { return __builtin_popcount(x); }
ON_GPU int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
ON_GPU int __ffs(unsigned x) { return __builtin_ffs(x); }
ON_GPU unsigned long long __ballot(int p) { return BALLOT(p); }
ON_GPU unsigned long long __activemask() { return __ballot(1); }
// As amd_warp_functions.h and amd_warp_sync_functions.h of ROCm 7.1 have them.
#define SYNC(name, LANE)                                                           \
  template <typename T>                                                            \
  ON_GPU T name(unsigned long long, T v, int by, int width = WAVE) {               \
    const int lane = ratchet_lane(), first = lane & ~(width - 1);                  \
    (void)first;                                                                   \
    return __shfl(v, LANE);                                                        \
  }
SYNC(__shfl_sync, first + (by & (width - 1)))
SYNC(__shfl_down_sync, lane - first + by >= width ? lane : lane + by)
SYNC(__shfl_up_sync, lane - by < first ? lane : lane - by)
SYNC(__shfl_xor_sync, (lane ^ by) >= first + width ? lane : lane ^ by)
ON_GPU unsigned long long __ballot_sync(unsigned long long mask, int p) {
  return __ballot(p) & mask;
}
ON_GPU int __any_sync(unsigned long long mask, int p) { return __ballot_sync(mask, p) != 0; }
ON_GPU int __all_sync(unsigned long long mask, int p) { return __ballot_sync(mask, p) == mask; }
ON_GPU unsigned long long __match_any(int v) {
  unsigned long long same = 0;
  for (int lane = 0; lane < (int)WAVE; lane++)
    same |= (unsigned long long)(__shfl(v, lane) == v) << lane;
  return same;
}
ON_GPU unsigned long long __match_any_sync(unsigned long long mask, int v) {
  return __match_any(v) & mask;
}
"""
ENTRY = """
RATCHET_ENTRY run_{name}(const ratchet_tensor* t, int64_t, const double*, int64_t) {{
  {name}<<<1, 128>>>((const float*)t[0].data, (float*)t[1].data);
  return RATCHET_DONE;
}}
"""


@dataclass(frozen=True)
class Result:
    """The form of what a kernel gives."""

    dtype: torch.dtype = torch.float32

    def empty(self) -> torch.Tensor:
        return torch.empty(THREADS, dtype=self.dtype)


@cache
def built(folder: Path, target: str, ported: bool) -> HipBinary:
    """Compile the kernels, with an entry for each, as they stand or ported."""
    (scanned,) = scan(SOURCE)
    text = edited(scanned).decode() if ported else SOURCE.read_text()
    wide = ARCHITECTURES[target].wavefront_size
    ballot = f"-DBALLOT=__builtin_amdgcn_ballot_w{wide}"
    (folder / "ratchet_abi.h").write_text(hip_interface())
    source = folder / f"{target}_{ported}.hip"
    source.write_text(HIP + text + "".join(ENTRY.format(name=name) for name in KERNELS))
    return build_small(find_hip(), source, ARCHITECTURES[target], [ballot])


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    folder = tmp_path_factory.mktemp("hip")

    def run(name: str, target: str, *, ported: bool) -> torch.Tensor:
        made = built(folder, target, ported)
        program = HipProgram(made.assembly, made.host, f"run_{name}", compiled_machine(target))
        (y,) = program(values(), (), [Result()], ())
        return y

    return run


def values() -> torch.Tensor:
    return torch.arange(THREADS, dtype=torch.float32).mul(7).remainder(11) - 5


def as_cuda(name: str) -> torch.Tensor:
    """Return what 32 lanes give, as CUDA defines it."""
    x = values().reshape(-1, 32)
    lane = torch.arange(32)
    votes = (x > 0).float()
    one = torch.ones_like(x)
    first_half = lane < 16
    same = (x.int()[:, :, None] == x.int()[:, None, :]).float()
    given = {
        "broadcast": lambda: x[:, :1] * one,
        "rotate": lambda: x[:, (lane + 1) % 32],
        "shift_down": lambda: x[:, torch.where(lane + 8 < 32, lane + 8, lane)],
        "shift_up": lambda: x[:, torch.where(lane >= 8, lane - 8, lane)],
        "inclusive_scan": lambda: x.cumsum(1) + 100 * x.sum(1, keepdim=True),
        "count_votes": lambda: votes.sum(1, keepdim=True) * one,
        "rank_of_votes": lambda: votes.cumsum(1) - votes,
        "any_in_second_warp": lambda: (torch.arange(4)[:, None] == 1) * one,
        "all_in_first_warp": lambda: (torch.arange(4)[:, None] == 0) * one,
        "all_of_half_a_wave": lambda: (torch.arange(4)[:, None] == 3) * one,
        "active_lanes": lambda: votes * votes.sum(1, keepdim=True),
        "first_active": lambda: torch.where(
            (lane >= 5) & (torch.arange(4)[:, None] % 2 == 1), 5, -1
        ),
        "masked_sum": lambda: (x * first_half).sum(1, keepdim=True) * first_half * one,
        "same_keys": lambda: same.sum(2),
        "first_of_key": lambda: same.argmax(2) * one,
        "aggregated_add": lambda: torch.where(x > 0, votes.cumsum(1) - votes, -1),
        "through_a_template": lambda: (x[:, 3:4] + x[:, 4:5]) * one,
        "through_a_macro": lambda: x[:, 7:8] * one,
        "last_lane_of_votes": lambda: (votes * lane).amax(1, keepdim=True) * one,
        "neighbours": lambda: x[:, (lane - 1).clamp(0)] + 10 * x[:, (lane + 1).clamp(max=31)],
        "block_sum": lambda: x.sum() + 1000 * x.sum(1, keepdim=True) * one,
    }
    return given[name]().flatten().float()


@pytest.mark.parametrize("name", KERNELS)
def test_a_bug_of_waves_is_found_by_execution_and_mended_by_the_port(
    executed: Callable[..., torch.Tensor], name: str
) -> None:
    right = as_cuda(name)
    assert not torch.allclose(executed(name, "gfx942", ported=False), right, equal_nan=True)
    for target in ("gfx942", "gfx1100"):
        torch.testing.assert_close(executed(name, target, ported=True), right)
    torch.testing.assert_close(executed(name, "gfx1100", ported=False), right)
