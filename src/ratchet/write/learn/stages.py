"""The stages of learning, each from a folder to a folder: pretrain, sft, grpo."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from torch import Tensor

from ratchet.base.errors import LearnError
from ratchet.write.learn.bench import Bench
from ratchet.write.learn.config import LARGEST_SEED, LearnConfig
from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.languages import AnswerLanguage, language_of
from ratchet.write.learn.models import (
    CARD,
    Policy,
    PolicyCard,
    count_parameters,
    load_model,
    load_policy,
    save_policy,
    small_llama,
    train_tokenizer,
    with_lora,
)
from ratchet.write.learn.objectives import (
    LEAST_STEPS,
    Imitation,
    Pretraining,
    Reinforcement,
    SkillTest,
)
from ratchet.write.learn.rollouts import Rollouts
from ratchet.write.learn.tasks import LearnTask
from ratchet.write.learn.training import (
    BaseMemory,
    Curve,
    Follow,
    Objective,
    Row,
    TextWindows,
    Trained,
    open_folder,
    read_curve,
    train,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOKENIZER = "tokenizer"
FIGURES: Final = ("steps", "forgetting", "replay", "spent_s")
"""Figures of its training on a policy's card."""
MEMBER: Final = 1_000_003  # Distance between the seeds of a soup's members
MOVED: Final = (0.75, 0.5, 0.25)
"""Shares of a change of weights to try if the whole of it forgets too much."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    policy: Policy
    trained: Trained
    folder: Path


@dataclass(frozen=True, slots=True)
class LearnStage:
    """A stage that goes on from a policy: what it learns from, and where it is kept."""

    config: LearnConfig
    corpus: Corpus
    start: Policy  # Is trained
    base: Policy  # Forgetting is measured against it
    tasks: Sequence[LearnTask]
    folder: Path
    _: KW_ONLY
    deadline: float | None = None  # On the clock of `time.monotonic`
    follow: Follow | None = None
    rollouts: Rollouts = field(default_factory=Rollouts)  # Draws answers

    @property
    def language(self) -> AnswerLanguage:
        return language_of(self.config.answers, self.config.language)

    def model(self) -> PreTrainedModel:
        return with_lora(self.start.model, self.config.lora, seed=self.config.seed)

    def skills(self) -> SkillTest:
        return SkillTest(self.tasks, self.language, self.start.tokenizer, self.rollouts)

    def memory(self) -> BaseMemory:
        return BaseMemory(self.base.model, self._windows(self.corpus.held_out))

    def train(self, model: PreTrainedModel, objective: Objective) -> StageResult:
        trained = train(
            model,
            objective,
            self.config,
            self.folder,
            text=self._windows(self.corpus.text) if self.config.replay else None,
            memory=self.memory(),
            deadline=self.deadline,
            follow=self.follow,
        )
        return self.keep(model, trained, objective.stage)

    def keep(self, model: PreTrainedModel, trained: Trained, stage: str) -> StageResult:
        return _kept(
            self.config, model, self.start.tokenizer, stage, self.corpus, self.folder, trained
        )

    def _windows(self, texts: Sequence[str]) -> TextWindows:
        return TextWindows(texts, self.start.tokenizer, self.config.context)


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


def sft(stage: LearnStage) -> StageResult:
    """Return a policy that learned the corpus's answers; it forgets little of the base's text.

    With `config.soup`, it has the mean weights of that many policies, each taught in an order of
    its own. Such a mean answers problems of other families better than its members (Wortsman et
    al., Model soups, ICML 2022).
    """
    config = stage.config
    if config.soup == 1:
        return _taught(stage)
    open_folder(stage.folder, config)
    mean: dict[str, Tensor] = {}
    ends: list[Trained] = []
    curve = Curve(stage.folder)
    model: PreTrainedModel = None
    for place in range(config.soup):
        model = None  # free the last member's weights: a GPU need not hold both
        done = _taught(_member(stage, place), least=LEAST_STEPS // config.soup)
        model = done.policy.model
        for name, one in model.state_dict().items():
            if place == 0 or not one.is_floating_point():
                mean[name] = one.to("cpu", copy=True)
            else:
                mean[name].lerp_(one.cpu(), 1 / (place + 1))
        ends.append(done.trained)
        for row in read_curve(done.folder):
            curve.add(row | {"step": place * config.steps + int(float(row["step"]))})
        del done
    model.load_state_dict(mean)
    trained = Trained(
        steps=sum(one.steps for one in ends),
        stopped=next((one.stopped for one in ends if one.stopped != "done"), "done"),
        replay=max(one.replay for one in ends),
        forgetting=stage.memory().measure(model).forgetting,
        spent_s=sum(one.spent_s for one in ends),
    )
    return stage.keep(model, trained, "sft")


def _member(stage: LearnStage, place: int) -> LearnStage:
    """Return the stage of one member of a soup: its own seed, folder and share of the time."""
    config, deadline, follow = stage.config, stage.deadline, stage.follow
    if deadline is not None:
        now = time.monotonic()
        deadline = now + max(0.0, deadline - now) / (config.soup - place)

    def later(name: str, row: Row) -> None:
        if stage.follow is not None:
            stage.follow(name, row | {"step": int(float(row["step"])) + place * config.steps})

    return replace(
        stage,
        config=config.changed(seed=(config.seed + MEMBER * place) % LARGEST_SEED, soup=1),
        start=replace(stage.start, model=copy.deepcopy(stage.start.model)),
        folder=stage.folder / f"member-{place}",
        deadline=deadline,
        follow=follow and later,
    )


def _taught(stage: LearnStage, *, least: int = LEAST_STEPS) -> StageResult:
    objective = Imitation(
        stage.corpus.examples,
        stage.start.tokenizer,
        stage.config,
        language=stage.language,
        choices={one.name: stage.language.choices(one) for one in stage.tasks},
        skills=stage.skills(),
        least=least,
    )
    return stage.train(stage.model(), objective)


def grpo(stage: LearnStage, bench: Bench) -> StageResult:
    """Return a policy that learned from the judge's answers on its own kernels."""
    model = stage.model()
    with ThreadPoolExecutor(1) as pool:
        objective = Reinforcement(
            model,
            stage.start.tokenizer,
            stage.tasks,
            stage.language,
            bench,
            stage.config,
            pool=pool,
            skills=stage.skills(),
            deadline=stage.deadline,
            rollouts=stage.rollouts,
        )
        return stage.train(model, objective)


