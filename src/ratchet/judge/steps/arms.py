"""An arm in a process of its own: started by name, timed by the parent's clock, stopped when idle.

The judge knows no workload. It gets `module:function` and JSON arguments, and starts
`python -m ratchet.judge.workers.arm`, which builds the object and runs its steps.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from ratchet.base import Json, errors
from ratchet.base.errors import ArmFailure, DeviceLost, JudgeError, OutOfTime, RatchetError
from ratchet.base.measure import Sample, Timing
from ratchet.base.measure.rounds import Enough, run_rounds
from ratchet.base.process.channel import Message, close_descriptors
from ratchet.base.process.child import Child, ChildFailure, program

WORKER = "ratchet.judge.workers.arm"
TORN = re.compile(r"(/[^\s:]+\.so): (?:file too short|invalid ELF header)")
TORN_LIBRARIES = 3  # Damaged libraries that are removed before an arm's first answer


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmSpec:
    """An arm to start: a factory by name and its JSON arguments."""

    name: str
    factory: str
    """`module:function`, called in the new process. It returns an object with `step(iterations)`,
    `describe()`, and other methods that it lists in `calls`."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment; an empty value removes a variable."""
    title: str = ""  # Its name in messages, by default `name`
    python: str = ""  # Another interpreter to run it, which needs Ratchet's dependencies
    start_timeout_s: float = 600.0
    call_timeout_s: float = 600.0
    deadline_s: float = math.inf
    """On the clock of `time.monotonic`: the end of every wait for the arm."""


