"""The row of a sweep for one model type."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["works", "falls back", "differs", "fails", "does not train as written"]
"""`works`: every arm trains to the losses of the step as written, in whole graphs with all levers.

`falls back`: it trains to these losses, and a part of the step runs as torch has it: a graph break,
a call site that a kernel declined, or a lever that was left out. `differs`: it trains to other
losses. `fails`: no arm of Ratchet's trains. `does not train as written`: the eager step fails, so
there is nothing to compare with.
"""
TRAINS: tuple[Status, ...] = ("works", "falls back")
STATUSES: tuple[Status, ...] = (*TRAINS, "differs", "fails", "does not train as written")


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the step, in one process, from the same weights."""

    losses: tuple[float, ...] = ()
    gradient_error: float | None = None
    """Norm of the first gradient's difference from its reference, over the reference's norm."""
    error: str = ""  # The exception's name and first line, if the arm raised
    time_s: float = 0.0  # Compiling included


class TypeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one model type, with its evidence."""

    type: str
    status: Status
    why: str = ""  # The op and the reason, or the error; empty if it works
    head: str = ""  # The objective, by the name of transformers' auto class
    model: str = ""  # The class of the model
    inputs: tuple[str, ...] = ()
    breaks: int = 0  # Graph breaks of the compiled step
    break_reasons: tuple[str, ...] = ()
    installed: dict[str, int] = {}  # Call sites that a kernel took, by pattern
    declined: dict[str, int] = {}  # Call sites that no kernel took, by `pattern: reason`
    runs: dict[str, ArmRun] = {}  # By arm: see `ratchet.guard.sweep.trial.ARMS`
    arm: str = ""
    """The first arm that does not train, or trains differently; empty if there is none."""
    doing: str = ""  # The arm in progress when the process ended; empty in a finished row
    quick: bool = False  # Inductor called ATen for every op, so none of its generated code ran
    versions: str = ""
    time_s: float = 0.0

    @property
    def trains(self) -> bool:
        """Return True if it trains with Ratchet, with the losses of the step as written."""
        return self.status in TRAINS


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the program that tries types."""

    types: tuple[str, ...]
    device: str
    budget_s: float | None  # No type is started after this
    limit_s: float  # For one type
    memory_bytes: int
    quick: bool
    versions: str
