"""Ratchet runs without the packages of the extras, and finds what registers itself with it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import ratchet
from ratchet.amd import targets as amd
from ratchet.judge.targets import Targets, targets

PACKAGE = Path(ratchet.__file__).parent
EXTRAS = ("openai", "pypdf", "tokenizers", "transformers", "ray", "peft")
CORE_AT_WORK = """
import json, sys

sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))  # None: importing one fails

import ratchet.scale.optimize
from ratchet.base.errors import WorkloadError
from ratchet.train.turn.dry_run import dry_run
from ratchet.train.turn.settings import make_settings
from ratchet.train.workloads.load import load
from ratchet.train.workloads.hf_config import read_config

tokens, _ = load("llama-tiny").batch(0)
assert tokens.max() < 256, "without tokenizers, bytes are the tokens"
try:
    read_config("qwen3")
except WorkloadError as error:
    assert "pip install 'torch-ratchet[hf]'" in str(error)
else:
    raise AssertionError
place = {"out": sys.argv[2], "ledger": sys.argv[2] + ".db"}
settings = make_settings("llama-tiny", budget="1m", device="cpu", **place)
"""
DRY_RUN = "print(json.dumps([lever.name for lever in dry_run(settings).levers]))"
OTHER_PACKAGE = """
import sys, types
from importlib.metadata import Distribution, EntryPoint

sys.path.insert(0, sys.argv[1])
from ratchet.cli import main

sys.exit(main(["hello", "--times", "2"]))
"""
OTHER_COMMAND = """
from ratchet.cli.app import app

@app.command()
def hello(times: int = 1) -> None:
    print("hello " * times)
"""


def without_extras(folder: Path, program: str) -> str:
    words = [sys.executable, "-c", program, json.dumps(EXTRAS), str(folder / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_core_works_without_the_extras(tmp_path: Path) -> None:
    without_extras(tmp_path, CORE_AT_WORK)


def test_a_dry_run_works_without_the_extras(tmp_path: Path) -> None:
    assert "compile" in json.loads(without_extras(tmp_path, CORE_AT_WORK + DRY_RUN))


def test_no_file_needs_an_extra_to_be_imported() -> None:
    anywhere = re.compile(rf"^(?:import|from) .*\b({'|'.join(EXTRAS)})\b", re.MULTILINE)
    found = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not anywhere.search(text):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}: {one}" for one in names if one.split(".")[0] in EXTRAS]
    assert found == []


def test_the_wing_of_amd_serves_what_the_judge_asks() -> None:
    served: Targets = amd
    assert targets() is served
    asked = {name for name in vars(Targets) if not name.startswith("_")} | {
        *Targets.__annotations__
    }
    assert asked <= {*amd.__all__}


def test_another_package_may_add_a_command(tmp_path: Path) -> None:
    (tmp_path / "other_commands.py").write_text(OTHER_COMMAND)
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (tmp_path / "other-1.0.dist-info" / "entry_points.txt").write_text(
        "[ratchet.commands]\nhello = other_commands\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PACKAGE, str(tmp_path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["hello", "hello"]), done.stderr
