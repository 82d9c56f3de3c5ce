"""What wear tells of a process's memory."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.judge.trial import many_calls
from ratchet.judge.trial.candidate import Held
from ratchet.judge.trial.kernel_checks import CheckedCases
from ratchet.judge.trial.open_problem import Record

RESULT_BYTES = 1 << 20


@pytest.mark.parametrize("what", ["descriptors", "threads", "processes"])
def test_what_a_process_keeps_of_each_call_is_told(what: str) -> None:
    def held(calls: int, share: float) -> tuple[int, Held]:
        kept = Held(bytes=1 << 20, descriptors=9, threads=3, processes=1)
        return calls, kept._replace(**{what: 9 + int(share * calls)})

    calls = range(32, 400, 32)
    assert many_calls.growth([held(one, 1.0) for one in calls]).startswith(
        f"its process grows by 1 {what} a call: "
    )
    assert many_calls.growth([held(one, 0.1) for one in calls]) == ""
    assert many_calls.growth([held(min(one, 128), 1.0) for one in calls]) == ""  # a pool


@pytest.mark.parametrize(("leak_bytes", "grows"), [(0, False), (1 << 10, False), (1 << 17, True)])
def test_results_of_a_larger_batch_are_no_growth(
    leak_bytes: int, grows: bool, worn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = [0]

    made = [0]

    def run(self: Any, now: Any, **_: object) -> str:
        calls = len(now.dealt.handing)
        self.call_s[0] = 1e-3
        made[0] = self.made = self.made + calls
        largest[0] = max(largest[0], calls)
        return ""

    monkeypatch.setattr(many_calls._Worn, "_run", run)
    candidate: Any = SimpleNamespace(
        uncounted=contextlib.nullcontext,
        returns_outputs=False,
        rejected={},
        held=lambda: Held(
            bytes=largest[0] * RESULT_BYTES + made[0] * leak_bytes,
            descriptors=12,
            threads=2,
            processes=1,
        ),
    )
    opened: Any = SimpleNamespace(
        cases=[SimpleNamespace(bytes=1, time_s=1e-3)],
        clock=SimpleNamespace(left_s=60.0, limit_s=60.0),
        rng=random.Random(0),
        timed=[0],
        accelerator="a GPU",
        is_same_in_modes=False,
        with_fewer_calls=lambda wanted, run, least: run(wanted),
    )
    record = Record()
    many_calls.check_wear(candidate, opened, record, CheckedCases(candidate))
    assert any(one.check == many_calls.GREW for one in record.evidence) is grows
