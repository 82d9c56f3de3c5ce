"""A process that the judge owns: a private channel, bounded output, stop and end.

It is a program that the judge starts (`Program`), or a fork of a zygote (`zygote.Fork`). A user's
own command runs to its end (`run_command`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final, Literal, NoReturn, Protocol

from ratchet.base.errors import JudgeError, OutOfTime
from ratchet.base.process import (
    WorkLimit,
    families,
    until_the_end_s,
    watchdog,
    within_the_end,
)
from ratchet.base.process.channel import (
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelNonsense,
    ChannelShortage,
    ChannelTimeout,
    Message,
    Shortage,
    close_descriptors,
    open_pair,
    until,
)

Failure = Literal["died", "timed_out", "nonsense", "greedy", "starved", "woke"]
SEND_TIMEOUT_S = 30.0
EXIT_S, LAST_WORDS_S, SETTLE_S = 3.0, 1.0, 0.2
"""Time to wait for the exit of a child whose channel has closed; for what it printed if it
has ended, and if it has not."""


class ChildFailure(JudgeError):
    """A child failed, and has been killed with all that it started; `how` says why.

    `died`: its process ended without an answer, or while it was idle.
    `timed_out`: it gave no answer within its limit.
    `nonsense`: its answer was no message, or it cannot be stopped.
    `greedy`: it took so much memory, disk or threads that the machine ran short (`shortage`).
    `starved`: the machine ran short while it worked, but other processes had taken most of it.
    `woke`: it ran while the judge had stopped it. No process does that by accident: it must have
    arranged for a SIGCONT beforehand, to work while it is not timed.
    """

    def __init__(self, how: Failure, what: str, *, code: int | None, line: str) -> None:
        self.how = how
        self.code = code
        ending = f" ({families.describe_exit(code)})" if code is not None else ""
        super().__init__(f"{what}{ending}" + (f": {line}" if line else ""))


class Started(Protocol):
    """A process that was started: whoever did so can tell how it ended."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def exit_code(self) -> int | None:
        """Its exit code (negative: the signal), or None while it lives."""

    def reap(self) -> None:
        """Wait for its end; its process id may then be another's."""


Start = Callable[[int, int], Started]
"""Starts a process, given the descriptors of its end of the channel, and for what it prints."""


class Program:
    """A new process that runs a program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Its exit code, left unreaped, or None while it lives."""
        return families.exit_code(self.pid)

    def reap(self) -> None:
        self._process.wait()


