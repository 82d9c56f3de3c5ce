"""A script that installs a recipe loads little of Ratchet, and no court while all is proven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import own_recipes
import pytest

from ratchet.train.workloads.config import StepConfig

MOST: Final = 60
"""Files of ours that `import ratchet; ratchet.compile` may load."""
SCRIPT: Final = """
import json, sys

def ours():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "ratchet")

import ratchet
ratchet.compile
asked = ours()

import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.head = nn.Linear(32, 64)

    def forward(self, x):
        return self.head(self.norm(self.embedding(x)))

model = Model()
optimizer = torch.optim.AdamW(model.parameters())

def step(x):
    loss = nn.functional.cross_entropy(model(x).view(-1, 64), x.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

step = ratchet.compile(step, model, optimizer, recipe=sys.argv[1], strict=True)
for _ in range(3):
    step(torch.randint(64, (4, 16)))
print(json.dumps({"asked": asked, "applied": ours()}))
"""


@pytest.mark.compiler
def test_a_recipe_whose_kernels_are_proven_asks_no_court(tmp_path: Path) -> None:
    made = own_recipes.recipe(StepConfig(optimizer="kernel"))
    made.save(tmp_path / "recipe.json")
    own_recipes.believe(f"sqlite:///{tmp_path}/ledger.db", made.kernels)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "recipe.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "RATCHET_LEDGER": f"sqlite:///{tmp_path}/ledger.db"},
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert len(loaded["asked"]) <= MOST, loaded["asked"]
    assert not any(name.startswith("ratchet.judge") for name in loaded["asked"])
    court = [name for name in loaded["applied"] if name.startswith("ratchet.judge.court")]
    assert not court and "ratchet.judge.kernels.registry" in loaded["applied"]
    assert len(loaded["applied"]) <= 2 * MOST, loaded["applied"]
