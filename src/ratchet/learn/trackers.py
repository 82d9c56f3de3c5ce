"""TensorBoard and MLflow, where they are installed and asked for."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from ratchet.learn.checkpoint import STEP, Row
from ratchet.learn.config import LearnConfig


class Trackers:
    """Passes a run's curve on: to TensorBoard in the run's folder, to MLflow if it has a server."""

    def __init__(self, folder: Path, config: LearnConfig) -> None:
        self._board: Any = None
        self._flow: Any = None
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
