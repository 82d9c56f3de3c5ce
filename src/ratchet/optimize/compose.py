"""The turn's answer put together, and written: recipe.json, result.json and report.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.devices import ceilings
from ratchet.devices.ceilings import Ceilings
from ratchet.devices.probe import describe_device
from ratchet.devices.roofline import mfu
from ratchet.errors import RatchetError
from ratchet.optimize import allocators
from ratchet.optimize.baseline import Baseline, oracle_for
from ratchet.optimize.candidate import Candidate
from ratchet.optimize.prove import Proof
from ratchet.optimize.prove_kernels import ProvenKernels
from ratchet.optimize.recipe import Recipe, RecipeKernel, RecipeModel
from ratchet.optimize.result import (
    ArmResult,
    Change,
    CompileCost,
    GradientResult,
    LossResult,
    OptimizeResult,
    Paste,
    Paths,
    StepProfile,
)
from ratchet.optimize.screen import check_gradients
from ratchet.optimize.turn import Turn

TITLES = {
    "as_written": "as written",
    "best_compile": "torch.compile's best",
    "best_compile_same": "torch.compile's best, same arithmetic",
    "same_arithmetic": "Ratchet, arithmetic kept",
    "ratchet": "Ratchet",
}


def compose(
    turn: Turn,
    *,
    description: dict[str, Any],
    baseline: Baseline,
    same: Candidate,
    best: Candidate,
    kernels: ProvenKernels,
    changes: Sequence[Change],
    before: StepProfile | None,
    after: StepProfile | None,
    losses: LossResult | None,
    proof: Proof,
    started_at: str,
) -> OptimizeResult:
    """Put the document together from what the stages found."""
    flops = float(description["flops_per_step"] or 0.0)
    turn.ceilings = ceilings_above(turn, flops / proof.summary("ratchet").median_s)
    out = turn.settings.out
    paths = Paths(
        recipe=str(out / "recipe.json"),
        result=str(out / "result.json"),
        report=str(out / "report.html"),
    )
    return OptimizeResult(
        workload=turn.settings.title,
        source=str(description["source"]),
        unit=str(description["unit"]),
        device=describe_device(turn.device),
        versions=turn.software,
        command=turn.settings.command,
        started_at=started_at,
        duration_s=turn.elapsed_s,
        resumed=turn.recalled > 0,
        arms=[_arm(turn, role, description, proof) for role in proof.arms],
        speedup={
            "vs_written": proof.speedup("as_written", "ratchet"),
            "vs_compile": proof.speedup("best_compile", "ratchet"),
            "vs_compile_same_arithmetic": proof.speedup("best_compile_same", "same_arithmetic"),
        },
        floor={"low": proof.floor.low, "high": proof.floor.high},
        best_compile=baseline.best.title,
        rivals=list(baseline.rivals),
        changes=list(changes),
        profile_before=before,
        profile_after=after,
        gradients=_gradients(turn, baseline, best),
        losses=losses,
        samples=[asdict(sample) for sample in proof.samples],
        compile=_compile_cost(turn, proof),
        paste=paste_lines(best, paths.recipe),
        paths=paths,
        verdicts=list(kernels.verdicts),
        warnings=list(turn.warnings),
    )


def ceilings_above(turn: Turn, flops_per_s: float) -> Ceilings | None:
    """The ceilings, measured again where a step beat them: they were taken on busy cores."""
    known = turn.ceilings
    if known is None or flops_per_s <= max(known.gemm_flops_per_s.values()):
        return known
    again = ceilings.measure(turn.device, cache=False)
    if flops_per_s > max(again.gemm_flops_per_s.values()):
        turn.warnings.append("a step beat the measured GEMM ceiling: read MFU above 100 % so")
    return again


def make_recipe(
    turn: Turn,
    result: OptimizeResult,
    best: Candidate,
    written: Candidate,
    description: Mapping[str, Any],
) -> Recipe:
    """The recipe of the turn's best, sealed."""
    return Recipe(
        workload=turn.settings.title,
        device=turn.device.fingerprint,
        device_name=turn.device.model,
        software=turn.software_fingerprint,
        versions=result.versions,
        config=best.config,
        kernels=tuple(RecipeKernel(**kernel.as_json()) for kernel in best.kernels),
        # A ledger from before they were described lacks both.
        model=RecipeModel(**model) if (model := description.get("model")) else None,
        optimizer=str(description.get("optimizer", "")),
        speedup={name: speedup.model_dump() for name, speedup in result.speedup.items()},
        changes_arithmetic=best.config.precision != written.config.precision,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    ).sealed()


