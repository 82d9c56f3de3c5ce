"""Print the figures that a GPU must show, from what the parts of gpu_check.sh left in a folder.

    python benchmarks/gpu/gpu_figures.py FOLDER [PART...]
    python benchmarks/gpu/gpu_figures.py --dry-run

One JSON object a line: the figure, its part, its value, what is wanted, and whether it is met. A
figure that its part did not leave has a line with `failed` and no value; then the exit code is 1.
With --dry-run it prints the figures that there are, without values.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MUST_RUN = {"compile", "replayed graphs", "kernels", "kernels, bf16 weights"}
CALLS = {"activation": 20, "short chain": 100, "chain": 200}
"""Microseconds of a call of gpu_clock.py's problems on an H100."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure."""

    part: str
    name: str
    wanted: str
    value: Callable[[Sequence[Row]], float | None]
    """Reads it from the objects that the part printed; None if they do not tell."""
    met: Callable[[float], bool]


def off_by(problem: str) -> Callable[[Sequence[Row]], float | None]:
    """Return what reads how far the same kernel's interval reaches from 1."""

    def read(rows: Sequence[Row]) -> float | None:
        found = [one["ratio"] for one in rows if is_of(one, problem, "same") and one["ratio"]]
        return max((max(1 - low, high - 1) for low, _, high in found), default=None)

    return read


def is_of(row: Row, problem: str, kernel: str) -> bool:
    """Return whether a row of gpu_clock.py is of that problem and kernel."""
    return row.get("problem") == problem and row.get("kernel") == kernel


def proven_s(rows: Sequence[Row]) -> float | None:
    """Return the longest seconds in which the faster kernel was proven; None if it once was not."""
    found = [one for one in rows if one.get("kernel") == "shorter"]
    proven = all(one["status"] == "proven" for one in found)
    return max((one["verdict_s"] for one in found), default=None) if proven else None


def verdict_s(rows: Sequence[Row]) -> float | None:
    """Return the longest seconds of a verdict; None if one measured nothing."""
    found = [one for one in rows if "verdict_s" in one]
    measured = all(one["ratio"] is not None for one in found)
    return max((one["verdict_s"] for one in found), default=None) if measured else None


def screening_s(rows: Sequence[Row]) -> float | None:
    """Return the seconds of a screening in which a kernel was right."""
    return next((one["took_s"] for one in rows if one.get("right")), None)


def optimized(end: str) -> Callable[[Sequence[Row]], float | None]:
    """Return what reads the ratio over torch.compile's best, or an end of its interval."""

    def read(rows: Sequence[Row]) -> float | None:
        found = [one["speedup"]["vs_compile"] for one in rows if "speedup" in one]
        return float(found[0][end]) if found and found[0] else None  # null: nothing was proven

    return read


def share_of_ceilings(rows: Sequence[Row]) -> float | None:
    """Return the share of its bound at which the optimized step runs; None without a profile."""
    found = [one["limit"]["share"] for one in rows if one.get("limit")]
    return float(found[0]) if found else None


def recipe_memory_ratio(rows: Sequence[Row]) -> float | None:
    """Return the recipe's peak memory over that of torch.compile's best, in the final run."""
    peaks = [
        {arm["key"]: arm["peak_memory_bytes"] for arm in one["arms"]}
        for one in rows
        if "arms" in one
    ]
    if not peaks or not peaks[0].get("ratchet") or not peaks[0].get("best_compile"):
        return None
    return float(peaks[0]["ratchet"] / peaks[0]["best_compile"])


def memory_ratio(rows: Sequence[Row]) -> float | None:
    """Return the step's peak memory with the library's kernels over torch.compile's."""
    peaks = {one["way"]: one["peak_mb"] for one in rows if one.get("ran")}
    if not peaks.keys() >= {"kernels", "compile"}:
        return None
    return float(peaks["kernels"] / peaks["compile"])


def levers_missing(rows: Sequence[Row]) -> float | None:
    """Return how many of the levers that must run did not."""
    ran = {one["way"] for one in rows if one.get("ran")}
    return float(len(MUST_RUN - ran)) if any("way" in one for one in rows) else None


def worst_loss(rows: Sequence[Row]) -> float | None:
    """Return the largest difference of a loss between a recipe and the script as written.

    None if a step ran as written, by which losses agree, or if a recipe was not reached.
    """
    found = [one["worst_difference"] for one in rows if "worst_difference" in one]
    wanted = next((one["follow"] for one in rows if "follow" in one), None)
    return max(found, default=None) if len(found) == wanted else None


