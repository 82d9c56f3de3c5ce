"""Decide what isolates a candidate on this machine: the strongest that works, from the top.

| mechanism | where |
|---|---|
| bubblewrap | namespaces may be made; the wheel's program is tried, then the system's |
| Landlock | the kernel has it; what a container's runtime denies is not needed |
| rlimits | neither. As root, only where a candidate can have a uid of its own |

Whatever it is, `no_new_privs`, rlimits and no capabilities hold, and the filter of system calls
where `system_calls` knows their numbers.
"""

from __future__ import annotations

from typing import Final, Literal

from ratchet.base.errors import JudgeError
from ratchet.judge.sandbox import bubblewrap, identity, landlock, system_calls, view
from ratchet.judge.sandbox.accelerator import Accelerator

Mechanism = Literal["bubblewrap", "landlock", "rlimits"]
NO_WALLS: Final = (
    "this kernel allows neither namespaces nor Landlock, and a candidate of root's needs a uid of "
    "its own, which cannot enter {closed}; to fix it: allow one of the two, or install Python and "
    "Ratchet where every user can read them"
)


def mechanism() -> Mechanism:
    """Return the first that works here."""
    if bubblewrap.program() is not None:
        return "bubblewrap"
    return "landlock" if landlock.abi() > 0 else "rlimits"


def has_namespaces() -> bool:
    """Return whether a candidate gets namespaces: a private /tmp, processes of its own."""
    return mechanism() == "bubblewrap"


def shows_own_files() -> bool:
    """Return whether a candidate can be shown a file out of the user's own folders."""
    return has_namespaces() or (mechanism() == "landlock" and uid_among_others() is None)


def uid_among_others() -> int | None:
    """Draw the uid of a candidate without namespaces; None where it has the judge's own.

    A fresh one must be able to read what the worker needs, and the judge to look into its
    processes. Else it is the judge's, which Landlock and the filter make harmless.
    """
    may_look = identity.has_capability(identity.SYS_PTRACE) or mechanism() == "rlimits"
    return identity.fresh_uid() if may_look and view.closed_to_others() is None else None


def check_walls() -> None:
    """Raise JudgeError where a candidate would be root among others, with no wall around it."""
    if mechanism() == "rlimits" and identity.is_root() and uid_among_others() is None:
        raise JudgeError(NO_WALLS.format(closed=view.closed_to_others() or "what it must read"))


def isolation_name(accelerator: Accelerator | None = None) -> str:
    """The isolation that a candidate gets on this machine, in words."""
    opened = ", the GPU's device files and parts of /sys" if accelerator is not None else ""
    if opened and not has_namespaces() and landlock.abi() < landlock.SCOPES_SINCE:
        opened += ", and local sockets, which others can reach"
    calls = "rlimits, system calls filtered" if system_calls.known() else "rlimits"
    if has_namespaces():
        uid = "own user" if identity.fresh_uids() is None else "fresh uid without capabilities"
        return f"bubblewrap (own PID, network, IPC and mount namespaces), {uid}, {calls}{opened}"
    uid = "own user" if uid_among_others() is None else "fresh uid"
    walls = f"Landlock (ABI {landlock.abi()})" if landlock.abi() else "no Landlock"
    return f"{walls}, no namespaces, {uid} without capabilities, {calls}{opened}"