def write(result: OptimizeResult, recipe: Recipe, render: Callable[[dict[str, Any]], str]) -> None:
    """Write the three files, each whole or not at all."""
    try:
        recipe.save(Path(result.paths.recipe))
        _write(Path(result.paths.result), result.model_dump_json(indent=2) + "\n")
        _write(Path(result.paths.report), render(result.model_dump(mode="json")))
    except OSError as error:
        raise RatchetError(
            f"{error.filename} cannot be written ({error.strerror}): give another folder with --out"
        ) from error


def make_folder(out: Path) -> None:
    """Make the folder of the three files before the work begins, not after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RatchetError(
            f"{out} cannot be made a folder ({error.strerror}): give another with --out"
        ) from error


def paste_lines(best: Candidate, recipe: str) -> Paste:
    """The lines that put the recipe into a script, and those that take it out."""
    variables = allocators.environment(best.config)
    apply = [
        "import ratchet",
        f'step = ratchet.compile(step, model, optimizer, recipe="{recipe}")',
    ]
    if variables:
        prefix = " ".join(f"{name}={value}" for name, value in variables.items())
        apply.append(f"# start the script with: {prefix} python your_script.py")
    return Paste(apply=apply, undo=["remove these lines: the script is as it was"])


def _arm(turn: Turn, role: str, description: dict[str, Any], proof: Proof) -> ArmResult:
    summary = proof.summary(role)
    candidate = proof.arms[role]
    flops = float(description["flops_per_step"] or 0.0)
    usage = proof.descriptions.get(_owner(proof, role), {})
    return ArmResult(
        key=role,  # type: ignore[arg-type]
        title=TITLES[role],
        step_time_s=summary.median_s,
        low_s=summary.low_s,
        high_s=summary.high_s,
        tokens_per_s=float(description["tokens_per_batch"]) / summary.median_s,
        mfu=mfu(flops, summary.median_s, turn.ceilings) if turn.ceilings else 0.0,
        peak_memory_bytes=int(usage.get("peak_memory_bytes", 0)),
        setup_time_s=_cold_setup_s(turn, proof, role),
        config=candidate.config.model_dump(mode="json"),
    )


def _owner(proof: Proof, role: str) -> str:
    """The role whose process ran this role's candidate."""
    key = proof.arms[role].key()
    return next(other for other in proof.arms if proof.arms[other].key() == key)


def _cold_setup_s(turn: Turn, proof: Proof, role: str) -> float:
    """The first start's time where it was seen (nothing cached), otherwise the final run's."""
    return turn.setup_s(proof.arms[role]) or float(proof.setup_s.get(_owner(proof, role), 0.0))


def _compile_cost(turn: Turn, proof: Proof) -> CompileCost:
    extra_s = _cold_setup_s(turn, proof, "ratchet") - _cold_setup_s(turn, proof, "as_written")
    gain_s = proof.summary("as_written").median_s - proof.summary("ratchet").median_s
    steps = math.ceil(max(extra_s, 0.0) / gain_s) if gain_s > 0 else None
    return CompileCost(extra_setup_s=extra_s, pays_after_steps=steps)


def _gradients(turn: Turn, baseline: Baseline, best: Candidate) -> GradientResult:
    """The gradient gate's figures for what was kept, from the ledger or taken now."""
    oracle = oracle_for(baseline.written, best.config)
    found = check_gradients(turn, best, oracle)
    good = "every parameter's first-step gradient is within the rule"
    return GradientResult(
        passed=found.passed,
        worst_parameter=found.worst_parameter,
        worst_ratio=found.worst_ratio,
        detail=good if found.passed else found.detail,
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text)
    partial.replace(path)
