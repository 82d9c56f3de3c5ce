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
from ratchet.write.author import Progress, Proposal, Schedule

NAME: Final = "compiler"
Option = bool | int | str
Backend = Literal["cpp", "triton", "rocm"]
"""Inductor's output: C++ on a CPU, Triton on NVIDIA (`triton`) and on AMD (`rocm`)."""
INDUCTOR: Final = "torch._inductor.config"
DEFAULT: Final = "torch.compile"


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionSet:
    """Inductor options that are tried together."""

    options: Mapping[str, Option]
    why: str
    """Their effect, in a few words."""
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
    OptionSet(options={}, why="Inductor's defaults"),
    OptionSet(
        options={"cpp_wrapper": True, "size_asserts": False},
        why="the calling code in C++, without assertions on sizes",
    ),
    OptionSet(
        options={"cpp.enable_floating_point_contract_flag": "fast"},
        why="multiplications and additions fused by the C++ compiler",
    ),
    OptionSet(options={"cpp.enable_tiling_heuristics": False}, why="tiles without the heuristic"),
    OptionSet(options={"cpp.simdlen": 256}, why="vectors of 256 bits"),
    OptionSet(
        options={"cpp.fallback_scatter_reduce_sum": False},
        why="scattered sums in generated code, by atomics",
        words=_SCATTERS,
    ),
    OptionSet(
        options={"cpp.enable_unsafe_math_opt_flag": True},
        why="sums reassociated by the C++ compiler",
        words=_SUMS,
    ),
    OptionSet(
        options={
            "realize_reads_threshold": 64,
            "realize_cpu_opcount_threshold": 512,
            "realize_cpu_acc_reads_threshold": 128,
        },
        why="recompute rather than store",
        words=_LONG,
    ),
    OptionSet(
        options={"max_autotune": True, "max_autotune_gemm_backends": "ATEN,CPP"},
        why="products autotuned, with C++ templates where their form allows it",
        words=_PRODUCTS,
    ),
    OptionSet(options={"cpp.use_decompose_tanh": True}, why="tanh by exp", words=("tanh", "gelu")),
    OptionSet(options={"cpp.min_chunk_size": 4096}, why="fewer threads for short loops"),
    OptionSet(options={"aggressive_fusion": True}, why="fusion without common reads"),
    OptionSet(
        options={"max_fusion_size": 256, "cpp.max_horizontal_fusion_size": 64},
        why="larger fused kernels",
        words=_LONG,
    ),
    OptionSet(options={"max_fusion_size": 8}, why="smaller fused kernels", words=_LONG),
    OptionSet(options={"epilogue_fusion": False}, why="no epilogues", words=_PRODUCTS),
    OptionSet(options={"split_reductions": False}, why="reductions in one piece", words=_SUMS),
    OptionSet(options={"cpp.enable_loop_tail_vec": False}, why="scalar ends of loops"),
    OptionSet(
        options={"loop_ordering_after_fusion": True}, why="loops ordered after fusion", words=_LONG
    ),
    OptionSet(options={"unroll_reductions_threshold": 64}, why="short sums unrolled", words=_SUMS),
    OptionSet(options={"pattern_matcher": False}, why="no pattern rewrites", words=_PRODUCTS),
    OptionSet(options={"cpp.simdlen": 1}, why="no explicit vectors"),
)
TRITON: Final = (
    OptionSet(options={}, why="Inductor's defaults"),
    OptionSet(
        options={"max_autotune": True, "coordinate_descent_tuning": True},
        why="max-autotune without CUDA graphs",
    ),
    OptionSet(options={"coordinate_descent_tuning": True}, why="block sizes by descent"),
    OptionSet(options={"max_autotune_pointwise": True}, why="pointwise kernels autotuned"),
    OptionSet(
        options={"triton.multi_kernel": 1},
        why="the faster of persistent and looped reductions",
        words=_SUMS,
    ),
    OptionSet(
        options={"triton.persistent_reductions": False}, why="looped reductions", words=_SUMS
    ),
    OptionSet(
        options={"triton.cooperative_reductions": True},
        why="one reduction over several programs",
        words=_SUMS,
    ),
    OptionSet(options={"split_reductions": False}, why="reductions in one piece", words=_SUMS),
    OptionSet(
        options={"triton.mix_order_reduction": True},
        why="row and column reductions in one kernel",
        words=_SUMS,
    ),
    OptionSet(
        options={"triton.prefer_nd_tiling": True, "triton.max_tiles": 3},
        why="tiles of n axes",
    ),
    OptionSet(options={"benchmark_fusion": True}, why="fusions kept only if they are faster"),
    OptionSet(options={"use_fast_math": True}, why="fast approximations"),
    OptionSet(options={"loop_ordering_after_fusion": True}, why="loops ordered after fusion"),
    OptionSet(options={"combo_kernels": True}, why="independent kernels in one launch"),
    OptionSet(options={"aggressive_fusion": True}, why="fusion without common reads"),
    OptionSet(options={"epilogue_fusion": False}, why="no epilogues", words=_PRODUCTS),
    OptionSet(
        options={
            "max_autotune": True,
            "max_autotune_gemm_search_space": "EXHAUSTIVE",
            "max_autotune_gemm_backends": "TRITON,ATEN",
        },
        why="products autotuned over every configuration",
        words=_PRODUCTS,
    ),
)
ROCM: Final = (
    *TRITON[:2],
    OptionSet(
        options={"max_autotune": True, "max_autotune_gemm_backends": "TRITON"},
        why="products in Triton, over waves_per_eu, matrix_instr_nonkdim and kpack",
        words=_PRODUCTS,
    ),
    OptionSet(
        options={"triton.spill_threshold": 64},
        why="spilling configurations kept",
        words=_LONG,
    ),
    *TRITON[2:],
)
SETS: Final[Mapping[Backend, tuple[OptionSet, ...]]] = {"cpp": CPP, "triton": TRITON, "rocm": ROCM}


class CompilerAuthor:
    """Proposes torch.compile of a problem's reference, one option set a proposal.

    It has nothing to say on a problem whose work must be the kernel's own: Inductor's code is made
    at run time, so nobody can say whose work it is, and library calls are left in it.
    """

    def __init__(self, backend: Backend = "cpp") -> None:
        self._backend = backend
        self._proposed: set[str] = set()

    @property
    def name(self) -> str:
        return NAME

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
                Proposal(kernel=kernel, author=NAME, note=one.why, schedule=one.schedule)
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
        if answer.author == NAME and answer.ratio is not None:
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
    return [OptionSet(options=options, why=f"{first.why}; {second.why}")]


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
        return Kernel(name=NAME, language="torch", source=source, entry=ANSWER)
    source = with_modules(problem.text or reference_text(problem.reference))
    function = problem.reference.rpartition(":")[2]
    ending = _FUNCTION.replace("{function}", function).replace("{options}", shown)
    return Kernel(name=NAME, language="torch", source=source + _PREAMBLE + ending, entry="_answer")


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
