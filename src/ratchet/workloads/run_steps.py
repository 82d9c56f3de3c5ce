"""`python -m ratchet.workloads.run_steps SPEC STEPS OPTIONS`: a workload's steps, as written.

For a profiler that watches from outside. OPTIONS are the keyword arguments of `load`, as JSON. What
the user got wrong is one line on stderr and exit code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.errors import RatchetError

MISTAKE = 2


def steps_command(spec: str, steps: int, options: Mapping[str, Any]) -> list[str]:
    """The command that runs `steps` steps of a workload in a process of its own."""
    module = "ratchet.workloads.run_steps"
    return [sys.executable, "-m", module, spec, str(steps), json.dumps(dict(options))]


def run_steps(spec: str, steps: int, options: Mapping[str, Any]) -> None:
    """Load the workload and train it; every batch is a fresh one."""
    from ratchet.workloads import TrainingStep, check, load
    from ratchet.workloads.blame import batch_of

    workload = load(spec, **options)
    check(workload)
    step = TrainingStep(workload, workload.as_written())
    for index in range(steps):
        step(batch_of(workload, index))


def main(words: Sequence[str]) -> int:
    """Run what the command line names."""
    spec, steps, options = words
    try:
        run_steps(spec, int(steps), json.loads(options))
    except RatchetError as error:
        print(f"ratchet: {error}", file=sys.stderr)
        return MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
