"""The pass in torch.compile: options, identity, caches, the report, the step that carries it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ratchet.base.errors import GraphError
from ratchet.train.graph import install
from ratchet.train.graph.install import compile_options, installed_by

# torch's own, when inductor is first imported
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(16, eps=1e-6)
        self.gate, self.up = nn.Linear(16, 24), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return (torch.nn.functional.silu(self.gate(y)) * self.up(y)).square().mean()


def test_no_kernels_no_options() -> None:
    assert compile_options(()) == {}
    assert compile_options(("adamw",)) == {}
    assert installed_by({}).installed == {}


def test_unknown_kernel_is_one_line() -> None:
    with pytest.raises(GraphError, match=r"'rms_nrom'.*rms_norm"):
        compile_options(("rms_nrom",))


def test_identity_depends_on_kernels_target_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(*names: str, target: str = "portable") -> Any:
        return compile_options(names, targets=[target])["pre_grad_custom_pass"].uuid()

    assert identity("rope", "rms_norm") == identity("rms_norm", "rope")
    assert identity("rope") != identity("rms_norm")
    assert identity("rms_norm") != identity("rms_norm", target="avx512")
    before = identity("rope")
    monkeypatch.setattr(install, "code_identity", lambda: "another version")
    assert identity("rope") != before


def test_pass_pickles_to_its_recipe_alone() -> None:
    found = compile_options(("rms_norm",), targets=["portable"])["pre_grad_custom_pass"]
    before = pickle.dumps(found)
    found.report.declined.append(("rms_norm", "for the test"))
    assert pickle.dumps(found) == before
    assert pickle.loads(before).uuid() == found.uuid()


def test_inductor_config_is_not_touched() -> None:
    from torch._inductor import config

    before = config.pre_grad_custom_pass, config.joint_custom_pre_pass
    compile_options(("rms_norm",))
    assert (config.pre_grad_custom_pass, config.joint_custom_pre_pass) == before


@pytest.mark.compiler
def test_a_cached_graph_still_calls_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice from an empty cache: a miss, then a hit; the report and the calls are the same."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    from ratchet.judge.kernels import registry

    model, x = Block(), torch.randn(2, 4, 16)
    names = ("rms_norm", "gated_activation")
    plain = model(x)
    hits = []
    with fresh_cache(dir=str(tmp_path)):
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            registry.fallbacks.clear()
            options = compile_options(names, targets=["portable"])
            loss = torch.compile(model, options=options, dynamic=False)(x)
            loss.backward()
            hits.append(counters["aot_autograd"]["autograd_cache_hit"])
            assert installed_by(options).installed == {"rms_norm": 1, "gated_activation": 1}
            assert registry.fallbacks["rms_norm_forward"] == 1
            assert registry.fallbacks["rms_norm_backward"] == 1
            torch.testing.assert_close(loss, plain)
        assert hits == [0, 1]
        without = torch.compile(Block(), dynamic=False)
        registry.fallbacks.clear()
        without(x).backward()
        assert registry.fallbacks == {}


@pytest.mark.compiler
def test_step_with_every_kernel() -> None:
    from ratchet.train.graph.steps import build_step
    from ratchet.train.workloads.config import StepConfig
    from ratchet.train.workloads.load import load

    names = ("linear_cross_entropy", "attention", "rope", "gated_activation", "rms_norm", "linear")
    config = StepConfig(
        precision="bf16_master", compile_mode="default", optimizer="kernel", kernels=names
    )
    workload = load("llama-tiny")
    step = build_step(workload, config)
    losses = [float(step(workload.batch(0))) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert set(step.install_report.installed) == set(names)
    assert step.install_report.declined == []


def test_a_step_that_compiles_nothing_imports_no_lowerings_of_inductor() -> None:
    program = (
        "import sys, ratchet.train.turn.arm, ratchet.train.graph.steps;"
        "assert not {'torch._inductor.lowering', 'torch._dynamo'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_kernels_need_a_compile_mode() -> None:
    from ratchet.train.graph.steps import build_step
    from ratchet.train.workloads.config import StepConfig
    from ratchet.train.workloads.load import load

    with pytest.raises(GraphError, match="set compile_mode"):
        build_step(load("llama-tiny"), StepConfig(kernels=("rms_norm",)))
