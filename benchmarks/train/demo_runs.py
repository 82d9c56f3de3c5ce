"""Run the demo several times, each as on a machine that has never seen it, and count the proofs.

    python benchmarks/train/demo_runs.py [--times 10] [--workload llama-8m] [--budget 5m]
        [--out FOLDER]

Every run has an empty ledger and an empty compile cache, and ends with its proof, as `make demo`
does. The last line is one JSON object: `runs`, `proven`, `median_ratio` (of the recipe over
torch.compile's best of that run, over the proven runs), `worst_overrun_s` (wall time of the whole
command beyond its budget, 0 if there was none), and each run's own figures. Run it on a machine
that does nothing else. The figures are for people; no test depends on them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ratchet.train.turn.settings import parse_budget_s


def run(workload: str, budget: str, folder: Path) -> dict[str, Any]:
    """Run one demo in `folder` and return its figures."""
    out = folder / "out"
    command = [sys.executable, "-m", "ratchet.cli", "optimize", workload, "--budget", budget]
    command += ["--until-proven", "--out", str(out), "--ledger", str(folder / "ledger.db")]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    began_s = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    took_s = time.monotonic() - began_s
    if done.returncode != 0:
        return {"recipe_is": f"exit code {done.returncode}", "took_s": took_s}
    result = json.loads((out / "result.json").read_text())
    ratio = result["speedup"]["vs_compile"]
    floor = result["floor"] or {}
    return {
        "recipe_is": result["recipe_is"],
        "because": result["recipe_because"],
        "rival": result["best_compile"],
        "vs_compile": ratio and [round(ratio[key], 3) for key in ("ratio", "low", "high")],
        "floor": round(floor["high"], 3) if floor else None,
        "kernels": len(
            [one for one in result["verdicts"] if one["status"] in ("proven", "correct")]
        ),
        "took_s": round(took_s, 1),
    }


def summary(runs: list[dict[str, Any]], budget_s: float) -> dict[str, Any]:
    """Return the figures of all runs as one object."""
    proven = [one for one in runs if one["recipe_is"] == "proven"]
    ratios = [one["vs_compile"][0] for one in proven if one["vs_compile"]]
    return {
        "runs": len(runs),
        "proven": len(proven),
        "median_ratio": round(statistics.median(ratios), 3) if ratios else None,
        "worst_overrun_s": round(max(0.0, *(one["took_s"] - budget_s for one in runs)), 1),
        "each": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--workload", default="llama-8m")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--out", type=Path, help="keeps each run's folder there")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as temporary:
        for number in range(arguments.times):
            folder = (arguments.out or Path(temporary)) / f"run-{number}"
            folder.mkdir(parents=True)
            runs.append(run(arguments.workload, arguments.budget, folder))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print(json.dumps(summary(runs, parse_budget_s(arguments.budget))))


if __name__ == "__main__":
    main()
