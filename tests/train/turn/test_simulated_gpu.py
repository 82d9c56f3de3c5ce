"""A process on a GPU that is not here: its ceilings, a workload, and the arm of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

KERNELS = """
import json
from ratchet.base.devices.probe import probe
from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.turn.arm import make_arm
from ratchet.train.recipe import with_config
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.workloads.config import StepConfig

here, options = probe("cuda"), {"device": "cuda", "batch_size": 1, "sequence": 16}
in_graph = ("attention", "gated_activation", "linear_cross_entropy", "rms_norm", "rope")
proven = {
    name: tuple(InstalledKernel(library=name, entry=one.entry, hash=one.hash, isa=here.target)
                for one in LIBRARY[name].kernels(here.target))
    for name in (*in_graph, "adamw")
}
told = []
for names, optimizer in (((), "fused"), (in_graph, "kernel")):
    config = StepConfig(compile_mode="default" if names else None, precision="bf16_autocast",
                        kernels=names, optimizer=optimizer)
    arm = make_arm(**with_config(config, proven).arguments("llama-tiny", options))
    arm.step(2)
    told.append(arm.describe())
print(json.dumps(told))
"""
SIMULATION = Path(__file__).parents[2] / "simulated_gpu"
SCRIPT = """
import json, sys
from pathlib import Path

import torch
from ratchet.base.devices.ceilings import measure
from ratchet.base.devices.probe import probe
from ratchet.train.turn.arm import make_arm
from ratchet.train.workloads.check import check
from ratchet.train.workloads.load import load

folder = Path(sys.argv[1])
here = probe("auto")
ceilings = measure(here, folder=folder)
workload = load("llama-tiny", device="cuda")
check(workload)
told = {
    "kind": here.kind, "vendor": here.vendor, "target": here.target,
    "rates": ceilings.gemm_flops_per_s,
    "batch": str(workload.batch(0)[0].device), "cuda": workload.batch(0)[0].is_cuda,
}
asked = {"workload": "llama-tiny", "options": {"device": "cuda"}, "kernels": []}
arm = make_arm(**asked, config=None)
arm.gradients(str(folder / "g.safetensors"))
arm.step(2)
facts = arm.workload()
told |= {name: facts[name] for name in ("device", "has_attention", "batch_size", "why_not_fused")}
told |= {"loss": arm.describe()["loss"], "peak": arm.describe()["peak_memory_bytes"]}
products = "own" if here.vendor == "AMD" else "fp8"  # the cores do not multiply FNUZ
lowered = make_arm(**asked, config={"precision": "bf16_autocast", "optimizer": "fused",
                                    "attention": "math", "products": products})
lowered.step(2)
told["lowered"] = lowered.describe()["loss"]
print(json.dumps(told))
"""


def run(script: str, *words: str, **variables: str) -> Any:
    """Run a script on a simulated GPU; return the JSON of its last line."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here: nothing is to be simulated")
    others = filter(None, [os.environ.get("PYTHONPATH")])
    paths = os.pathsep.join([str(SIMULATION), *others, *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["sm_90", "gfx942"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process says of its GPU and of steps on it."""
    found = run(SCRIPT, str(tmp_path_factory.mktemp("gpu")), SIMULATED_GPU=request.param)
    return {**found, "asked": request.param}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_librarys_kernels_run_in_a_compiled_step(target: str) -> None:
    """Triton's interpreter runs them, forward, backward and update."""
    plain, kernels = run(KERNELS, SIMULATED_GPU=target, TRITON_INTERPRET="1")
    assert kernels["loss"] == pytest.approx(plain["loss"], rel=0.02)
    found = kernels["installed"]
    assert {*found} == {"attention", "gated_activation", "linear_cross_entropy", "rms_norm", "rope"}
    assert not kernels["fallbacks"]


def test_a_process_meets_a_gpu(told: Any) -> None:
    assert told["kind"] == "cuda" and told["target"] == told["asked"]
    assert told["vendor"] == ("NVIDIA" if told["asked"] == "sm_90" else "AMD")
    assert {"fp32", "bf16", "fp16"} == {*told["rates"]}
    assert told["batch"] == "cuda:0" and told["cuda"]


def test_the_arm_of_a_step_runs_there(told: Any) -> None:
    assert told["device"] == "cuda" and told["has_attention"] and told["batch_size"] >= 1
    assert not told["why_not_fused"]
    assert told["loss"] > 0 and told["peak"] > 1 << 20
    assert told["lowered"] == pytest.approx(told["loss"], rel=0.05)
