"""The ledger: every problem, kernel, verdict, measurement and recipe, append-only, in SQL."""

from ratchet.base.ledger.schema import SCHEMA_VERSION, Fingerprint, RecordedTurn
from ratchet.base.ledger.store import Ledger

__all__ = ["SCHEMA_VERSION", "Fingerprint", "Ledger", "RecordedTurn"]
