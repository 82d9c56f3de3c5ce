"""Zygotes as the judge drives them: processes that fork instead of starting anew.

There are two. The reference worker's forks the rivals. The candidates' stands in the sandbox, and
its forks take namespaces and a uid of their own (`workers.zygote`).
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ratchet.errors import JudgeError
from ratchet.judge.channel import Channel, close_descriptors
from ratchet.judge.child import Child, ChildFailure, Start, program
from ratchet.judge.isolation import (
    SHARED_MEMORY_BYTES,
    TMP_BYTES,
    Sandbox,
    make_sandbox,
    zygote_environment,
    zygote_program,
)
from ratchet.judge.worker_modules import ZYGOTE

LOG = logging.getLogger(__name__)
START_S: Final = 30.0
"""A fork that takes longer is none."""
IMPORT_S: Final = 120.0
"""Importing torch may be at work for so long."""
TRIAL_BYTES: Final = 64 << 30
"""Address space of a fork that only tries whether candidates can be forked."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that a zygote forked."""

    pid: int
    """Its process id here."""
    inner: int
    """The same where the zygote is."""
    zygote: Forks

    def exit_code(self) -> int | None:
        """Its exit code (negative: the signal), or None while it lives."""
        return self.zygote.exit_code(self.inner)

    def reap(self) -> None:
        """Wait for its end; it must have been killed."""
        self.zygote.exit_code(self.inner, do="reap")


class Forks:
    """Orders to a zygote, over a channel that no fork keeps."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def fork(self, descriptors: Sequence[int], **order: Any) -> Fork:
        """A new fork, which gets the descriptors; raises JudgeError."""
        self._channel.send({"do": "fork", **order}, descriptors, timeout_s=START_S)
        reply, extra = self._channel.receive(timeout_s=START_S)
        close_descriptors(extra)
        return Fork(self._channel.sender, int(reply["pid"]), self)

    def exit_code(self, inner: int, *, do: str = "exit code") -> int | None:
        """How a fork ended; None while it lives, and where the zygote is gone."""
        with contextlib.suppress(JudgeError):
            self._channel.send({"do": do, "pid": inner}, timeout_s=START_S)
            code = self._channel.receive(timeout_s=START_S)[0]["code"]
            return None if code is None else int(code)
        return None

    def close(self) -> None:
        """Let the zygote end."""
        self._channel.close()


class CandidateZygote:
    """The zygote of candidates in Python, in its sandbox. It holds trusted code only."""

    def __init__(self, *, threads: int) -> None:
        """Start it, and let it import torch and try a fork meanwhile. Raises OSError."""
        self.threads = threads
        self._able: bool | None = None
        trial = make_sandbox(
            ZYGOTE,
            threads=threads,
            memory_bytes=TRIAL_BYTES,
            time_limit_s=START_S,
            with_torch=True,
            forked=True,
        )
        words = zygote_program()
        self._child = Child(
            program(lambda channel: [*words, str(channel)], zygote_environment(threads)),
            enclosed=True,
            counts_work=True,
        )
        self._forks = Forks(self._child.channel)
        with contextlib.suppress(ChildFailure):  # `able` finds it dead
            self._child.send(self._order(trial))

    @property
    def pid(self) -> int:
        """The process at the head of its family, which its forks belong to."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is dead: another must be started."""
        return self._child.has_ended

    @property
    def able(self) -> bool:
        """Whether it can fork candidates; waits for it the first time."""
        if self._able is None:
            try:
                reply, extra = self._child.receive("start", timeout_s=IMPORT_S)
            except ChildFailure as error:
                reply, extra = {"unable": str(error)}, []
            close_descriptors(extra)
            self._able = not reply["unable"]
            if not self._able:
                LOG.info("each candidate in Python starts anew: %s", reply["unable"])
                self.close()
        return self._able

    def start(self, sandbox: Sandbox) -> Start:
        """A candidate's process under the limits of a sandbox that is made for a fork."""
        return lambda *handed: self._forks.fork(handed, **self._order(sandbox))

    def close(self) -> None:
        """End it, and every fork with it."""
        self._child.close()

    def _order(self, sandbox: Sandbox) -> dict[str, Any]:
        return {
            "limits": json.dumps(asdict(sandbox.limits)),
            "threads": self.threads,
            "tmp_bytes": TMP_BYTES,
            "shared_memory_bytes": SHARED_MEMORY_BYTES,
        }
