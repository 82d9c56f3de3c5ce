"""Zygotes as the judge drives them: processes that fork, where others would start anew.

The reference worker's zygote forks the rivals. The zygotes of candidates, for Python, compilers and
compiled kernels, each run in a sandbox. Their forks enter namespaces and take a uid of their own
(`serving`).
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ratchet.base.errors import JudgeError
from ratchet.base.process.channel import Channel, close_descriptors
from ratchet.base.process.child import Child, ChildFailure, Start, program
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.bubblewrap import SHARED_MEMORY_BYTES, TMP_BYTES
from ratchet.judge.sandbox.isolation import (
    Sandbox,
    make_sandbox,
    zygote_program,
)
from ratchet.judge.sandbox.view import CPP_ZYGOTE, ZYGOTE

LOG = logging.getLogger(__name__)
START_S: Final = 30.0  # Seconds that a fork may take to start
IMPORT_S: Final = 120.0  # Seconds of work that importing torch may take
TRIAL_BYTES: Final = 64 << 30  # Address space of the trial fork


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that a zygote forked."""

    pid: int  # Its process id for the judge
    inner: int  # Its process id for the zygote
    zygote: Forks

    def exit_code(self) -> int | None:
        """Return its exit code (negative: the signal), or None while it lives."""
        return self.zygote.exit_code(self.inner)

    def reap(self) -> None:
        """Wait for its end, after it was killed."""
        self.zygote.exit_code(self.inner, do="reap")


class Forks:
    """Orders to a zygote, over a channel that no fork keeps."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def fork(self, descriptors: Sequence[int], **order: object) -> Fork:
        """Return a new fork, which gets the descriptors; raises JudgeError."""
        self._channel.send({"do": "fork", **order}, descriptors, limit_s=START_S)
        reply, extra = self._channel.receive(limit_s=START_S)
        close_descriptors(extra)
        return Fork(self._channel.sender, int(reply["pid"]), self)

    def exit_code(self, inner: int, *, do: str = "exit code") -> int | None:
        """Return a fork's exit code; None while it lives, or if the zygote has ended."""
        with contextlib.suppress(JudgeError):
            self._channel.send({"do": do, "pid": inner}, limit_s=START_S)
            code = self._channel.receive(limit_s=START_S)[0]["code"]
            return None if code is None else int(code)
        return None

    def close(self) -> None:
        self._channel.close()


class CandidateZygote:
    """The zygote of candidates in one kind of language. It only holds trusted code."""

    def __init__(
        self,
        *,
        threads: int,
        with_torch: bool = True,
        folders: Sequence[str] = (),
        accelerator: Accelerator | None = None,
    ) -> None:
        """Start it; it imports torch and tries a fork meanwhile. Raises OSError.

        Without torch it is that of compiled kernels, whose compiler also sees the `folders`. That
        of a GPU has imported Triton too and never opens the GPU, which no process can after its
        parent did. Its trial fork opens it: if it cannot, none is forked.
        """
        self.threads = threads
        self._device = None if accelerator is None else accelerator.as_json()
        self._able: bool | None = None
        module = ZYGOTE if with_torch else CPP_ZYGOTE
        trial = make_sandbox(
            module,
            threads=threads,
            memory_bytes=TRIAL_BYTES,
            limit_s=START_S,
            accelerator=accelerator,
            forked=True,
        )
        words, environment = zygote_program(
            module, threads, folders=folders, accelerator=accelerator
        )
        self._child = Child(
            program(lambda channel: [*words, str(channel)], environment),
            enclosed=True,
            counts_work=True,
        )
        self._forks = Forks(self._child.channel)
        with contextlib.suppress(ChildFailure):  # `able` will find it dead
            self._child.send(self._order(trial))

    @property
    def pid(self) -> int:
        """The process id of the head of its family, which contains its forks."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """True if it is dead, and another must be started."""
        return self._child.has_ended

    @property
    def able(self) -> bool:
        """True if it can fork candidates. The first call waits for it."""
        if self._able is None:
            try:
                reply, extra = self._child.receive("start", limit_s=IMPORT_S)
            except ChildFailure as error:
                reply, extra = {"unable": str(error)}, []
            close_descriptors(extra)
            self._able = not reply["unable"]
            if not self._able:
                LOG.info("each candidate starts anew: %s", reply["unable"])
                self.close()
        return self._able

    def start(self, sandbox: Sandbox) -> Start:
        """Return the start of a candidate's process in a sandbox that is made for a fork."""
        return lambda *handed: self._forks.fork(handed, **self._order(sandbox))

    def close(self) -> None:
        """End it, and every fork with it."""
        self._child.close()

    def _order(self, sandbox: Sandbox) -> dict[str, object]:
        return {
            "limits": json.dumps(asdict(sandbox.limits)),
            "threads": self.threads,
            "device": self._device,
            "tmp_bytes": TMP_BYTES,
            "shared_memory_bytes": SHARED_MEMORY_BYTES,
        }
