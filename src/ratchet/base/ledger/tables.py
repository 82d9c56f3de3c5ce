"""Plain types that the ledger takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from ratchet.base.json_value import Json

Payload: TypeAlias = dict[str, Json]
"""The document of a row, as it was remembered: who asks knows its kind and converts it."""


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
    payload: Payload
    """The options given to `start_turn`; a resumed turn compares them with its own."""
    fingerprint: Fingerprint
