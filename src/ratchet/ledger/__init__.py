"""The ledger: every problem, kernel, verdict, measurement and recipe, append-only, in SQL."""

from ratchet.ledger.place import default_path
from ratchet.ledger.schema import SCHEMA_VERSION
from ratchet.ledger.store import Ledger
from ratchet.ledger.tables import Fingerprint, RecordedTurn

__all__ = ["SCHEMA_VERSION", "Fingerprint", "Ledger", "RecordedTurn", "default_path"]