def program(
    command: Callable[[int], Sequence[str]],
    environment: Mapping[str, str],
    *,
    kept: bool = False,
) -> Start:
    """Start a program; `command` is given the number of the channel's descriptor.

    It and all that it starts end with this process, even by SIGKILL (see `watchdog`), and with
    the thread that started it where it asks for that. A `kept` one sees to that itself.
    """

    def start(channel: int, output: int) -> Program:
        return Program(
            subprocess.Popen(
                list(command(channel)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(channel,),
                env=dict(environment) if kept else watchdog.environment(environment),
                start_new_session=True,
            )
        )

    return start


class Child:
    """One running child. After a ChildFailure it has been killed with all that it started.

    `shortage` is asked while the judge waits for it: where it finds one, the child is ended for
    it.
    """

    def __init__(
        self,
        start: Start,
        *,
        max_bytes: int = MAX_MESSAGE_BYTES,
        shortage: Callable[[], Shortage | None] | None = None,
        enclosed: bool = False,
        kept: bool = False,
        counts_work: bool = False,
    ) -> None:
        """Start it; raises what `start` does. `enclosed`: see `families.family`.

        With `kept` its first process is a trusted keeper of the others, which is never stopped.

        With `counts_work` the limit of an answer is one of work (`WorkLimit`), not of the wall
        clock: a busy machine does not shorten it.
        """
        ours, theirs = open_pair()
        readable, writable = os.pipe()
        try:
            self._process = start(theirs.fileno(), writable)
        except (OSError, JudgeError):
            ours.close()
            os.close(readable)
            raise
        finally:
            theirs.close()
            os.close(writable)
        self._output = families.OutputTail(readable)
        self._watch = os.pidfd_open(self._process.pid)
        self.channel = Channel(ours, watch=self._watch, max_bytes=max_bytes, shortage=shortage)
        self._enclosed = enclosed
        self._kept = kept
        self._counts_work = counts_work
        self.worked_s = 0.0  # Time at work while an answer was awaited, as far as that was watched
        self._stopped: list[int] = []
        self._rest: families.Work = {}
        self.closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(
        self,
        message: Mapping[str, object],
        descriptors: Sequence[int] = (),
        *,
        limit_s: float = SEND_TIMEOUT_S,
    ) -> None:
        """Send one message; the child must take it in time, at most SEND_TIMEOUT_S."""
        limit_s = min(limit_s, SEND_TIMEOUT_S)
        try:
            self.channel.send(message, descriptors, limit_s=limit_s)
        except JudgeError as error:
            self._fail(error, str(message.get("do", "")), limit_s)

    def receive(self, what: str, *, limit_s: float) -> tuple[Message, list[int]]:
        """Wait for one answer and its descriptors; `what` names the request in a failure."""
        limit = WorkLimit(limit_s, self._members) if self._counts_work else None
        left_s = limit.left_s if limit else until(time.monotonic() + limit_s)
        try:
            return self.channel.receive(left_s=within_the_end(left_s))
        except JudgeError as error:
            self._fail(error, what, limit_s)
        finally:
            self.worked_s += limit.spent_s if limit else 0.0

    @property
    def has_answered(self) -> bool:
        """Return True if an answer waits, or if the child has ended."""
        return self.closed or self.has_ended or self.channel.has_answer

    def _members(self) -> list[int]:
        return list(families.family(self.pid, enclosed=self._enclosed))

    def own_bytes(self) -> int:
        """Return the anonymous memory of its family, in bytes; of a process that ends, none."""
        return sum(families.anonymous_bytes(pid) for pid in self._members())

    @property
    def sender(self) -> int:
        """The process of its family that sent the last answer, as the kernel says."""
        return self.channel.sender

    @property
    def has_ended(self) -> bool:
        """True if it is closed, or its process is dead."""
        return self.closed or families.is_readable(self._watch)

    def ask(
        self, message: Mapping[str, object], descriptors: Sequence[int] = (), *, limit_s: float
    ) -> Message:
        """Send one message and wait for its answer; descriptors in the answer are closed."""
        self.send(message, descriptors, limit_s=limit_s)
        reply, extra = self.receive(str(message.get("do", "")), limit_s=limit_s)
        close_descriptors(extra)
        return reply

    def pause(self) -> None:
        """Stop every process of the child's family, and wait until all of them stand."""
        if self.has_ended:
            self._fail(JudgeError("died"), "idle", 0.0)
        self._check_rest()
        spared = [self.pid] if self._kept else []
        stopped = families.stop(self.pid, enclosed=self._enclosed, spared=spared)
        if stopped is None:
            self._end_for("nonsense", "cannot be stopped")
        self._stopped, self._rest = stopped, families.work_done(stopped)

    def work_at_rest_s(self, window_s: float) -> float:
        """Let a stopped family run for so long without an order; return the seconds it works."""
        before = self._rest
        self.resume()
        time.sleep(window_s)
        self.pause()
        worked = (ns - before.get(one, (0, 0))[0] for one, (ns, _) in self._rest.items())
        return sum(worked) / 1e9

    def hold(self) -> None:
        """Stop the child alone, which is trusted: it has no others at work, and does not wake."""
        if not families.hold(self.pid):
            self._fail(JudgeError("died"), "idle", 0.0)
        self._stopped = [self.pid]

    def resume(self) -> None:
        """Let every process of the child's family run again."""
        self._check_rest()
        families.resume(self._stopped)
        self._stopped, self._rest = [], {}

    def _check_rest(self) -> None:
        """Fail when a family that was stopped has run nevertheless."""
        if families.has_worked(self._rest):
            self._end_for("woke", "ran while it had been stopped")

    def _end_for(self, how: Failure, words: str) -> NoReturn:
        line = self._output.last_line()
        self.close()
        raise ChildFailure(how, words, code=None, line=line)

    def output(self) -> str:
        """The end of what the child printed (at most 16 KiB)."""
        return self._output.text()

    def begin_close(self) -> None:
        """Kill the processes of a stopped family; `close` waits for their end, and must follow."""
        families.kill(self._stopped)

    def close(self) -> None:
        """Kill every process of the child's family. May be called twice."""
        if self.closed:
            return
        self.closed = True
        families.end(self.pid, enclosed=self._enclosed)
        self._process.reap()
        close_descriptors([self._watch])
        self.channel.close()

    def _fail(self, error: JudgeError, what: str, limit_s: float) -> NoReturn:
        how: Failure
        if isinstance(error, ChannelShortage):
            how = "starved" if error.of_others else "greedy"
            self._end_for(how, f"was ended during '{what}': {error}")
        if isinstance(error, ChannelTimeout) and until_the_end_s() <= 0:
            self.close()
            raise OutOfTime(f"the time ran out during '{what}'") from error
        how = "died"
        words = "died while it was idle" if what == "idle" else f"died during '{what}'"
        if isinstance(error, ChannelTimeout):
            how, unit = "timed_out", "s of work" if self._counts_work else "s"
            words = f"did not answer '{what}' within {limit_s:.3g} {unit}"
        elif isinstance(error, ChannelNonsense):
            how, words = "nonsense", f"answered '{what}' with nonsense"
        code = self._settled_exit_code() if how == "died" else None
        line = self._output.last_line(settle_s=SETTLE_S if code is None else LAST_WORDS_S)
        self.close()
        raise ChildFailure(how, words, code=code, line=line) from error

    def _settled_exit_code(self) -> int | None:
        """The exit code of a child whose channel has closed; it may still be on its way out."""
        deadline = time.monotonic() + EXIT_S
        while (code := self._process.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(0.002)
        return code


def error_words(error: object) -> str:
    """Return a worker's error in one line; Ratchet's own stand without their kind."""
    if not isinstance(error, dict):
        return "an answer that is no error's"
    message = " ".join(str(error.get("message", "")).split())[:500]
    return message if error.get("known") is True else f"{error.get('kind', '')!s:.60}: {message}"


GRACE_S: Final = 10.0  # Seconds that an interrupted command has to end by itself


def run_command(
    command: Sequence[str], environment: Mapping[str, str], stdout: IO[str] | IO[bytes] | None
) -> int:
    """Run the command and return its exit code; one that is interrupted ends the command too."""
    with subprocess.Popen(list(command), env=environment, stdout=stdout) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # a signal to this process alone has not reached the command
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
            raise
        finally:
            process.kill()
