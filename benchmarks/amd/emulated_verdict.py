"""Measure the seconds of CPU that emulated verdicts on tiny kernels take.

    python benchmarks/amd/emulated_verdict.py [--kinds triton,hip,load_inline] [--target gfx942]
                                          [--repeats 1]

Each kind is judged as `ratchet judge problem.py KERNEL --target GFX` four ways: `cold`, with a
source that no cache has seen; `warm`, the same source judged again with `--fresh`; `again`, the
same command without `--fresh`, which the ledger may answer; and `further`, each cold source after
the first in one command. The figures are the CPU seconds of the
whole process tree, taken from a control group of its own (cpuacct or version 2) where one can be
made, otherwise from getrusage, to which every orphan is left. They need no quiet machine; the wall
seconds beside them do. What is compiled once for a target (the emulator, torch's headers) is
compiled beforehand. With several repeats the median is shown. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ratchet.base.process import families

NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
"""With it, every process compiles Ratchet's files anew; an installed package holds bytecode."""
PROBLEM: Final = """
from ratchet import Case, Problem, TensorSpec

def reference(a, b, scalars):
    return (a + b,)

PROBLEM = Problem(name="added", reference="reference", cases=(
    Case(name="rows", timed=True, inputs=(
        TensorSpec(shape=(4, 96), dtype="float32"), TensorSpec(shape=(4, 96), dtype="float32"))),
    Case(name="odd", hidden=True, inputs=(
        TensorSpec(shape=(3, 77), dtype="float32"), TensorSpec(shape=(3, 77), dtype="float32"))),
))
"""
TRITON: Final = """
import torch
import triton
import triton.language as tl

@triton.jit
def add_kernel(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = at < n
    tl.store(y + at, tl.load(a + at, kept) + tl.load(b + at, kept), kept)

def added(a, b, scalars):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    add_kernel[(triton.cdiv(a.numel(), 256),)](a, b, y, a.numel(), BLOCK=256)
    return (y,)
"""
HIP: Final = """
#include <hip/hip_runtime.h>
#include "ratchet_abi.h"

__global__ void add(const float* a, const float* b, float* y, long n) {
  long at = blockIdx.x * 256L + threadIdx.x;
  if (at < n) y[at] = a[at] + b[at];
}

RATCHET_ENTRY added(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  int64_t n = ratchet_numel(&t[0]);
  add<<<(unsigned)((n + 255) / 256), 256>>>(
      (const float*)t[0].data, (const float*)t[1].data, (float*)t[2].data, n);
  return RATCHET_DONE;
}
"""
EXTENSION: Final = """
__global__ void add(const float* a, const float* b, float* y, int n) {
  int at = blockIdx.x * 256 + threadIdx.x;
  if (at < n) y[at] = a[at] + b[at];
}

torch::Tensor added(torch::Tensor a, torch::Tensor b) {
  a = a.contiguous();
  b = b.contiguous();
  auto y = torch::empty_like(a);
  int n = a.numel();
  add<<<(n + 255) / 256, 256>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
CUDA: Final = f"""
#include <torch/extension.h>
#include <cuda_runtime.h>
{EXTENSION}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("added", &added); }}
"""
LOAD_INLINE: Final = f'''
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>
#include <cuda_runtime.h>
{EXTENSION}"""
built = load_inline(
    name="own",
    cpp_sources="torch::Tensor added(torch::Tensor a, torch::Tensor b);",
    cuda_sources=source,
    functions=["added"],
)

def added(a, b, scalars):
    return (built.added(a, b),)
