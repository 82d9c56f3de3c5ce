"""Install kernels through torch.compile: the pass, and the options for one compilation.

No global state is set. torch 2.11 runs the pass before it looks into its caches. Later versions run
a pass with a uuid only after a cache miss, so a cache hit would leave the report empty. On those
versions `pre_grad_pass_timing="early"` restores the old order. A second pass, which changes
nothing, adds the uuid to the cache key (https://github.com/pytorch/pytorch,
torch/_inductor/codecache.py, `resolve_pre_grad_pass_timing` and `FxGraphHashDetails`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

from ratchet import base
from ratchet.base.devices.probe import best_isa
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.sources import ANY_GPU
from ratchet.train.graph.patterns import select
from ratchet.train.graph.scope import InstallReport, rewrite
from ratchet.train.workloads.compiling import CompileOptions


class InstallKernels(CustomGraphPass):
    """Install kernels in each graph of one torch.compile call; `report` lists the results."""

    def __init__(self, kernels: Sequence[str], identity: str) -> None:
        self.patterns = select(kernels)
        self.report = InstallReport(kernels=tuple(pattern.name for pattern in self.patterns))
        self._identity = identity

    def __call__(self, graph: Graph) -> None:
        rewrite(graph, self.patterns, self.report)

    def uuid(self) -> str:
        """Hash the recipe: kernel names, kernel sources, this package's code and version."""
        return self._identity

    def __reduce__(self) -> tuple[object, ...]:
        # torch 2.11 pickles the pass into its cache key, so only the recipe may affect the pickle.
        return InstallKernels, (self.report.kernels, self._identity)

    def __deepcopy__(self, memo: dict[int, object]) -> InstallKernels:
        return self


class RecipeStamp(CustomGraphPass):
    """Change nothing; the uuid keeps graphs with different kernels apart in torch's caches."""

    def __init__(self, identity: str) -> None:
        self._identity = identity

    def __call__(self, graph: Graph) -> None:
        return None

    def uuid(self) -> str:
        return self._identity


def compile_options(kernels: Sequence[str], *, targets: Sequence[str] = ()) -> CompileOptions:
    """Return the `options=` for a torch.compile call that installs these kernels; empty if none.

    `kernels` are names in `ratchet.judge.kernels.library.LIBRARY`. The sources for
    `targets` enter the cache key; by default these are this CPU's best and any GPU's. Raises
    GraphError for an unknown name. `installed_by(options)` returns the installation report.
    """
    patterns = select(kernels)
    if not patterns:
        return {}
    names = [pattern.name for pattern in patterns]
    identity = recipe_identity(names, targets or (best_isa(), ANY_GPU))
    timed = hasattr(inductor_config, "pre_grad_pass_timing")
    return {
        "pre_grad_custom_pass": InstallKernels(kernels, identity),
        "joint_custom_pre_pass": RecipeStamp(identity),
        **({"pre_grad_pass_timing": "early"} if timed else {}),
    }


def installed_by(options: CompileOptions) -> InstallReport:
    """Return the live report of the pass in `options`, or an empty one if there is no pass."""
    found = options.get("pre_grad_custom_pass")
    return found.report if isinstance(found, InstallKernels) else InstallReport()


def recipe_identity(kernels: Iterable[str], targets: Sequence[str]) -> str:
    """Hash everything that determines what a graph with these kernels computes."""
    digest = hashlib.sha256()
    for name in sorted(kernels):
        digest.update(name.encode())
        for kernel in (one for target in targets for one in LIBRARY[name].kernels(target)):
            digest.update(kernel.hash.encode())
    digest.update(code_identity().encode())
    return digest.hexdigest()


@cache
def code_identity() -> str:
    """Hash the package version and the source files of the patterns and ops."""
    try:
        own_version = version("torch-ratchet")
    except PackageNotFoundError:  # running from a source tree that is not installed
        own_version = "source"
    digest = hashlib.sha256(own_version.encode())
    for folder in ("train/graph", "judge/kernels", "judge/problems/suites/shipped"):
        for file in sorted((base.FOLDER / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
