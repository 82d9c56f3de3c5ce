"""Settings of a training step, which levers change and recipes store.

A new setting is a field of `StepConfig` with its `StepSetting`, and a lever that sets it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta

from ratchet.base.files import cache_folder
from ratchet.base.show.words import counted

# Effects of settings on the step's process: its environment at start, and calls once it runs.

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # Numbers of mallopt(3)'s parameters, from glibc's malloc.h
MALLOPT = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1))
"""Settings that disable mmap and trimming, so the next step reuses pages that are already mapped.

M_MMAP_THRESHOLD does not work here: glibc refuses values above 32 MiB. M_ARENA_MAX is unchanged,
because one arena for forward and backward threads made a step 6 to 27 % slower.
"""
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_FILES = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
}


def find_library(name: str) -> Path | None:
    """Return the shared library of `jemalloc` or `tcmalloc`, or None if it is not installed."""
    places = (Path(folder) / file for folder in _FOLDERS for file in _FILES[name])
    return next((path for path in places if path.exists()), None)


def allocator_variables(allocator: str) -> dict[str, str]:
    """Return the variables that preload an allocator, or let a GPU's segments grow."""
    if allocator == "expandable":
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    library = find_library(allocator) if allocator in _FILES else None
    return {} if library is None else {"LD_PRELOAD": str(library)}


def keep_freed_memory() -> bool:
    """Tell glibc to keep large freed blocks instead of returning them; False without glibc."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in MALLOPT)


# Functions of a setting have names: a lambda in an annotation sees no global of this module.
def enter_allocator(kind: str, _: StepConfig) -> None:
    if kind == "mallopt":
        keep_freed_memory()


def pin(affinity: bool, config: StepConfig) -> None:
    """Pin the process to its first `threads` allowed cores, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        return
    import psutil

    allowed = sorted(os.sched_getaffinity(0))
    psutil.Process().cpu_affinity(allowed[: config.threads or len(allowed)])


def how_many_kernels(names: Sequence[str]) -> str:
    return counted(len(names), "kernel")


def enter_threads(threads: int, config: StepConfig) -> None:
    import torch

    torch.set_num_threads(threads)


def enter_matmul_precision(precision: str, config: StepConfig) -> None:
    import torch

    torch.set_float32_matmul_precision(precision)


def matmul_library_variables(library: str) -> dict[str, str]:
    """Return the variables that choose hipBLASLt, or time every kernel with TunableOp.

    TunableOp's results lie in Ratchet's cache, so that each shape is tuned once. torch adds the
    device number to the file name. It discards the results if the version of torch, ROCm, rocBLAS
    or hipBLASLt has changed (torch.cuda.tunable).
    """
    if library == "hipblaslt":
        return {"TORCH_BLAS_PREFER_HIPBLASLT": "1"}

    folder = cache_folder("tunableop")
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "PYTORCH_TUNABLEOP_ENABLED": "1",
        "PYTORCH_TUNABLEOP_TUNING": "1",
        "PYTORCH_TUNABLEOP_FILENAME": str(folder / "tunableop_results.csv"),
    }


Precision = Literal["fp32", "bf16_autocast", "bf16_master"]
"""Weights and arithmetic of a step.

`fp32` is plain fp32. `bf16_autocast` keeps fp32 weights and casts them at each use. `bf16_master`
is autocast that reads weights of two or more dimensions as bf16 everywhere, so activations are bf16
from the embedding on; the parameters themselves are the fp32 masters.
"""

OwnPrecision = Literal["bf16", "fp16", "fp64"]
"""The dtype that a model's parameters have from the start; nothing is cast."""

AUTOCAST: Final = ("bf16_autocast", "bf16_master")
"""Precisions whose forward pass runs in torch.autocast."""

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]  # Modes of torch.compile
REPLAYING: Final = ("reduce-overhead", "max-autotune")
"""Those that replay CUDA or HIP graphs on a GPU."""
OptimizerKind = Literal["as_written", "fused", "kernel"]
AttentionBackend = Literal["default", "flash", "efficient", "cudnn", "math"]
MatmulPrecision = Literal["highest", "high", "medium"]
Products = Literal["own", "fp8"]
"""`fp8` multiplies the linear layers but the head in fp8 (`fp8_products`)."""
Allocator = Literal["default", "mallopt", "jemalloc", "tcmalloc", "expandable"]
"""`expandable` lets the segments of a GPU's memory grow (torch's `expandable_segments`)."""
Logits = Literal["whole", "chunked"]
"""`chunked` computes the last linear layer and its cross-entropy together, by chunks of tokens."""
MatmulLibrary = Literal["default", "hipblaslt", "tunableop"]
"""The matrix-product library under ROCm. `tunableop` times the kernels of rocBLAS and hipBLASLt."""

Checkpointing = Annotated[str, Meta(pattern=r"^(none|selective|blocks:[1-9][0-9]*|plan:[nsfo]+)$")]
"""Recomputed blocks.

`none` recomputes nothing. `blocks:K` recomputes one block of every K, so `blocks:1` recomputes all.
`selective` keeps the outputs of matrix products and attention in every block and recomputes the
rest. `plan:ffsn` names each block's choice, as `ratchet memory` plans it: n none, s selective, f
all of it; o offloads what is saved to the host's memory.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSetting:
    """The meaning of a field of StepConfig that differs from its default.

    `variables` must be in the environment when the process starts. `enter` gets the value and the
    whole config once the process runs, and `inductor` is an option that is switched on there.
    """

    words: Callable[[Any], str] = lambda value: ""
    """Returns how a candidate's title names a value; empty if it does not."""
    variables: Callable[[Any], Mapping[str, str]] = lambda value: {}
    enter: Callable[[Any, StepConfig], object] | None = None
    inductor: str = ""
    in_graphs: bool = True  # False if torch.compile generates the same code for every value
    not_in_scripts: str = ""
    """Why it would change the meaning of a script, which then runs without it."""


class StepConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one training step; frozen, hashable, and stored in recipes.

    The defaults are a plain eager fp32 step. A field's `StepSetting` says what its other values do
    to the step's process; a field without one acts in `ratchet.train.workloads.step`.
    """

    precision: Precision | OwnPrecision = "fp32"
    compile_mode: CompileMode | None = None
    optimizer: Annotated[
        OptimizerKind,
        StepSetting(
            words=lambda kind: "kernel AdamW" if kind == "kernel" else f"{kind} optimizer",
            in_graphs=False,
        ),
    ] = "as_written"
    attention: AttentionBackend = "default"
    checkpointing: Checkpointing = "none"
    logits: Annotated[Logits, StepSetting(words=lambda kind: f"{kind} logits")] = "whole"
    update_in_backward: Annotated[
        bool,
        StepSetting(
            words=lambda _: "updates in backward",
            in_graphs=False,
            not_in_scripts="a script may read, clip or add up gradients after its backward pass",
        ),
    ] = False
    """Each parameter is updated as soon as it has its gradient, which is then freed."""
    micro_batches: Annotated[
        int,
        Meta(ge=1),
        StepSetting(
            words=lambda parts: f"{parts} micro-batches",
            not_in_scripts="a script cuts its batches itself; give it smaller ones and accumulate",
        ),
    ] = 1
    """Equal parts of each batch, one after the other; their gradients are averaged."""
    kernels: Annotated[tuple[str, ...], StepSetting(words=how_many_kernels)] = ()
    allocator: Annotated[
        Allocator,
        StepSetting(
            words=str,
            in_graphs=False,
            variables=allocator_variables,
            enter=enter_allocator,
        ),
    ] = "default"
    huge_pages: Annotated[
        bool,
        StepSetting(
            words=lambda _: "huge pages",
            in_graphs=False,
            variables=lambda _: {"THP_MEM_ALLOC_ENABLE": "1"},
        ),
    ] = False
    affinity: Annotated[
        bool,
        StepSetting(
            in_graphs=False,
            variables=lambda _: {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
            enter=pin,
        ),
    ] = False
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        StepSetting(variables=lambda count: {"OMP_NUM_THREADS": str(count)}, enter=enter_threads),
    ] = None
    matmul_precision: Annotated[MatmulPrecision, StepSetting(enter=enter_matmul_precision)] = (
        "highest"
    )
    products: Annotated[Products, StepSetting(words=lambda kind: f"{kind} products")] = "own"
    preallocate: Annotated[
        bool,
        StepSetting(
            in_graphs=False, not_in_scripts="a script may find no gradient where it left zeros"
        ),
    ] = False
    matmul_library: Annotated[MatmulLibrary, StepSetting(variables=matmul_library_variables)] = (
        "default"
    )
    coordinate_descent: Annotated[bool, StepSetting(inductor="coordinate_descent_tuning")] = False
    aotriton_experimental: Annotated[
        bool, StepSetting(variables=lambda _: {"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1"})
    ] = False

    def changed(self) -> Iterator[tuple[str, object, StepSetting]]:
        """Yield the name, the value and the `StepSetting` of each field that is not its default."""
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if value != default_of(name):
                yield name, value, setting

    def variables(self) -> dict[str, str]:
        """Return the environment variables that a process needs at start to run this config."""
        found: dict[str, str] = {}
        for _, value, setting in self.changed():
            found |= setting.variables(value)
        return found

    def enter(self) -> None:
        """Apply to this process what can be applied once it runs.

        Default values change nothing, so the user's own settings survive.
        """
        for _, value, setting in self.changed():
            if setting.enter is not None:
                setting.enter(value, self)

    def inductor_options(self) -> dict[str, bool]:
        return {one.inductor: True for _, _, one in self.changed() if one.inductor}


_DEFAULTS: Final = StepConfig()


def default_of(name: str) -> object:
    return getattr(_DEFAULTS, name)


SETTINGS: Final[Mapping[str, StepSetting]] = {
    name: one
    for name, hint in get_type_hints(StepConfig, include_extras=True).items()
    for one in getattr(hint, "__metadata__", ())
    if isinstance(one, StepSetting)
}
"""The fields' settings, in their order."""
AROUND_GRAPHS: Final[Mapping[str, object]] = {
    name: default_of(name) for name, one in SETTINGS.items() if not one.in_graphs
}
"""Settings that do not affect the code that torch.compile generates, with their defaults."""


def gemm_dtype(config: StepConfig) -> str:
    """Return the dtype whose measured rate a step's matrix products are compared with.

    Reduced fp32 (TF32, or bf16 products on a CPU) and fp8 compare with bf16.
    """
    lower = config.matmul_precision != "highest" or config.products == "fp8"
    return "bf16" if config.precision in AUTOCAST or lower else config.precision
