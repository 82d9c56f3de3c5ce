"""A recipe in a workload, in a script of one's own and on a model alone.

Kernels are loaded by the process that applies a recipe, so each case runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.base.devices.probe import probe, software
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.revision import revision
from ratchet.train.recipe import Recipe
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.workloads.config import StepConfig

pytestmark = [pytest.mark.compiler, pytest.mark.timeout(600)]

STEPS = 4
KERNELS = ("rms_norm", "adamw")
SCRIPTS = Path(__file__).parent / "apply_scripts"


def recipe(config: StepConfig, *, device: str = "", version: str = "") -> Recipe:
    """A recipe of this machine, or of another one."""
    here = probe("cpu")
    kernels = [
        InstalledKernel(library=name, entry=kernel.entry, hash=kernel.hash, isa=here.target)
        for name in KERNELS
        for kernel in LIBRARY[name].kernels(here.target)
        if name in config.kernels or (name == "adamw" and config.optimizer == "kernel")
    ]
    return Recipe(
        workload="llama-tiny",
        device=device or here.fingerprint,
        device_name="another CPU" if device else here.model,
        software=version or software().fingerprint,
        versions={"torch": "0.0.1"},
        config=config,
        kernels=tuple(kernels),
        speedup={},
        changes_arithmetic=config.precision != "fp32",
        created_at="2026-01-01T00:00:00+00:00",
    ).sealed()


def believe(ledger: Path, kernels: tuple[InstalledKernel, ...]) -> None:
    """A ledger in which the kernels are proven here."""
    fingerprint = Fingerprint(device=probe("cpu").fingerprint, software=software().fingerprint)
    with Ledger.open(f"sqlite:///{ledger}") as opened:
        for kernel in kernels:
            verdict = {
                "status": "proven",
                "kernel_hash": kernel.hash,
                "problem_hash": "p",
                "environment": {"judge": revision()},
            }
            opened.record_verdict(verdict, fingerprint=fingerprint)


def run(script: str, folder: Path, found: Recipe) -> subprocess.CompletedProcess[str]:
    found.save(folder / "recipe.json")
    return run_words(script, folder, "recipe.json", str(STEPS))


def refusals(folder: Path, *names: str) -> dict[str, Any]:
    """What `refused.py` says of the recipes of these names."""
    return answer(run_words("refused.py", folder, *names))


def run_words(script: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RATCHET_LEDGER": str(folder / "ledger.db")}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=550,
        cwd=folder,
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


FP32 = StepConfig(compile_mode="default", optimizer="kernel", kernels=("rms_norm",))
BF16 = msgspec.structs.replace(FP32, precision="bf16_master")


@pytest.mark.parametrize(("config", "allowed"), [(FP32, 1e-4), (BF16, 5e-2)])
def test_a_workload_learns_the_same_under_its_recipe(
    tmp_path: Path, config: StepConfig, allowed: float
) -> None:
    made = recipe(config)
    believe(tmp_path / "ledger.db", made.kernels)
    said = answer(run("workload.py", tmp_path, made))
    assert said["with"] == pytest.approx(said["without"], abs=allowed)
    assert {"rms_norm_forward", "rms_norm_backward"} <= set(said["active"])
    assert any("ratchet::rms_norm" in name for name in said["ops"])


def test_a_script_of_ones_own_learns_the_same(tmp_path: Path) -> None:
    made = recipe(FP32)
    believe(tmp_path / "ledger.db", made.kernels)
    said = answer(run("script.py", tmp_path, made))
    assert said["with"] == pytest.approx(said["without"], abs=1e-4)
    assert said["same_model"] and said["same_optimizer"]
    assert said["learning_rates"] == sorted(said["learning_rates"], reverse=True)
    assert said["state_steps"] == STEPS


def test_a_model_alone_says_what_it_cannot_carry(tmp_path: Path) -> None:
    made = recipe(FP32)
    believe(tmp_path / "ledger.db", made.kernels)
    said = answer(run("model_alone.py", tmp_path, made))
    assert said["with"] == pytest.approx(said["without"], abs=1e-4)
    assert any("carries no optimizer" in line for line in said["warnings"])


def test_a_foreign_or_damaged_recipe_installs_nothing(tmp_path: Path) -> None:
    """In one process, as the third is refused whatever came before."""
    recipe(FP32, device="elsewhere").save(tmp_path / "elsewhere.json")
    recipe(FP32, version="older").save(tmp_path / "older.json")
    recipe(FP32).save(tmp_path / "damaged.json")
    text = (tmp_path / "damaged.json").read_text()
    (tmp_path / "damaged.json").write_text(text.replace('"kernel"', '"fused"'))
    expected = {
        "elsewhere.json": "was proven on another CPU",
        "older.json": "was proven with torch 0.0.1",
        "damaged.json": "was changed after it was written",
    }
    said = refusals(tmp_path, *expected)
    for name, why in expected.items():
        assert why in said[name]["strict"]
        assert said[name]["active"] == []
    for name in ("elsewhere.json", "older.json"):
        assert said[name]["error"] == "" and said[name]["as_written"]
        (warning,) = said[name]["warnings"]
        assert expected[name] in warning and "runs as written" in warning
    assert expected["damaged.json"] in said["damaged.json"]["error"]


@pytest.mark.slow
def test_a_kernel_unknown_to_the_ledger_is_judged_first(tmp_path: Path) -> None:
    """Whether it is faster here is the clock's; that it was judged, and how it ended, is not."""
    config = StepConfig(compile_mode="default", kernels=("rms_norm",))
    made = recipe(config)
    made.save(tmp_path / "recipe.json")
    said = refusals(tmp_path, "recipe.json")["recipe.json"]
    fingerprint = Fingerprint(device=probe("cpu").fingerprint, software=software().fingerprint)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        proven = [
            ledger.proven(kernel.hash, fingerprint, judge=revision()) for kernel in made.kernels
        ]
    assert said["error"] == ""
    if all(proven):
        assert sorted(said["active"]) == sorted(kernel.entry for kernel in made.kernels)
    else:
        assert said["active"] == []