'''


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of kernel: its file's name, its text, and how a comment begins in it."""

    file: str
    text: str
    comment: str


MARK: Final = "// MARK"
"""Stands for a comment of its own in a text whose first line is no place for one."""
FURTHER: Final = 2
"""Kernels that are judged in one command after the first."""
KINDS: Final = {
    "triton": Kind("added.py", TRITON, "#"),
    "hip": Kind("added.hip", HIP, "//"),
    "cu": Kind("added.cu", CUDA, "//"),
    "load_inline": Kind("added.py", LOAD_INLINE.replace('"""\n#', f'"""\n{MARK}\n#'), "//"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """CPU and wall seconds of a command, and the statuses that it told."""

    cpu_s: float
    wall_s: float
    told: str


def median(rows: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(
        cpu_s=round(statistics.median(one.cpu_s for one in rows), 2),
        wall_s=round(statistics.median(one.wall_s for one in rows), 2),
        told=rows[-1].told,
    )


@contextlib.contextmanager
def group() -> Iterator[Path | None]:
    """Yield the file with the CPU time of a new control group that holds this process, or None."""
    for root, name in (("/sys/fs/cgroup/cpuacct", "cpuacct.usage"), ("/sys/fs/cgroup", "cpu.stat")):
        own = Path(root) / f"ratchet-verdict-{os.getpid()}"
        try:
            own.mkdir()
        except OSError:
            continue
        try:
            if (own / name).exists():
                (own / "cgroup.procs").write_text(str(os.getpid()))
                yield own / name
                return
        finally:
            with contextlib.suppress(OSError):
                (Path(root) / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):
                own.rmdir()
    yield None


def used_s(usage: Path | None) -> float:
    """Return the CPU seconds that were used so far, without this process's own."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    if usage is None:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime
    text = usage.read_text()
    if usage.name == "cpu.stat":
        total = int(text.split()[1]) / 1e6
    else:
        total = int(text) / 1e9
    return total - own.ru_utime - own.ru_stime


def judged(words: list[str], usage: Path | None) -> Figures:
    """Run one command; return its figures."""
    before, began = used_s(usage), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "judge", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != NO_BYTECODE},
    )
    wall_s = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):  # orphans of the command, such as its watchdog
        while os.waitpid(-1, 0)[0]:
            pass
    if not done.stdout:
        raise SystemExit(f"judge {' '.join(words)} answered nothing: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    statuses = [
        one["status"] + (" (recalled)" if one["recalled"] else "")
        for one in found.get("verdicts", [found])
    ]
    return Figures(
        cpu_s=used_s(usage) - before, wall_s=wall_s, told=", ".join(sorted(set(statuses)))
    )


def measure(kind: Kind, target: str, folder: Path, usage: Path | None) -> dict[str, Figures]:
    """Judge one kind in the four ways."""
    problem = folder / "problem.py"
    problem.write_text(PROBLEM)
    more = ["--target", target, "--out", str(folder / "out")]
    more += ["--ledger", f"sqlite:///{folder}/ledger.db"]

    def ran(kernels: list[Path], *words: str) -> Figures:
        return judged([str(problem), *map(str, kernels), *more, *words], usage)

    first = written(kind, folder, 0)
    found = {"cold": ran([first]), "warm": ran([first], "--fresh"), "again": ran([first])}
    others = ran([written(kind, folder, at) for at in range(1, 2 + FURTHER)])
    cold = found["cold"]
    found["further"] = Figures(
        cpu_s=(others.cpu_s - cold.cpu_s) / FURTHER,
        wall_s=(others.wall_s - cold.wall_s) / FURTHER,
        told=others.told,
    )
    return found


def written(kind: Kind, folder: Path, number: int) -> Path:
    """Write the kernel as a text that no cache has seen; return its file."""
    mark = f"{kind.comment} {secrets.token_hex(8)}"
    text = kind.text.replace(MARK, mark) if MARK in kind.text else f"{mark}\n{kind.text}"
    path = folder / str(number) / kind.file
    path.parent.mkdir()
    path.write_text(text)
    return path


def main() -> None:
    """Print a line for each kind, and one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    families.adopt_orphans()
    found: dict[str, dict[str, Figures]] = {}
    with group() as usage, tempfile.TemporaryDirectory() as place:
        for name in given.kinds.split(","):
            rows = []
            for at in range(given.repeats):
                folder = Path(place) / f"{name}-{at}"
                folder.mkdir()
                rows.append(measure(KINDS[name], given.target, folder, usage))
            found[name] = {how: median([row[how] for row in rows]) for how in rows[0]}
            told = ", ".join(
                f"{how} {one.cpu_s} s of CPU in {one.wall_s} s ({one.told})"
                for how, one in found[name].items()
            )
            print(f"{name}: {told}", flush=True)
    kinds = {name: {how: asdict(one) for how, one in row.items()} for name, row in found.items()}
    print(json.dumps({"target": given.target, "by": str(usage and usage.name), "kinds": kinds}))


if __name__ == "__main__":
    main()
