"""What draws a policy's answers: transformers or vLLM, with the weights of now."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_bench import SMALL, SimulatedBench, tasks

from ratchet.base.errors import LearnError
from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.languages import ScheduleLanguage
from ratchet.write.learn.models import Policy, with_lora
from ratchet.write.learn.objectives import Reinforcement, SkillTest
from ratchet.write.learn.rollouts import (
    DrawRequest,
    Rollouts,
    Sampled,
    VllmRollouts,
    answer_logs,
    drawn_logs,
    open_rollouts,
    plain_weights,
)
from ratchet.write.learn.stages import LearnStage, grpo
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.learn.training import read_curve

PROMPTS = ("<task> cpp; in 20\n<answer>", "<task> triton; out 3\n<answer>")
CLOSE = 2e-3
"""Nats by which log-probabilities of two engines in float32 may differ."""


def needs_vllm(test: Callable[..., None]) -> Callable[..., None]:
    """Skip a test where there is no vLLM, and let vLLM warn of what it imports."""
    there = importlib.util.find_spec("vllm") is not None
    marked: Callable[..., None] = pytest.mark.filterwarnings("ignore")(test)
    skip = pytest.mark.skipif(not there, reason="vLLM is not installed")
    found: Callable[..., None] = skip(marked)
    return found


class FreeLanguage(ScheduleLanguage):
    """Schedules that may be any text."""

    def choices(self, task: LearnTask) -> Sequence[Sequence[str]]:
        return ()


class CountingRollouts(Rollouts):
    """Says of each answer that it was drawn with a probability of a half at each place."""

    def __init__(self) -> None:
        self.requests: list[DrawRequest] = []

    def draw(
        self, model: Any, tokenizer: Any, requests: Sequence[DrawRequest]
    ) -> list[list[Sampled]]:
        self.requests += requests
        return super().draw(model, tokenizer, requests)


@pytest.fixture(scope="module")
def vllm() -> Iterator[VllmRollouts]:
    """One engine for all tests: it takes some twenty seconds to start."""
    engine = VllmRollouts(memory=0.3)
    yield engine
    engine.close()


def requests(temperature: float = 1.0, count: int = 4) -> list[DrawRequest]:
    return [
        DrawRequest(prompt=one, count=count, most_tokens=12, temperature=temperature, seed=seed)
        for seed, one in enumerate(PROMPTS)
    ]


def worst_gap(policy: Policy, answers: Sequence[Sampled], model: Any = None) -> float:
    """Return how far the engine's log-probabilities are from those of the model."""
    pad = policy.tokenizer.pad_token_id
    with torch.no_grad():
        own, asked = answer_logs(model or policy.model, answers, pad, as_drawn=True)
    told = drawn_logs(torch.full_like(own, torch.nan), answers)
    return float(((told - own).abs() * asked)[asked.bool()].max())


def test_an_engine_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert type(open_rollouts(SMALL)) is Rollouts
    source = SMALL.changed(answers="source")
    assert type(open_rollouts(source)) is Rollouts
    assert isinstance(open_rollouts(source.changed(device="cuda")), VllmRollouts)
    assert isinstance(open_rollouts(SMALL.changed(rollouts="vllm")), VllmRollouts)
    asked = source.changed(device="cuda", rollouts="transformers")
    assert type(open_rollouts(asked)) is Rollouts
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert type(open_rollouts(source.changed(device="cuda"))) is Rollouts
    with pytest.raises(LearnError, match="pip install vllm, or give --rollouts transformers"):
        open_rollouts(SMALL.changed(rollouts="vllm"))


@pytest.mark.parametrize("values", [{"rollouts": "tgi"}, {"rollout_memory": 1.0}])
def test_an_engine_that_is_unknown_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(LearnError, match="out of range: give "):
        SMALL.changed(**values).__post_init__()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_adapters_are_merged_into_the_weights(start: Policy) -> None:
    pytest.importorskip("peft")
    plain = {name: one.clone() for name, one in start.model.state_dict().items()}
    model = with_lora(start.model, 4)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_" in name:
                one.normal_(0, 0.1)
    found = {name: one.clone() for name, one in plain_weights(model)}
    merged = model.merge_and_unload().state_dict()
    assert found.keys() == merged.keys() == plain.keys()
    for name, one in merged.items():
        torch.testing.assert_close(found[name], one)
    assert any(not torch.equal(found[name], plain[name]) for name in plain)


def test_what_an_engine_told_takes_the_place_of_the_models(taught: Policy) -> None:
    ((one, other),) = Rollouts().draw(
        taught.model, taught.tokenizer, [DrawRequest(prompt=PROMPTS[0], count=2, most_tokens=6)]
    )
    told = Sampled(
        prompt=one.prompt, answer=one.answer, text=one.text, logs=(-0.5,) * len(one.answer)
    )
    own, asked = answer_logs(taught.model, [told, other], taught.tokenizer.pad_token_id)
    found = drawn_logs(own, [told, other])
    assert (found[0][asked[0].bool()] == -0.5).all()
    assert torch.equal(found[1], own[1])


