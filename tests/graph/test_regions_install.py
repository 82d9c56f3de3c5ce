"""Kernels for regions, installed in a compiled step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ratchet.devices.ceilings import Ceilings
from ratchet.graph.regions.capture import region_report
from ratchet.graph.regions.install import InstallRegions, RegionKernel, region_options
from ratchet.kernels.library import registry
from ratchet.workloads import load
from ratchet.workloads.config import StepConfig
from ratchet.workloads.step import compiled_loss
from ratchet.workloads.workload import Workload

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


def check_installed(workload: Workload, kind: str) -> InstallRegions:
    """Install the reference of every region of a kind; loss and gradients must stay the same."""
    config = StepConfig(compile_mode="default")
    regions = region_report(workload, config, measuring_s=0, ceilings=CEILINGS).regions
    chosen = [one for one in regions if one.kind == kind]
    options = region_options(
        [RegionKernel(key=one.key, entry=one.problem.name, hash="none") for one in chosen]
    )
    batch = workload.batch(0)

    def run(**given: object) -> tuple[Tensor, ...]:
        torch._dynamo.reset()
        loss = compiled_loss(workload, config, given)(workload.model, batch)
        return loss.detach(), *torch.autograd.grad(loss, list(workload.model.parameters()))

    plain = run()
    registry.fallbacks.clear()
    installed = run(**options)
    for one, other in zip(plain, installed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    found: InstallRegions = options["post_grad_custom_pre_pass"]
    assert found.report.installed.keys() <= {one.key for one in chosen}
    assert sum(registry.fallbacks.values()) == sum(found.report.installed.values()) > 0
    if kind == "fused":
        assert found.report.installed == {one.key: one.count for one in chosen}
    return found


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


def test_no_kernels_are_no_options() -> None:
    assert region_options([]) == {}


def test_the_pass_is_known_by_its_kernels() -> None:
    one = RegionKernel(key="a" * 64, entry="one", hash="1")
    other = RegionKernel(key="b" * 64, entry="other", hash="2")
    assert InstallRegions([one, other]).uuid() == InstallRegions([other, one]).uuid()
    assert InstallRegions([one]).uuid() != InstallRegions([other]).uuid()
