"""`ratchet export`: what it prints, and what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import mistake
from own_recipes import recipe

from ratchet.cli import main
from ratchet.train.workloads.config import StepConfig

SCRIPT = "model = make()\noptimizer = AdamW(model.parameters())\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    recipe(StepConfig(compile_mode="default"), kernels=()).save(tmp_path / "recipe.json")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_patch_is_written_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "recipe.json", "--to", "patch", "--script", "train.py", "--out", "a.patch"]
    assert main(words) == 0
    said = capsys.readouterr().out
    line = 'ratchet.compile(model, optimizer=optimizer, recipe="recipe.json")'
    assert line in said and "git apply a.patch" in said
    assert f"+{line}" in (folder / "a.patch").read_text()
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["to"] == "patch" and document["lines"] == ["import ratchet", line]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("recipe.json --to cloud --out out", "--to 'cloud' is unknown: use kernels, wheel, patch"),
        ("none.json --to wheel --out out", "cannot be read"),
        ("recipe.json --to wheel --out train.py", "train.py is a file"),
        ("recipe.json --to wheel --out .", "holds files already"),
        ("recipe.json --to wheel --out out", "holds no kernels"),
        ("train.py --to wheel --out out", "is damaged"),
        ("recipe.json --to patch --out out", "name it with --script"),
        ("llama-none --to export --out out", "llama-none"),
        ("recipe.json --to wheel", "--out"),
    ],
)
def test_a_mistake_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, why: str
) -> None:
    assert why in mistake(capsys, "export", *words.split())
    assert {one.name for one in folder.iterdir()} <= {"recipe.json", "train.py", "ledger.db"}
