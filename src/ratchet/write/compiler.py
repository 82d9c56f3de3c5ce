"""The compiler as an author: torch.compile of the reference under different Inductor options.

It proposes something for every problem on every device, one option set at a time, the ones that pay
most often first. When all single sets are answered it combines the best two.

Two kinds of options are left out. `freezing` bakes parameters into the code; the inputs of a
problem are new at every call, so it would be wrong. `triton.cudagraphs` reuses the memory of its
outputs, and the judge still reads the outputs of earlier calls.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel, with_modules
from ratchet.judge.problems.card import ANSWER
from ratchet.judge.problems.problem import Problem, reference_text
from ratchet.write.author import COMPILER, Progress, Proposal, Schedule

Option = bool | int | str
Backend = Literal["cpp", "triton", "rocm"]
"""Inductor's output: C++ on a CPU, Triton on NVIDIA (`triton`) and on AMD (`rocm`)."""
INDUCTOR: Final = "torch._inductor.config"
DEFAULT: Final = "torch.compile"


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Inductor options that are tried together."""

    options: Mapping[str, Option]
    why: str  # Their effect, in a few words
    words: tuple[str, ...] = ()
    """The set is only tried if the reference contains one of these; always if there are none."""

    @property
    def schedule(self) -> Schedule:
        """Return the options as texts, sorted by name."""
        return tuple(sorted((name, str(value)) for name, value in self.options.items()))


_SCATTERS = ("scatter", "index_put", "index_add", "embedding_dense_backward", "embedding")
_SUMS = ("sum", "mean", "norm", "softmax", "var", "amax", "logsumexp", "cross_entropy", "loss")
_PRODUCTS = ("mm", "matmul", "linear", "@", "einsum", "conv", "attention")
_LONG = ("norm", "softmax", "gelu", "rope", "attention", "loss", "t20 =")
"""References of so many operations that fusion has a choice; a captured region names its results
t0, t1 and so on."""

CPP: Final = (
    OptionSet({}, "Inductor's defaults"),
    OptionSet(
        {"cpp_wrapper": True, "size_asserts": False},
        "the calling code in C++, without assertions on sizes",
    ),
    OptionSet(
        {"cpp.enable_floating_point_contract_flag": "fast"},
        "multiplications and additions fused by the C++ compiler",
    ),
    OptionSet({"cpp.enable_tiling_heuristics": False}, "tiles without the heuristic"),
    OptionSet({"cpp.simdlen": 256}, "vectors of 256 bits"),
    OptionSet(
        {"cpp.fallback_scatter_reduce_sum": False},
        "scattered sums in generated code, by atomics",
        _SCATTERS,
    ),
    OptionSet(
        {"cpp.enable_unsafe_math_opt_flag": True}, "sums reassociated by the C++ compiler", _SUMS
    ),
    OptionSet(
        {
            "realize_reads_threshold": 64,
            "realize_cpu_opcount_threshold": 512,
            "realize_cpu_acc_reads_threshold": 128,
        },
        "recompute rather than store",
        _LONG,
    ),
    OptionSet(
        {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,CPP"},
        "products autotuned, with C++ templates where their form allows it",
        _PRODUCTS,
    ),
    OptionSet({"cpp.use_decompose_tanh": True}, "tanh by exp", ("tanh", "gelu")),
    OptionSet({"cpp.min_chunk_size": 4096}, "fewer threads for short loops"),
    OptionSet({"aggressive_fusion": True}, "fusion without common reads"),
    OptionSet(
        {"max_fusion_size": 256, "cpp.max_horizontal_fusion_size": 64},
        "larger fused kernels",
        _LONG,
    ),
    OptionSet({"max_fusion_size": 8}, "smaller fused kernels", _LONG),
    OptionSet({"epilogue_fusion": False}, "no epilogues", _PRODUCTS),
    OptionSet({"split_reductions": False}, "reductions in one piece", _SUMS),
    OptionSet({"cpp.enable_loop_tail_vec": False}, "scalar ends of loops"),
    OptionSet({"loop_ordering_after_fusion": True}, "loops ordered after fusion", _LONG),
    OptionSet({"unroll_reductions_threshold": 64}, "short sums unrolled", _SUMS),
    OptionSet({"pattern_matcher": False}, "no pattern rewrites", _PRODUCTS),
    OptionSet({"cpp.simdlen": 1}, "no explicit vectors"),
)
TRITON: Final = (
    OptionSet({}, "Inductor's defaults"),
    OptionSet(
        {"max_autotune": True, "coordinate_descent_tuning": True},
        "max-autotune without CUDA graphs",
    ),
    OptionSet({"coordinate_descent_tuning": True}, "block sizes by descent"),
    OptionSet({"max_autotune_pointwise": True}, "pointwise kernels autotuned"),
    OptionSet({"triton.multi_kernel": 1}, "the faster of persistent and looped reductions", _SUMS),
    OptionSet({"triton.persistent_reductions": False}, "looped reductions", _SUMS),
    OptionSet(
        {"triton.cooperative_reductions": True}, "one reduction over several programs", _SUMS
    ),
    OptionSet({"split_reductions": False}, "reductions in one piece", _SUMS),
    OptionSet(
        {"triton.mix_order_reduction": True}, "row and column reductions in one kernel", _SUMS
    ),
    OptionSet({"triton.prefer_nd_tiling": True, "triton.max_tiles": 3}, "tiles of n axes"),
    OptionSet({"benchmark_fusion": True}, "fusions kept only if they are faster"),
    OptionSet({"use_fast_math": True}, "fast approximations"),
    OptionSet({"loop_ordering_after_fusion": True}, "loops ordered after fusion"),
    OptionSet({"combo_kernels": True}, "independent kernels in one launch"),
    OptionSet({"aggressive_fusion": True}, "fusion without common reads"),
    OptionSet({"epilogue_fusion": False}, "no epilogues", _PRODUCTS),
    OptionSet(
        {
            "max_autotune": True,
            "max_autotune_gemm_search_space": "EXHAUSTIVE",
            "max_autotune_gemm_backends": "TRITON,ATEN",
        },
        "products autotuned over every configuration",
        _PRODUCTS,
    ),
)
ROCM: Final = (
    *TRITON[:2],
    OptionSet(
        {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"},
        "products in Triton, over waves_per_eu, matrix_instr_nonkdim and kpack",
        _PRODUCTS,
    ),
    OptionSet({"triton.spill_threshold": 64}, "spilling configurations kept", _LONG),
    *TRITON[2:],
)
SETS: Final[Mapping[Backend, tuple[OptionSet, ...]]] = {"cpp": CPP, "triton": TRITON, "rocm": ROCM}


class CompilerAuthor:
    """Proposes torch.compile of a problem's reference, one option set a proposal.

    It has nothing to say on a problem whose work must be the kernel's own: Inductor's code is made
    at run time, so nobody can say whose work it is, and library calls are left in it.
    """

    name = COMPILER

    def __init__(self, backend: Backend = "cpp") -> None:
        self._backend = backend
        self._proposed: set[str] = set()

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` proposals that have not been made or answered before."""
        if progress.problem.task == "own":
            return []
        answered = {one.kernel_hash for one in progress.answers}
        text = progress.problem.text or reference_text(progress.problem.reference)
        proposals: list[Proposal] = []
        for one in (*option_sets(self._backend, text), *_combined(progress, self._backend)):
            if len(proposals) >= count:
                break
            kernel = compiled_kernel(progress.problem, one.options)
            key = f"{progress.problem.hash} {kernel.hash}"
            if kernel.hash in answered or key in self._proposed:
                continue
            self._proposed.add(key)
            proposals.append(
                Proposal(kernel=kernel, author=COMPILER, note=one.why, schedule=one.schedule)
            )
        return proposals


