"""GRPO with a simulated judge: it learns, counts dead groups, and doubts a jump."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulated_bench import SMALL, SimulatedBench, tasks

from ratchet.base.errors import LearnError
from ratchet.write.author import Proposal
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.evaluate import evaluate, policy_drawer, random_drawer
from ratchet.write.learn.languages import ScheduleLanguage
from ratchet.write.learn.models import Policy
from ratchet.write.learn.objectives import Reinforcement
from ratchet.write.learn.rollouts import DrawRequest, answer_logs, sample
from ratchet.write.learn.stages import LearnStage, grpo
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.learn.training import read_curve

CONFIG = SMALL.changed(
    steps=10, group=8, rate=2e-3, measure_every=10, save_every=10, resamples=1, updates=2
)


def test_grpo_finds_what_is_fast(
    material: Corpus, base: Policy, taught: Policy, tmp_path: Path
) -> None:
    bench = SimulatedBench()
    before = evaluate(policy_drawer(taught), tasks(), bench, CONFIG, answers=16)
    by_chance = evaluate(random_drawer, tasks(), bench, CONFIG, answers=16)
    assert before.valid == 1.0
    done = grpo(LearnStage(CONFIG, material, taught, base, tasks(), tmp_path / "run"), bench)
    after = evaluate(policy_drawer(done.policy), tasks(), bench, CONFIG, answers=16)
    assert after.reward > before.reward
    assert after.reward > by_chance.reward
    assert after.reward_low <= after.reward <= after.reward_high


def test_a_model_that_learned_nothing_draws_among_the_choices(base: Policy) -> None:
    """Nothing but the choices of a problem can be drawn, and they share the probability."""
    task, language = tasks()[0], ScheduleLanguage()
    request = DrawRequest(
        prompt=language.prompt(task),
        count=8,
        most_tokens=language.most_tokens,
        seed=1,
        choices=language.choices(task),
    )
    drawn = sample(base.model, base.tokenizer, request)
    assert all(isinstance(language.read(task, one.text), Proposal) for one in drawn)
    assert len({one.text for one in drawn}) > 1
    logs, asked = answer_logs(base.model, drawn, base.tokenizer.pad_token_id)
    per_token = (logs * asked)[asked.bool()].reshape(len(drawn), -1)
    assert torch.isfinite(per_token).all() and (per_token <= 0).all()
    assert (per_token[:, -1] == 0).all()  # only the end may stand at the end
    hot = [replace(one, temperature=2.0) for one in drawn]
    heated, _ = answer_logs(base.model, hot, base.tokenizer.pad_token_id, as_drawn=True)
    unlikely = (logs == logs.where(asked.bool(), -torch.inf).amin()) & asked.bool()
    assert (heated[unlikely] > logs[unlikely]).all()  # heat makes what is unlikely likelier
    free = [replace(one, allowed=()) for one in drawn]
    unshared, _ = answer_logs(base.model, free, base.tokenizer.pad_token_id)
    assert ((logs - unshared)[asked.bool()] >= 0).all()


def test_equal_kernels_are_judged_once_and_dead_groups_are_counted(
    material: Corpus, base: Policy, taught: Policy, tmp_path: Path
) -> None:
    bench = SimulatedBench(flat=True)
    config = CONFIG.changed(steps=2)
    grpo(LearnStage(config, material, taught, base, tasks(), tmp_path / "run"), bench)
    assert len(bench.asked) == len(set(bench.asked))
    last = read_curve(tmp_path / "run")[-1]
    assert float(last["resampled"]) >= 1


def reinforcement(
    policy: Policy,
    bench: SimulatedBench,
    pool: ThreadPoolExecutor,
    *,
    language: ScheduleLanguage | None = None,
    config: LearnConfig = CONFIG,
) -> Reinforcement:
    spoken = language or ScheduleLanguage()
    return Reinforcement(policy.model, policy.tokenizer, tasks(), spoken, bench, config, pool=pool)


class RecordingLanguage(ScheduleLanguage):
    """Keeps the prompts for another try."""

    def __init__(self) -> None:
        self.again_prompts: list[str] = []

    def again(
        self, task: LearnTask, answer: str, said: str, *, right: bool, prompt: str = ""
    ) -> str:
        found = super().again(task, answer, said, right=right, prompt=prompt)
        self.again_prompts.append(found)
        return found


@pytest.mark.parametrize("status", ["screened", "wrong"])
def test_another_try_sees_the_last_answer_and_what_the_judge_said(
    taught: Policy, status: str
) -> None:
    language, config = RecordingLanguage(), CONFIG.changed(turns=3, problems=1, group=4)
    bench = SimulatedBench(status=status)
    with ThreadPoolExecutor(1) as pool:
        objective = reinforcement(taught, bench, pool, language=language, config=config)
        work = objective.work(taught.model, 0)
    assert work is not None and 0 <= work.figures["valid"] <= 1
    draws = 1 + objective.resampled
    assert objective.answers == draws * 3 * 4
    assert len(language.again_prompts) == draws * 2 * 4
    said = "<judged> right, " if status == "screened" else "<judged> wrong\n"
    for prompt in language.again_prompts:
        task, answer, judged, end = prompt.rsplit("\n", 3)
        assert task.startswith("<task> ") and answer.startswith("<answer>") and end == "<answer>"
        assert f"{judged}\n".startswith(said)
    assert torch.isfinite(work.loss())


def test_later_answers_share_their_reward_with_those_before(
    material: Corpus, base: Policy, taught: Policy, tmp_path: Path
) -> None:
    config = CONFIG.changed(steps=2, turns=2)
    stage = LearnStage(config, material, taught, base, tasks(), tmp_path / "run")
    done = grpo(stage, SimulatedBench())
    assert done.trained.steps == 2
    rows = read_curve(tmp_path / "run")
    assert all(0 < float(row["reward"]) <= 1 for row in rows)


def test_an_epoch_without_a_reward_says_what_to_do(taught: Policy) -> None:
    with ThreadPoolExecutor(1) as pool:
        objective = reinforcement(taught, SimulatedBench(status="wrong"), pool)
        with pytest.raises(LearnError, match="are zero: run ratchet learn sft"):
            for step in range(8):
                objective.work(taught.model, step)


@pytest.mark.parametrize("full", ["proven", "timed_out", "wrong"])
def test_a_jump_of_the_reward_is_judged_in_full(taught: Policy, full: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        objective = reinforcement(taught, SimulatedBench(full=full), pool)
        objective.restore({"counts": [0, 0, 0, 0, 0], "means": [-0.1] * 8, "alarms": []})
        if full != "wrong":
            objective.work(taught.model, 0)
            assert "jumped" in objective.alarms[0] and full in objective.alarms[0]
        else:
            with pytest.raises(LearnError, match="a full verdict rejects"):
                objective.work(taught.model, 0)


def test_logs_of_a_few_answers_at_a_time_are_those_of_all(
    taught: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of two lengths, limited and free answers: equal values, equal gradients."""
    task, language = tasks()[0], ScheduleLanguage()
    answers = [
        one
        for prompt in (language.prompt(task), "<task>\n<answer>")
        for one in sample(
            taught.model,
            taught.tokenizer,
            DrawRequest(prompt=prompt, count=3, most_tokens=9, choices=language.choices(task)),
        )
    ]
    answers[1] = replace(answers[1], allowed=())
    pad = taught.tokenizer.pad_token_id

    def told() -> tuple[torch.Tensor, list[torch.Tensor]]:
        taught.model.zero_grad()
        logs, asked = answer_logs(taught.model, answers, pad)
        assert float(asked.sum()) == sum(len(one.answer) for one in answers)
        (logs * asked).sum().backward()
        return logs * asked, [one.grad.clone() for one in taught.model.parameters()]

    whole, slopes = told()
    monkeypatch.setattr("ratchet.write.learn.rollouts.MOST_LOGITS", 1)
    few, own = told()
    torch.testing.assert_close(few, whole)
    for one, other in zip(own, slopes, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        torch.testing.assert_close(answer_logs(taught.model, answers, pad)[0] * (whole != 0), whole)


def test_another_try_keeps_the_first_prompts_blur(taught: Policy) -> None:
    language, config = RecordingLanguage(), CONFIG.changed(turns=2, problems=1, group=2, blur=0.6)
    with ThreadPoolExecutor(1) as pool:
        reinforcement(taught, SimulatedBench(), pool, language=language, config=config).work(
            taught.model, 0
        )
    plain = {language.prompt(one) for one in tasks()}
    begun = {one.rsplit("\n", 3)[0] for one in language.again_prompts}
    assert begun and not begun & {one.rsplit("\n", 1)[0] for one in plain}
