"""One training loop for pretraining, SFT and GRPO: replay, forgetting, checkpoints, curves.

TRL's trainers have no place for windows of replay in each step's loss, draw no dead group again,
and resume to another curve. docs/how-to/learn.md says more.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ratchet.base import Json
from ratchet.base.errors import LearnError
from ratchet.base.files import make_folder
from ratchet.write.learn.checkpoint import (
    Curve,
    Row,
    RunState,
    Trackers,
    load_checkpoint,
    save_checkpoint,
)
from ratchet.write.learn.config import LearnConfig, same_config, write_config
from ratchet.write.learn.forgetting import BaseMemory, ReplayDebt, TextWindows

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

WARM_UP: Final = 20
"""Updates in which the learning rate rises."""
HALF: Final = 0.5
"""Part of a step that must fit before the deadline, as the last step took."""
MOST_REPLAY: Final = 0.5
LEAST_REPLAY: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    tokens: int
    """Tokens that go through the model for it."""
    loss: Callable[[], Tensor]
    """Mean loss; called once for each update."""
    updates: int = 1
    figures: dict[str, float] = field(default_factory=dict)


class Objective(abc.ABC):
    """The aim of a stage: its loss, and what is measured on the way."""

    stage: str
    least: int
    """Steps that a deadline does not cut: with fewer, nothing is learned."""

    @abc.abstractmethod
    def work(self, model: PreTrainedModel, step: int) -> StepWork | None:
        """Return the work of a step; None if it brought nothing to learn from."""

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Return figures that are measured now and then, such as skills."""
        return {}

    def state(self) -> dict[str, Json]:
        """Return what a resumed run must know, as plain data; nothing if the seed decides all."""
        return {}

    def restore(self, state: dict[str, Json]) -> None:  # noqa: B027
        """Take back what `state` returned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The end of a stage's training."""

    steps: int
    stopped: str
    """`done`, `budget` or `forgetting`."""
    replay: float
    """Share of replay at the end: `max_forgetting` may have raised it."""
    forgetting: float
    spent_s: float


Follow = Callable[[str, Row], None]
"""Called after each step with the stage's name and the step's figures."""


