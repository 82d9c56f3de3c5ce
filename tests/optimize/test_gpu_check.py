"""benchmarks/gpu_check.sh: what it would run on a GPU exists, and it keeps its time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"
CALLS = re.findall(r"^within \d+ \w+ python3 benchmarks/(\S+)(.*)$", SCRIPT.read_text(), re.M)


def run(
    folder: Path, *, after_s: int = 0, parts: str = "", python: str = "true"
) -> tuple[int, list[list[str]], list[str]]:
    """Run the script where python3 only notes its words, and the clock stands `after_s` later."""
    noted = folder / "noted"
    tools = {
        "python3": f'echo "$@" >> {noted}; {python}',
        "timeout": 'shift 5; exec "$@"',  # -s INT -k 10 SECONDS
        "date": f"[ -f {folder}/begun ] && echo $((1000 + {after_s})) || echo 1000; "
        f": > {folder}/begun",
    }
    for name, text in tools.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    if parts:
        environment["PARTS"] = parts
    done = subprocess.run(["sh", str(SCRIPT)], env=environment, capture_output=True, text=True)
    words = [line.split() for line in noted.read_text().splitlines()] if noted.exists() else []
    return done.returncode, words, done.stdout.splitlines()


def test_all_parts_run_in_order_the_timings_first(tmp_path: Path) -> None:
    code, words, said = run(tmp_path)
    assert code == 0 and said == []
    first = [one[0] for one in words if one[0].startswith("benchmarks/")]
    assert first == [f"benchmarks/{name}" for name, _ in CALLS] and len(first) == 4
    programs = [one for one in words if one[0] != "-c"]
    assert [one for one in programs if one[:2] == ["-m", "pytest"]] == [programs[-1]]


def test_named_parts_run_alone(tmp_path: Path) -> None:
    code, words, _ = run(tmp_path, parts="screening tests")
    assert code == 0
    assert [one[0] for one in words if one[0] != "-c"] == ["benchmarks/gpu_screening.py", "-m"]


def test_what_the_time_does_not_suffice_for_is_left_out_in_a_line(tmp_path: Path) -> None:
    code, words, said = run(tmp_path, after_s=468)
    assert code == 1
    assert {json.loads(line)["failed"] for line in said} == {"left out: no time"}
    assert len(said) == len(CALLS) + 2 and not [one for one in words if one[0] != "-c"]


def test_a_part_that_leaves_no_figure_has_a_line_and_the_others_run(tmp_path: Path) -> None:
    """As where a command was killed before it printed its result."""
    code, words, said = run(tmp_path, python='[ "$1" != -c ]')
    assert code == 1
    failed = {"failed": "it left no figure"}
    assert [json.loads(line) for line in said] == [
        {"part": part} | failed for part in ("optimize", "tests")
    ]
    assert len([one for one in words if one[0] != "-c"]) == len(CALLS) + 2


def test_its_limits_fit_into_eight_minutes() -> None:
    limits = [
        int(one)
        for one in re.findall(r'^within "?(?:\$\{\w+:-)?(\d+)\}?"? ', SCRIPT.read_text(), re.M)
    ]
    assert sum(limits[:-1]) < 400, "the tests get a minute at least"


@pytest.mark.parametrize(("name", "words"), CALLS)
def test_each_benchmark_loads_and_takes_its_options(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(words), "--help"])
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), SCRIPT.parent / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit) as done:
        module.main()
    assert done.value.code == 0
    assert "--device" in capsys.readouterr().out
