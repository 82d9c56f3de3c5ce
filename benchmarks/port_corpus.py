"""Measure `ratchet port` on the annotated corpus of tests/port/corpus, and its speed.

    python benchmarks/port_corpus.py [--lines 100000] [--compile gfx942]

Precision and recall count findings by file, line and rule, notes among them. `hipify` is
torch.utils.hipify alone on the same corpus: it finds by rewriting, so each line that it changes is
one finding, right if a rule is annotated there. `compiles` is the share of the files called clean
whose GPU code compiles for the target; it is null without clang. `scan_s` is the time to scan
copies of the corpus that make up `--lines` lines. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "port"))

from corpus_files import CORPUS, expected, scores  # noqa: E402

from ratchet.port.compile import compile_clean  # noqa: E402
from ratchet.port.hipify import hipified  # noqa: E402
from ratchet.port.scan import scan  # noqa: E402


def shares(right: int, alone: int, missed: int) -> dict[str, float | int]:
    """Return precision and recall with the counts behind them."""
    return {
        "precision": round(right / max(1, right + alone), 4),
        "recall": round(right / max(1, right + missed), 4),
        "right": right,
        "false": alone,
        "missed": missed,
    }


def hipify_alone() -> dict[str, float | int]:
    """Return what hipify changes on the corpus, against the annotated lines."""
    wanted = {(name, line) for name, line, _ in expected()}
    changed = set()
    for path in sorted(CORPUS.rglob("*")):
        if path.suffix not in (".cu", ".cuh", ".cpp"):
            continue
        old = path.read_bytes()
        new = hipified(old, path.name)
        matcher = difflib.SequenceMatcher(None, old.split(b"\n"), new.split(b"\n"), autojunk=False)
        name = path.relative_to(CORPUS).as_posix()
        for tag, start, end, _, _ in matcher.get_opcodes():
            if tag != "equal":
                changed |= {(name, line + 1) for line in range(start, end)}
    return shares(len(changed & wanted), len(changed - wanted), len(wanted - changed))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--compile", default="gfx942", metavar="TARGET")
    asked = parser.parse_args()
    right, alone, missed = (sum(one.values()) for one in scores())
    seconds, lines = scan_time(asked.lines)
    result = {
        "files": sum(1 for path in CORPUS.rglob("*") if path.is_file()),
        "port": shares(right, alone, missed),
        "hipify": hipify_alone(),
        "compiles": compiled_share(asked.compile),
        "scan_s": round(seconds, 2),
        "lines": lines,
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
