"""Checkpoints and curves: a killed run goes on from its last checkpoint, to the same curve.

Trackers pass a curve on to TensorBoard and MLflow.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import torch

from ratchet.base.errors import LearnError
from ratchet.base.files import whole_file
from ratchet.write.learn.config import LearnConfig

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.tensorboard import SummaryWriter
    from transformers import PreTrainedModel

STATE, CURVE = "checkpoint.pt", "curve.jsonl"
Row = dict[str, float | str]
"""One step's figures by name."""
STEP: Final = "step"


@dataclass(slots=True)
class RunState:
    """A run's state, apart from its weights."""

    step: int = 0
    replay: float = 0.0
    owed: float = 0.0
    notes: dict[str, object] = field(default_factory=dict)
    """The objective's state, as plain data."""


def save_checkpoint(
    folder: Path, model: PreTrainedModel, optimizer: Optimizer, progress: RunState
) -> None:
    """Write a checkpoint; the last one stays whole if this process is killed or the disk is full.

    Raises:
        LearnError: it cannot be written.
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

    Raises:
        LearnError: the checkpoint is damaged or another model's.
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
        """Append one step."""
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