def test_grpo_and_the_skills_ask_the_engine_they_are_given(taught: Policy) -> None:
    from concurrent.futures import ThreadPoolExecutor

    engine = CountingRollouts()
    language, config = ScheduleLanguage(), SMALL.changed(group=4, problems=2, turns=2)
    with ThreadPoolExecutor(1) as pool:
        work = Reinforcement(
            taught.model,
            taught.tokenizer,
            tasks(),
            language,
            SimulatedBench(),
            config,
            pool=pool,
            rollouts=engine,
        ).work(taught.model, 0)
    assert work is not None
    assert len(engine.requests) >= 2 + 2 * 4  # a group of each problem, then each answer again
    assert {one.count for one in engine.requests} == {4, 1}
    engine.requests.clear()
    SkillTest(tasks(), language, taught.tokenizer, engine).measure(taught.model)
    assert [one.temperature for one in engine.requests] == [0.0] * len(tasks())


@needs_vllm
@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_vllm_draws_with_the_models_probabilities(
    vllm: VllmRollouts, taught: Policy, temperature: float
) -> None:
    drawn = vllm.draw(taught.model, taught.tokenizer, requests(temperature))
    assert [len(one) for one in drawn] == [4, 4]
    answers = [one for group in drawn for one in group]
    assert all(len(one.logs) == len(one.answer) for one in answers)
    assert all(one.temperature == temperature for one in answers)
    assert len({one.answer for one in answers}) > 2
    assert worst_gap(taught, answers) < CLOSE
    again = vllm.draw(taught.model, taught.tokenizer, requests(temperature))
    assert [[one.answer for one in group] for group in again] == [
        [one.answer for one in group] for group in drawn
    ]


@needs_vllm
def test_vllm_takes_the_weights_of_now(vllm: VllmRollouts, taught: Policy, base: Policy) -> None:
    (before,) = vllm.draw(taught.model, taught.tokenizer, requests()[:1])
    with torch.no_grad():
        for one in taught.model.parameters():
            one.add_(0.05 * torch.randn_like(one))
    (after,) = vllm.draw(taught.model, taught.tokenizer, requests()[:1])
    assert worst_gap(taught, before) > 10 * CLOSE
    assert worst_gap(taught, after) < CLOSE
    (other,) = vllm.draw(base.model, base.tokenizer, requests()[:1])
    assert worst_gap(base, other) < CLOSE


@needs_vllm
def test_vllm_draws_with_adapters(vllm: VllmRollouts, start: Policy) -> None:
    pytest.importorskip("peft")
    model = with_lora(start.model, 4)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if "lora_" in name:
                one.normal_(0, 0.2)
    (drawn,) = vllm.draw(model, start.tokenizer, requests()[:1])
    assert worst_gap(start, drawn, model) < CLOSE


@needs_vllm
def test_vllm_gives_one_greedy_answer(vllm: VllmRollouts, taught: Policy) -> None:
    (drawn,) = vllm.draw(taught.model, taught.tokenizer, requests(0.0)[:1])
    (plain,) = Rollouts().draw(taught.model, taught.tokenizer, requests(0.0)[:1])
    assert [one.answer for one in drawn] == [one.answer for one in plain]


@needs_vllm
def test_a_prompt_that_vllm_cannot_read_is_one_line(vllm: VllmRollouts, taught: Policy) -> None:
    long = DrawRequest(prompt=PROMPTS[0] * 500, count=1, most_tokens=12)
    with pytest.raises(LearnError, match="or --rollouts transformers") as told:
        vllm.draw(taught.model, taught.tokenizer, [long])
    assert "\n" not in str(told.value)


@needs_vllm
def test_grpo_learns_from_what_vllm_draws(
    vllm: VllmRollouts,
    material: Corpus,
    base: Policy,
    taught: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ratchet.write.learn.stages.language_of", lambda *_: FreeLanguage())
    config = SMALL.changed(
        steps=20, group=16, rate=2e-3, measure_every=20, save_every=20, kl=0.0, blur=0.0
    )
    bench, folder = SimulatedBench(), tmp_path / "run"
    grpo(LearnStage(config, material, taught, base, tasks(), folder, rollouts=vllm), bench)
    rewards = [float(row["reward"]) for row in read_curve(folder)]
    assert len(rewards) == 20
    assert sum(rewards[-5:]) > sum(rewards[:5])


@needs_vllm
def test_an_engine_with_other_weights_is_found_out(vllm: VllmRollouts, taught: Policy) -> None:
    (drawn,) = vllm.draw(taught.model, taught.tokenizer, requests()[:1])
    vllm._checked = False
    with torch.no_grad():
        for one in taught.model.parameters():
            one.add_(0.5 * torch.randn_like(one))
    with pytest.raises(LearnError, match="nats from the model's"):
        vllm._check(taught.model, taught.tokenizer, drawn)
    vllm._check(taught.model, taught.tokenizer, drawn)  # once is enough
