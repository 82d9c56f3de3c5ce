"""The core runs without the lab's rooms and without the packages of the extras."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ratchet import lab

ROOT = Path(__file__).parents[1]
NAME = "Two doors: the core imports none of the lab; lab.py names what the lab offers"
EXTRAS = ("optuna", "openai", "pypdf", "tokenizers", "transformers", "ray", "bokeh", "peft")
AFTER_A_CHECK = ("guard/sweep/forks.py",)
"""Files whose process is started once `transformers` was found."""
CORE_AT_WORK = """
import json, sys

rooms, packages = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys([*rooms, *packages]))  # None: importing one fails

import ratchet.api
from ratchet.base.errors import WorkloadError
from ratchet.optimize.turn.dry_run import dry_run
from ratchet.optimize.turn.settings import make_settings
from ratchet.workloads import load
from ratchet.workloads.hf_config import read_config

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
print(json.dumps([lever.name for lever in dry_run(settings).levers]))
"""


def contract() -> tuple[list[str], list[str]]:
    """Return the core and the lab, as pyproject.toml lists them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (found,) = [rule for rule in rules if rule["name"] == NAME]
    return found["source_modules"], found["forbidden_modules"]


def test_the_core_works_without_the_lab(tmp_path: Path) -> None:
    given = [json.dumps([contract()[1], EXTRAS]), str(tmp_path / "out")]
    words = [sys.executable, "-c", CORE_AT_WORK, *given]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compile" in json.loads(done.stdout)


def test_no_file_needs_an_extra_to_be_imported() -> None:
    package = ROOT / "src" / "ratchet"
    anywhere = re.compile(rf"^(?:import|from) .*\b({'|'.join(EXTRAS)})\b", re.MULTILINE)
    found = []
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not anywhere.search(text):
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path}: {one}" for one in names if one.split(".")[0] in EXTRAS]
    assert all(one.split(":")[0].endswith(AFTER_A_CHECK) for one in found), found


@pytest.mark.parametrize(
    "home", [*lab.ROOMS.values(), *(f"ratchet.cli.{one}" for one in lab.COMMANDS)]
)
def test_what_the_lab_offers_exists(home: str) -> None:
    assert importlib.util.find_spec(home) is not None


def test_a_room_is_imported_when_it_is_asked_for() -> None:
    assert lab.without_gpu.NO_TRITON.startswith("triton")
    with pytest.raises(AttributeError, match="no attribute 'cellar'"):
        _ = lab.cellar  # type: ignore[attr-defined]
