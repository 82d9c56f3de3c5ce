"""Load and report a large trace with Ratchet and with HolisticTraceAnalysis, in one run.

    python benchmarks/trace/trace_vs_hta.py SMALL.json.gz --hta-python HTA/bin/python
        [--skip-two-gb]

HolisticTraceAnalysis needs pandas below 3 and its own environment:

    python -m venv HTA && HTA/bin/python -m pip install HolisticTraceAnalysis "pandas<3" ijson

`make_large_trace.py` repeats SMALL to 275 MB (and to 2 GB). Each figure comes from a separate
process: the wall time of the call without imports, and the peak resident memory with imports
(Linux). For each process that it starts in turn, the peak of the largest of these is added, as if
all reached their peaks at once. HTA's ijson mode is the one it calls best
(IJSON_BATCH_AND_COMPRESS; it leaves out Python functions). Without --hta-python, HTA's lines are
left out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from make_large_trace import write

MEMORY = """
import resource, sys
started = []
sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
def peak_mb():
    own = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
    return (own + len(started) * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
"""
OURS = """
import json, sys, time
from ratchet.trace import document
from ratchet.trace.read import read
from ratchet.trace.answers.report import report
begin = time.perf_counter()
trace = read(sys.argv[1])
loaded = time.perf_counter()
if sys.argv[2] == "report":
    document(report(trace))
done = time.perf_counter()
print(json.dumps({"load_s": loaded - begin, "report_s": done - begin, "peak_mb": peak_mb(),
                  "processes": 1 + len(started), "events": len(trace)}))
"""
THEIRS = """
import json, sys, time
from importlib.metadata import version
from hta.common.trace import parse_trace_file
from hta.configs.parser_config import ParserBackend, ParserConfig
config = ParserConfig.get_default_cfg()
if sys.argv[2] == "ijson":
    config.set_parser_backend(ParserBackend.IJSON_BATCH_AND_COMPRESS)
started.clear()
begin = time.perf_counter()
frame = parse_trace_file(sys.argv[1], config)[1]
done = time.perf_counter()
print(json.dumps({"load_s": done - begin, "peak_mb": peak_mb(), "processes": 1 + len(started),
                  "events": len(frame),
                  "version": version("HolisticTraceAnalysis"), "pandas": version("pandas")}))
"""


def measured(python: str, code: str, path: Path, mode: str) -> dict[str, Any]:
    """Run one reader in a new process and return its figures."""
    done = subprocess.run(
        [python, "-c", MEMORY + code, str(path), mode], check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{mode} failed: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("--hta-python", help="the interpreter of HolisticTraceAnalysis")
    parser.add_argument("--size-mb", type=float, default=275.0)
    parser.add_argument("--skip-two-gb", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.json"
        write(options.small, large, int(options.size_mb * 1e6))
        size = large.stat().st_size / 1e6
        ours = measured(sys.executable, OURS, large, "load")
        full = measured(sys.executable, OURS, large, "report")
        rows = [("ratchet, load", ours), ("ratchet, load and report", full)]
        theirs: dict[str, dict[str, Any]] = {}
        if options.hta_python:
            for mode in ("json", "ijson"):
                theirs[mode] = measured(options.hta_python, THEIRS, large, mode)
                rows.append((f"HTA, {mode}", theirs[mode]))
        large.unlink()
        two_gb = None
        if not options.skip_two_gb:
            write(options.small, large, 2_000_000_000)
            two_gb = measured(sys.executable, OURS, large, "report")
            rows.append(("ratchet, load and report 2 GB", two_gb))
    table(rows, size, theirs)
    print(json.dumps(summary(ours, full, theirs, two_gb)))


def table(
    rows: list[tuple[str, dict[str, Any]]], size: float, theirs: dict[str, dict[str, Any]]
) -> None:
    """Print one line per process."""
    hta = theirs.get("json", {})
    print(
        f"{size:.0f} MB, torch-ratchet {version('torch-ratchet')}, Python {sys.version.split()[0]}"
    )
    if hta:
        print(f"HolisticTraceAnalysis {hta['version']}, pandas {hta['pandas']}")
    print(f"{'':32}{'time':>9}{'peak memory':>14}{'processes':>12}{'events':>12}")
    for name, figures in rows:
        time = figures["report_s" if "report" in name else "load_s"]
        memory, processes = figures["peak_mb"], figures["processes"]
        print(f"{name:32}{time:7.2f} s{memory:11.0f} MB{processes:12}{figures['events']:12,}")


def summary(
    ours: dict[str, Any],
    full: dict[str, Any],
    theirs: dict[str, dict[str, Any]],
    two_gb: dict[str, Any] | None,
) -> dict[str, float | None]:
    """Return the main figures: HTA's time over ours, and our memory over HTA's."""

    def times(mode: str) -> float | None:
        return round(theirs[mode]["load_s"] / ours["load_s"], 2) if mode in theirs else None

    memory = ours["peak_mb"] / theirs["json"]["peak_mb"] if "json" in theirs else None
    return {
        "load_vs_hta": times("json"),
        "load_vs_hta_ijson": times("ijson"),
        "memory_vs_hta": None if memory is None else round(memory, 3),
        "report_s": round(full["report_s"], 2),
        "two_gb_peak_mb": None if two_gb is None else round(two_gb["peak_mb"]),
    }


if __name__ == "__main__":
    main()
