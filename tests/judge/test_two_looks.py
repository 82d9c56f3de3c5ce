"""A second look is taken at what the first leaves undecided, and never instead of an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.errors import JudgeError
from ratchet.judge import two_looks
from ratchet.judge.candidate_process import Decided
from ratchet.judge.kernel_timing import CANDIDATE, LAUNCHES, REFERENCE, TWIN, CaseTiming
from ratchet.judge.two_looks import time_until_answered
from ratchet.measure.samples import Sample

Asked = list[dict[str, Any]]


def timing(ratio: float, noise: float, first_launch: int) -> CaseTiming:
    """Three launches of four rounds, of a candidate that is `ratio` times as fast."""
    rng = np.random.default_rng(first_launch)
    means = {REFERENCE: 1e-3, TWIN: 1e-3, CANDIDATE: 1e-3 / ratio}
    samples = [
        Sample(
            arm=arm,
            launch=first_launch + launch,
            round=index,
            position=0,
            iterations=1,
            wall_time_s=mean * float(np.exp(noise * rng.normal())),
            cpu_time_s=mean,
        )
        for launch in range(3)
        for index in range(4)
        for arm, mean in means.items()
    ]
    return CaseTiming(case=0, name="timed", samples=samples, checked=3)


def opened() -> Any:
    def ask(**_: object) -> dict[str, float]:
        raise JudgeError("no ceilings here")

    return SimpleNamespace(
        reference=SimpleNamespace(ask=ask),
        clock=SimpleNamespace(left_s=9.0),
        cases=[SimpleNamespace(bytes=1.0)],
    )


def run(monkeypatch: pytest.MonkeyPatch, noise: float, second: Decided | None = None) -> Any:
    asked: Asked = []

    def time_case(*_: object, first_launch: int, budget_s: float) -> CaseTiming:
        asked.append({"first_launch": first_launch, "budget_s": budget_s})
        if first_launch and second is not None:
            raise second
        return timing(1.3, noise, first_launch)

    monkeypatch.setattr(two_looks, "time_case", time_case)
    return time_until_answered(0, opened(), None, [], None), asked  # type: ignore[arg-type]


def test_a_clear_answer_needs_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = run(monkeypatch, noise=0.005)
    assert [one["first_launch"] for one in asked] == [0]
    assert len(found.samples) == 36


def test_what_is_undecided_is_looked_at_for_longer_in_new_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, (first, second) = run(monkeypatch, noise=0.9)
    assert (first["first_launch"], second["first_launch"]) == (0, LAUNCHES)
    assert second["budget_s"] > first["budget_s"]
    assert {sample.launch for sample in found.samples} == set(range(2 * LAUNCHES))
    assert found.checked == 6


def test_without_time_for_the_second_look_the_first_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = run(monkeypatch, noise=0.9, second=Decided("unmeasured", "no room"))
    assert len(asked) == 2
    assert len(found.samples) == 36


def test_a_wrong_answer_in_the_second_look_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Decided) as caught:
        run(monkeypatch, noise=0.9, second=Decided("wrong", "right before, wrong now"))
    assert caught.value.status == "wrong"
