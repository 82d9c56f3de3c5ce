"""Patches of training scripts: where the line goes, that git takes them, what is refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from own_recipes import recipe

from ratchet.base.errors import FileError, PublishError, RecipeError
from ratchet.train.publish.patch import export_patch, patched
from ratchet.train.workloads.config import StepConfig

STEP = '''"""A script."""
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def step(x):
    model(x).sum().backward()
    optimizer.step()


for _ in range(3):
    step(torch.ones(4))
'''
LOOP = """import torch

def main():
    net = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(params=net.parameters(), lr=1e-3)
    for _ in range(3):
        net(torch.ones(4)).sum().backward()
        sgd.step()
"""
PREPARED = """from accelerate import Accelerator
model = make()
optimizer = AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
train()
"""
TWO = """model = make()
one = AdamW(model.parameters())
two = SGD(model.parameters())
"""
TRAINER = """from transformers import Trainer
trainer = Trainer(model=model)
trainer.train()
"""
LIGHTNING = """import lightning as L
trainer = L.Trainer(max_steps=4)
trainer.fit(module)
"""


@pytest.mark.parametrize(
    ("script", "before", "line"),
    [
        (STEP, "optimizer.step()", 'step = ratchet.compile(step, model, optimizer, recipe="r")'),
        (LOOP, "lr=1e-3)", '    ratchet.compile(net, optimizer=sgd, recipe="r")'),
        (PREPARED, "er)", 'ratchet.compile(model, optimizer=optimizer, recipe="r")'),
        (TWO, "two = ", 'ratchet.compile(model, optimizer=[one, two], recipe="r")'),
        (TRAINER, "model)", 'trainer.add_callback(ratchet.trainer_callback(recipe="r"))'),
        (LIGHTNING, "4)", 'trainer.callbacks.append(ratchet.lightning_callback(recipe="r"))'),
    ],
)
def test_the_line_follows_what_it_needs(script: str, before: str, line: str) -> None:
    lines = patched(script, "r", "train.py", {}).splitlines()
    at = lines.index(line)
    assert before in lines[at - 1]
    assert lines.count("import ratchet") == 1 and lines.index("import ratchet") < at
    assert [one for one in lines if one not in (line, "import ratchet")] == script.splitlines()


def test_what_a_process_needs_at_its_start_is_said() -> None:
    assert "# Start this script with A=1" in patched(LOOP, "r", "train.py", {"A": "1"})


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("def x(:\n", "not a Python file"),
        ("n = clip_grad_norm_(model.parameters(), 1)\ne = EMA(model.parameters())\n", "paste"),
        ("print(1)\n", "paste `step = ratchet.compile"),
        ("a = AdamW(g.parameters())\nb = AdamW(d.parameters())\n", "paste"),
        ("ratchet.compile(model, recipe='x')\n", "has a recipe in it already"),
    ],
)
def test_a_script_without_a_place_is_refused(script: str, why: str) -> None:
    with pytest.raises(PublishError, match=why):
        patched(script, "r", "train.py", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    recipe(StepConfig(compile_mode="default")).save(tmp_path / "recipe.json")
    return tmp_path


@pytest.mark.parametrize("tool", ["git", "patch"])
@pytest.mark.parametrize("script", [STEP, LOOP.rstrip(), LOOP.replace("\n", "\r\n")])
def test_tools_apply_it(folder: Path, tool: str, script: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    (folder / "train.py").write_bytes(script.encode())
    export_patch(Path("recipe.json"), Path("train.py"), Path("out.patch"))
    words = ["git", "apply", "out.patch"] if tool == "git" else ["patch", "-p1", "-i", "out.patch"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    wanted = patched(script, "recipe.json", "train.py", {})
    assert (folder / "train.py").read_bytes() == wanted.encode()


def test_a_patch_that_cannot_be_made_writes_nothing(folder: Path) -> None:
    script, out = folder / "train.py", folder / "out.patch"
    script.write_text("print(1)\n")
    with pytest.raises(PublishError, match="name it with --script"):
        export_patch(folder / "recipe.json", None, out)
    with pytest.raises(PublishError, match="paste"):
        export_patch(folder / "recipe.json", script, out)
    with pytest.raises(PublishError, match="cannot be read"):
        export_patch(folder / "recipe.json", folder / "none.py", out)
    with pytest.raises(RecipeError, match="cannot be read"):
        export_patch(folder / "none.json", script, out)
    recipe(StepConfig()).save(folder / "empty.json")
    with pytest.raises(PublishError, match="keeps the step as it is written"):
        export_patch(folder / "empty.json", script, out)
    with pytest.raises((PublishError, FileError)):
        export_patch(folder / "recipe.json", script, folder / "no" / "out.patch")
    script.write_bytes(b"\xff\xfe")
    with pytest.raises(PublishError, match="not UTF-8"):
        export_patch(folder / "recipe.json", script, out)
    assert not out.exists()
