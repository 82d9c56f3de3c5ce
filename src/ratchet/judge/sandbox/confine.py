"""The limits that a candidate's worker sets on itself before candidate code runs. No torch."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import resource
from pathlib import Path
from typing import Final

from ratchet.base.process import families
from ratchet.judge.sandbox import system_calls

EXTENSIONS: Final = "TORCH_EXTENSIONS_DIR"
"""Names the folder in which torch.utils.cpp_extension builds."""
FIRST_TO_GO = "1000"
"""oom_score_adj of the process that the kernel ends first if memory runs out."""


def confine(limits_json: str) -> None:
    """Set the limits that the judge asked for. A failure ends the process."""
    limits = json.loads(limits_json)
    codecs.lookup("ascii")  # loads the codec while the interpreter's folder is readable
    with contextlib.suppress(OSError):  # if it cannot be set, the limits below still hold
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, encoding="ascii")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    if limits["address_space_bytes"] is not None:
        _limit(resource.RLIMIT_AS, limits["address_space_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_time_s"])
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    if limits["uid"] is not None:
        os.setgroups(limits["groups"])
        os.setresgid(limits["uid"], limits["uid"], limits["uid"])
        os.setresuid(limits["uid"], limits["uid"], limits["uid"])
    families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
    families.adopt_orphans()
    if limits["filtered"]:
        system_calls.deny_needless(
            among_others=limits["among_others"], local_sockets=limits["local_sockets"]
        )


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (bound, bound))
