"""How many launches of small kernels of many kinds `ratchet emulate` runs right, per target.

python benchmarks/amd/emulate_suite.py [TARGET...]; the last line is one JSON document.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ratchet.amd.emulator.program import emulate
from ratchet.judge.kernels.kernel import TARGETS

PROGRAM = Path(__file__).with_name("emulate_kinds.py")


def measured(target: str) -> dict[str, object]:
    """Run the program on a target; return launches, kinds and those that are not right."""
    with tempfile.TemporaryFile("w+") as printed:
        result = emulate([sys.executable, str(PROGRAM)], target, stdout=printed)
        printed.seek(0)
        lines = printed.read().splitlines()
    if result.exit_code or not lines:
        raise subprocess.CalledProcessError(result.exit_code, str(PROGRAM))
    answers: dict[str, str] = json.loads(lines[-1])
    refused = sum(one.count for one in result.faults if one.kind == "refused")
    return {
        "launches": result.launches + sum(one.count for one in result.faults),
        "refused_launches": refused,
        "kinds": len(answers),
        "right": sum(answer == "right" for answer in answers.values()),
        "others": {name: answer for name, answer in answers.items() if answer != "right"},
    }


def main() -> None:
    """Measure the targets that are named, or all."""
    found = {}
    for target in sys.argv[1:] or TARGETS:
        found[target] = measured(target)
        print(target, json.dumps(found[target], indent=1), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
