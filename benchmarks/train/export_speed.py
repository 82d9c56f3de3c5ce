"""Time a recipe's step with Ratchet's kernels against the same step with the exported ones.

    python benchmarks/train/export_speed.py RECIPE [--ledger URL] [--launches 3] [--rounds 12]
                                      [--steps N] [--batch-size N] [--sequence N]

The recipe is exported twice, to `kernels` and as a wheel, which pip installs into a folder. Each
launch is a process with the recipe's environment and three steps of the recipe's config: `ratchet`
calls torch.ops.ratchet, `kernels` the ops of the package that get_local_kernel loads, and `wheel`
those of the installed package. In these two, the ops in the compiled graphs are replaced one by
one, and AdamW is the package's step_adamw. The steps run in adjacent pairs in random order. A
ratio is Ratchet's time over the package's: above 1, the package is faster. `apart` is the largest
difference of a loss from Ratchet's over the first steps, as a share. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "exported"
BASELINE = "ratchet"
WARM_STEPS = 3
BATCH_S = 0.5
"""Seconds of one timed batch of steps, unless --steps gives their number."""


def exported(recipe: Path, ledger: str | None, folder: Path) -> dict[str, Any]:
    """Export a recipe in both forms and install the wheel; return what the exports said."""
    from ratchet.train.publish import export_kernels

    said = {
        form: export_kernels(recipe, form, folder / form, name=NAME, ledger=ledger)
        for form in ("kernels", "wheel")
    }
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    install = [*pip, "install", "--no-deps", "--no-build-isolation", "--no-index"]
    installed = [*install, "--target", str(folder / "installed"), str(folder / "wheel")]
    subprocess.run(installed, check=True)
    return {
        "exported": [one.entry for one in said["kernels"].kernels],
        "left_out": dict(said["kernels"].left_out),
    }


def packages(folder: Path) -> dict[str, ModuleType]:
    """Load the exports, each by the way of its users."""
    from kernels import get_local_kernel

    sys.path.insert(0, str(folder / "installed"))
    return {
        "kernels": get_local_kernel(folder / "kernels", backend="cpu"),
        "wheel": importlib.import_module(NAME),
    }


def with_ops_of(package: ModuleType, options: dict[str, Any], swapped: list[str]) -> dict[str, Any]:
    """Return torch.compile's options whose passes put a package's ops where Ratchet's would be."""
    from torch._inductor.custom_graph_pass import CustomGraphPass
    from torch.fx import Graph

    from ratchet.train.graph.regions import REGION
    from ratchet.train.graph.regions.install import RegionSite

    class Swapped(CustomGraphPass):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def uuid(self) -> str:
            return f"{package.__name__}:{self.inner.uuid()}"

        def __deepcopy__(self, memo: dict[int, Any]) -> Swapped:
            return self

        def __reduce__(self) -> tuple[Any, ...]:
            return str, (self.uuid(),)

        def __call__(self, graph: Graph) -> None:
            self.inner(graph)
            for node in graph.nodes:
                if getattr(node.target, "namespace", "") != "ratchet":
                    continue
                name = node.target._opname
                if name == "region":
                    site = RegionSite.from_text(node.args[1])
                    name = f"region_{site.name.removeprefix(REGION)[:8]}"
                    node.args = (node.args[0],)
                node.target = getattr(package, name).default
                swapped.append(name)

    return {
        name: Swapped(one) if isinstance(one, CustomGraphPass) else one
        for name, one in options.items()
    }


def built(package: ModuleType | None, config: Any, workload: Any, swapped: list[str]) -> Any:
    """Return the step of a config, with Ratchet's kernels or a package's."""
    from ratchet.judge.kernels.library.adamw import AdamWUpdate
    from ratchet.train.graph.steps import (
        InstalledStep,
        build_step,
        install_options,
        installed_kernels,
    )

    if package is None:
        return build_step(workload, config)

    class Update(AdamWUpdate):
        def step(self) -> None:
            package.step_adamw(
                self.optimizer,
                clip_norm=self.clip_norm,
                gradients=self.gradients,
                copies=self.copies,
            )

    def update(step: Any) -> Update:
        swapped.append("step_adamw")
        (optimizer,) = step.workload.make_optimizers().values()
        gradients = "zero" if config.preallocate else "drop"
        return Update(optimizer, step.workload.clip_norm, gradients, step.copies)

    options = with_ops_of(package, install_options(installed_kernels(config)), swapped)
    factory = update if config.optimizer == "kernel" else None
    return InstalledStep(workload, config, compile_options=options, optimizer_factory=factory)


