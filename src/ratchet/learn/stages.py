"""The stages of learning, each from a folder to a folder: pretrain, sft, grpo."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from torch import Tensor

from ratchet.base.errors import LearnError
from ratchet.learn.bench import Bench
from ratchet.learn.checkpoint import Curve, read_curve
from ratchet.learn.config import LARGEST_SEED, LearnConfig
from ratchet.learn.corpus import Corpus
from ratchet.learn.forgetting import BaseMemory
from ratchet.learn.grpo import Judging, Reinforcement
from ratchet.learn.languages import language_of
from ratchet.learn.models import (
    CARD,
    Policy,
    PolicyCard,
    count_parameters,
    load_model,
    load_policy,
    save_policy,
    small_llama,
    with_lora,
)
from ratchet.learn.objectives import LEAST_STEPS, Imitation, Pretraining, SkillTest
from ratchet.learn.replay import TextWindows
from ratchet.learn.rollouts import Rollouts
from ratchet.learn.tasks import LearnTask
from ratchet.learn.tokens import train_tokenizer
from ratchet.learn.training import Follow, Objective, Trained, open_folder, train

TOKENIZER = "tokenizer"
MEMBER: Final = 1_000_003
"""Distance between the seeds of a soup's members."""
MOVED: Final = (0.75, 0.5, 0.25)
"""Shares of a change of weights that are tried where the whole of it forgets too much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """A stage's policy, and how its training went."""

    policy: Policy
    trained: Trained
    folder: Path


def pretrain(
    config: LearnConfig,
    corpus: Corpus,
    folder: Path,
    *,
    deadline: float | None = None,
    follow: Follow | None = None,
) -> StageResult:
    """Return a base model: the small Llama trained on the corpus's text, or the named one as is."""
    if config.model:
        model, tokenizer = load_model(config.model, device=config.device)  # nothing is trained
        trained = Trained(steps=0, stopped="done", replay=0.0, forgetting=0.0, spent_s=0.0)
        return _kept(config, model, tokenizer, "base", corpus, folder, trained)
    tokenizer = _tokenizer(config, corpus, folder)
    model = small_llama(config, tokenizer)
    text = TextWindows(corpus.text, tokenizer, config.context)
    held_out = TextWindows(corpus.held_out, tokenizer, config.context)
    # Nothing is forgotten while text alone is learned; the loss on what is held out is measured.
    plain = config.changed(max_forgetting=1e9, replay=0.0)
    trained = train(
        model,
        Pretraining(text, config),
        plain,
        folder,
        memory=BaseMemory(model, held_out),
        deadline=deadline,
        follow=follow,
    )
    return _kept(config, model, tokenizer, "base", corpus, folder, trained)


def sft(
    config: LearnConfig,
    corpus: Corpus,
    start: Policy,
    base: Policy,
    tasks: Sequence[LearnTask],
    folder: Path,
    *,
    deadline: float | None = None,
    follow: Follow | None = None,
    rollouts: Rollouts | None = None,
) -> StageResult:
    """Return a policy that learned the corpus's answers; it forgets little of `base`'s text.

    With `config.soup`, it has the mean weights of so many policies, each taught in an order of its
    own. Such a mean answers problems of other families better than its members (Wortsman et al.,
    Model soups, ICML 2022).
    """
    if config.soup == 1:
        return _taught(config, corpus, start, base, tasks, folder, deadline, follow, rollouts)
    open_folder(folder, config)
    mean: dict[str, Tensor] = {}
    ends: list[Trained] = []
    curve = Curve(folder)
    model: Any = None
    for place in range(config.soup):
        own = config.changed(seed=(config.seed + MEMBER * place) % LARGEST_SEED, soup=1)
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        model = None  # of the member before: a GPU need not hold both
        done = _taught(
            own,
            corpus,
            replace(start, model=copy.deepcopy(start.model)),
            base,
            tasks,
            folder / f"member-{place}",
            None if left is None else time.monotonic() + left / (config.soup - place),
            _later(follow, place * config.steps),
            rollouts,
            least=LEAST_STEPS // config.soup,
        )
        model = done.policy.model
        for name, one in model.state_dict().items():
            if place == 0 or not one.is_floating_point():
                mean[name] = one.to("cpu", copy=True)
            else:
                mean[name].lerp_(one.cpu(), 1 / (place + 1))
        ends.append(done.trained)
        del done
        for row in read_curve(folder / f"member-{place}"):
            curve.add(row | {"step": place * config.steps + int(float(row["step"]))})
    model.load_state_dict(mean)
    held_out = TextWindows(corpus.held_out, start.tokenizer, config.context)
    trained = Trained(
        steps=sum(one.steps for one in ends),
        stopped=next((one.stopped for one in ends if one.stopped != "done"), "done"),
        replay=max(one.replay for one in ends),
        forgetting=BaseMemory(base.model, held_out).measure(model).forgetting,
        spent_s=sum(one.spent_s for one in ends),
    )
    return _kept(config, model, start.tokenizer, "sft", corpus, folder, trained)


def _taught(
    config: LearnConfig,
    corpus: Corpus,
    start: Policy,
    base: Policy,
    tasks: Sequence[LearnTask],
    folder: Path,
    deadline: float | None,
    follow: Follow | None,
    rollouts: Rollouts | None,
    *,
    least: int = LEAST_STEPS,
) -> StageResult:
    model = with_lora(start.model, config.lora, seed=config.seed)
    language = language_of(config.answers, config.language)
    skills = SkillTest(tasks, language, start.tokenizer, rollouts)
    choices = {one.name: language.choices(one) for one in tasks}
    objective = Imitation(
        corpus.examples,
        start.tokenizer,
        config,
        language=language,
        choices=choices,
        skills=skills,
        least=least,
    )
    trained = _trained(model, start, base, objective, config, corpus, folder, deadline, follow)
    return _kept(config, model, start.tokenizer, "sft", corpus, folder, trained)


