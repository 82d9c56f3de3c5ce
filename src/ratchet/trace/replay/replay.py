"""Replay of a trace's ops on this machine, with inputs of the recorded sizes and types."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from ratchet.base.errors import TraceError
from ratchet.base.process import watchdog
from ratchet.trace.analysis.analyse import analyse
from ratchet.trace.read.file import read
from ratchet.trace.replay.calls import Call, calls, costly_ops, traced_on
from ratchet.trace.replay.recorded import Outcome, ReplayAbout, ReplayAnswer

WORKER = "ratchet.trace.replay.worker"
CALL_S, START_S = 120, 180
"""Time limits in seconds of a call, and of the start of its process."""
_ROOM = 4
"""A call's inputs may take at most one part in so many of the free memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayRow:
    """One op with one set of inputs: its time in the trace and its time here."""

    op: str
    shapes: str
    types: str
    strides: str
    """Empty if the recording has none: the tensors are then contiguous."""
    values: str
    count: int
    """Number of calls in the trace."""
    traced: int
    """Mean time of a call in the trace, in ns: device time, or CPU time on a CPU-only trace."""
    outcome: Outcome
    why: str
    """The reason why the call was not rebuilt, or failed."""
    here: int | None
    """Median time of a call here, in ns, with inputs in the caches if they fit."""
    shortest: int | None

    @property
    def ratio(self) -> float | None:
        """The trace's time over the time here: above 1 if this machine is faster."""
        return self.traced / self.here if self.here else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """The result of `ratchet trace replay`."""

    trace: str
    traced_on: str
    device: str
    torch: str
    threads: int
    rows: tuple[ReplayRow, ...]
    """Those that took most time in the trace come first."""
    left_out: int
    """Number of distinct calls beyond those asked for."""
    faults: tuple[str, ...]


def replay(path: Path, names: Sequence[str] = (), top: int = 20, device: str = "auto") -> Replay:
    """Rebuild and time the `top` calls that took most, of the ops `names` or of the costliest ops.

    Calls run in a separate process, through torch.ops, with random values. If one crashes or takes
    too long, the rest continue in a new process. TraceError if the file lacks such an op or its
    shapes, or if the process cannot start.
    """
    found = analyse(read(path))
    names = tuple(names) or costly_ops(found, top)
    if not names:
        raise TraceError(f"{path.name} has no aten op that took time: name one with --op")
    faults = [str(fault) for fault in found.trace.faults]
    every = calls(path, found, names, faults.append)
    worker = _ReplayProcess(_device(device))
    with worker:
        rows = tuple(_row(call, worker.ask(call)) for call in every[:top])
    return Replay(
        trace=path.name,
        traced_on=traced_on(found.trace),
        device=worker.about.device,
        torch=worker.about.torch,
        threads=worker.about.threads,
        rows=rows,
        left_out=max(len(every) - top, 0),
        faults=tuple(dict.fromkeys(faults)),
    )


def _row(call: Call, answer: ReplayAnswer) -> ReplayRow:
    inputs = call.recorded
    return ReplayRow(
        op=inputs.op,
        shapes=json.dumps(inputs.dims),
        types=json.dumps(inputs.types),
        strides="" if inputs.strides is None else json.dumps(inputs.strides),
        values="" if inputs.values is None else json.dumps(inputs.values),
        count=call.count,
        traced=call.time // call.count,
        outcome=answer.outcome,
        why=answer.why,
        here=answer.time_ns,
        shortest=answer.shortest_ns,
    )


def _device(asked: str) -> str:
    if asked not in ("auto", "cpu", "cuda"):
        raise TraceError(f'--device {asked}: "cpu", "cuda" (ROCm too) or "auto"')
    code = "import torch; print(int(torch.cuda.is_available()))"
    there = asked != "cpu" and _python(code) == "1"
    if asked == "cuda" and not there:
        raise TraceError("--device cuda: torch finds no GPU here, use --device cpu")
    return "cuda" if there else "cpu"


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


class _ReplayProcess:
    """The process that replays, restarted whenever it dies."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.about = ReplayAbout(device="", torch="", threads=0)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> _ReplayProcess:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, call: Call) -> ReplayAnswer:
        """Return the answer for one call."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(call.recorded).decode() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._gave_up("its process ended")
        try:
            line = self._lines.get(timeout=CALL_S)
        except queue.Empty:
            return self._gave_up(f"it took longer than {CALL_S} s")
        if line is None:
            return self._gave_up("its process crashed")
        return msgspec.json.decode(line, type=ReplayAnswer)

    def _gave_up(self, why: str) -> ReplayAnswer:
        self._stop()
        return ReplayAnswer(outcome="failed", why=why)

    def _start(self) -> None:
        room = psutil.virtual_memory().available // _ROOM
        command = [sys.executable, "-m", WORKER, self.device, str(room)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=watchdog.environment(),
        )  # fmt: skip
        self._lines = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(
            target=_forward, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        try:
            first = self._lines.get(timeout=START_S)
        except queue.Empty:
            first = None
        if first is None:
            self._stop()
            raise TraceError(
                f"the process that replays did not start: python -m {WORKER} {self.device} {room} "
                "shows why"
            )
        self.about = msgspec.json.decode(first, type=ReplayAbout)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


def _forward(lines: Iterator[str], into: queue.Queue[str | None]) -> None:
    try:
        for line in lines:
            into.put(line)
    except ValueError:
        pass  # The stream was closed during the read.
    into.put(None)
