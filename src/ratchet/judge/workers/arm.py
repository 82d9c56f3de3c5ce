"""The process of an arm: builds the arm from `module:function`, then runs what the parent asks.

Started as `python -m ratchet.judge.workers.arm CHANNEL_FD PARENT_PID`. Results only go through the
channel: what the arm prints is never an answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ratchet.base.errors import ArmFailure
from ratchet.base.process import families
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.sandbox.serving import Reply, serve
from ratchet.judge.workers.patience import Patience


class ArmWorker:
    """Holds the arm and answers one message at a time."""

    def __init__(self) -> None:
        self._arm: Any = None
        self._patience = Patience()

    def answer(self, message: Message, _: list[int]) -> Reply:
        actions: dict[str, Callable[[Message], Message]] = {
            "start": self._start,
            "run": self._run,
            "describe": self._describe,
            "call": self._call,
        }
        return actions[message["do"]](message), []

    def _start(self, message: Message) -> Message:
        """Build the arm, then answer the messages that came with the start."""
        with self._patience:  # other arms may start beside this one
            self._arm = load_function(message["factory"])(**message["arguments"])
            built_s = time.monotonic()
            told = [self.answer(one, [])[0] for one in message.get("then", ())]
        return {"then": told, "built_s": built_s, "ended_s": time.monotonic()}

    def _run(self, message: Message) -> Message:
        began = time.process_time()
        with contextlib.nullcontext() if message["timed"] else self._patience:
            self._arm.step(message["iterations"])
        return {"cpu_time_s": time.process_time() - began}

    def _describe(self, message: Message) -> Message:
        return {"value": self._arm.describe()}

    def _call(self, message: Message) -> Message:
        method, allowed = message["method"], tuple(getattr(self._arm, "calls", ()))
        if method not in allowed:
            raise ArmFailure(f"the arm has no call '{method}'; it lists {', '.join(allowed)}")
        timed = method in getattr(self._arm, "timed_calls", ())
        with contextlib.nullcontext() if timed else self._patience:
            return {"value": getattr(self._arm, method)(**message["arguments"])}


def load_function(name: str) -> Callable[..., object]:
    """Return the function that `module:function` names; raises ArmFailure if there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArmFailure(f"'{name}' cannot be loaded as module:function: {error}") from error
    if not callable(function):
        raise ArmFailure(f"'{name}' is not a function")
    return function  # type: ignore[no-any-return]


def extend_import_path() -> None:
    """Append the parent's import path to this process's own."""
    for entry in os.environ.get("RATCHET_IMPORT_PATH", "").split(os.pathsep):
        if entry and entry not in sys.path:
            sys.path.append(entry)


def main() -> None:
    """Serve the parent; argv holds the channel and the parent's process id."""
    channel = inherited(int(sys.argv[1]))
    families.die_with_parent(int(sys.argv[2]))
    families.adopt_orphans()
    extend_import_path()
    serve(channel, ArmWorker().answer)
    # Compile pools and non-daemon threads of the arm must not delay the end.
    os._exit(0)


if __name__ == "__main__":
    main()
