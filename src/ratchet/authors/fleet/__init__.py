"""Many machines judge one run: a Ray cluster's, one candidate a device at a time."""

from ratchet.authors.fleet.open import check_ledger, open_judge

__all__ = ["check_ledger", "open_judge"]
