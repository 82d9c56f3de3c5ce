"""The judge of a run: this machine's, or a fleet's with the ledger that it needs."""

from __future__ import annotations

from ratchet.authors.fleet.ray_cluster import RayCluster
from ratchet.authors.fleet.ray_fleet import ClusterFleet
from ratchet.base.errors import LedgerError
from ratchet.judge.trial.readiness import check_kernels
from ratchet.ledger.place import resolve, shown
from ratchet.ledger.verdicts import RecordedJudge


def check_ledger(fleet: str, ledger: str | None) -> None:
    """Refuse a ledger in a file for a fleet: other machines' runs could not read its verdicts.

    Raises:
        LedgerError: the ledger is not on PostgreSQL, and the fleet is not `local`.
    """
    url = resolve(ledger)
    if fleet != "local" and url.get_backend_name() != "postgresql":
        raise LedgerError(
            f"--fleet {fleet} needs a ledger on PostgreSQL, and {shown(url)} is a file of this "
            "machine: give --ledger or RATCHET_LEDGER postgresql://USER@HOST/DATABASE"
        )


def open_judge(ledger: str | None, fleet: str = "local", *, device: str = "auto") -> RecordedJudge:
    """Return the judge of a fleet: `local`, `ray` for the cluster at hand, `ray://HOST:PORT`.

    Raises:
        RatchetError: no cluster, none of its machines can judge, versions that differ, a ledger
            that is no fleet's or fails; no kernel can be tried on this machine.
    """
    if fleet == "local":
        check_kernels()
        return RecordedJudge(ledger)
    check_ledger(fleet, ledger)
    machines = ClusterFleet(RayCluster(fleet, device=device))
    try:
        return RecordedJudge(ledger, fleet=machines)
    except BaseException:
        machines.close()
        raise
