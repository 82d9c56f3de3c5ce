"""All rules, by the syntax that they read. A rule is added in its own file, and nowhere else."""

from __future__ import annotations

from typing import Any, Final

from ratchet.amd.port.rules import device, libraries, ptx, python, texts, triton, warp
from ratchet.amd.port.rules.rule import Rule

CUDA_RULES: Final = (*warp.RULES, *ptx.RULES, *device.RULES, *libraries.RULES)
PYTHON_RULES: Final = (*python.RULES, *triton.RULES)
TEXT_RULES: Final = texts.RULES


def all_rules() -> list[Rule[Any]]:
    """Return each rule once by its name; a rule of two languages has two entries in the tables."""
    return list({rule.name: rule for rule in (*CUDA_RULES, *PYTHON_RULES, *TEXT_RULES)}.values())
