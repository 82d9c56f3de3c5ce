"""Call sites of a workload with their real shapes, and the judge problems built from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import prod

import msgspec
import torch
from torch import nn
from torch.fx import GraphModule
from torch.optim import Optimizer

from ratchet.base.errors import GraphError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.train.graph.patterns import PATTERNS
from ratchet.train.graph.scope import CapturedSite, InstallReport, graphs_of, merge_sites, rewrite
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.config import AUTOCAST, StepConfig
from ratchet.train.workloads.own_step import BatchStep, untraced
from ratchet.train.workloads.step import TrainingStep, compiled_loss, copies_for
from ratchet.train.workloads.workload import Workload

__all__ = ["CapturedSite", "capture", "kernels_of", "problems_for"]

MOST_PARAMETERS = 6
"""Maximum number of distinct parameter shapes in the optimizer's problem, largest first."""


def capture(workload: Workload, config: StepConfig) -> list[CapturedSite]:
    """Return every pattern's sites in one forward pass and loss, at `config`'s precision.

    The graphs are traced with the first batch and run eagerly, without kernels. An AdamW update
    adds one more site, `adamw`, with the shapes of the parameters. The model is not changed.
    """
    report = InstallReport()

    def backend(module: GraphModule, _: object) -> Callable[..., object]:
        for graph_module in graphs_of(copy.deepcopy(module)):
            rewrite(graph_module.graph, PATTERNS, report)
        return module.forward

    eager = msgspec.structs.replace(config, compile_mode=None, kernels=(), optimizer="as_written")
    with torch.random.fork_rng():
        if workload.train_step is not None:
            run_own_step(workload, eager, batch_of(workload, 0), backend)
        else:
            traced = torch.compile(compiled_loss(workload, eager), backend=backend, dynamic=False)
            copies = copies_for(workload, config)
            with copies.in_place() if copies else nullcontext():
                traced(workload.model, workload.batch(0))
    return [*merge_sites(report.sites), *_update_sites(workload)]


def run_own_step(
    workload: Workload, config: StepConfig, batch: object, backend: Callable[..., object]
) -> None:
    """Run a workload's `train_step` once, compiled by `backend`, with its updates undone."""

    def install(step: BatchStep, model: nn.Module, optimizers: Sequence[Optimizer]) -> BatchStep:
        compiled = torch.compile(step, backend=backend, dynamic=False)
        casts = config.precision in AUTOCAST and workload.precision not in AUTOCAST
        device_type = workload.device.split(":")[0]

        def run(batch: object) -> object:
            autocast = torch.autocast(device_type, torch.bfloat16) if casts else nullcontext()
            with untraced(optimizers), autocast:
                return compiled(batch)

        return run

    TrainingStep(workload, config, install=install).forward_backward(batch)


def _update_sites(workload: Workload) -> list[CapturedSite]:
    made = list(workload.make_optimizers().values())
    if len(made) != 1 or type(made[0]) is not torch.optim.AdamW:
        return []
    optimizer = made[0]
    trained = workload.trained().items()
    return [
        CapturedSite(
            pattern="adamw",
            kernel="adamw",
            shapes={name: tuple(one.shape) for name, one in trained},
            dtypes={n: "bf16" if one.dtype == torch.bfloat16 else "fp32" for n, one in trained},
            scalars={one: float(optimizer.defaults[one]) for one in ("lr", "eps", "weight_decay")},
        )
    ]


def problems_for(sites: Iterable[CapturedSite]) -> list[tuple[str, Problem]]:
    """Return (kernel name in LIBRARY, problem) pairs for the sites, without duplicates.

    Each kernel is judged at the site where it does the most work (elements times count).
    Raises GraphError if the library lacks a site's kernel.
    """
    problems: list[tuple[str, Problem]] = []
    seen: set[str] = set()
    for name, shapes in kernels_of(list(sites)):
        if name not in LIBRARY:
            raise GraphError(f"the library has no kernel {name!r} for the captured sites")
        for problem in LIBRARY[name].problems(shapes):
            if problem.hash not in seen:
                seen.add(problem.hash)
                problems.append((name, problem))
    return problems


def kernels_of(sites: list[CapturedSite]) -> list[tuple[str, WorkloadShapes]]:
    """Return each kernel's largest site; other sites of the workload supply missing sizes."""
    common = _common_shapes(sites)
    names = dict.fromkeys(site.pattern for site in sites)
    largest = {name: max((s for s in sites if s.pattern == name), key=_work) for name in names}
    return [(name, shapes_of(site, common)) for name, site in largest.items()]


def shapes_of_each(sites: Sequence[CapturedSite]) -> list[tuple[CapturedSite, WorkloadShapes]]:
    """Return each site with its sizes; other sites of the workload supply missing ones."""
    common = _common_shapes(sites)
    return [(site, shapes_of(site, common)) for site in sites]


def _work(site: CapturedSite) -> int:
    return site.count * sum(prod(sizes) for sizes in site.shapes.values())


def _common_shapes(sites: Sequence[CapturedSite]) -> WorkloadShapes:
    shapes = WorkloadShapes()
    for site in sorted(sites, key=_work):
        shapes = shapes_of(site, shapes)
    return shapes


def shapes_of(site: CapturedSite, base: WorkloadShapes) -> WorkloadShapes:
    """Return `base` updated with the sizes that this site knows."""
    if site.pattern == "adamw":
        largest = sorted(dict.fromkeys(site.shapes.values()), key=prod, reverse=True)
        return replace(base, parameters=tuple(largest[:MOST_PARAMETERS]))
    known = [pattern.sizes(site) for pattern in PATTERNS if pattern.name == site.pattern]
    return replace(base, **known[0]) if known else base
