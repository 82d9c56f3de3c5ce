"""Decide what isolates a candidate on this machine: the strongest that works."""

from __future__ import annotations

from typing import Literal

from ratchet.judge.sandbox import bubblewrap, identity, system_calls
from ratchet.judge.sandbox.accelerator import Accelerator

Mechanism = Literal["bubblewrap", "rlimits"]


def mechanism() -> Mechanism:
    """Return the first that works here."""
    if bubblewrap.program() is not None:
        return "bubblewrap"
    return "rlimits"


def has_namespaces() -> bool:
    """Return whether a candidate gets namespaces: a private /tmp, processes of its own."""
    return mechanism() == "bubblewrap"


def isolation_name(accelerator: Accelerator | None = None) -> str:
    """The isolation that a candidate gets on this machine, in words."""
    opened = ", the GPU's device files and parts of /sys" if accelerator is not None else ""
    uid = "own user" if identity.fresh_uids() is None else "fresh uid without capabilities"
    calls = "rlimits, system calls filtered" if system_calls.known() else "rlimits"
    if has_namespaces():
        return f"bubblewrap (own PID, network, IPC and mount namespaces), {uid}, {calls}{opened}"
    return f"no namespaces, {uid}, subreaper, {calls}"