class StepArm:
    """A training step as one side of the comparison."""

    def __init__(self, name: str, step: Any) -> None:
        self.name, self.step, self.count = name, step, 0

    def losses(self, count: int) -> list[float]:
        """Run steps and return their losses."""
        return [float(self._one()) for _ in range(count)]

    def run(self, iterations: int) -> Any:
        """Run steps and return their time."""
        from ratchet.base.measure import Timing

        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(iterations):
            self._one()
        return Timing(wall_time_s=time.perf_counter() - wall, cpu_time_s=time.process_time() - cpu)

    def _one(self) -> Any:
        self.count += 1
        return self.step(self.step.workload.batch(self.count))


def launch(asked: argparse.Namespace) -> dict[str, Any]:
    """Build the three steps in this process and time them; return samples and losses."""
    import numpy as np
    import torch

    from ratchet.base.measure.rounds import run_rounds
    from ratchet.train.recipe import Recipe
    from ratchet.train.recipe.installed import ready_kernels
    from ratchet.train.workloads.load import load

    recipe = Recipe.load(asked.recipe)
    ready = ready_kernels(recipe.kernels, asked.ledger)
    ready.activate()
    config = ready.without_left_out(recipe.config)
    shape = {"batch_size": asked.batch_size, "sequence": asked.sequence}
    given = {name: value for name, value in shape.items() if value is not None}
    arms, swapped = [], {}
    for name, package in {BASELINE: None, **packages(asked.folder)}.items():
        torch.manual_seed(0)
        swapped[name] = list[str]()
        arms.append(
            StepArm(name, built(package, config, load(recipe.workload, **given), swapped[name]))
        )
    losses = {one.name: one.losses(WARM_STEPS) for one in arms}
    once = min(arms[0].run(1).wall_time_s for _ in range(2))
    samples = run_rounds(
        arms,
        rounds=asked.rounds,
        launch=asked.launch,
        rng=np.random.default_rng(asked.launch),
        iterations=asked.steps or max(1, round(BATCH_S / once)),
    )
    return {"samples": [asdict(one) for one in samples], "losses": losses, "swapped": swapped}


def apart(losses: dict[str, list[float]], name: str) -> float:
    """Return the largest difference of a loss from Ratchet's, as a share."""
    pairs = zip(losses[name], losses[BASELINE], strict=True)
    return max(abs(own - other) / max(abs(other), 1e-12) for own, other in pairs)


def measured(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the launches and return the ratios with their intervals."""
    from ratchet.base.measure import Sample
    from ratchet.base.measure.estimate import compare
    from ratchet.train.recipe import Recipe

    own = {**os.environ, **Recipe.load(asked.recipe).config.variables()}
    answers = []
    for index in range(asked.launches):
        out = folder / f"launch{index}.json"
        words = [sys.executable, *sys.argv, "--folder", str(folder), "--launch", str(index)]
        subprocess.run([*words, "--answer", str(out)], check=True, env=own)
        answers.append(json.loads(out.read_text()))
    samples = [Sample(**one) for answer in answers for one in answer["samples"]]
    found: dict[str, Any] = {"step_s": {}, "swapped": answers[0]["swapped"]}
    for name in ("kernels", "wheel"):
        ratio = compare(samples, baseline=BASELINE, new=name, floor=None)
        found[name] = {
            "ratio": round(ratio.ratio, 4),
            "low": round(ratio.low, 4),
            "high": round(ratio.high, 4),
            "pairs": ratio.pairs,
            "apart": max(apart(one["losses"], name) for one in answers),
        }
    for name in (BASELINE, "kernels", "wheel"):
        times = sorted(one.wall_time_s for one in samples if one.arm == name)
        found["step_s"][name] = round(times[len(times) // 2], 6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--ledger")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--sequence", type=int)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--launch", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer is not None:
        asked.answer.write_text(json.dumps(launch(asked)))
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-export-speed-") as name:
        said = exported(asked.recipe, asked.ledger, Path(name))
        result = {"recipe": str(asked.recipe), **said, **measured(asked, Path(name))}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
