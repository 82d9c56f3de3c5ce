"""Kernels for regions, installed in a compiled step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

from ratchet.base.devices.ceilings import Ceilings
from ratchet.judge.kernels import registry
from ratchet.train.graph.regions import region_name
from ratchet.train.graph.regions.capture import region_report
from ratchet.train.graph.regions.install import InstallRegions, region_options
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import compiled_loss
from ratchet.train.workloads.workload import Workload

CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 1e11},
    copy_bytes_per_s={"dram": 1e10},
    triad_bytes_per_s={"dram": 1e10},
)


class Gated(nn.Module):
    """Two layers with a norm and a gate each."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gate in zip(self.norms, self.gates, strict=True):
            x = x + torch.sigmoid(gate(norm(x))) * x
        return x


def gated() -> Workload:
    torch.manual_seed(0)
    return Workload(
        name="gated",
        model=Gated(),
        loss=lambda model, batch: model(batch).square().mean(),
        batch=lambda index: torch.randn(16, 32, generator=torch.Generator().manual_seed(index)),
    )


def check_installed(workload: Workload, kind: str) -> None:
    """Install the reference of every region of a kind; loss and gradients must stay the same."""
    config = StepConfig(compile_mode="default")
    regions = region_report(workload, config, measuring_s=0, ceilings=CEILINGS).regions
    chosen = [one for one in regions if one.kind == kind]
    options = region_options([region_name(one.key) for one in chosen])
    batch = workload.batch(0)

    def run(**given: object) -> tuple[Tensor, ...]:
        torch._dynamo.reset()
        loss = compiled_loss(workload, config, given)(workload.model, batch)
        return loss.detach(), *torch.autograd.grad(loss, list(workload.model.parameters()))

    with fresh_cache():
        plain = run()
        registry.fallbacks.clear()
        installed = run(**options)
    for one, other in zip(plain, installed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    known = {region_name(one.key): one.count for one in chosen}
    assert registry.fallbacks and registry.fallbacks.keys() <= known.keys()
    if kind == "fused":
        assert registry.fallbacks == known


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fused", "product"])
def test_regions_can_be_installed_and_nothing_changes(kind: str) -> None:
    check_installed(gated(), kind)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fused", "product"])
def test_every_region_of_a_model_can_be_installed(kind: str) -> None:
    check_installed(load("llama-tiny"), kind)


CACHED_STEP = """
import torch
from torch import nn
from torch._dynamo.utils import counters
from ratchet.train.graph.regions.cut import cut_graph
from ratchet.train.graph.regions.form import form_of
from ratchet.train.graph.regions.install import InstallRegions
from ratchet.judge.kernels import registry


class EveryFusedRegion(InstallRegions):
    def __call__(self, graph):
        forms = [form_of(cut, None) for cut in cut_graph(graph) if cut.kind == "fused"]
        self._keys = frozenset(one.key for one in forms)
        super().__call__(graph)

    def uuid(self):
        return "every fused region"


def step(x, y):
    return torch.sigmoid(x) * y + x


x, y = torch.ones(4, 8), torch.full((4, 8), 2.0)
found = torch.compile(step, options={"post_grad_custom_pre_pass": EveryFusedRegion([])})(x, y)
torch.testing.assert_close(found, step(x, y))
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(int(hits > 0), sum(registry.fallbacks.values()))
"""


@pytest.mark.compiler
@pytest.mark.slow
def test_a_process_that_finds_its_graph_in_the_cache_runs_its_regions(tmp_path: Path) -> None:
    """The second process compiles nothing, so its pass never runs."""
    script = tmp_path / "train.py"
    script.write_text(CACHED_STEP)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    told = [
        subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True
        )
        for _ in range(2)
    ]
    assert [one.returncode for one in told] == [0, 0], told[-1].stderr
    assert [one.stdout.split() for one in told] == [["0", "1"], ["1", "1"]]


def test_no_kernels_are_no_options() -> None:
    assert region_options([]) == {}


def test_the_pass_is_known_by_its_regions() -> None:
    one, other = "a" * 64, "b" * 64
    assert InstallRegions([one, other]).uuid() == InstallRegions([other, one]).uuid()
    assert InstallRegions([one]).uuid() != InstallRegions([other]).uuid()