def option_sets(backend: Backend, text: str) -> list[OptionSet]:
    """Return the sets that this torch knows and that concern a reference, the best bet first."""
    fitting = (
        one for one in SETS[backend] if not one.words or any(word in text for word in one.words)
    )
    return [one for one in fitting if all(map(_is_known, one.options))]


def _is_known(option: str) -> bool:
    """Return True if this version of Inductor has an option; `cpp.simdlen` is in a class."""
    found: object = importlib.import_module(INDUCTOR)
    for part in option.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _combined(progress: Progress, backend: Backend) -> Iterable[OptionSet]:
    """Return the two best sets that beat the defaults, in one."""
    sets = {one.schedule: one for one in SETS[backend]}
    ratios: dict[Schedule, float] = {}
    for answer in progress.answers:
        if answer.author == COMPILER and answer.ratio is not None:
            ratios[answer.schedule] = answer.ratio
    least = ratios.get((), 0.0)
    better = sorted(
        (one for one in ratios if one in sets and one and ratios[one] > least),
        key=lambda one: -ratios[one],
    )
    if len(better) < 2:
        return []
    first, second = (sets[one] for one in better[:2])
    options = {**second.options, **first.options}
    return [OptionSet(options, f"{first.why}; {second.why}")]


def compiled_kernel(problem: Problem, options: Mapping[str, Option]) -> Kernel:
    """Return torch.compile of the problem's reference as a self-contained kernel.

    Without options it is the judge's own `torch.compile` candidate, which the judge compiles once
    for all of its processes.
    """
    if not options:
        return built_in_kernel(problem, DEFAULT)
    shown = "{" + ", ".join(f"{name!r}: {value!r}" for name, value in options.items()) + "}"
    if problem.model is not None:
        source = problem.text + _PREAMBLE + _MODEL.replace("{options}", shown)
        return Kernel(name=COMPILER, language="torch", source=source, entry=ANSWER)
    source = with_modules(problem.text or reference_text(problem.reference))
    function = problem.reference.rpartition(":")[2]
    ending = _FUNCTION.replace("{function}", function).replace("{options}", shown)
    return Kernel(
        name=COMPILER, language="torch", source=source + _PREAMBLE + ending, entry="_answer"
    )


_PREAMBLE = """

import os as _os
import tempfile as _tempfile

import torch as _torch

_os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", _tempfile.mkdtemp())
_os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
"""
_FUNCTION = """
_answer = _torch.compile({function}, options={options})
"""
_MODEL = f"""

class {ANSWER}(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.compile(options={{options}})
"""
