"""The ledger: every problem, kernel, verdict, measurement and recipe, append-only, in SQL."""

from ratchet.base.ledger.place import default_path
from ratchet.base.ledger.schema import SCHEMA_VERSION
from ratchet.base.ledger.store import Ledger
from ratchet.base.ledger.tables import Fingerprint, RecordedTurn

__all__ = ["SCHEMA_VERSION", "Fingerprint", "Ledger", "RecordedTurn", "default_path"]
