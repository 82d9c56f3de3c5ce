"""What is kept: nothing that the final run does not call faster than its rival."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ratchet.optimize.turn.baseline import Baseline
from simulated_turns import CEILINGS, World, run

from ratchet.measure.estimate import Floor
from ratchet.measure.samples import Sample
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.turn.climb import Climb
from ratchet.optimize.turn.costs import ProofPlan
from ratchet.optimize.turn.keep import Found, keep, roles
from ratchet.optimize.turn.prove import TWIN, Proof, prove
from ratchet.optimize.turn.prove_kernels import ProvenKernels
from ratchet.optimize.turn.result import Change, LossResult
from ratchet.workloads.config import StepConfig

WRITTEN = with_config(StepConfig(), {})
RIVAL = with_config(StepConfig(compile_mode="default"), {})
BF16_RIVAL = with_config(StepConfig(compile_mode="default", precision="bf16_autocast"), {})
SAME = with_config(StepConfig(compile_mode="default", allocator="mallopt"), {})
BEST = with_config(StepConfig(compile_mode="default", precision="bf16_master"), {})
KERNELS = ProvenKernels(proven={}, refused={}, verdicts=())


def change(name: str, basis: Any, *, changes_arithmetic: bool = False) -> Change:
    return Change(
        name=name,
        kind="lever",
        decision="kept",
        reason="r",
        basis=basis,
        changes_arithmetic=changes_arithmetic,
    )


RIVALS = change("compile", "rival")
SAME_CLIMB = Climb(best=SAME, changes=(RIVALS, change("mallopt", "bundle")))
BEST_CLIMB = Climb(
    best=BEST, changes=(RIVALS, change("bf16-weights", "alone", changes_arithmetic=True))
)


def proof(arms: dict[str, Candidate], times_s: dict[str, float], *, launches: int = 3) -> Proof:
    """A proof in which the step of each role takes the time given, give or take a thousandth."""
    times_s = {**times_s, TWIN: times_s["best_compile"]}
    samples = [
        Sample(
            arm=role,
            launch=launch,
            round=index,
            position=place,
            iterations=1,
            wall_time_s=time_s * (1 + 1e-3 * ((index + place + launch) % 3)),
            cpu_time_s=time_s,
        )
        for launch in range(launches)
        for index in range(6)
        for place, (role, time_s) in enumerate(times_s.items())
    ]
    return Proof(
        arms={role: one for role, one in arms.items() if role in times_s},
        samples=tuple(samples),
        descriptions={},
        setup_s={},
        floor=Floor(low=0.99, high=1.01, pairs=18),
        launches=launches,
        asked=3,
    )


def decide(
    times_s: dict[str, float] | None,
    *,
    same: Climb = SAME_CLIMB,
    best: Climb = SAME_CLIMB,
    rival: Candidate = RIVAL,
    launches: int = 3,
    losses: bool | None = None,
    written_is_faster: bool = False,
) -> Any:
    baseline = Baseline(
        written=WRITTEN,
        best=rival,
        best_same=RIVAL,
        rivals=(),
        written_is_faster=written_is_faster,
    )
    compared = LossResult(passed=losses, detail="") if losses is not None else None
    found = Found(same=same, best=best, kernels=KERNELS, losses=compared, reserved_s=1.0)
    arms = roles(baseline, same.best, best.best)
    ran = proof(arms, times_s, launches=launches) if times_s is not None else None
    return keep(baseline, found, ran)


def decisions(kept: Any) -> dict[str, str]:
    return {one.name: one.decision for one in kept.changes}


def times_s(ratchet: float, **more: float) -> dict[str, float]:
    same = {"best_compile_same": 1.0, "same_arithmetic": ratchet}
    return {"as_written": 1.5, "best_compile": 1.0, **same, "ratchet": ratchet, **more}


def test_what_is_proven_faster_stays_with_its_bundle() -> None:
    kept = decide(times_s(0.8))
    assert kept.recipe is SAME and kept.recipe_is == "proven"
    assert decisions(kept) == {"compile": "kept", "mallopt": "kept"}
    assert kept.proof.speedup("best_compile", "ratchet").answer == "faster"


@pytest.mark.parametrize("ratchet", [1.0, 0.995, 1.2])
def test_what_is_not_proven_faster_goes_and_the_rival_is_the_recipe(ratchet: float) -> None:
    kept = decide(times_s(ratchet))
    assert kept.recipe is RIVAL and kept.same is RIVAL and kept.recipe_is == "rival"
    assert decisions(kept) == {"compile": "kept", "mallopt": "dropped"}
    assert "did not prove" in kept.because
    assert kept.proof.speedup("best_compile", "ratchet").ratio == 1.0


def test_one_launch_of_three_proves_nothing() -> None:
    kept = decide(times_s(0.5), launches=1)
    assert kept.recipe is RIVAL
    assert "1 of 3 launches" in kept.because


def test_without_a_proof_the_rival_is_the_recipe_or_the_step_as_written() -> None:
    assert decide(None).recipe is RIVAL
    found = decide(None, written_is_faster=True)
    assert found.recipe is WRITTEN and found.recipe_is == "as_written"
    assert decisions(found) == {"compile": "dropped", "mallopt": "dropped"}


def test_where_the_step_as_written_is_faster_it_is_the_recipe() -> None:
    kept = decide(times_s(1.0, as_written=0.7))
    assert kept.recipe is WRITTEN and kept.recipe_is == "as_written"
    assert decide(times_s(0.8, as_written=0.5)).recipe is WRITTEN


def test_the_part_that_keeps_the_arithmetic_may_be_what_is_proven() -> None:
    kept = decide(times_s(1.1, same_arithmetic=0.8), best=BEST_CLIMB, losses=True)
    assert kept.recipe is SAME and kept.recipe_is == "proven"
    assert decisions(kept) == {"compile": "kept", "mallopt": "kept", "bf16-weights": "dropped"}


def test_a_rival_in_another_arithmetic_is_no_recipe_without_its_losses() -> None:
    kept = decide(times_s(1.1), rival=BF16_RIVAL)
    assert kept.recipe is RIVAL
    climbed = Climb(best=BF16_RIVAL, changes=())
    assert decide(times_s(1.0), rival=BF16_RIVAL, best=climbed, losses=True).recipe is BF16_RIVAL


def test_a_rival_that_the_final_run_left_out_may_be_the_recipe() -> None:
    short = {"as_written": 1.5, "best_compile": 1.0, "ratchet": 1.0}
    kept = decide(short, rival=BF16_RIVAL, best=BEST_CLIMB, losses=False)
    assert kept.recipe is RIVAL and kept.recipe_is == "rival"


def test_losses_with_bf16_weights_speak_for_autocast() -> None:
    assert decide(times_s(1.1), rival=BF16_RIVAL, best=BEST_CLIMB, losses=True).recipe is BF16_RIVAL


def test_an_arm_of_one_launch_is_undecided() -> None:
    arms = {"as_written": WRITTEN, "best_compile": RIVAL, "ratchet": BEST}
    found = proof(arms, {"as_written": 2.0, "best_compile": 1.0, "ratchet": 0.5})
    late = [one for one in found.samples if one.arm != "as_written" or one.launch == 0]
    found = replace(found, samples=tuple(late))
    assert found.speedup("as_written", "ratchet").answer == "undecided"
    assert found.speedup("best_compile", "ratchet").answer == "faster"


def test_launches_of_a_killed_run_that_lack_an_arm_say_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan has room for all arms, and the remembered launches had fewer."""
    arms = {
        "as_written": WRITTEN,
        "best_compile": BF16_RIVAL,
        "best_compile_same": RIVAL,
        "same_arithmetic": SAME,
        "ratchet": BEST,
    }
    short = {"as_written": 1.5, "best_compile": 1.0, "ratchet": 0.5}
    done = [
        {
            "samples": [asdict(one) for one in proof(arms, short).samples if one.launch == launch],
            "descriptions": {},
            "setup_s": {},
        }
        for launch in range(3)
    ]
    plan = ProofPlan(roles=tuple(arms), launches=3, omissions=())
    monkeypatch.setattr("ratchet.optimize.turn.prove.plan_proof", lambda *_, **__: plan)
    monkeypatch.setattr("ratchet.optimize.turn.prove._launches", lambda *_: done)
    turn: Any = SimpleNamespace(
        close_arms=lambda: None,
        costs=None,
        left_s=lambda: 100.0,
        settings=SimpleNamespace(launches=3),
    )
    found = prove(turn, arms, rival="best_compile")
    assert found is not None and set(found.arms) == set(short)
    assert not found.is_faster("same_arithmetic", "best_compile_same")
    assert found.is_faster("ratchet", "best_compile")


def test_a_whole_turn_keeps_only_what_helps(tmp_path: Path) -> None:
    result = run(World(factors={"allocator": 0.7, "huge_pages": 1.1}), tmp_path, 900.0).result
    kept = {one.name: one.basis for one in result.changes if one.decision == "kept"}
    assert kept["allocator-mallopt"] == "alone" and "huge-pages" not in kept
    assert result.recipe_is == "proven"


def test_a_whole_turn_without_a_gain_ends_with_the_rival(tmp_path: Path) -> None:
    result = run(World(), tmp_path, 900.0).result
    assert result.recipe_is == "rival"
    assert all(one.basis == "rival" for one in result.changes if one.decision == "kept")
    assert result.speedup["vs_compile"].ratio == 1.0


def test_another_arithmetic_is_proven_where_it_pays(tmp_path: Path) -> None:
    world = World(factors={"precision": 0.5}, ceilings=CEILINGS)
    result = run(world, tmp_path, 1800.0).result
    assert result.losses is not None and result.losses.passed
    ratchet = next(arm for arm in result.arms if arm.key == "ratchet")
    assert ratchet.config["precision"] != "fp32"
