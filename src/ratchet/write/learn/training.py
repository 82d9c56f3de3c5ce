"""One training loop for pretraining, SFT and GRPO: replay, forgetting, checkpoints, curves.

TRL's trainers have no place for windows of replay in each step's loss, draw no dead group again,
and resume to another curve. docs/how-to/learn.md says more.
"""

from __future__ import annotations

import abc
import importlib.util
import json
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ratchet.base import Json
from ratchet.base.errors import LearnError
from ratchet.base.files import make_folder, whole_file
from ratchet.write.learn.config import LearnConfig, keep_config

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.tensorboard import SummaryWriter
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


WINDOWS = 16  # Windows that are measured, at most
NUMBERS = 100_000_000
"""Log-probabilities of the base model that are kept, at most: large vocabularies get fewer
windows."""


class TextWindows:
    """Documents cut into windows of `length` tokens."""

    def __init__(
        self, texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, length: int
    ) -> None:
        ids: list[int] = []
        for text in texts:
            found = tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"]
            ids += [*found, tokenizer.eos_token_id]
        count = len(ids) // length
        if count < 1:
            raise LearnError(
                f"the replay text has {len(ids)} tokens and a window {length}: "
                "give more text with --text, or a smaller --context"
            )
        self._windows = torch.tensor(ids[: count * length], dtype=torch.long).view(count, length)
        self.length = length

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, count: int, *, seed: int, step: int) -> Tensor:
        """Return the windows of a step, [count, length]; the seed and the step decide which."""
        order = np.random.default_rng([seed, step]).integers(0, len(self._windows), size=count)
        return self._windows[torch.from_numpy(order)]

    def spread(self, count: int) -> Tensor:
        """Return windows spread evenly over all documents, [up to count, length]."""
        places = torch.linspace(0, len(self) - 1, min(count, len(self)))
        return self._windows[places.long()]


