"""Add the clock's prediction to the points that amd_clock.py reads.

    python benchmarks/amd/amd_clock_rows.py FOLDER OUT [--hip FOLDER] [--aiter FOLDER]
        [--only NAME] [--points N]

FOLDER holds `KIND_DEVICE.jsonl` as amd_clock.py describes them, each point with its `cfg`. The
kernels' sources are others': for `conv` and `ded` --hip names cache_scripts in a checkout of
github.com/MiloLurati/AutoTuning_AMD_vs_Nvidia_GPUs, for `gemm` --aiter one of
github.com/ROCm/aiter.
Each kernel is compiled with the point's values, a sample of its workgroups is executed on zeros,
and `predicted_s` and `clock_cpu_s` (CPU time of the prediction alone) are written with the point
into OUT. Points that are kept for an exam are left as they are.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton
from amd_clock import EXAM, device_of, is_kept_back
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.hip_compiler import bitcode_options, checked, shared_options, whole_hip
from ratchet.amd.emulator.clock import Played, played
from ratchet.amd.emulator.decode import decode
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.launch import Emulator, KernelLaunch, LaunchMemory
from ratchet.amd.emulator.linking import KernelTexts, PlacedVariables, linked

FILES = {
    "conv": ("convolution/convolution.cu.hip", "convolution_kernel"),
    "ded": ("dedisp/dedispersion.cu.hip", "dedispersion_kernel"),
}
MEASURES, SAMPLES, CHANNELS, SHIFT = 2048, 25000, 1536, 650


def assembly(row: Mapping[str, Any], sources: Path) -> str:
    """Return the assembly of a point's kernel."""
    architecture, tools = ARCHITECTURES[row["target"]], whole_hip()
    original = sources / FILES[row["kind"]][0]
    macros = [f"-D{name}={value}" for name, value in row["cfg"].items() if "time" not in name]
    shared = shared_options(tools, architecture, with_torch=False, precompiled=None)
    text = original.read_text()
    for name, value in row["cfg"].items():
        if name.startswith("loop_unroll_factor") and value == 0:  # to Kernel Tuner: no pragma
            text = text.replace(f"#pragma unroll {name}", "")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / original.name, Path(folder) / "kernel.s"
        source.write_text(text)
        checked(
            [
                *(tools.clang, "--offload-device-only", "-O3", "-S", "-o", str(made)),
                *(
                    *bitcode_options(tools, architecture),
                    *shared,
                    *macros,
                    f"-I{original.parent}",
                    str(source),
                ),
            ],
            architecture,
        )
        return made.read_text()


def shifts() -> np.ndarray[Any, Any]:
    """Return the delay of each channel, in samples for one unit of the measure.

    The dispersion delay of 4,148.808 s MHz^2 at 1,425 MHz and above, channels of 0.1953125 MHz.
    """
    low, width = 1425.0, 0.1953125
    top = low + (CHANNELS - 1) * width
    frequencies = low + np.arange(CHANNELS) * width
    found = 4148.808 * (frequencies**-2.0 - top**-2.0) / 0.00004096
    found[-1] = 0
    return found.astype(np.float32)


def tensors(kind: str) -> list[np.ndarray[Any, Any]]:
    """Return the arguments of a kernel."""
    if kind == "conv":
        output, given = np.zeros(4096**2, np.float32), np.zeros(4110**2, np.float32)
        return [output, given, np.zeros(225, np.float32)]
    given = np.zeros(CHANNELS * (SAMPLES + SHIFT), np.uint8)
    return [given, np.zeros(MEASURES * SAMPLES, np.float32), shifts()]


PRODUCT = "aiter/ops/triton/_triton_kernels/gemm/basic/gemm_a16w16.py"
PROGRAMS = "aiter/ops/triton/utils/_triton/pid_preprocessing.py"