def moved_back(
    done: StageResult, base: Policy, corpus: Corpus, config: LearnConfig
) -> tuple[StageResult, float]:
    """Move a policy's weights towards the base model's; return it with its own weights' share.

    The share is the largest that forgets no more than `max_forgetting`, or 1 if none does. Weights
    between a model and its fine-tuned one keep much of what each knows (Wortsman et al., Robust
    fine-tuning of zero-shot models, CVPR 2022). Their answers are for the judge to measure.
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
            trained = replace(done.trained, forgetting=kept.forgetting)
            policy = replace(done.policy, model=model)
            return replace(done, policy=policy, trained=trained), share
    return done, 1.0


def _tokenizer(config: LearnConfig, corpus: Corpus, folder: Path) -> PreTrainedTokenizerFast:
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
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
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
        figures={name: getattr(trained, name) for name in FIGURES},
    )
    policy = Policy(model=model, tokenizer=tokenizer, card=card)
    save_policy(folder, policy)
    if hasattr(model, "merge_and_unload"):  # what comes next starts from whole weights
        policy = load_policy(folder, device=config.device)
    return StageResult(policy=policy, trained=trained, folder=folder)


def finished(folder: Path, *, device: str) -> StageResult:
    policy = load_policy(folder, device=device)
    figures = {name: policy.card.figures[name] for name in FIGURES}
    steps = int(figures.pop("steps"))
    trained = Trained(steps=steps, stopped="done", **figures)
    return StageResult(policy=policy, trained=trained, folder=folder)


def is_whole(folder: Path) -> bool:
    """Return whether a folder holds a whole policy; the card is written last."""
    return (folder / CARD).exists()


def save_with(folder: Path, policy: Policy, figures: dict[str, float]) -> None:
    """Write a policy to a folder, with more figures on its card."""
    card = msgspec.structs.replace(policy.card, figures={**policy.card.figures, **figures})
    save_policy(folder, replace(policy, card=card))
