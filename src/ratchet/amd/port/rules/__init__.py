"""The rules: each says what it matches, how bad that is, why, and the fix.

A rule is added in its own file, and nowhere else.
"""

from __future__ import annotations

from typing import Any, Final

from ratchet.amd.port.rule import Rule
from ratchet.amd.port.rules import device, libraries, python, texts, triton, warp

WAVE_RULES: Final = warp.RULES
CUDA_RULES: Final = (*WAVE_RULES, *device.RULES, *libraries.RULES)
PYTHON_RULES: Final = (*python.RULES, *triton.RULES)
TEXT_RULES: Final = texts.RULES


def all_rules() -> list[Rule[Any]]:
    """Return each rule once by its name; a rule of two languages has two entries in the tables."""
    rules: tuple[Rule[Any], ...] = (*CUDA_RULES, *PYTHON_RULES, *TEXT_RULES)
    return list({rule.name: rule for rule in rules}.values())
