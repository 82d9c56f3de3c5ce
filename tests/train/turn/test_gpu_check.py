"""benchmarks/gpu_check.sh: what it would run on a GPU exists, and it keeps its time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_gpu_twins import on_gpus

from ratchet.base.errors import ArmFailure
from ratchet.base.process import families

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"
CALLS = re.findall(
    r"^within \d+ \w+ python3 benchmarks/(\S+)(.*?)(?: &)?$", SCRIPT.read_text(), re.M
)


def run(
    folder: Path,
    *,
    after_s: int = 0,
    parts: str = "",
    python: str = "true",
    limit_s: str = "",
) -> tuple[int, list[list[str]], list[str]]:
    """Run the script where python3 only notes its words, and the clock stands `after_s` later.

    `python` is what it does besides, in sh. What runs a part and what reads figures are real.
    """
    noted = folder / "noted"
    real = "benchmarks/gpu/gpu_part.py | benchmarks/gpu/gpu_figures.py"
    tools = {
        "python3": f'case "$1" in {real}) exec {sys.executable} "$@";; esac; '
        f'echo "$@" >> {noted}; {python}',
        "date": f"[ -f {folder}/begun ] && echo $((1000 + {after_s})) || echo 1000; "
        f": > {folder}/begun",
    }
    for name, text in tools.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    asked = {"PARTS": parts, "LIMIT_S": limit_s}
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **asked}
    done = subprocess.run(["sh", str(SCRIPT)], env=environment, capture_output=True, text=True)
    words = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
    ran = [
        one
        for one in words
        if one and one[0] in ("-m", *(f"benchmarks/{name}" for name, _ in CALLS))
    ]
    return done.returncode, ran, done.stdout.splitlines()


@cache
def planned() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the parts and the figures that --dry-run prints."""
    command = ["sh", str(SCRIPT), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [one for one in lines if "command" in one], [one for one in lines if "figure" in one]


def module_of(name: str) -> Any:
    """Load a program of benchmarks/."""
    path = SCRIPT.parent / "gpu" / Path(name).name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_all_parts_run_in_order_the_timings_first(tmp_path: Path) -> None:
    code, words, said = run(tmp_path)
    assert code == 1 and all("it left no figure" in line for line in said)
    told = [one[0] if one[0] != "-m" else one[1] for one in words]
    alone = ["benchmarks/gpu/gpu_clock.py", "benchmarks/gpu/gpu_screening.py", "ratchet.cli"]
    assert told[:3] == alone and len(told) == 6
    assert {*told[3:]} == {
        "benchmarks/gpu/gpu_levers.py",
        "benchmarks/gpu/gpu_scripts.py",
        "pytest",
    }


def test_a_missing_package_is_told_before_anything_runs(tmp_path: Path) -> None:
    tells = 'case "$1" in -c) echo msgspec transformers;; esac'
    code, words, said = run(tmp_path, python=tells)
    assert code == 2 and not words
    assert [json.loads(line) for line in said] == [{"failed": "missing here: msgspec transformers"}]


def test_the_tests_that_need_a_gpu_are_all_named() -> None:
    """Files that hold none are not collected: that takes as long as a verdict."""
    (command,) = [one["command"] for one in planned()[0] if one["part"] == "tests"]
    named = {one.removeprefix("tests/") for one in command if one.endswith(".py")}
    assert named >= {test.partition("::")[0] for test, _ in on_gpus()}


def test_named_parts_run_alone(tmp_path: Path) -> None:
    code, words, said = run(tmp_path, parts="screening tests")
    assert code == 1
    assert [one[0] for one in words] == ["benchmarks/gpu/gpu_screening.py", "-m"]
    assert {json.loads(line)["part"] for line in said} == {"screening", "tests"}


def test_what_the_time_does_not_suffice_for_is_left_out_in_a_line(tmp_path: Path) -> None:
    code, words, said = run(tmp_path, after_s=468)
    assert code == 1
    assert {json.loads(line)["failed"] for line in said} == {"left out: no time"}
    assert len(said) == len(CALLS) + 2 and not words


BAD_PARTS = """
case "$1" in
benchmarks/gpu/gpu_clock.py) echo '{{"problem": "chain"'; exit 3;;
benchmarks/gpu/gpu_screening.py) setsid sleep 1000 >/dev/null 2>&1 & echo $! >> {pids}
    exec sleep 1000;;
benchmarks/gpu/gpu_levers.py) setsid sleep 1000 >/dev/null 2>&1 & echo $! >> {pids}
    echo '{{"way": "compile", "ran": false}}';;
benchmarks/gpu/gpu_scripts.py)
    echo '{{"recipe": "compile", "worst_difference": 0.0, "follow": 1}}';;
esac
"""


def test_a_part_that_fails_hangs_or_leaves_a_process_stops_no_other(tmp_path: Path) -> None:
    """What lives on would hold the GPU's memory, in a session of its own too."""
    pids = tmp_path / "pids"
    code, _, said = run(
        tmp_path,
        python=BAD_PARTS.format(pids=pids),
        parts="clock screening levers scripts",
        limit_s="2",
    )
    lines = [json.loads(line) for line in said]
    assert code == 1
    failed = {one["part"]: one["failed"] for one in lines if "part" in one and "figure" not in one}
    assert failed == {"clock": "exit code 3", "screening": "cut after 2 s"}
    values = {one["part"]: one["value"] for one in lines if "value" in one}
    assert values == {"levers": 4.0, "scripts": 0.0}
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 2
    states = [families.read_state(pid) for pid in left]
    assert not [one for one in states if one is not None and one.alive]


def test_its_limits_fit_into_eight_minutes() -> None:
    parts, figures = planned()
    alone = [one["limit_s"] for one in parts if not one["beside"]]
    together = [one["limit_s"] for one in parts if one["beside"]]
    assert sum(alone) + max(together) <= 470 and len(together) == 3
    assert {one["part"] for one in figures} == {one["part"] for one in parts}


ROWS: dict[str, list[str]] = {
    "clock": [
        json.dumps(
            {"problem": problem, "kernel": kernel, "status": status, "verdict_s": 14.0}
            | {"ratio": ratio}
        )
        for problem in ("activation", "short chain", "chain")
        for kernel, status, ratio in [
            ("same", "correct", [0.99, 1.0, 1.015]),
            ("shorter", "proven", [1.1, 1.12, 1.14]),
        ]
    ],
    "screening": ['{"screened": 16, "right": 15, "took_s": 19.5}'],
    "levers": [
        json.dumps({"way": way, "ran": True, "peak_mb": peak})
        for way, peak in [("compile", 1000), ("replayed graphs", 1100), ("kernels", 800)]
    ],
    "scripts": [
        '{"recipe": "as written", "follow": 1}',
        '{"recipe": "x", "worst_difference": 0.001}',
    ],
    "optimize": [
        json.dumps(
            {
                "speedup": {"vs_compile": {"low": 1.1, "ratio": 1.2, "high": 1.3}},
                "limit": {"arm": "ratchet", "share": 0.92},
                "arms": [
                    {"key": "best_compile", "peak_memory_bytes": 40 << 30},
                    {"key": "ratchet", "peak_memory_bytes": 30 << 30},
                ],
            }
        )
    ],
    "tests": ["....", "54 passed, 1 skipped in 200.00s (0:03:20)"],
}
VALUES = {
    "same kernel, calls of 20 us: interval's distance from 1": (0.015, True),
    "same kernel, calls of 100 us: interval's distance from 1": (0.015, True),
    "same kernel, calls of 200 us: interval's distance from 1": (0.015, True),
    "a kernel 1.15x as fast: seconds until proven": (14.0, True),
    "seconds a verdict": (14.0, True),
    "16 Triton kernels, cold caches: seconds a screening": (19.5, True),
    "levers that must run and did not": (1.0, False),
    "memory of a step with the kernels over torch.compile's": (0.8, True),
    "recipes in a script: largest difference of a loss": (0.001, True),
    "optimize over torch.compile's best: ratio": (1.2, True),
    "optimize over torch.compile's best: lower end of the ratio": (1.1, True),
    "optimize: share of what the measured ceilings allow": (0.92, True),
    "optimize: the recipe's memory over that of torch.compile's best": (0.75, True),
    "pytest -m gpu: seconds in one process": (200.0, True),
    "pytest -m gpu: tests that failed": (0.0, True),
}
"""The figures that a GPU must show, and what these rows say of them."""


def test_each_figure_is_a_line(tmp_path: Path) -> None:
    for part, lines in ROWS.items():
        (tmp_path / part).write_text("\n".join(lines) + "\n")
    command = [sys.executable, str(SCRIPT.parent / "gpu" / "gpu_figures.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["figure"]: (one["value"], one["met"]) for one in lines} == VALUES
    assert [one["figure"] for one in planned()[1]] == [*VALUES]


@pytest.mark.parametrize(
    ("last", "value"),
    [
        ("55 skipped in 3.00s", None),
        ("no tests ran in 0.10s", None),
        ("9377 deselected in 9.00s", None),
        ("", None),
        ("1 failed, 53 passed, 2 errors in 9.00s", 3.0),
    ],
)
def test_no_test_that_ran_is_no_figure(last: str, value: float | None) -> None:
    figures = module_of("gpu_figures.py")
    one = figures.FIGURES[-1]
    assert (figures.tests_s([{"text": last}]) is None) == (value is None)
    line = figures.line_of(one, [{"text": last}])
    assert line.get("value") == value and ("failed" in line) == (value is None)


def test_a_faster_kernel_that_was_not_proven_is_no_figure() -> None:
    figures = module_of("gpu_figures.py")
    row = {"kernel": "shorter", "status": "correct", "verdict_s": 9.0}
    assert figures.proven_s([row]) is None
    assert figures.optimized("low")([{"speedup": {"vs_compile": None}}]) is None
    assert figures.share_of_ceilings([{"limit": None}]) is None
    alone = [{"key": "ratchet", "peak_memory_bytes": 1}]
    assert figures.recipe_memory_ratio([{"arms": alone}]) is None
    assert figures.recipe_memory_ratio([{"arms": []}]) is None


class NotedArm:
    """The process of a way; only what is asked of it is noted, and some of it fails."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self._name, self._asked = name, asked

    def __getattr__(self, what: str) -> Callable[..., SimpleNamespace]:
        def note(*_: object) -> SimpleNamespace:
            self._asked.append(what)
            if self._name == f"no {what}":
                raise ArmFailure(f"{self._name} here")
            return SimpleNamespace(wall_time_s=0.01)

        return note

    def describe(self) -> dict[str, Any]:
        return {"peak_memory_bytes": 1 << 30, "loss": 1.0, "installed": {}, "fallbacks": {}}


def test_ways_to_run_a_step_compile_at_the_same_time_and_fail_alone() -> None:
    asked: list[str] = []
    names = ("compile", "no finish_start", "no finish_run", "no run", "kernels")
    arms = {name: NotedArm(name, asked) for name in names}
    rows = module_of("gpu_levers.py").timed(arms, 2)
    assert [one["way"] for one in rows] == [*names]
    assert [one.get("reason", "") for one in rows] == [
        "",
        *(f"{one} here" for one in names[1:4]),
        "",
    ]
    begun = [at for at, what in enumerate(asked) if what == "begin_run"]
    assert len(begun) == 4 and max(begun) < asked.index("finish_run") < asked.index("run")


def test_what_measured_nothing_is_no_figure() -> None:
    figures = module_of("gpu_figures.py")
    right = {"kernel": "same", "ratio": [0.9, 1.0, 1.1], "verdict_s": 9.0}
    assert figures.verdict_s([right]) == 9.0
    assert figures.verdict_s([right, right | {"ratio": None}]) is None
    written, trained = {"follow": 2}, {"recipe": "compile", "worst_difference": 1e-7}
    assert figures.worst_loss([written, trained, trained]) == 1e-7
    assert figures.worst_loss([written, trained]) is None  # the part was cut
    assert figures.worst_loss([written, trained, {"recipe": "x", "failed": "as written"}]) is None


@pytest.mark.parametrize(("name", "words"), CALLS)
def test_each_benchmark_loads_and_takes_its_options(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(words), "--help"])
    module = module_of(name)
    with pytest.raises(SystemExit) as done:
        module.main()
    assert done.value.code == 0
    assert "--device" in capsys.readouterr().out
