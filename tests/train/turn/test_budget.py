"""`--budget` is a promise: simulated turns never end late, and the final run keeps its share."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from simulated_turns import CEILINGS, NO_BF16, World, run

from ratchet.base.errors import RatchetError
from ratchet.base.show.terminal import print_report
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn.choice import LOSS_STAGE
from ratchet.train.turn.comparisons import headline
from ratchet.train.turn.schedule import WARM, Costs, together_s
from ratchet.train.turn.show import optimize_report, render_page
from ratchet.train.workloads.config import StepConfig

WRITTEN = with_config(StepConfig(), {})
RIVAL = with_config(StepConfig(compile_mode="default", optimizer="fused"), {})
BEST = with_config(StepConfig(compile_mode="default", allocator="mallopt"), {})
WORLDS = st.builds(
    World,
    start_s=st.floats(0.2, 60.0),
    compile_s=st.floats(0.0, 200.0),
    autotune_s=st.floats(0.0, 900.0),
    warm=st.one_of(st.floats(0.02, WARM), st.floats(0.1, 1.0)),
    step_s=st.floats(0.002, 4.0),
    compiled=st.floats(0.3, 1.5),
    factors=st.fixed_dictionaries(
        {
            "allocator": st.floats(0.6, 1.2),
            "huge_pages": st.floats(0.6, 1.2),
            "preallocate": st.floats(0.6, 1.2),
            "precision": st.floats(0.4, 1.2),
        }
    ),
    verdict_s=st.floats(1.0, 180.0),
    side_by_side=st.booleans(),
    system=st.sampled_from([0.0, 0.001, 0.3]),
    ceilings=st.sampled_from([CEILINGS, NO_BF16]),
)


@settings(max_examples=25)
@given(WORLDS, st.sampled_from([30.0, 60.0, 120.0, 240.0, 720.0, 1800.0]))
def test_no_turn_is_late_and_the_final_run_has_its_share(world: World, budget_s: float) -> None:
    began_s = world.now_s
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = run(world, Path(folder), budget_s)
        except RatchetError as error:
            assert "give a larger --budget" in str(error)
            outcome = None
    assert world.now_s - began_s <= 1.1 * budget_s
    if outcome is None:
        return
    result = outcome.result
    assert result.budget is not None and result.budget.budget_s == budget_s
    if any(change.decision == "kept" and change.basis != "rival" for change in result.changes):
        assert result.recipe_is == "proven"
        assert result.budget.launches >= 2
    if world.side_by_side and world.warm <= WARM:
        assert "before anything could be proven" not in result.recipe_because
        assert "too few for a proof" not in result.recipe_because


def test_two_minutes_are_enough_for_a_small_step(tmp_path: Path) -> None:
    world = World(factors={"allocator": 0.7})
    began_s = world.now_s
    result = run(world, tmp_path, 120.0).result
    assert world.now_s - began_s <= 120.0
    assert result.recipe_is == "proven"
    found = result.speedup["vs_compile"]
    assert found is not None and found.answer == "faster"


def test_without_time_for_a_rival_the_step_as_written_is_the_recipe(tmp_path: Path) -> None:
    world = World(compile_s=500.0)
    result = run(world, tmp_path, 60.0).result
    assert result.recipe_is == "as_written"
    assert "before torch.compile's step was timed" in result.recipe_because
    assert result.budget is not None
    assert any("rival" in omission.what for omission in result.budget.omissions)
    assert set(result.speedup.values()) == {None} and result.samples == []
    assert result.not_measured["vs_compile"] == result.not_measured["best_compile"]
    assert [arm.key for arm in result.arms] == ["as_written"]
    assert result.best_compile == "not timed"
    assert result.profile_before is not None and result.profile_after is None
    assert Path(result.profile_before.trace).parent == Path(result.paths.result).parent


def test_without_time_for_a_proof_the_rival_is_the_recipe(tmp_path: Path) -> None:
    world = World(start_s=8.0, compile_s=70.0, factors={"allocator": 0.7})
    result = run(world, tmp_path, 120.0).result
    assert result.recipe_is == "rival"
    assert [arm.key for arm in result.arms][:2] == ["as_written", "best_compile"]
    assert result.speedup["vs_written"] is None and "launches" in result.not_measured["vs_written"]
    assert [change.name for change in result.changes if change.decision == "kept"] == ["compile"]


SHORT = {
    "no rival": (World(compile_s=80.0), 60.0, {"the timing of torch.compile", "the proof"}),
    "no proof": (
        World(start_s=8.0, compile_s=70.0, factors={"allocator": 0.7}),
        120.0,
        {"the proof"},
    ),
    "no losses": (
        World(ceilings=CEILINGS, factors={"precision=bf16_master": 0.5}),
        46.0,
        {"the comparison of losses"},
    ),
    "no verdicts": (World(verdict_s=60.0), 120.0, {"verdicts on kernels"}),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_budget_that_was_too_short_says_for_what_and_which_would_do(
    name: str, tmp_path: Path
) -> None:
    world, budget_s, stages = SHORT[name]
    result = run(deepcopy(world), tmp_path / "short", budget_s).result
    assert result.recipe_is != "proven" and result.budget is not None
    missing = result.budget.shortfall
    assert missing is not None and stages <= set(missing.stages)
    said = headline(result)
    assert all(stage in said for stage in stages)
    if LOSS_STAGE in missing.stages:
        assert result.not_measured["losses"] == "the budget had no room to compare them"
    assert f"--budget {missing.enough_s / 60:.0f}m" in said
    again = run(deepcopy(world), tmp_path / "enough", missing.enough_s).result
    assert again.budget is not None
    left = again.budget.shortfall
    if missing.is_least:  # nothing had ended that would tell
        assert "give at least" in said and missing.enough_s > budget_s
    else:
        assert "would do" in said and left is None


def test_a_proven_recipe_and_a_whole_turn_lack_nothing(tmp_path: Path) -> None:
    for name, world in {"won": World(factors={"allocator": 0.7}), "nothing": World()}.items():
        result = run(world, tmp_path / name, 900.0).result
        assert result.budget is not None and result.budget.shortfall is None
        assert "too short" not in headline(result)


def test_losses_that_were_not_compared_are_said_in_one_clause(tmp_path: Path) -> None:
    world, budget_s, _ = SHORT["no losses"]
    result = run(deepcopy(world), tmp_path, budget_s).result
    wanted = "Its losses were not compared, so the changed arithmetic is not kept"
    assert result.recipe_because.startswith(wanted)


def test_where_nothing_won_there_is_nothing_to_paste(tmp_path: Path) -> None:
    result = run(World(compile_s=500.0), tmp_path, 60.0).result
    assert result.recipe_is == "as_written"
    assert result.paste.apply == result.paste.undo == []
    console = Console(file=io.StringIO(), width=100)
    print_report(optimize_report(result), console)
    for told in (console.file.getvalue(), render_page(result)):  # type: ignore[attr-defined]
        assert "Paste into your script" not in told and "To undo" not in told
        assert "nothing to paste" in told


def test_a_recipe_of_torch_alone_says_so_above_its_lines(tmp_path: Path) -> None:
    for world in (World(), World(factors={"allocator": 0.7})):
        result = run(world, tmp_path / str(len(world.factors)), 900.0).result
        console = Console(file=io.StringIO(), width=200)
        print_report(optimize_report(result), console)
        for told in (console.file.getvalue(), render_page(result)):  # type: ignore[attr-defined]
            assert "Paste into your script" in told
            said = "there is nothing to paste" in " ".join(told.split())
            assert said == (result.recipe_is == "rival")


def test_a_step_that_does_not_run_within_the_budget_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RatchetError, match=r"give a larger --budget$"):
        run(World(start_s=100.0), tmp_path, 30.0)


def test_a_second_turn_decides_as_the_first_did(tmp_path: Path) -> None:
    world = World(factors={"allocator": 0.7, "huge_pages": 1.2})
    first = run(world, tmp_path, 200.0).result
    began_s, started = world.now_s, world.arms_started
    second = run(world, tmp_path, 200.0).result
    assert second.resumed
    assert second.speedup == first.speedup
    assert second.changes == first.changes
    assert second.recipe_is == first.recipe_is == "proven"
    assert world.arms_started == started
    assert world.now_s - began_s < 5.0


def test_a_recalled_turn_writes_its_own_traces(tmp_path: Path) -> None:
    """A second turn in another folder names no path of the first; a lost trace is taken anew."""
    world = World(factors={"allocator": 0.7})
    for name in ("first", "second", "third"):
        if name == "third":
            for path in tmp_path.glob("*/out/trace_*"):
                path.unlink()
        folder = tmp_path / name
        folder.mkdir()
        result = run(world, folder, 900.0).result
        profiles = (result.profile_before, result.profile_after)
        traces = [Path(one.trace) for one in profiles if one is not None]
        assert result.resumed == (name != "first")
        assert traces and all(path.is_file() for path in traces)
        assert all(path.is_relative_to(folder) for path in traces)


def test_what_a_longer_turn_found_leaves_a_short_one_its_proof(tmp_path: Path) -> None:
    world = World(factors={"allocator": 0.7, "huge_pages": 1.2})
    run(world, tmp_path, 1800.0)
    began_s = world.now_s
    short = run(world, tmp_path, 150.0).result
    assert world.now_s - began_s <= 165.0
    assert short.recipe_is == "proven"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.compiler
@pytest.mark.timeout(400)
def test_a_real_turn_of_two_minutes_ends_in_time(tmp_path: Path) -> None:
    """From the start of the process to its end, whatever else the machine does."""
    command = [sys.executable, "-m", "ratchet.cli", "optimize", "llama-tiny", "--budget", "2m"]
    command += ["--device", "cpu", "--json", "--out", str(tmp_path / "out")]
    command += ["--ledger", str(tmp_path / "ledger.db")]
    began_s = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    took_s = time.monotonic() - began_s
    assert ended.returncode == 0, ended.stderr
    assert took_s <= 132.0
    result = json.loads(ended.stdout)
    changed = [one for one in result["changes"] if one["basis"] in ("alone", "bundle")]
    assert not changed or result["speedup"]["vs_compile"]["answer"] == "faster"
    assert (tmp_path / "out" / "recipe.json").exists()


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=6))
def test_starting_together_lies_between_the_longest_and_the_sum(setups_s: list[float]) -> None:
    found_s = together_s(setups_s)
    assert max(setups_s) <= found_s * 1.0001
    assert found_s <= sum(setups_s) * 1.0001


def test_a_start_that_was_not_seen_is_guessed_from_those_like_it() -> None:
    costs = Costs()
    assert costs.setup_s(WRITTEN) == 0.0
    costs.note_setup(WRITTEN, 5.0)
    assert costs.setup_s(RIVAL) == 25.0
    costs.note_setup(RIVAL, 40.0)
    assert costs.setup_s(BEST) == 40.0
    autotuned = Candidate(title="", config=StepConfig(compile_mode="max-autotune"))
    assert costs.setup_s(autotuned) == 100.0
