"""The schedule, in drawn worlds: nothing starves the proof, and more budget never gives less."""

from __future__ import annotations

import math
import os
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_turns import CEILINGS, NO_BF16, MadeUpArm, World, run

from ratchet.base.errors import RatchetError
from ratchet.train.turn import schedule as turn_schedule
from ratchet.train.turn.optimize_result import OptimizeResult
from ratchet.train.turn.schedule import (
    CLOSING,
    ENDS_PROVEN,
    LEAST_LAUNCHES,
    PATH,
    PLANNED_LAUNCHES,
    THEN,
    TurnSchedule,
)
from ratchet.train.turn.show import render_page

SEEDS = 2_500 if os.environ.get("RATCHET_TEST") == "all" else 3
AT_ONCE = 3
"""Worlds of one test: processes share the tests."""
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Ledgers on a disk would take most of the time."""
SLACK = 1.5
"""A budget over the shortest time to a proof, from which there must be one: kernels are judged in
between, estimates are cautious, and a launch is begun only if it fits."""


def drawn(seed: int) -> World:
    """A machine and a workload whose bundle is faster: costs over two orders of magnitude."""
    luck = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(luck.uniform(math.log(low), math.log(high)))

    return World(
        start_s=between(1.0, 20.0),
        compile_s=between(2.0, 120.0),
        autotune_s=between(10.0, 600.0),
        warm=between(0.03, 0.3),
        step_s=between(0.01, 2.0),
        compiled=luck.uniform(0.4, 1.1),
        compiling_slows=luck.choice([0.0, 0.05]),
        factors={"allocator": luck.uniform(0.6, 0.85), "precision": luck.uniform(0.5, 1.0)},
        kernels={"attention": luck.uniform(0.7, 0.95), "adamw": luck.uniform(0.7, 0.95)},
        verdict_s=between(1.0, 40.0),
        starts=luck.choice([0.0, 0.01, 0.03]),
        luck=random.Random(seed),
        side_by_side=luck.random() < 0.5,
        ceilings=luck.choice([CEILINGS, NO_BF16]),
    )


def turn(world: World, budget_s: float, **more: Any) -> tuple[OptimizeResult, float, float | None]:
    """Run one turn; its result, the time it took, and the time of the first proof."""
    began_s, proven_s = world.now_s, []

    def listen(event: str, details: dict[str, Any]) -> None:
        if event == "proven":
            proven_s.append(world.now_s - began_s)

    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        result = run(world, Path(folder), budget_s, listener=listen, **more).result
    return result, world.now_s - began_s, proven_s[0] if proven_s else None


def fresh(world: World, seed: int, **changed: Any) -> World:
    luck = random.Random(seed)
    begun = {"now_s": 1000.0, "busy_until_s": 0.0, "luck": luck}
    begun |= {"compiled_before": set(), "evidence": {}}
    return replace(world, **begun, **changed)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_no_plan_starves_the_proof(first: int) -> None:
    """If the bundle can be proven in half the budget without kernels, it is proven with them."""
    for seed in range(first, min(SEEDS, first + AT_ONCE)):
        world = drawn(seed)
        _, _, shortest_s = turn(fresh(world, seed, verdict_s=0.0, kernels={}), 20_000.0)
        if shortest_s is None:
            continue  # its starts scatter too much for what it wins
        budget_s = SLACK * shortest_s
        budget_s += CLOSING.of(budget_s)
        world = fresh(world, seed)
        result, took_s, _ = turn(world, budget_s)
        assert took_s <= 1.1 * budget_s, seed
        said = f"seed {seed}: {result.recipe_because} {result.budget}"
        assert result.recipe_is == "proven", said


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_twice_the_budget_never_gives_less(first: int) -> None:
    for seed in range(first, min(SEEDS, first + AT_ONCE)):
        world = replace(drawn(seed), starts=0.0, compiling_slows=0.0)
        budget_s = random.Random(seed).choice([60.0, 150.0, 300.0, 600.0])
        found = []
        for budget in (budget_s, 2 * budget_s):
            try:
                found.append(turn(fresh(world, seed), budget)[0])
            except RatchetError as error:
                assert "give a larger --budget" in str(error)
                found.append(None)
        once, twice = found
        if once is None or once.recipe_is != "proven":
            continue
        assert twice is not None and twice.recipe_is == "proven", seed
        one, two = once.speedup["vs_compile"], twice.speedup["vs_compile"]
        assert one is not None and two is not None
        ours, before = arm(twice, "ratchet"), arm(once, "ratchet")
        assert ours <= 1.02 * before, f"seed {seed}: {before} then {ours}"


def test_the_docs_give_the_order() -> None:
    """Each step has its number: those of the critical path, then the others."""
    page = (Path(__file__).parents[3] / "docs/how-to/optimize.md").read_text(encoding="utf-8")
    section = page.split("## What one turn does")[1].split("\n## ")[0]
    numbers = [int(found) for found in re.findall(r"^(\d+)\. \*\*", section, re.MULTILINE)]
    assert numbers == [*range(1, len(PATH) + 1), *range(1, len(THEN) + 1)]


def test_kernels_leave_the_bundle_its_proof() -> None:
    schedule = TurnSchedule(budget_s=200.0)
    with schedule.kernels(after_s=50.0, launch_s=20.0):
        left_s = 200.0 - CLOSING.of(200.0) - 90.0
        assert schedule.may_judge(left_s - 1.0) and not schedule.may_judge(left_s + 1.0)
    assert schedule.reserved_s == 50.0 + PLANNED_LAUNCHES * 20.0
    with schedule.kernels(after_s=50.0, launch_s=60.0):
        assert schedule.reserved_s == 50.0 + LEAST_LAUNCHES * 60.0
    with schedule.kernels(after_s=500.0, launch_s=20.0):
        assert not schedule.may_judge(0.0)
        assert schedule.may_judge(80.0, beside=True), "nothing can be timed while a rival compiles"
        assert not schedule.may_judge(110.0, beside=True)
    assert schedule.may_judge(110.0)


def arm(result: OptimizeResult, key: str) -> float:
    return next(one.step_time_s for one in result.arms if one.key == key)


def test_every_second_of_a_turn_is_counted_once(tmp_path: Path) -> None:
    result = run(World(factors={"allocator": 0.7}), tmp_path, 900.0).result
    assert result.budget is not None
    took_s = result.budget.took_s
    assert sum(took_s.values()) == pytest.approx(result.duration_s, rel=0.02)
    assert {"the step as written", "timed pairs", "launches of the proof"} <= took_s.keys()
    assert "Where this turn&#39;s time went" in render_page(result)


def test_a_turn_may_end_with_its_proof(tmp_path: Path) -> None:
    """Then it has timed the recipe beside the rival and the step as written, and nothing else."""
    world = World(factors={"allocator": 0.7})
    whole = run(world, tmp_path / "whole", 900.0).result
    found = run(World(factors={"allocator": 0.7}), tmp_path / "ended", 900.0, until_proven=True)
    result = found.result
    assert result.recipe_is == whole.recipe_is == "proven"
    assert result.duration_s < 0.7 * whole.duration_s
    for pair in ("vs_compile", "vs_written"):
        speedup = result.speedup[pair]
        assert speedup is not None and speedup.answer == "faster"
    assert result.budget is not None
    assert {one.reason for one in result.budget.omissions} == {ENDS_PROVEN}
    assert "budget" not in " ".join(one.reason for one in result.changes)


def test_what_is_inside_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [50.0]
    monkeypatch.setattr(turn_schedule, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    clock = TurnSchedule(budget_s=100.0)
    with clock.doing("outer"):
        now_s[0] += 1.0
        with clock.doing("inner"):
            now_s[0] += 4.0
        now_s[0] += 2.0
    assert (clock.took_s["outer"], clock.took_s["inner"]) == (3.0, 4.0)


def test_arms_that_start_stand_still_while_a_pair_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle compiles beside the rival, and is stopped whenever something is timed."""
    stopped: list[str] = []
    monkeypatch.setattr(MadeUpArm, "pause", lambda arm: stopped.append(arm.name))
    world, starting = World(factors={"allocator": 0.7}), list[str]()
    run(
        world,
        tmp_path,
        900.0,
        listener=lambda event, said: starting.append(said["title"]) if event == "start" else None,
    )
    assert starting[:3] == [
        "as written",
        "torch.compile, fp32, fused optimizer",
        "torch.compile, fp32, fused optimizer, mallopt, huge pages",
    ]
    assert stopped, "the bundle's arm was still starting when the rival was timed"
