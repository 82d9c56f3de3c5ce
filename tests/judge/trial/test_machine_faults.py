"""The words of faults that the emulator finds: `wrong`, and at which line of which kernel."""

from __future__ import annotations

import pytest

from ratchet.amd.targets import without_blame
from ratchet.judge.trial.kernel_checks import wrong_words
from ratchet.judge.verdict import Decided

CASE = "case small (64 float32): "
RACE = (
    "the kernel raised: in the kernel sums at kernel.hip:12 (ds_read_b32): a race in LDS: wave 0 "
    "reads at 64 what wave 1 wrote since the last barrier, there at kernel.hip:10 (ds_write_b32)"
)
BEYOND = (
    "the kernel raised: in the kernel sums at kernel.py:7 (global_load_dword): an access of 4 "
    "bytes ends 8 bytes past the end of a tensor"
)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (CASE + RACE, f"{CASE}race in LDS at line 12 of sums: a race in LDS: wave 0 reads at 64"),
        (CASE + BEYOND, f"{CASE}out of bounds at line 7 of sums: an access of 4 bytes ends 8"),
        (
            BEYOND.replace("ends 8 bytes past the end of a tensor", "lies in no tensor"),
            "out of bounds at line 7 of sums: an access of 4 bytes lies in no tensor",
        ),
        (
            BEYOND.replace("ends 8", "at 4096 is outside the 1024"),
            "out of bounds at line 7 of sums: an access of 4 bytes at 4096 is outside",
        ),
    ],
)
def test_a_fault_of_machine_code_is_wrong(reason: str, words: str) -> None:
    found = without_blame(Decided("crashed", reason), "emulated gfx942")
    assert found.status == "wrong"
    assert found.reason.startswith(words)


@pytest.mark.parametrize(
    "reason",
    [
        "the kernel raised: RuntimeError: a race in LDS",
        "the kernel raised: in the kernel sums at kernel.py:7 (s_trap): the kernel trapped",
        "the candidate's process died during 'go' (SIGSEGV)",
    ],
)
def test_other_failures_stay_crashes(reason: str) -> None:
    assert wrong_words(reason) is None
    assert without_blame(Decided("crashed", reason), "emulated gfx942").status == "crashed"
