"""What is kept: nothing that the final run does not call faster than its rival."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_turns import CEILINGS, World, run

from ratchet.base.measure import Sample
from ratchet.base.measure.sitting import Sitting, TimedTogether
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn.choice import Found, choose, roles
from ratchet.train.turn.judge_kernels import UsableKernels
from ratchet.train.turn.optimize_result import Change, LossResult
from ratchet.train.turn.prove import TWIN, Prover
from ratchet.train.turn.rivals import Baseline
from ratchet.train.turn.screen import Losses, arithmetic_of
from ratchet.train.turn.selection import Selected
from ratchet.train.workloads.config import StepConfig

WRITTEN = with_config(StepConfig(), {})
RIVAL = with_config(StepConfig(compile_mode="default"), {})
BF16_RIVAL = with_config(StepConfig(compile_mode="default", precision="bf16_autocast"), {})
SAME = with_config(StepConfig(compile_mode="default", allocator="mallopt"), {})
BEST = with_config(StepConfig(compile_mode="default", precision="bf16_master"), {})
BEST_FP32 = with_config(
    StepConfig(compile_mode="default", allocator="mallopt", huge_pages=True), {}
)
KERNELS = UsableKernels(usable={}, refused={}, verdicts=())


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
SAME_SELECTED = Selected(best=SAME, changes=(RIVALS, change("mallopt", "bundle")))
BEST_SELECTED = Selected(
    best=BEST, changes=(RIVALS, change("bf16-weights", "alone", changes_arithmetic=True))
)


def timed(
    arms: dict[str, Candidate], times_s: dict[str, float], *, launches: int = 3
) -> list[TimedTogether]:
    """Launches in which the step of each role takes the time given, give or take a thousandth."""
    times_s = {**times_s, TWIN: times_s["best_compile"]}
    own = {**arms, TWIN: arms["best_compile"]}
    found = []
    for launch in range(launches):
        samples = tuple(
            Sample(
                arm=role,
                launch=0,
                round=index,
                position=place,
                iterations=1,
                wall_time_s=time_s * (1 + 1e-3 * ((index + place + launch) % 3)),
                cpu_time_s=time_s,
            )
            for index in range(6)
            for place, (role, time_s) in enumerate(times_s.items())
        )
        found.append(
            TimedTogether(
                samples=samples,
                processes={role: f"{role} {launch}" for role in times_s},
                ways={role: own[role].key() for role in times_s},
            )
        )
    return found


def prover_of(launches: Sequence[TimedTogether]) -> Prover:
    turn: Any = SimpleNamespace()
    return Prover(turn=turn, sitting=Sitting(launches))


def decide(
    times_s: dict[str, float] | None,
    *,
    same: Selected | None = None,
    best: Selected = SAME_SELECTED,
    earlier: tuple[Selected, ...] = (),
    rival: Candidate = RIVAL,
    launches: int = 3,
    losses: bool | None = None,
    beats_written: bool = True,
) -> Any:
    baseline = Baseline(
        written=WRITTEN,
        best=rival,
        best_same=RIVAL,
        rivals=(),
        beats_written=beats_written,
    )
    compared = LossResult(passed=losses, detail="") if losses is not None else None
    turn: Any = SimpleNamespace(device=SimpleNamespace(kind="cpu"))
    changed = best.best.config.precision != "fp32"
    compared_by = {(arithmetic_of(best.best), False): compared} if changed else {}
    found = Found(
        baseline=baseline,
        best=best,
        same=same,
        earlier=earlier,
        kernels=KERNELS,
        losses=Losses(turn=turn, written=WRITTEN, found=compared_by),
    )
    same_one = same.best if same is not None else SAME
    arms = {role: one for role, one in roles(baseline, same_one, best.best).items() if one}
    ran = timed(arms, times_s, launches=launches) if times_s is not None else []
    return choose(found, prover_of(ran))


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
    assert "proved nothing faster" in kept.because
    assert kept.proof.speedup("best_compile", "ratchet").ratio == 1.0


def test_one_launch_of_three_proves_nothing() -> None:
    kept = decide(times_s(0.5), launches=1)
    assert kept.recipe is RIVAL
    assert "one launch" in kept.because


def test_without_a_proof_the_rival_is_the_recipe_or_the_step_as_written() -> None:
    assert decide(None).recipe is RIVAL
    found = decide(None, beats_written=False)
    assert found.recipe is WRITTEN and found.recipe_is == "as_written"
    assert decisions(found) == {"compile": "dropped", "mallopt": "dropped"}


def test_where_the_step_as_written_is_faster_it_is_the_recipe() -> None:
    kept = decide(times_s(1.0, as_written=0.7))
    assert kept.recipe is WRITTEN and kept.recipe_is == "as_written"
    assert decide(times_s(0.8, as_written=0.5)).recipe is WRITTEN


@pytest.mark.parametrize("as_written", [1.0, 1.001])
def test_a_recipe_that_wins_nothing_over_the_step_as_written_is_not_kept(
    as_written: float,
) -> None:
    kept = decide(times_s(1.0, as_written=as_written))
    assert kept.recipe is WRITTEN and kept.recipe_is == "as_written"
    assert "nothing proved the rival faster than the step as written" in kept.because
    assert decisions(kept) == {"compile": "dropped", "mallopt": "dropped"}


def test_a_proof_against_the_rival_alone_is_not_enough() -> None:
    """torch.compile is slower than the step as written, and the bundle makes that good."""
    kept = decide(times_s(0.8, as_written=0.8))
    assert kept.recipe is WRITTEN
    assert "nothing proved it faster than the step as written" in kept.because


def test_without_launches_of_both_the_rival_s_screening_speaks() -> None:
    short = {"best_compile": 1.0, "ratchet": 0.8}
    assert decide(short, beats_written=False).recipe is WRITTEN
    assert decide(short, beats_written=True).recipe is SAME


def test_the_part_that_keeps_the_arithmetic_may_be_what_is_proven() -> None:
    kept = decide(
        times_s(1.1, same_arithmetic=0.8), same=SAME_SELECTED, best=BEST_SELECTED, losses=True
    )
    assert kept.recipe is SAME and kept.recipe_is == "proven"
    assert decisions(kept) == {"compile": "kept", "mallopt": "kept", "bf16-weights": "dropped"}


def test_a_rival_in_another_arithmetic_is_no_recipe_without_its_losses() -> None:
    kept = decide(times_s(1.1), rival=BF16_RIVAL)
    assert kept.recipe is RIVAL
    selected = Selected(best=BF16_RIVAL, changes=())
    assert decide(times_s(1.0), rival=BF16_RIVAL, best=selected, losses=True).recipe is BF16_RIVAL


def test_a_rival_that_the_final_run_left_out_may_be_the_recipe() -> None:
    short = {"as_written": 1.5, "best_compile": 1.0, "ratchet": 1.0}
    kept = decide(short, rival=BF16_RIVAL, best=BEST_SELECTED, losses=False)
    assert kept.recipe is RIVAL and kept.recipe_is == "rival"


def test_losses_with_bf16_weights_speak_for_autocast() -> None:
    assert (
        decide(times_s(1.1), rival=BF16_RIVAL, best=BEST_SELECTED, losses=True).recipe is BF16_RIVAL
    )


def test_an_arm_of_one_launch_is_undecided() -> None:
    arms = {"as_written": WRITTEN, "best_compile": RIVAL, "ratchet": BEST}
    whole = timed(arms, {"as_written": 2.0, "best_compile": 1.0, "ratchet": 0.5}, launches=1)
    more = timed(arms, {"best_compile": 1.0, "ratchet": 0.5}, launches=3)[1:]
    found = prover_of([*whole, *more]).proof(arms)
    assert found.speedup("as_written", "ratchet").answer == "undecided"
    assert found.speedup("best_compile", "ratchet").answer == "faster"


def test_what_was_proven_before_a_later_change_stays_if_that_was_not() -> None:
    """A bundle was proven, a lever more was put on top, and the budget ended before its proof."""
    later = Selected(
        best=BEST_FP32, changes=(*SAME_SELECTED.changes, change("huge-pages", "alone"))
    )
    kept = decide(
        {"as_written": 1.5, "best_compile": 1.0, "same_arithmetic": 0.7},
        best=later,
        earlier=(SAME_SELECTED,),
    )
    assert kept.recipe is SAME and kept.recipe_is == "proven"
    assert decisions(kept) == {"compile": "kept", "mallopt": "kept", "huge-pages": "dropped"}


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


def test_a_whole_turn_without_a_gain_over_the_step_as_written_keeps_that(tmp_path: Path) -> None:
    """As for an LSTM, which torch.compile leaves as it is."""
    result = run(World(compiled=1.0), tmp_path, 900.0).result
    assert result.recipe_is == "as_written"
    assert not any(one.decision == "kept" for one in result.changes)


def test_another_arithmetic_is_proven_where_it_pays(tmp_path: Path) -> None:
    world = World(factors={"precision": 0.5}, ceilings=CEILINGS)
    result = run(world, tmp_path, 1800.0).result
    assert result.losses is not None and result.losses.passed
    ratchet = next(arm for arm in result.arms if arm.key == "ratchet")
    assert ratchet.config.precision != "fp32"


def test_times_of_a_disturbed_launch_do_not_contradict_the_ratio() -> None:
    """A median over both launches lies anywhere between them, for each side alone."""
    arms = {"best_compile": RIVAL, "ratchet": BEST}
    quiet = timed(arms, {"best_compile": 0.150, "ratchet": 0.100}, launches=1)
    busy = timed(arms, {"best_compile": 0.600, "ratchet": 0.400}, launches=1)
    proof = prover_of([*quiet, *busy]).proof(arms)
    assert proof.summary("best_compile").median_s == pytest.approx(0.150, rel=0.01)
    assert proof.summary("ratchet").median_s == pytest.approx(0.100, rel=0.01)
    ratio = proof.speedup("best_compile", "ratchet")
    assert ratio is not None
    assert ratio.ratio == pytest.approx(1.5, rel=0.01)
