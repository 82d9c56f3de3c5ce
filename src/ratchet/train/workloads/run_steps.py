"""Run a workload as written: `python -m ratchet.train.workloads.run_steps SPEC STEPS OPTIONS`.

Meant for a profiler that observes the process from outside. OPTIONS are `load`'s keyword arguments
as JSON. A user's mistake prints one line on stderr and exits with code 2.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence

from ratchet.base.errors import RatchetError
from ratchet.train.workloads.names import LoadOptions

MISTAKE = 2


def steps_command(spec: str, steps: int, options: LoadOptions) -> list[str]:
    """Return the command that runs `steps` steps of a workload in a separate process."""
    module = "ratchet.train.workloads.run_steps"
    return [sys.executable, "-m", module, spec, str(steps), json.dumps(dict(options))]


def run_steps(spec: str, steps: int, options: LoadOptions) -> None:
    """Load the workload and train it on a fresh batch each step."""
    from ratchet.train.workloads.blame import batch_of
    from ratchet.train.workloads.check import load_checked
    from ratchet.train.workloads.step import TrainingStep

    workload, _ = load_checked(spec, **options)
    gc.collect()  # the check's own optimizer goes, so a profiler counts the steps of this one
    step = TrainingStep(workload, workload.as_written())
    for index in range(steps):
        step(batch_of(workload, index))


def main(words: Sequence[str]) -> int:
    """Run the command line's workload and return the exit code."""
    spec, steps, options = words
    try:
        run_steps(spec, int(steps), json.loads(options))
    except RatchetError as error:
        print(f"ratchet: {error}", file=sys.stderr)
        return MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
