"""Constructs of HIP as people write them: each compiled in one unit, executed, held to numpy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import HipBinary, compile_whole, find_hip
from ratchet.amd.emulator import hip_runtime, linking
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.hip_loading import HipProgram
from ratchet.amd.profile import hip_interface
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.workers.candidate.results import ResultForm

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        find_tool("clang") is None or shutil.which("ld") is None or not find_hip().whole,
        reason="clang, HIP's headers (triton) or rocm-device-libs are not installed",
    ),
]
Values = NDArray[np.float64]
LANE = np.arange(64)
X = np.linspace(-4, 4, 64, dtype=np.float32)


def lanes(way: Callable[[int], int]) -> Callable[[Values], Values]:
    return lambda x: x[[way(i) for i in range(64)]]


def bits(count: Callable[[int, int], int]) -> Callable[[Values], Values]:
    return lambda _: np.array([count(i, 32) + count(i, 64) for i in range(64)], dtype=np.float64)


def eight(x: Values, first: torch.dtype, second: torch.dtype) -> Values:
    given = torch.from_numpy(x).float()
    return (given.to(first).float() + 8 * given.to(second).float()).double().numpy()


WITH_ITSELF = lanes(lambda i: i)
EXPECTED: dict[str, Callable[[Values], Values]] = {
    "expf": np.exp,
    "logf": lambda x: np.log(abs(x) + 1),
    "tanhf": np.tanh,
    "erff": np.vectorize(math.erf),
    "sinf": np.sin,
    "cosf": np.cos,
    "powf": lambda x: abs(x) ** 1.5,
    "rsqrtf": lambda x: (abs(x) + 1) ** -0.5,
    "log1pf": lambda x: np.log1p(abs(x)),
    "expm1f": np.expm1,
    "fast_exp": np.exp,
    "divide": lambda x: x / 3,
    "exp": np.exp,
    "sqrt": lambda x: np.sqrt(abs(x)),
    "overload": lambda x: np.exp(x) + np.maximum(x, 0),
    "fmod": lambda x: np.fmod(x, np.float64(np.float32(0.7))),
    "round": lambda x: np.sign(x) * np.floor(abs(x * 4) + 0.5),
    "hypot": lambda x: np.hypot(x, 1),
    "cbrt": np.cbrt,
    "isnan": lambda x: 0 * x + 4,
    "copysign": lambda x: np.copysign(2, x),
    "popc": bits(lambda i, _: i.bit_count()),
    "clz": bits(lambda i, width: width - i.bit_length()),
    "ffs": bits(lambda i, _: (i & -i).bit_length()),
    "brev": lambda _: np.array([int(f"{i:06b}"[::-1], 2) for i in range(64)], dtype=np.float64),
    "umulhi": lambda _: np.array([((i << 28) % 2**32 * 64) >> 32 for i in range(64)], float),
    "float_bits": WITH_ITSELF,
    "shfl": lanes(lambda i: i // 16 * 16 + 3),
    "shfl_down": lanes(lambda i: i + 2 if i % 8 < 6 else i),
    "shfl_up": lanes(lambda i: i - 1 if i % 16 else i),
    "shfl_xor": lanes(lambda i: i ^ 5),
    "shfl_double": lanes(lambda i: i ^ 1),
    "shfl_long": lambda _: (LANE ^ 1).astype(float),
    "shfl_half": lambda x: lanes(lambda i: i ^ 1)(x.astype(np.float16).astype(float)),
    "shfl_sync": lanes(lambda i: i ^ 1),
    "any": lambda x: 0 * x + 3,
    "half": lambda x: (x.astype(np.float16) + np.float16(0.5)).astype(float),
    "half_op": lambda x: (x.astype(np.float16) * np.float16(2)).astype(float),
    "half2": lambda x: (x.astype(np.float16) * np.float16(2) + np.float16(1)).astype(float),
    "bf16": lambda x: torch.from_numpy(x).to(torch.bfloat16).double().numpy(),
    "hexp": lambda x: np.exp(x.astype(np.float16).astype(float)).astype(np.float16).astype(float),
    "ldg": WITH_ITSELF,
    "constant": lambda x: x * 2.0 ** (LANE % 4),
    "device": lambda x: x + 0.5,
    "called": lambda x: x * x + 1,
    "float4": lambda x: x + x[LANE // 4 * 4 + 1],
    "assert": WITH_ITSELF,
    "printf": WITH_ITSELF,
    "static": WITH_ITSELF,
    "inside": lambda x: 21 * x + 20,
    "fp8": lambda x: eight(x, torch.float8_e4m3fn, torch.float8_e5m2fnuz),
    "fp8_fnuz": lambda x: eight(x, torch.float8_e4m3fnuz, torch.float8_e5m2),
    "coalesced": lambda _: np.array([i - i // 3 - 1 if i % 3 else -1 for i in range(64)], float),
    "groups": lambda _: np.array(
        [sum(range(i // 16 * 16, i + 1)) + i % 8 * 1000 + i * 100000 for i in range(64)], float
    ),
    "dynamic": lambda x: x[::-1],
    "atomics": lambda x: 0 * x + 64 + 64 + 63 + 255 + 32,
    "tiles": lambda _: (LANE // 16 * 256 + 120 + LANE % 16).astype(float),
    "block_reduce": lambda x: 0 * x + 2016,
    "block_scan": lambda _: np.cumsum(LANE).astype(float),
    "generic": lambda x: np.select([LANE % 3 == 0, LANE % 3 == 1], [x[LANE ^ 1], x + LANE % 2], x),
    "grid": lambda x: x + 138,
    "warp_scan": lambda _: np.array([sum(range(i // 32 * 32, i)) for i in range(64)], float),
    "wave_sum": lambda x: 0 * x + 2016,
    "block_items": lambda x: 100 + np.cumsum(x),
    "block_exclusive": lambda _: (
        (np.cumsum(LANE + 1) - LANE - 1 + 10000 * LANE + 63).astype(float)
        + np.where(LANE == 0, -5, LANE - 1)
    ),
    "block_exchange": lambda _: (LANE + 1000 * (64 + LANE)).astype(float),
    "block_sort": lambda x: x[np.argsort(-(LANE * 37 % 64))] + 100 * (31 - LANE),
    "block_arg": lambda x: 0 * x + 1500,
    "tuple": lambda x: 0.5 * x + 5,
    "device_max": lambda x: 0 * x + x.max(),
    "device_scan": lambda x: np.cumsum(x) - x,
    "device_sort": lambda x: np.sort(x)[::-1],
    "host": lambda x: 2 * x + 2,
}
ONE_WAVE: frozenset[str] = frozenset(("shfl_xor", "any", "coalesced", "wave_sum"))


@cache
def built(target: str, folder: Path) -> HipBinary:
    source = folder / "constructs.hip"
    source.write_text((Path(__file__).parent / "constructs.hip").read_text())
    (folder / "ratchet_abi.h").write_text(hip_interface())
    return compile_whole([source], ARCHITECTURES[target], [f"-I{source.parent}"])


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All constructs lie in one assembly text: it is taken apart once, and not for each."""
    monkeypatch.setattr(hip_runtime, "KernelTexts", cache(hip_runtime.KernelTexts))
    monkeypatch.setattr(linking, "device_variables", cache(linking.device_variables))


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_constructs_do_what_their_names_say(
    target: str,
    read_once: None,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = built(target, tmp_path_factory.mktemp(target))
    form = ResultForm(shape=(64,), dtype=torch.float32, device=torch.device("cpu"))
    wrong = {}
    for name, expected in EXPECTED.items():
        if target == "gfx1100" and name in ONE_WAVE:
            continue  # they speak of whole waves
        program = HipProgram(made.assembly, made.host, f"run_{name}", compiled_machine(target))
        try:
            (found,) = program(torch.from_numpy(X.copy()), (), [form], [])
        except Exception as error:
            wrong[name] = str(error)
            continue
        rule = 4e-3 if name in ("half2", "hexp") else 2e-6
        if not np.allclose(found.numpy(), expected(X.astype(np.float64)), rtol=rule, atol=1e-6):
            wrong[name] = f"{found.numpy()[:8]} and not {expected(X.astype(np.float64))[:8]}"
    assert not wrong
    assert capsys.readouterr().out == "".join(map(str, range(64)))