class ArmProcess:
    """A running arm. Implements `measure.arm.Arm`; use it as a context manager.

    Every failure is an ArmFailure that names the arm, except a RatchetError of the factory or a
    call, which is raised as it is. After an arm has died, only call `close`. The process dies with
    the thread that started it. `deadline_s` may be changed: a wait that passes it raises
    OutOfTime and ends the arm.
    """

    def __init__(self, spec: ArmSpec) -> None:
        self.spec = spec
        self.setup_time_s = 0.0
        self.deadline_s = spec.deadline_s
        self.paused = False
        self.steps = 0  # Steps that this process was asked to run
        self.identity = ""  # A name that no other process on any machine has
        self.ready_time_s = 0.0
        """Seconds until it was built and had answered what came with the start, without pauses."""
        self._began_s = 0.0
        self._paused_s = 0.0  # Seconds for which it was paused since its start
        self._paused_since_s = 0.0
        self._child: Child | None = None
        self._asked: Message = {}
        self._chances = TORN_LIBRARIES
        """Restarts left until the first answer, if torch's cache is damaged."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def title(self) -> str:
        return self.spec.title or self.spec.name

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None if it is not running."""
        return self._child.pid if self._child else None

    def __enter__(self) -> ArmProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> ArmProcess:
        """Start the worker and build the arm in it; `setup_time_s` is the time that this took."""
        self.begin_start()
        self.finish_start()
        return self

    def begin_start(self, *then: Message) -> None:
        """Start the worker and let it build the arm; `finish_start` waits for that.

        It goes on with the messages in `then` (`calling`, `running`) without waiting for anyone.
        """
        self._began_s, self.identity = time.monotonic(), uuid.uuid4().hex
        self._paused_s, self.ready_time_s = 0.0, 0.0
        self.steps = sum(int(one.get("iterations", 0)) for one in then)
        try:
            command = partial(worker_command, python=self.spec.python or sys.executable)
            self._child = Child(program(command, worker_environment(self.spec)))
        except OSError as error:
            raise ArmFailure(f"arm '{self.title}': its process cannot start: {error}") from error
        try:
            arguments = dict(self.spec.arguments)
            given = {"factory": self.spec.factory, "arguments": arguments, "then": list(then)}
            self._asked = {"do": "start", **given}
            self._send(**self._asked)
        except BaseException:  # also Ctrl-C: no process may stay behind
            self.close()
            raise

    def finish_start(self) -> None:
        """Wait until the arm is built and has answered `then`; raises what it raised there."""
        then = self._asked.get("then", ())
        limit_s = self.spec.start_timeout_s + len(then) * self.spec.call_timeout_s
        try:
            try:
                reply = self._receive("start", limit_s)
            except ArmFailure as error:
                if not self._mends(error):
                    raise
                self.begin_start(*then)
                self.finish_start()
                return
        except BaseException:
            self.close()
            raise
        if then:
            self._chances = 0
        self.setup_time_s = float(reply["built_s"]) - self._began_s
        self.ready_time_s = float(reply["ended_s"]) - self._began_s - self._paused_s

    @property
    def has_answered(self) -> bool:
        """Return True if an answer waits to be received, or if the worker has ended."""
        return self._child is None or self._child.has_answered

    def describe(self) -> dict[str, Json]:
        """Return the arm's description of itself (JSON)."""
        value = self._ask(self.spec.call_timeout_s, do="describe")["value"]
        if not isinstance(value, dict):
            raise ArmFailure(f"arm '{self.title}': describe() gave no dict but {value!r}")
        return value

    def run(self, iterations: int, *, timed: bool = True) -> Timing:
        """Run steps; return wall time by this process's clock, and CPU time by the worker's.

        Steps that are not `timed` may run beside other work; see `workers/patience.py`.
        """
        self.begin_run(iterations, timed=timed)
        return self.finish_run()

    def begin_run(self, iterations: int, *, timed: bool = True) -> None:
        """Let it run steps; `finish_run` waits for them."""
        self.steps += iterations
        self._began_s = time.perf_counter()
        self._asked = running(iterations, timed=timed)
        self._send(**self._asked)

    def finish_run(self) -> Timing:
        """Wait for the steps of `begin_run`, timed from there."""
        reply = self._answer()
        wall_time_s = time.perf_counter() - self._began_s
        return Timing(wall_time_s=wall_time_s, cpu_time_s=float(reply["cpu_time_s"]))

    def call(self, method: str, **arguments: object) -> Json:
        """Call a method that the arm lists in `calls`; arguments and result are JSON."""
        self.begin_call(method, **arguments)
        return self.finish_call()

    def begin_call(self, method: str, **arguments: object) -> None:
        """Let it call a method; `finish_call` waits for the answer."""
        self._asked = calling(method, **arguments)
        self._send(**self._asked)

    def finish_call(self) -> Json:
        return self._answer()["value"]

    def pause(self) -> None:
        """Stop every process of the arm, compile workers included."""
        try:
            self._running().pause()
        except ChildFailure as error:
            self._fail(error)
        self.paused, self._paused_since_s = True, time.monotonic()

    def resume(self) -> None:
        """Let every process of the arm run again."""
        self._running().resume()
        if self.paused:
            self._paused_s += time.monotonic() - self._paused_since_s
        self.paused = False

    def output(self) -> str:
        """Return the end of the worker's output (at most 16 KiB)."""
        return self._child.output() if self._child else ""

    def close(self) -> None:
        """Kill every process of the arm. May be called twice."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _running(self) -> Child:
        if self._child is None:
            raise ArmFailure(f"arm '{self.title}' is not running; start it first")
        return self._child

    def _answer(self) -> Message:
        """Wait for the answer to the last message.

        torch writes a compiled library in place. A process that is killed meanwhile leaves a part
        of it in the cache, on which each later process fails. Such a library is removed. If the arm
        has not answered yet, it is started again and gets the message again.
        """
        while True:
            try:
                reply = self._receive(str(self._asked["do"]), self.spec.call_timeout_s)
            except ArmFailure as error:
                if not self._mends(error):
                    raise
                asked = self._asked
                self.start()
                self._began_s, self._asked = time.perf_counter(), asked
                self._send(**self._asked)
            else:
                self._chances = 0
                return reply

    def _mends(self, error: ArmFailure) -> bool:
        """Return True if it failed for a damaged library, which is gone now; it is closed then."""
        if not remove_torn_library(str(error)) or not self._chances:
            return False
        self._chances -= 1
        self.close()
        return True

    def _ask(self, limit_s: float, **message: object) -> Message:
        self._send(**message)
        return self._receive(str(message["do"]), limit_s)

    def _send(self, **message: object) -> None:
        if self.paused:
            raise ArmFailure(f"arm '{self.title}' is paused; resume it first")
        try:
            self._running().send(message)
        except ChildFailure as error:
            self._fail(error)

    def _receive(self, what: str, limit_s: float) -> Message:
        left_s = self.deadline_s - time.monotonic()
        try:
            reply, extra = self._running().receive(what, limit_s=max(0.0, min(limit_s, left_s)))
        except ChildFailure as error:
            if error.how == "timed_out" and left_s < limit_s:
                self.close()
                raise OutOfTime(
                    f"arm '{self.title}' was ended at its deadline during '{what}'"
                ) from error
            self._fail(error)
        close_descriptors(extra)
        if "error" in reply:
            raise_worker_error(self.title, reply["error"])
        return reply

    def _fail(self, error: ChildFailure) -> NoReturn:
        self.close()
        runs = str(self.spec.arguments.get("workload", ""))
        hint = f": it runs {runs}; call that function in a Python of its own to see why"
        own = error.how == "died" and ".py:" in runs
        raise ArmFailure(f"arm '{self.title}' {error}{hint if own else ''}") from error


def calling(method: str, **arguments: object) -> Message:
    return {"do": "call", "method": method, "arguments": arguments}


def running(iterations: int, *, timed: bool = True) -> Message:
    return {"do": "run", "iterations": iterations, "timed": timed}


def remove_torn_library(message: str) -> bool:
    """Remove a library of torch's cache that a message calls damaged; return False without one."""
    found = TORN.search(message)
    if found is None:
        return False
    library, cache = Path(found[1]), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not any(
        one.name.startswith("torchinductor_") or str(one) == cache for one in library.parents
    ):
        return False
    try:
        library.unlink()
    except OSError:
        return False
    return True