def tests_failed(rows: Sequence[Row]) -> float | None:
    """Return how many tests of `pytest -m gpu` failed; None if none ran."""
    last = next((one["text"] for one in reversed(rows) if one.get("text")), "")
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", last)}
    ran = [counts.get(word, 0) for word in ("passed", "failed", "error", "errors")]
    return float(sum(ran[1:])) if sum(ran) else None


def tests_s(rows: Sequence[Row]) -> float | None:
    """Return the seconds of `pytest -m gpu`; None if it did not end."""
    last = next((one["text"] for one in reversed(rows) if one.get("text")), "")
    found = re.search(r" in ([\d.]+)s", last)
    return float(found[1]) if found and tests_failed(rows) is not None else None


def at_most(limit: float) -> Callable[[float], bool]:
    """Return whether a value is at most that."""
    return lambda value: value <= limit


FIGURES = (
    *(
        Figure(
            part="clock",
            name=f"same kernel, calls of {us} us: interval's distance from 1",
            wanted=f"at most {limit}",
            value=off_by(problem),
            met=at_most(limit),
        )
        for problem, us in CALLS.items()
        for limit in [0.05 if us < 100 else 0.02]
    ),
    Figure(
        part="clock",
        name="a kernel 1.15x as fast: seconds until proven",
        wanted="at most 15",
        value=proven_s,
        met=at_most(15),
    ),
    Figure(
        part="clock",
        name="seconds a verdict",
        wanted="at most 15",
        value=verdict_s,
        met=at_most(15),
    ),
    Figure(
        part="screening",
        name="16 Triton kernels, cold caches: seconds a screening",
        wanted="at most 20",
        value=screening_s,
        met=at_most(20),
    ),
    Figure(
        part="levers",
        name="levers that must run and did not",
        wanted="0",
        value=levers_missing,
        met=at_most(0),
    ),
    Figure(
        part="levers",
        name="memory of a step with the kernels over torch.compile's",
        wanted="below 1",
        value=memory_ratio,
        met=lambda value: value < 1,
    ),
    Figure(
        part="scripts",
        name="recipes in a script: largest difference of a loss",
        wanted="at most 0.005",
        value=worst_loss,
        met=at_most(0.005),
    ),
    Figure(
        part="optimize",
        name="optimize over torch.compile's best: ratio",
        wanted="at least 1.15",
        value=optimized("ratio"),
        met=lambda value: value >= 1.15,
    ),
    Figure(
        part="optimize",
        name="optimize over torch.compile's best: lower end of the ratio",
        wanted="above 1",
        value=optimized("low"),
        met=lambda value: value > 1,
    ),
    Figure(
        part="optimize",
        name="optimize: share of what the measured ceilings allow",
        wanted="at least 0.9",
        value=share_of_ceilings,
        met=lambda value: value >= 0.9,
    ),
    Figure(
        part="optimize",
        name="optimize: the recipe's memory over that of torch.compile's best",
        wanted="below 1",
        value=recipe_memory_ratio,
        met=lambda value: value < 1,
    ),
    Figure(
        part="tests",
        name="pytest -m gpu: seconds in one process",
        wanted="at most 300",
        value=tests_s,
        met=at_most(300),
    ),
    Figure(
        part="tests",
        name="pytest -m gpu: tests that failed",
        wanted="0",
        value=tests_failed,
        met=at_most(0),
    ),
)


def rows_in(file: Path) -> list[Row]:
    """Return the JSON objects in a file, one a line or one alone; other lines as `text`."""
    text = file.read_text(errors="replace") if file.exists() else ""
    found = [parsed(text)] if isinstance(parsed(text), dict) else map(parsed, text.splitlines())
    return [one if isinstance(one, dict) else {"text": one} for one in found]


def parsed(text: str) -> Any:
    """Return a JSON object, or the text if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def line_of(figure: Figure, rows: Sequence[Row]) -> Row:
    """Return one figure's line."""
    said: Row = {"figure": figure.name, "part": figure.part, "wanted": figure.wanted}
    try:
        value = figure.value(rows)
    except (KeyError, TypeError, ValueError) as error:  # a part was cut in the middle of a line
        return said | {"failed": f"it left no figure: {error!r}"}
    if value is None:
        return said | {"failed": "it left no figure"}
    return said | {"value": float(f"{value:.4g}"), "met": figure.met(value)}


def main() -> int:
    """Print them."""
    if sys.argv[1] == "--dry-run":
        for one in FIGURES:
            print(json.dumps({"figure": one.name, "part": one.part, "wanted": one.wanted}))
        return 0
    folder, *parts = sys.argv[1:]
    lines = [
        line_of(one, rows_in(Path(folder) / one.part))
        for one in FIGURES
        if not parts or one.part in parts
    ]
    for line in lines:
        print(json.dumps(line))
    return int(any("failed" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