class ReplayDebt:
    """Counts the windows that each step owes, so that `share` of all tokens are replayed.

    A step of few tokens owes a part of a window. Parts add up until a window is due.
    """

    def __init__(self, share: float, length: int, owed: float = 0.0) -> None:
        self.share, self._length, self.owed = share, length, owed

    def due(self, tokens: int) -> int:
        """Return how many windows to replay beside `tokens` other tokens."""
        if self.share <= 0:
            return 0
        self.owed += tokens * self.share / (1 - self.share)
        count = int(self.owed // self._length)
        self.owed -= count * self._length
        return count


@dataclass(frozen=True, kw_only=True, slots=True)
class Retained:
    """A model's remaining knowledge of its pretraining."""

    loss: float  # On held-out text, in nats a token
    completed: float  # Share of its tokens that the model would have written itself
    divergence: float  # KL from the base model's prediction to this one's, in nats a token
    forgetting: float  # Rise of the loss above the base model's


class BaseMemory:
    """The base model's predictions on held-out text; later models are compared with them."""

    def __init__(self, base: PreTrainedModel, held_out: TextWindows) -> None:
        each = held_out.length * base.get_input_embeddings().weight.shape[0]
        self._windows = held_out.spread(max(1, min(WINDOWS, NUMBERS // each)))
        self._base = _predicted(base, self._windows)
        self._loss, _ = _read(self._base, self._windows)

    def measure(self, model: PreTrainedModel) -> Retained:
        now = _predicted(model, self._windows)
        loss, completed = _read(now, self._windows)
        divergence = float((self._base.exp() * (self._base - now)).sum(-1).mean())
        return Retained(
            loss=loss,
            completed=completed,
            divergence=max(0.0, divergence),
            forgetting=loss - self._loss,
        )


@torch.no_grad()
def _predicted(model: PreTrainedModel, windows: Tensor) -> Tensor:
    """Return the log-probabilities of every next token, [windows, length - 1, vocabulary]."""
    training = model.training
    model.eval()
    place = next(model.parameters()).device
    found = [
        F.log_softmax(model(input_ids=one[None].to(place)).logits[:, :-1].float(), dim=-1).cpu()
        for one in windows
    ]
    model.train(training)
    return torch.cat(found)


def _read(predicted: Tensor, windows: Tensor) -> tuple[float, float]:
    wanted = windows[:, 1:]
    loss = -predicted.gather(-1, wanted[..., None]).mean()
    return float(loss), float((predicted.argmax(-1) == wanted).float().mean())


# A killed run goes on from its last checkpoint, to the same curve. Trackers pass a curve on to
# TensorBoard and MLflow.

STATE, CURVE = "checkpoint.pt", "curve.jsonl"
Row = dict[str, float | str]  # One step's figures by name
STEP: Final = "step"


@dataclass(slots=True)
class RunState:
    step: int = 0
    replay: float = 0.0
    owed: float = 0.0
    notes: dict[str, object] = field(default_factory=dict)  # The objective's state, as plain data


def save_checkpoint(
    folder: Path, model: PreTrainedModel, optimizer: Optimizer, progress: RunState
) -> None:
    """Write a checkpoint; the last one stays whole if this process is killed or the disk is full.

    Raises LearnError: it cannot be written.
    """
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    state = {
        "weights": {name: one.detach().cpu() for name, one in weights.items()},
        "optimizer": optimizer.state_dict(),
        "step": progress.step,
        "replay": progress.replay,
        "owed": progress.owed,
        "notes": json.dumps(progress.notes),
    }
    try:
        with whole_file(folder / STATE) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError for a full disk
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise LearnError(
            f"the checkpoint in {str(folder)!r} cannot be written ({reason}): make room there, "
            "and run the same command again; it goes on from the last whole checkpoint"
        ) from error


def load_checkpoint(folder: Path, model: PreTrainedModel, optimizer: Optimizer) -> RunState | None:
    """Load the folder's checkpoint into a model and an optimizer; return None if there is none.

    Raises LearnError: the checkpoint is damaged or another model's.
    """
    path = folder / STATE
    if not path.exists():
        return None
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        own = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in state["weights"].items():
                own[name].copy_(value)
        optimizer.load_state_dict(state["optimizer"])
        return RunState(
            step=int(state["step"]),
            replay=float(state["replay"]),
            owed=float(state["owed"]),
            notes=json.loads(state["notes"]),
        )
    except (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.PickleError) as error:
        raise LearnError(
            f"the checkpoint {str(path)!r} is damaged or another model's: remove it to start anew"
        ) from error


class Curve:
    """The figures of every step, one JSON line each."""

    def __init__(self, folder: Path, *, upto: int = 0) -> None:
        self._path = folder / CURVE
        self.rows: list[Row] = [one for one in read_curve(folder) if float(one[STEP]) < upto]
        self._write("".join(json.dumps(one) + "\n" for one in self.rows), "w")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write(json.dumps(row) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise LearnError(
                f"the curve {str(self._path)!r} cannot be written ({error.strerror}): make room "
                "there, and run the same command again"
            ) from error


def read_curve(folder: Path) -> list[Row]:
    """Return a run's curve, without a line that a kill cut off."""
    found: list[Row] = []
    try:
        lines = (folder / CURVE).read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


class Trackers:
    """Passes a curve on to TensorBoard, in the run's folder, and to MLflow, if it has a server."""

    def __init__(self, folder: Path, config: LearnConfig) -> None:
        self._board: SummaryWriter | None = None
        self._flow: ModuleType | None = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"))
        if importlib.util.find_spec("mlflow") and os.environ.get("MLFLOW_TRACKING_URI"):
            self._flow = importlib.import_module("mlflow")
            self._flow.start_run(run_name=folder.name)
            self._flow.log_params(dict(config.rows()))

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()
        if self._flow is not None:
            self._flow.end_run()

    def add(self, row: Row) -> None:
        """Pass on one step's figures."""
        step = int(float(row[STEP]))
        numbers = {name: float(one) for name, one in row.items() if isinstance(one, int | float)}
        numbers.pop(STEP, None)
        if self._board is not None:
            for name, one in numbers.items():
                self._board.add_scalar(name, one, step)
        if self._flow is not None:
            self._flow.log_metrics(numbers, step=step)


WARM_UP: Final = 20  # Updates in which the learning rate rises
HALF: Final = 0.5  # Part of a step that must fit before the deadline, as the last step took
MOST_REPLAY: Final = 0.5
LEAST_REPLAY: Final = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    tokens: int  # Tokens that go through the model for it
    loss: Callable[[], Tensor]  # Mean loss; called once for each update
    updates: int = 1
    figures: dict[str, float] = field(default_factory=dict)


class Objective(abc.ABC):
    """The aim of a stage: its loss, and what is measured on the way."""

    stage: str
    least: int  # Steps that a deadline does not cut: with fewer, nothing is learned

    @abc.abstractmethod
    def work(self, model: PreTrainedModel, step: int) -> StepWork | None:
        """Return the work of a step; None if it brought nothing to learn from."""

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Json]:
        """Return what a resumed run must know, as plain data; nothing if the seed decides all."""
        return {}

    def restore(self, state: dict[str, Json]) -> None:  # noqa: B027
        """Take back what `state` returned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    steps: int
    stopped: str  # `done`, `budget` or `forgetting`
    replay: float  # Share of replay at the end: `max_forgetting` may have raised it
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
    replayed beside the objective's own tokens; `memory` measures what is forgotten. Raises
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

    def save() -> None:
        progress.replay, progress.owed = debt.share, debt.owed
        progress.notes = objective.state()
        save_checkpoint(folder, model, optimizer, progress)

    stopped, step_s, measured, begun = "done", 0.0, -1, progress.step
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
            if stopped != "done":
                break
            if progress.step % config.save_every == 0 and progress.step < config.steps:
                save()
    if progress.step > begun:
        save()
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

    Raises LearnError: the folder has a run of another config, or cannot be written.
    """
    make_folder(folder)
    try:
        keep_config(folder, config)
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
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