def worker_command(channel: int, *, python: str = sys.executable) -> list[str]:
    return [python, "-P", "-m", WORKER, str(channel), str(os.getpid())]


def worker_environment(spec: ArmSpec) -> dict[str, str]:
    """Return a worker's environment: ours, the arm's own, and our import path."""
    dropped = {key for key, value in spec.environment.items() if value == ""}
    path = {"RATCHET_IMPORT_PATH": import_path()}
    if spec.python:  # it has its own packages, and only borrows Ratchet
        home = Path(__file__).parents[3]
        lent = "" if home.name.endswith("-packages") else str(home)
        both = filter(None, [spec.environment.get("PYTHONPATH"), lent])
        path = {"RATCHET_IMPORT_PATH": "", "PYTHONPATH": os.pathsep.join(both)}
    merged = {**os.environ, **spec.environment, **path}
    return {key: value for key, value in merged.items() if key in path or key not in dropped}


def import_path() -> str:
    """Return this process's import path, for a worker to append to its own."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def raise_worker_error(name: str, error: object) -> NoReturn:
    """Raise a worker's error: one of Ratchet's as it is, any other as ArmFailure."""
    if not isinstance(error, dict):
        raise ArmFailure(f"arm '{name}' answered nonsense: {error!r}")
    kind, message = str(error.get("kind", "")), " ".join(str(error.get("message", "")).split())
    known = getattr(errors, kind, None)
    if known is ArmFailure:
        raise ArmFailure(f"arm '{name}': {message}")
    if isinstance(known, type) and issubclass(known, RatchetError):
        raise known(message)
    lost = DeviceLost.told_by(message, f"arm '{name}'")
    if lost is not None:
        raise lost
    raise ArmFailure(f"arm '{name}': {kind}: {message}")


# Time whole training steps against each other, in processes of their own, one launch at a time.
#
# A launch starts every arm anew, warms each, then runs rounds in random order while idle arms are
# stopped. Nothing is set up while anything is timed.


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEvent:
    """Progress: `kind` is starting, ready, warm (of one arm) or round (of all arms)."""

    kind: str
    launch: int
    arm: str = ""
    round: int = -1
    time_s: float = 0.0
    """Seconds of what is reported; for a round, the sum over its arms of one iteration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The result of one launch of several arms."""

    samples: list[Sample]
    descriptions: dict[str, dict[str, object]]
    """Each arm's description of itself after its last round."""
    setup_time_s: dict[str, float]
    """Seconds from the start of an arm's process to the end of its first iteration. This includes
    compilation, with caches as found."""


OnEvent = Callable[[TrialEvent], None]


class IdleStopped:
    """An arm whose processes are stopped except while it is timed."""

    def __init__(self, arm: ArmProcess) -> None:
        self._arm = arm

    @property
    def name(self) -> str:
        return self._arm.name

    def run(self, iterations: int) -> Timing:
        self._arm.resume()
        timing = self._arm.run(iterations)
        self._arm.pause()
        return timing


