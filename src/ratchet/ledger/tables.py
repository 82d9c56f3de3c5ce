"""Plain types that the ledger takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from ratchet.base.json_value import Json


class Fingerprint(TypedDict):
    """Short stable hashes of a row's device and software."""

    device: str
    software: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTurn:
    """A turn that was started, as the ledger holds it."""

    turn: str
    """Its identity: 32 hex digits."""
    command: str
    workload: str
    started_at: str
    payload: Mapping[str, Json]
    """The options given to `start_turn`; a resumed turn compares them with its own."""
    fingerprint: Fingerprint
