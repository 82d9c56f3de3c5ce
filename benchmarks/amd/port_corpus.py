"""Measure `ratchet port` on the annotated corpus of tests/port/corpus, and its speed.

    python benchmarks/amd/port_corpus.py [--lines 100000] [--compile gfx942] [--execute gfx942]
                                     [--only TEXT] [--tools FOLDER]

Precision and recall count findings by file, line and rule, notes among them. torch.utils.hipify and
`rocm-scribe hipify` find by rewriting: each line that they change is one finding, right if a rule
is annotated there. Both read CUDA and C++ alone, so only those files count for them. `hipbridge
inspect` names kernels by kind and has no findings with lines; what it recognizes is counted. These
two run if --tools names the folder of their programs (pip install rocm-scribe hipbridge).

`compiles` is the share of the files called clean whose GPU code compiles; null without clang.
`executed` is the share of kernels with a problem (a bound function, or a ModelNew) that the
emulator finds right after the port; --only takes those whose file has TEXT in its name, --execute
none executes nothing. `scan_s` is the time to scan copies of the corpus that make up `--lines`
lines. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "amd" / "port"))

from corpus_files import CORPUS, expected, scores, write_problems  # noqa: E402

from ratchet.amd.port.compile import compile_clean  # noqa: E402
from ratchet.amd.port.porting import PortSettings, port  # noqa: E402
from ratchet.amd.port.proofs import prove  # noqa: E402
from ratchet.amd.port.rules.libraries import hipified  # noqa: E402
from ratchet.amd.port.scan import scan  # noqa: E402
from ratchet.judge.court.court import Court  # noqa: E402

READ = (".cu", ".cuh", ".cpp", ".h")


def shares(right: int, alone: int, missed: int) -> dict[str, float | int]:
    """Return precision and recall with the counts behind them."""
    return {
        "precision": round(right / max(1, right + alone), 4),
        "recall": round(right / max(1, right + missed), 4),
        "right": right,
        "false": alone,
        "missed": missed,
    }


def rewriter(rewrite: Callable[[Path], bytes]) -> dict[str, float | int]:
    """Return what a tool changes in the corpus's CUDA and C++, against the annotated lines."""
    wanted = {(name, line) for name, line, _ in expected() if name.endswith(READ)}
    changed = set()
    for path in sorted(CORPUS.rglob("*")):
        if path.suffix not in READ:
            continue
        old, new = path.read_bytes().split(b"\n"), rewrite(path).split(b"\n")
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        name = path.relative_to(CORPUS).as_posix()
        for tag, start, end, _, _ in matcher.get_opcodes():
            if tag != "equal":
                changed |= {(name, line + 1) for line in range(start, end)}
    return shares(len(changed & wanted), len(changed - wanted), len(wanted - changed))


def scribe(tools: Path) -> Callable[[Path], bytes]:
    """Return `rocm-scribe hipify` as a function of a file; what it fails on stays as it is."""

    def rewrite(path: Path) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.hip"
            words = [tools / "rocm-scribe", "hipify", path, "--arch", "gfx942", "--output", made]
            done = subprocess.run(words, capture_output=True)
            return made.read_bytes() if done.returncode == 0 else path.read_bytes()

    return rewrite


def recognized(tools: Path) -> dict[str, int]:
    """Return how many kernels `hipbridge inspect` reports, recognizes, and how many files fail."""
    found = {"kernels": 0, "recognized": 0, "failed": 0}
    for path in sorted(CORPUS.rglob("*.cu")):
        words = [tools / "hipbridge", "inspect", "--json", path]
        done = subprocess.run(words, capture_output=True, text=True)
        try:
            kernels = json.loads(done.stdout)["kernels"]
        except (ValueError, KeyError):
            found["failed"] += 1
            continue
        found["kernels"] += len(kernels)
        found["recognized"] += sum(bool(one["recognized"]) for one in kernels)
    return found


def scan_time(lines: int) -> tuple[float, int]:
    """Return the seconds to scan copies of the corpus with that many lines, and their lines."""
    with tempfile.TemporaryDirectory() as folder:
        total = copies = 0
        each = sum(one.found.text.count(b"\n") for one in scan(CORPUS))
        while total < lines:
            shutil.copytree(CORPUS, Path(folder) / f"copy{copies}")
            copies, total = copies + 1, total + each
        began = time.perf_counter()
        found = scan(Path(folder))
        seconds = time.perf_counter() - began
        return seconds, sum(one.found.text.count(b"\n") for one in found)


def compiled_share(target: str) -> dict[str, object]:
    """Return how many of the files called clean compile, and which do not."""
    done = compile_clean(scan(CORPUS), (target,))
    tried = [one for one in done if one.status != "not compiled"]
    failed = [f"{one.file}: {one.why}" for one in tried if one.status == "failed"]
    share = 1 - len(failed) / len(tried) if tried else None
    left = [f"{one.file}: {one.why}" for one in done if one.status == "not compiled"]
    return {"share": share, "tried": len(tried), "failed": failed, "not_compiled": left}


def executed_share(target: str, only: str) -> dict[str, object]:
    """Return how many kernels with a problem are right, which are not, and which did not run."""
    result = port(CORPUS, PortSettings(compiles=False))
    kept = tuple(one for one in result.scanned if re.search(only, one.found.name))
    with tempfile.TemporaryDirectory() as folder, Court("sqlite://", must_keep=False) as court:
        write_problems(Path(folder))
        proofs = prove(
            replace(result, scanned=kept),
            court,
            targets=(target,),
            problems=Path(folder),
            time_limit_s=600,
            say=lambda what: print(what, flush=True),
        ).proofs
    ran = [one for one in proofs if one.was_executed]
    right = sum(one.is_right for one in ran)
    return {
        "share": round(right / len(ran), 4) if ran else None,
        "right": right,
        "executed": len(ran),
        "wrong": [f"{one.file}: {one.entry}: {one.status}: {one.why}" for one in ran if one.why],
        "not_executed": [f"{one.file}: {one.why}" for one in proofs if not one.was_executed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--compile", default="gfx942", metavar="TARGET")
    parser.add_argument("--execute", default="gfx942", metavar="TARGET")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--tools", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    right, alone, missed = (sum(one.values()) for one in scores())
    seconds, lines = scan_time(asked.lines)
    result = {
        "files": sum(1 for path in CORPUS.rglob("*") if path.is_file()),
        "port": shares(right, alone, missed),
        "hipify": rewriter(lambda path: hipified(path.read_bytes(), path.name)),
        "rocm_scribe": rewriter(scribe(asked.tools)) if asked.tools else None,
        "hipbridge": recognized(asked.tools) if asked.tools else None,
        "scan_s": round(seconds, 2),
        "lines": lines,
        "lines_a_second": round(lines / seconds),
        "compiles": compiled_share(asked.compile) if asked.compile != "none" else None,
        "executed": executed_share(asked.execute, asked.only) if asked.execute != "none" else None,
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
