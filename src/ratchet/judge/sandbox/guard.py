"""Waits for a judge to die, and then ends what its candidate left: a process beside the candidate.

Where no process namespace does it. What a candidate forked outlives its worker, and could be told
from others only while the judge lived; but a fresh uid is told at any time. So there is a guard
only where candidates have one, and they may not send it a signal. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys

from ratchet.judge.process import families


def main() -> None:
    """Arguments are the judge's process id and the candidate's uid."""
    judge, uid = int(sys.argv[1]), int(sys.argv[2])
    os.setsid()  # an interrupt at the judge's terminal is not for it
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(judge)
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        if os.getppid() == judge:  # else it was gone before it could be watched
            poller.poll()
    families.end_user(uid)


if __name__ == "__main__":
    main()
