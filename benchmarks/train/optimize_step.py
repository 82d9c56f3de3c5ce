"""Time a workload's step with Ratchet's recipe against torch.compile's best, in one run.

    python benchmarks/train/optimize_step.py llama-60m [--budget 30m] [--out FOLDER] [--ledger PATH]

Runs `ratchet optimize` with a new ledger, so nothing is reused. The last line is one JSON object.
The figures are for people; no test depends on them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def run(workload: str, budget: str, out: Path, ledger: Path) -> dict[str, Any]:
    """Run one turn in its own process and return its result document."""
    command = [sys.executable, "-m", "ratchet.cli", "optimize", workload, "--budget", budget]
    command += ["--out", str(out), "--ledger", str(ledger)]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    document: dict[str, Any] = json.loads((out / "result.json").read_text())
    return document


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one turn as one flat object."""
    arms = {arm["key"]: arm for arm in result["arms"]}

    def ratio(name: str) -> dict[str, float] | None:
        found = result["speedup"][name]
        return found and {key: round(found[key], 4) for key in ("ratio", "low", "high")}

    return {
        "workload": result["workload"],
        "step_time_s": {key: round(arm["step_time_s"], 5) for key, arm in arms.items()},
        "vs_best_compile": ratio("vs_compile"),
        "vs_eager_fp32": ratio("vs_written"),
        "vs_best_compile_same_arithmetic": ratio("vs_compile_same_arithmetic"),
        "not_measured": result["not_measured"],
        "best_compile": result["best_compile"],
        "hardware": result["device"],
        "versions": result["versions"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("--budget", default="30m")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ledger", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as folder:
        out = arguments.out or Path(folder) / "out"
        ledger = arguments.ledger or Path(folder) / "ledger.db"
        result = run(arguments.workload, arguments.budget, out, ledger)
    print(json.dumps(summary(result)))


if __name__ == "__main__":
    main()
