"""The loop before the real judge, and its page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from commands import needs_judge
from simulated_bench import SMALL, SimulatedBench, tasks

from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.evaluate import Evaluation
from ratchet.write.learn.loop import Loop
from ratchet.write.learn.models import Policy, PolicyCard, load_policy, read_card
from ratchet.write.learn.objectives import NoReward
from ratchet.write.learn.rollouts import Rollouts
from ratchet.write.learn.show import LearnReport, RoundRow, headline, render_learn_page
from ratchet.write.learn.stages import LearnStage

WORDS = ["learn", "loop", "--rounds", "1", "--budget", "40s", "--families", "activations"]
WORDS += ["--per-family", "2", "--unseen", "losses", "--size", "tiny", "--group", "4"]
WORDS += ["--problems", "1", "--max-forgetting", "9", "--json"]


def evaluation(reward: float) -> Evaluation:
    return Evaluation(
        answers=12,
        valid=0.9,
        right=0.8,
        fast=reward,
        reward=reward,
        reward_low=reward - 0.1,
        reward_high=reward + 0.1,
        fast_low=0.1,
        fast_high=0.9,
        judged=10,
        problems=(),
    )


def report(*, running: bool) -> LearnReport:
    rows = tuple(
        RoundRow(
            number=number,
            kept=number < 2,
            why="reward <0.3> is above",
            evaluation=evaluation(0.25 * (number + 1)),
            forgetting=0.01,
            replay=0.01,
            corpus=40,
            judged=30,
            spent_s=60.0,
        )
        for number in range(3)
    )
    curves = {"grpo": [{"step": n, "reward": 0.1 * n, "forgetting": 0.01 * n} for n in range(4)]}
    return LearnReport(
        title="learn loop",
        command="ratchet learn loop",
        running=running,
        config=LearnConfig().rows(),
        curves=curves,
        rounds=rows,
        notes=("a note",),
    )


def test_the_page_has_both_curves_and_reloads_while_the_run_goes_on() -> None:
    page = render_learn_page(report(running=True))
    assert 'http-equiv="refresh"' in page
    assert "forgetting, nats a token" in page and "mean reward" in page
    assert "reward &lt;0.3&gt; is above" in page
    assert "<script" not in page
    assert 'http-equiv="refresh"' not in render_learn_page(report(running=False))


def test_the_headline_is_about_the_policy_that_is_kept() -> None:
    words = headline(report(running=False))
    assert "50 % of the answers" in words and "(25 % in round 0)" in words
    assert "reward is 0.500 (0.250 in round 0)" in words
    assert "round 1 is kept" in words


@pytest.mark.parametrize(
    ("said", "kept", "left"), [(2.0, True, "new"), (1.0, True, "old"), (2.0, False, "old")]
)
def test_a_new_policy_takes_its_place_once_its_round_is_noted(
    tmp_path: Path, said: float, kept: bool, left: str
) -> None:
    for name, words, figures in (
        ("policy", "old", {"round": 0.0}),
        ("policy.new", "new", {"round": said}),
    ):
        (tmp_path / name).mkdir()
        card = PolicyCard(
            answers="schedule", language="cpp", stage=words, parameters=1, figures=figures
        )
        (tmp_path / name / "policy.json").write_bytes(msgspec.json.encode(card))
    nothing: Any = None
    loop = Loop(
        config=LearnConfig(),
        court=nothing,
        out=tmp_path,
        show=nothing,
        rounds=1,
        budget_s=1.0,
        train=nothing,
        unseen=nothing,
    )
    loop.rows = [msgspec.structs.replace(one, kept=kept) for one in report(running=False).rounds]
    loop._put_in_place()
    assert read_card(tmp_path / "policy").stage == left
    assert not (tmp_path / "policy.new").exists()


def test_a_round_whose_grpo_finds_no_reward_has_the_policy_of_its_sft(
    material: Corpus, base_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(stage: LearnStage, _: Any) -> None:
        with torch.no_grad():
            for one in stage.start.model.parameters():
                one.zero_()
        raise NoReward("all rewards are zero")

    seen: list[Policy] = []

    def evaluated(self: Loop, policy: Policy) -> Evaluation:
        seen.append(policy)
        return evaluation(0.6)

    monkeypatch.setattr("ratchet.write.learn.loop.grpo", spoil)
    monkeypatch.setattr(Loop, "_write", lambda *_: None)
    monkeypatch.setattr(Loop, "_corpus", lambda *_: material)
    monkeypatch.setattr(Loop, "_evaluate", evaluated)
    shutil.copytree(base_folder, tmp_path / "base")
    court: Any = SimpleNamespace(
        ledger=SimpleNamespace(remember=lambda *_, **__: None), fingerprint=None
    )
    loop = Loop(
        config=SMALL.changed(steps=4),
        court=court,
        out=tmp_path,
        show=show,
        rounds=1,
        budget_s=60.0,
        train={},
        unseen={},
    )
    loop._train, loop._bench = list(tasks()), SimulatedBench()  # type: ignore[assignment]
    loop._rollouts = Rollouts()
    loop.rows = list(report(running=True).rounds[:1])
    loop._run_round(1, load_policy(base_folder))
    assert "GRPO stopped, all rewards are zero" in loop.notes[0]
    kept = load_policy(tmp_path / "round-1" / "sft").model.state_dict()
    found = seen[0].model.state_dict()
    assert all(torch.equal(one, found[name]) for name, one in kept.items())


def show(report: LearnReport, words: str) -> None:
    """Show nothing."""


def run(out: Path, ledger: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "RATCHET_LEDGER": str(ledger)}
    command = [sys.executable, "-m", "ratchet.cli", *WORDS, "--out", str(out)]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@needs_judge
@pytest.mark.thorough
@pytest.mark.compiler
def test_a_loop_that_is_killed_goes_on_to_a_policy(tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "ledger.db"
    with run(out, ledger) as first:
        while not (out / "loop.json").exists() and first.poll() is None:
            time.sleep(0.2)
        os.killpg(first.pid, signal.SIGKILL)
    places = [out / name / "policy.json" for name in ("policy", "policy.new")]
    assert any(one.exists() for one in places)
    with run(out, ledger) as second:
        text, errors = second.communicate()
    assert second.returncode == 0, errors
    found = json.loads(text)
    assert ["rival", "compile"] in found["config"]
    assert [row["number"] for row in found["rounds"]] == [0, 1]
    assert found["rounds"][0]["evaluation"]["answers"] > 0
    assert places[0].exists() and not places[1].exists()
    assert (out / "report.html").read_text().count("<svg") >= 2
