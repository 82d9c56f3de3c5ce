"""Arms for the tests of the judge's processes: honest ones and every way to fail."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from ratchet.base.errors import WorkloadError


class Spinner:
    """Busy for a given time a step."""

    calls = ("pid", "children", "echo", "refuse", "nonsense")

    def __init__(self, step_time_s: float, label: str) -> None:
        self._step_time_s = step_time_s
        self._label = label
        self.steps = 0
        self._children: list[subprocess.Popen[bytes]] = []

    def step(self, iterations: int) -> None:
        for _ in range(iterations):
            end = time.perf_counter() + self._step_time_s
            while time.perf_counter() < end:
                pass
            self.steps += 1

    def describe(self) -> dict[str, Any]:
        return {"label": self._label, "steps": self.steps}

    def pid(self) -> int:
        return os.getpid()

    def children(self) -> list[int]:
        """Start a child in a session of its own and a double-forked one; return their pids."""
        program = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
        direct = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        self._children.append(direct)
        daemon = (
            "import os, sys, time\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "if os.fork(): os._exit(0)\n"
            "print(os.getpid(), flush=True); sys.stdout.close(); os.close(1); time.sleep(600)\n"
        )
        output = subprocess.run([sys.executable, "-c", daemon], stdout=subprocess.PIPE).stdout
        assert direct.stdout is not None
        return [int(direct.stdout.readline()), int(output)]

    def echo(self, value: Any) -> Any:
        return value

    def refuse(self) -> None:
        raise WorkloadError("the loss is NaN\nat step 3; lower the learning rate")

    def nonsense(self) -> Any:
        return object()


def make_spinner(step_time_s: float = 0.001, label: str = "spinner") -> Spinner:
    return Spinner(step_time_s, label)


class Compiled(Spinner):
    """Loads a library at its first step, as torch does; one that is missing would be compiled."""

    calls = ("loaded",)

    def __init__(self, path: str) -> None:
        super().__init__(0.001, "compiled")
        self._path = path

    def step(self, iterations: int) -> None:
        if os.path.exists(self._path):
            ctypes.CDLL(self._path)
        super().step(iterations)

    def loaded(self) -> str:
        self.step(1)
        return "yes"


def make_from_library(path: str) -> Spinner:
    return Compiled(path)


def make_unknown() -> Spinner:
    raise WorkloadError("workload 'lama': unknown; known are llama-8m and llama-60m")


def make_broken() -> Spinner:
    raise KeyError("weights")


def make_exit() -> Spinner:
    raise SystemExit(0)


class Faulty(Spinner):
    """Does what `fault` names at its second step."""

    def __init__(self, fault: str) -> None:
        super().__init__(0.0, fault)
        self._fault = fault

    def step(self, iterations: int) -> None:
        super().step(iterations)
        if self.steps >= 2:
            getattr(self, f"_{self._fault}")()

    def _segfault(self) -> None:
        print("about to fall", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def _exit(self) -> None:
        os._exit(7)

    def _hang(self) -> None:
        time.sleep(600)

    def _flood(self) -> None:
        line = b"x" * 1023 + b"\n"
        for _ in range(64 << 10):  # 64 MiB
            os.write(1, line)
            os.write(2, line[:80])
        os.write(2, b"the last line\n")

    def _raise(self) -> None:
        raise ValueError("bad batch")


def make_faulty(fault: str) -> Faulty:
    return Faulty(fault)
