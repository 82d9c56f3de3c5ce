"""accelerate's loop on each rank of a group learns the same with a recipe, or this ends with 1.

torch traces and generates no code, and the optimizer's kernel runs as its torch composite.
"""

import sys
import warnings
from pathlib import Path

import torch

TESTS = Path(__file__).parents[3]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples")]
warnings.simplefilter("ignore")

import train_accelerate  # noqa: E402
from own_recipes import recipe  # noqa: E402

from ratchet.train.recipe import apply, signature_of  # noqa: E402
from ratchet.train.recipe.installed import ReadyKernels  # noqa: E402
from ratchet.train.workloads.config import StepConfig  # noqa: E402

real = torch.compile
torch.compile = lambda function, dynamic=None, options=None: real(function, backend="eager")
apply.ready_kernels = lambda *_, **__: ReadyKernels()

config = StepConfig(compile_mode="default", optimizer="kernel")
made = recipe(config, model=signature_of(train_accelerate.NextCharacter()))
plain, by_recipe = (train_accelerate.train(one, steps=4, cpu=True) for one in (None, made))
differences = [abs(a - b) for a, b in zip(plain, by_recipe, strict=True)]
assert len(differences) == 8 and max(differences) < 1e-4, differences