class ArmLaunches:
    """Starts arms in new processes, launch by launch, and gathers what they say of themselves."""

    def __init__(self, *, warmup: int, together: int = 1, on_event: OnEvent | None = None) -> None:
        """`warmup` iterations, at least one, come before the first timed one.

        `together` arms start at a time: a launch is ready sooner, but setup times are those of a
        busier machine.
        """
        self.descriptions: dict[str, dict[str, object]] = {}
        self.setup_time_s: dict[str, float] = {}
        """Seconds from the last start of an arm's process to the end of its first iteration."""
        self._warmup, self._together, self._on_event = warmup, together, on_event

    def report(self, event: TrialEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    @contextlib.contextmanager
    def open(self, specs: Sequence[ArmSpec], launch: int) -> Iterator[list[IdleStopped]]:
        """Yield the arms of a launch, started in this order and warm; describe them afterwards."""
        with contextlib.ExitStack() as stack:
            arms = [ArmProcess(spec) for spec in specs]
            for arm in arms:
                stack.callback(arm.close)
            for first in range(0, len(arms), self._together):
                group = arms[first : first + self._together]
                self._warm_up(group, launch)
                for arm in group:
                    arm.pause()
            yield [IdleStopped(arm) for arm in arms]
            for arm in arms:
                arm.resume()
                self.descriptions[arm.name] = arm.describe()

    def _warm_up(self, arms: Sequence[ArmProcess], launch: int) -> None:
        """Start the arms together, run their first iterations (which compile), then each one's
        remaining warm-up by itself."""
        for arm in arms:
            self.report(TrialEvent(kind="starting", launch=launch, arm=arm.name))
            arm.begin_start(running(1))
        for arm in arms:
            arm.finish_start()
            spent_s = self.setup_time_s[arm.name] = arm.ready_time_s
            self.report(TrialEvent(kind="ready", launch=launch, arm=arm.name, time_s=spent_s))
        for arm in arms:
            began = time.perf_counter()
            if self._warmup > 1:
                arm.run(self._warmup - 1)
            warm_time_s = time.perf_counter() - began
            self.report(TrialEvent(kind="warm", launch=launch, arm=arm.name, time_s=warm_time_s))


def time_arms(
    specs: Sequence[ArmSpec],
    *,
    rounds: int,
    warmup: int,
    seed: int,
    launch: int = 0,
    concurrent: bool = True,
    start_together: int = 1,
    on_event: OnEvent | None = None,
    enough: Enough = lambda: False,
) -> Trial:
    """Time two or more arms in one launch; return rounds x arms samples, in seconds.

    `warmup` is the number of iterations before the first timed one, at least one. With
    `concurrent=False`, for arms that do not fit in memory together, one process runs after another,
    and the samples of a round are not adjacent in time. Otherwise `start_together` arms start at a
    time (`ArmLaunches`), and `enough` may end the launch before its last round (`run_rounds`).
    Raises ArmFailure (an arm died); RatchetError (a factory raised it); JudgeError (the arguments
    make no sense).
    """
    _check(specs, rounds=rounds, warmup=warmup, start_together=start_together)
    rng = np.random.default_rng(seed)
    together = start_together if concurrent else 1
    begun = ArmLaunches(warmup=warmup, together=together, on_event=on_event)
    order = [specs[index] for index in rng.permutation(len(specs))]
    samples: list[Sample] = []
    for position, group in enumerate([order] if concurrent else [[spec] for spec in order]):
        name = "" if concurrent else group[0].name

        def on_round(index: int, taken: Sequence[Sample], name: str = name) -> None:
            time_s = sum(one.wall_time_s for one in taken)
            begun.report(
                TrialEvent(kind="round", launch=launch, arm=name, round=index, time_s=time_s)
            )

        with begun.open(group, launch) as arms:
            taken = run_rounds(
                arms,
                rounds=rounds,
                launch=launch,
                rng=rng,
                on_round=on_round,
                enough=enough if concurrent else lambda: False,
                fewest_arms=len(group),
            )
        samples += [replace(one, position=position + one.position) for one in taken]
    return Trial(
        samples=samples,
        descriptions=begun.descriptions,
        setup_time_s=begun.setup_time_s,
    )


def _check(specs: Sequence[ArmSpec], **counts: int) -> None:
    names = [spec.name for spec in specs]
    if len(names) < 2 or len(set(names)) != len(names):
        raise JudgeError(f"arms {names}: time two or more, each with a name of its own")
    for what, count in counts.items():
        if count < 1:
            raise JudgeError(f"{what}={count}: it must be at least 1")