def train(
    model: PreTrainedModel,
    objective: Objective,
    config: LearnConfig,
    folder: Path,
    *,
    text: TextWindows | None = None,
    memory: BaseMemory | None = None,
    deadline: float | None = None,
    follow: Follow | None = None,
) -> Trained:
    """Train until the steps are done, the deadline, or too much is forgotten.

    If the folder holds a checkpoint of the same config, training goes on from it. `text` is
    replayed beside the objective's own tokens; `memory` measures what is forgotten.

    Raises:
        LearnError: the folder has a run of another config, or cannot be written.
    """
    began = time.monotonic()
    open_folder(folder, config)
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=config.rate, betas=(0.9, 0.95), weight_decay=0.01)
    found = load_checkpoint(folder, model, optimizer)
    progress = found or RunState(replay=config.replay if text is not None else 0.0)
    if found is not None:
        objective.restore(found.notes)
    debt = ReplayDebt(progress.replay, config.context, progress.owed)
    curve = Curve(folder, upto=progress.step)
    forgetting = next(
        (float(one["forgetting"]) for one in reversed(curve.rows) if "forgetting" in one), 0.0
    )
    stopped, step_s, measured = "done", 0.0, -1
    model.train()
    with Trackers(folder, config) as trackers:
        for step in range(progress.step, config.steps):
            now = time.monotonic()
            late = deadline is not None and now + HALF * step_s > deadline
            if late and step >= objective.least:
                stopped = "budget"
                break
            row: Row = {"step": step, "replay": debt.share}
            try:
                row |= _step(model, optimizer, objective, config, step, text, debt)
            except torch.OutOfMemoryError as error:
                raise LearnError(
                    f"step {step} does not fit in the GPU's memory: give a smaller --batch, "
                    "--group or --rollout-memory, or --lora 16; the last checkpoint is whole"
                ) from error
            progress.step = step + 1
            if memory is not None and (progress.step % config.measure_every == 0 or step == 0):
                kept = memory.measure(model)
                forgetting, measured = kept.forgetting, progress.step
                row |= {
                    "forgetting": kept.forgetting,
                    "divergence": kept.divergence,
                    "held_out_loss": kept.loss,
                    "completed": kept.completed,
                }
                row |= objective.measure(model)
                if kept.forgetting > config.max_forgetting:
                    if config.on_forgetting == "stop" or text is None:
                        stopped = "forgetting"
                    else:
                        debt.share = min(MOST_REPLAY, max(LEAST_REPLAY, 2 * debt.share))
                        row["raised"] = debt.share
            step_s = time.monotonic() - now
            row["spent_s"] = round(time.monotonic() - began, 3)
            curve.add(row)
            trackers.add(row)
            if follow is not None:
                follow(objective.stage, row)
            last = progress.step == config.steps or stopped != "done"
            if progress.step % config.save_every == 0 or last:
                progress.replay, progress.owed = debt.share, debt.owed
                progress.notes = objective.state()
                save_checkpoint(folder, model, optimizer, progress)
            if stopped != "done":
                break
    if stopped == "budget":
        progress.replay, progress.owed, progress.notes = debt.share, debt.owed, objective.state()
        save_checkpoint(folder, model, optimizer, progress)
    if memory is not None and measured != progress.step:
        forgetting = memory.measure(model).forgetting  # of the weights that are kept
    model.eval()
    return Trained(
        steps=progress.step,
        stopped=stopped,
        replay=debt.share,
        forgetting=forgetting,
        spent_s=time.monotonic() - began,
    )


def open_folder(folder: Path, config: LearnConfig) -> None:
    """Make a run's folder and write its config, or check that it holds the same one.

    Raises:
        LearnError: the folder has a run of another config, or cannot be written.
    """
    make_folder(folder)
    try:
        same_config(folder, config)
        write_config(folder, config)
    except OSError as error:
        raise LearnError(
            f"the run's folder {str(folder)!r} cannot be written ({error.strerror}): give another"
        ) from error


def _step(
    model: PreTrainedModel,
    optimizer: Optimizer,
    objective: Objective,
    config: LearnConfig,
    step: int,
    text: TextWindows | None,
    debt: ReplayDebt,
) -> dict[str, float]:
    """Carry out one step; return its figures."""
    work = objective.work(model, step)
    if work is None:
        return {}
    figures = dict(work.figures)
    losses, replayed, count = 0.0, 0.0, 0
    for update in range(work.updates):
        made = step * work.updates + update + 1
        for group in optimizer.param_groups:
            group["lr"] = config.rate * min(1.0, made / WARM_UP)
        optimizer.zero_grad(set_to_none=True)
        loss = work.loss()
        losses += float(loss.detach())
        windows = debt.due(work.tokens) if text is not None else 0
        if text is not None and windows:
            batch = text.batch(windows, seed=config.seed, step=step * work.updates + update)
            own = text_loss(model, batch)
            extra, weight = batch.numel(), config.replay_weight
            loss = (work.tokens * loss + weight * extra * own) / (work.tokens + weight * extra)
            replayed, count = replayed + float(own.detach()), count + extra
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(
            [one for one in model.parameters() if one.requires_grad], config.clip
        )
        optimizer.step()
    if not work.updates:
        return figures
    figures["loss"] = losses / work.updates
    figures["tokens"] = work.tokens * work.updates
    figures["replayed_tokens"] = count
    return figures


def text_loss(model: PreTrainedModel, windows: Tensor) -> Tensor:
    """Return the mean loss on windows of text, in nats a token."""
    place = next(model.parameters()).device
    ids = windows.to(place)
    logits = model(input_ids=ids).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
