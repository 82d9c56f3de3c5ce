"""Run whole public CUDA programs with their kernels emulated, and see whether they say "right".

    python benchmarks/amd/port_programs.py FOLDER [--target gfx942] [--only TEXT] [--limit 60]

FOLDER holds the trees by `owner+name`. Each program checks its own numbers against the CPU: its
words tell, or its exit code where it asserts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

ARCH = "CoffeeBeforeArch+cuda_programming"
SAMPLES = "NVIDIA+cuda-samples/Samples/0_Introduction"
BLOG = "NVIDIA-developer-blog+code-samples"
DONE = "COMPLETED SUCCESSFULLY|COMPLETED SUCCESFULLY"
PROGRAMS = (
    (f"{ARCH}/01_vector_addition/baseline/vectorAdd.cu", DONE),
    (f"{ARCH}/01_vector_addition/pinned_memory/vectorAdd_pinned.cu", DONE),
    (f"{ARCH}/01_vector_addition/unified_memory/vectorAdd_um_baseline.cu", DONE),
    (f"{ARCH}/03_sum_reduction/diverged/sumReduction.cu", DONE),
    (f"{ARCH}/03_sum_reduction/no_confliicts/sumReduction.cu", DONE),
    (f"{ARCH}/03_sum_reduction/cooperative_groups/sumReduction.cu", DONE),
    (f"{ARCH}/04_histogram/shmem_atomic/histogram.cu", ""),
    (f"{ARCH}/05_convolution/1d_constant_memory/convolution.cu", DONE),
    (f"{ARCH}/05_convolution/1d_tiled/convolution.cu", DONE),
    (f"{ARCH}/05_convolution/2d_constant_memory/convolution.cu", DONE),
    (f"{SAMPLES}/vectorAdd/vectorAdd.cu", "Test PASSED"),
    (f"{SAMPLES}/simpleTemplates/simpleTemplates.cu", "Test Results: 0 Failures"),
    (
        f"{SAMPLES}/simpleAtomicIntrinsics/simpleAtomicIntrinsics.cu",
        "completed, returned OK",
        "simpleAtomicIntrinsics_cpu.cpp",
    ),
    (f"{SAMPLES}/simpleVoteIntrinsics/simpleVoteIntrinsics.cu", "OK|Passed|PASS"),
    (f"{SAMPLES}/template/template.cu", "Processing time", "template_cpu.cpp"),
    ("olcf+cuda-training-series/exercises/hw2/stencil_1d_solution.cu", "Success"),
    ("olcf+cuda-training-series/exercises/hw1/vector_add_solution.cu", r"C\[0\] = "),
    (f"{BLOG}/series/cuda-cpp/finite-difference/finite-difference.cu", "RMS error"),
)
WRONG = re.compile(r"\bFAIL(ED)?\b|\bmismatch|CUDA error|wrong|\bnan\b", re.IGNORECASE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each program")
    asked = parser.parse_args()
    right, rows = 0, []
    for name, words, *more in PROGRAMS:
        source = asked.folder / name
        if asked.only not in name or not source.is_file():
            continue
        command = [sys.executable, "-m", "ratchet", "emulate", "--target", asked.target]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "--json", "--", source.name, *more],
                cwd=source.parent,
                capture_output=True,
                text=True,
                timeout=asked.limit,
            )
            said, code = done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            said, code = "over the limit", 124
        ok = code == 0 and re.search(words, said) is not None and not WRONG.search(said)
        right += ok
        last = (said.strip().splitlines() or [""])[-1][:90]
        rows.append({"program": name, "right": ok, "exit_code": code})
        print(f"{'right' if ok else 'not':5} {time.perf_counter() - began:5.1f} s {name}: {last}")
        sys.stdout.flush()
    print(json.dumps({"target": asked.target, "right": right, "programs": len(rows), "rows": rows}))


if __name__ == "__main__":
    main()
