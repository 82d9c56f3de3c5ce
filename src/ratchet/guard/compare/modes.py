"""Modes of a workload as the command line names them: `compile,bf16_autocast`, `recipe.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ratchet.base.errors import GuardError

COMPILE: Final[Mapping[str, str | None]] = {
    "eager": None,
    "compile": "default",
    "max-autotune": "max-autotune",
}
PRECISIONS: Final = ("fp32", "bf16_autocast", "bf16_master")
SHORT: Final = {"bf16": "bf16_autocast"}
DEVICES: Final = ("cpu", "cuda")
RECIPE_SUFFIX: Final = ".json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """Changes to a step as written."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `workloads.config.StepConfig`."""
    device: str | None = None
    recipe: str | None = None


def parse_mode(text: str) -> Mode:
    """Parse words separated by commas; GuardError lists the words that there are."""
    changes: dict[str, Any] = {}
    device, recipe = None, None
    for word in filter(None, (one.strip() for one in text.split(","))):
        word = SHORT.get(word, word)
        if word in COMPILE:
            changes["compile_mode"] = COMPILE[word]
        elif word in PRECISIONS:
            changes["precision"] = word
        elif word in DEVICES:
            device = word
        elif word.endswith(RECIPE_SUFFIX):
            recipe = word
        elif word != "as_written":
            known = ", ".join((*COMPILE, *PRECISIONS, *DEVICES, "as_written"))
            raise GuardError(f"mode {word!r} is unknown: use {known} or a recipe's .json file")
    if recipe and changes:
        raise GuardError(f"mode {text!r}: a recipe sets compile mode and precision itself")
    return Mode(title=text or "as_written", changes=changes, device=device, recipe=recipe)