def _later(follow: Follow | None, steps: int) -> Follow | None:
    """Return `follow` for a run whose steps come after `steps` others."""
    if follow is None or not steps:
        return follow
    told = follow
    return lambda stage, row: told(stage, row | {"step": int(float(row["step"])) + steps})


def grpo(
    config: LearnConfig,
    corpus: Corpus,
    start: Policy,
    base: Policy,
    tasks: Sequence[LearnTask],
    bench: Bench,
    folder: Path,
    *,
    deadline: float | None = None,
    follow: Follow | None = None,
    rollouts: Rollouts | None = None,
) -> StageResult:
    """Return a policy that learned from the judge's answers on its own kernels."""
    model = with_lora(start.model, config.lora, seed=config.seed)
    language = language_of(config.answers, config.language)
    skills = SkillTest(tasks, language, start.tokenizer, rollouts)
    with ThreadPoolExecutor(1) as pool:
        judging = Judging(bench, pool)
        objective = Reinforcement(
            model,
            start.tokenizer,
            tasks,
            language,
            judging,
            config,
            skills=skills,
            deadline=deadline,
            rollouts=rollouts,
        )
        trained = _trained(model, start, base, objective, config, corpus, folder, deadline, follow)
    return _kept(config, model, start.tokenizer, "grpo", corpus, folder, trained)


def moved_back(
    done: StageResult, base: Policy, corpus: Corpus, config: LearnConfig
) -> tuple[StageResult, float]:
    """Return a policy with weights between the base model's and its own, and the share of its own.

    The largest share that forgets no more than `max_forgetting`; the policy as it is, with 1, if
    none does. Weights on the line between a model and its fine-tuned one keep much of what each
    knows (Wortsman et al., Robust fine-tuning of zero-shot models, CVPR 2022). Only measured
    forgetting is known of them here: how good their answers are is for the judge to say.
    """
    memory = BaseMemory(base.model, TextWindows(corpus.held_out, base.tokenizer, config.context))
    after = done.policy.model.state_dict()
    old = base.model.state_dict()
    model = copy.deepcopy(done.policy.model)
    for share in MOVED:
        model.load_state_dict(
            {
                name: old[name].to(one).lerp(one, share) if one.is_floating_point() else one
                for name, one in after.items()
            }
        )
        kept = memory.measure(model)
        if kept.forgetting <= config.max_forgetting:
            policy = Policy(model=model, tokenizer=done.policy.tokenizer, card=done.policy.card)
            trained = replace(done.trained, forgetting=kept.forgetting)
            return replace(done, policy=policy, trained=trained), share
    return done, 1.0


def _trained(
    model: Any,
    start: Policy,
    base: Policy,
    objective: Objective,
    config: LearnConfig,
    corpus: Corpus,
    folder: Path,
    deadline: float | None,
    follow: Follow | None,
) -> Trained:
    text = TextWindows(corpus.text, start.tokenizer, config.context) if config.replay else None
    memory = BaseMemory(base.model, TextWindows(corpus.held_out, start.tokenizer, config.context))
    return train(
        model, objective, config, folder, text=text, memory=memory, deadline=deadline, follow=follow
    )


def _tokenizer(config: LearnConfig, corpus: Corpus, folder: Path) -> Any:
    """Return the run's tokenizer: that of its folder if it goes on, or one learned now."""
    from transformers import AutoTokenizer

    place = folder / TOKENIZER
    if (place / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(place, padding_side="left")
    texts = [*(one.prompt + one.answer for one in corpus.examples[:500]), *corpus.text]
    found = train_tokenizer(texts, config.vocabulary)
    try:
        found.save_pretrained(place)
    except OSError as error:
        raise LearnError(
            f"the folder {str(folder)!r} cannot be written ({error.strerror}): give another --out"
        ) from error
    return found


def _kept(
    config: LearnConfig,
    model: Any,
    tokenizer: Any,
    stage: str,
    corpus: Corpus,
    folder: Path,
    trained: Trained,
) -> StageResult:
    card = PolicyCard(
        answers=config.answers,
        language=config.language,
        stage=stage,
        parameters=count_parameters(model),
        corpus=corpus.card.hash,
        figures={
            "steps": trained.steps,
            "forgetting": trained.forgetting,
            "replay": trained.replay,
            "spent_s": trained.spent_s,
        },
    )
    policy = Policy(model=model, tokenizer=tokenizer, card=card)
    save_policy(folder, policy)
    if hasattr(model, "merge_and_unload"):  # what comes next starts from whole weights
        policy = load_policy(folder, device=config.device)
    return StageResult(policy=policy, trained=trained, folder=folder)


def finished(folder: Path, *, device: str) -> StageResult:
    """Return the stage whose policy is in a folder, as its card tells of it."""
    policy = load_policy(folder, device=device)
    figures = policy.card.figures
    trained = Trained(
        steps=int(figures["steps"]),
        stopped="done",
        replay=figures["replay"],
        forgetting=figures["forgetting"],
        spent_s=figures["spent_s"],
    )
    return StageResult(policy=policy, trained=trained, folder=folder)


def is_whole(folder: Path) -> bool:
    """Return whether a stage's folder holds a policy that was written to the end."""
    return (folder / CARD).exists()


def noted(folder: Path, policy: Policy, figures: dict[str, float]) -> Policy:
    """Return the policy with more figures on its card, and write it to a folder."""
    card = msgspec.structs.replace(policy.card, figures={**policy.card.figures, **figures})
    found = Policy(model=policy.model, tokenizer=policy.tokenizer, card=card)
    save_policy(folder, found)
    return found