def _module(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@functools.cache
def product_kernel(aiter: Path) -> Any:
    """Return aiter's Triton kernel of 16-bit products, without the rest of its package."""
    base = "aiter.ops.triton.utils"
    stubs = {
        f"{base}._triton.kernel_repr": {"make_kernel_repr": lambda *_: None},
        f"{base}.gemm_config_utils": {"compute_splitk_params": None, "get_gemm_config": None},
    }
    for name, members in stubs.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    _module(aiter / PROGRAMS, f"{base}._triton.pid_preprocessing")
    found = _module(aiter / PRODUCT, "aiter_product")._gemm_a16_w16_kernel
    while not hasattr(found, "arg_names") or hasattr(found, "values"):
        found = found.fn
    return found


def compiled_product(row: Mapping[str, Any], kernel: Any) -> tuple[str, int, dict[str, Any]]:
    """Return the assembly of a product's kernel, its LDS bytes, and its arguments by name."""
    config, (m, n, k) = dict(row["cfg"]), (row["M"], row["N"], row["K"])
    options = {
        name: config.pop(name)
        for name in ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
    }
    config["SPLITK_BLOCK_SIZE"] = -(-k // config["NUM_KSPLIT"])
    constants = config | {
        "EVEN_K": k % config["SPLITK_BLOCK_SIZE"] == 0
        and config["SPLITK_BLOCK_SIZE"] % config["BLOCK_SIZE_K"] == 0,
        "EVEN_MN": m % config["BLOCK_SIZE_M"] == 0 and n % config["BLOCK_SIZE_N"] == 0,
        "activation": "", "use_activation": False, "ADD_BIAS": bool(row["bias"]),
        "SKIP_REDUCE": False,
    }  # fmt: skip
    numbers = {
        "M": m, "N": n, "K": k, "stride_am": k, "stride_ak": 1, "stride_bk": 1, "stride_bn": k,
        "stride_ck": 0, "stride_cm": n, "stride_cn": 1,
    }  # fmt: skip
    ones = [name for name in numbers if numbers[name] == 1]
    pointers = ("a_ptr", "b_ptr", "bias_ptr", "c_ptr")
    kinds = dict.fromkeys(pointers, "*bf16") | dict.fromkeys(numbers, "i32")
    given = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    given |= dict.fromkeys(ones, "constexpr")
    fixed = {(kernel.arg_names.index(name),): 1 for name in ones}
    fixed |= {
        (at,): constants[name] for at, name in enumerate(kernel.arg_names) if name in constants
    }
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(kernel.arg_names)
        if name in pointers or (name not in "MN" and numbers.get(name, 1) % 16 == 0)
    }
    source = ASTSource(fn=kernel, signature=given, constexprs=fixed, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("hip", row["target"], 64), options=options)
    left = {name: value for name, value in numbers.items() if name not in ones}
    return made.asm["amdgcn"], int(made.metadata.shared), left


def predict_product(row: Mapping[str, Any], device: str, aiter: Path) -> tuple[Played, float]:
    """Return the prediction of a product, and the CPU time that it took."""
    kernel = product_kernel(aiter)
    text, shared, numbers = compiled_product(row, kernel)
    decoded = decode(text)
    m, n, k = row["M"], row["N"], row["K"]
    sizes = {"a_ptr": m * k, "b_ptr": n * k, "bias_ptr": n, "c_ptr": m * n}
    arrays = {name: np.zeros(size + 64, np.uint16) for name, size in sizes.items()}
    values: list[tuple[str, int]] = []
    for name in kernel.arg_names:
        if name in arrays:
            values.append(("*bf16", int(arrays[name].ctypes.data)))
        elif name in numbers:
            values.append(("i32", numbers[name]))
    launch = KernelLaunch(
        kernel=decoded, grid=(row["grid"], 1, 1), threads=row["threads"], shared_bytes=shared,
        values=values,
        memories=[LaunchMemory(int(one.ctypes.data), one.nbytes) for one in arrays.values()],
    )  # fmt: skip
    return timed(launch, row, device)


def timed(launch: KernelLaunch, row: Mapping[str, Any], device: str) -> tuple[Played, float]:
    """Return a launch's prediction, and the CPU time that it took."""
    emulator = Emulator(compiled_machine(row["target"]))
    began = time.process_time()
    found = played(emulator, launch, device_of(device), row["instr"] / launch.waves)
    assert found is not None
    return found, time.process_time() - began


def predict(row: Mapping[str, Any], device: str, sources: Path) -> tuple[Played, float]:
    """Return a HIP kernel's prediction, and the CPU time that it took."""
    text = assembly(row, sources)
    texts = KernelTexts(text)
    name = next(one for one in texts.names if FILES[row["kind"]][1] in one)
    variables = PlacedVariables(text)
    kernel = decode(linked(texts.of(name), variables))
    config, arrays = row["cfg"], tensors(row["kind"])
    across, down = config["block_size_x"], config["block_size_y"]
    sizes = (4096, 4096) if row["kind"] == "conv" else (SAMPLES, MEASURES)
    grid = tuple(
        -(-size // (block * config[f"tile_size_{axis}"]))
        for size, block, axis in zip(sizes, (across, down), "xy", strict=True)
    )
    launch = KernelLaunch(
        kernel=kernel, grid=(*grid, 1), threads=row["threads"], shared_bytes=0,
        sides=(across, down), values=[("*u8", int(one.ctypes.data)) for one in arrays],
        memories=[LaunchMemory(int(one.ctypes.data), one.nbytes) for one in arrays]
        + list(variables.memories),
    )  # fmt: skip
    return timed(launch, row, device)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hip", type=Path)
    parser.add_argument("--aiter", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--points", type=int, default=10**6)
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    for path in sorted(given.folder.glob(f"{given.only or '*'}.jsonl")):
        kind, _, device = path.stem.partition("_")
        sources = given.aiter if kind == "gemm" else given.hip
        if sources is None or path.stem in EXAM:
            continue
        with (given.out / path.name).open("w") as out:
            for line in path.read_text().splitlines()[: given.points]:
                row = json.loads(line)
                if is_kept_back(row):
                    print(line, file=out)
                    continue
                run = predict_product if kind == "gemm" else predict
                found, cpu_s = run(row, device, sources)
                row |= {"predicted_s": found.time_s, "clock_cpu_s": cpu_s, "hits": found.hits}
                print(json.dumps(row), file=out, flush=True)
                said = f"{row['us']:.0f} us published, {found.time_s * 1e6:.0f} predicted"
                print(f"{path.stem}: {said}, {cpu_s:.1f} s of CPU, hits {found.hits}", flush=True)


if __name__ == "__main__":
    main()
