"""What a config asks of a process is done there, whatever the setting."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from forked_ranks import in_fork

from ratchet.train.workloads.config import SETTINGS, Allocator, StepConfig


def test_every_setting_can_be_entered() -> None:
    entered = [
        *({"allocator": one} for one in get_args(Allocator)),
        {"affinity": True, "threads": 1},
        {"matmul_precision": "high"},
        {"threads": 1},
    ]

    def enter() -> None:
        for given in entered:
            config = msgspec.convert(given, StepConfig)
            config.enter(), config.variables(), list(config.changed())

    done = in_fork(enter)
    assert done.returncode == 0, done.stderr
    named = {name for name, one in SETTINGS.items() if one.enter is not None}
    assert all(any(name in one for one in entered) for name in named), named


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_of_a_setting_finds_its_names(name: str) -> None:
    """A lambda in an annotation has the class's names for its globals."""
    setting = SETTINGS[name]
    for function in (setting.words, setting.variables, setting.enter):
        if function is None or not hasattr(function, "__code__"):
            continue
        known = {*vars(__import__("builtins")), *function.__globals__}
        used = {one for one in function.__code__.co_names if not hasattr(StepConfig, one)}
        methods = {one for kind in (str, dict, list, tuple, int, bool) for one in dir(kind)}
        assert function.__name__ != "<lambda>" or used <= known | methods, used - known
