"""The plain types that go into the ledger and come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict


class Fingerprint(TypedDict):
    """Which device and which software a row was made on: short stable hashes of both."""

    device: str
    software: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A turn that was started, as the ledger holds it."""

    turn: str
    """Its identity: 32 hex digits."""
    command: str
    workload: str
    started_at: str
    payload: Mapping[str, Any]
    """What `start_turn` was given: the options, for a resumed turn to compare with its own."""
    fingerprint: Fingerprint
