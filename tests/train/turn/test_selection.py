"""The selection over a made-up step whose times are known: what helps stays, what hurts goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.train.levers import Lever, Situation, kernel_levers, region_lever
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.turn import selection as selection_module
from ratchet.train.turn.headroom import Worth
from ratchet.train.turn.schedule import TurnSchedule
from ratchet.train.turn.screen import LeverScreening
from ratchet.train.turn.selection import Selected, Selection, applicable
from ratchet.train.workloads.config import StepConfig

FIELDS = {
    "allocator": "mallopt",
    "huge_pages": True,
    "affinity": True,
    "preallocate": True,
    "optimizer": "fused",
}


def levers(*, default: bool = True, fields: dict[str, Any] = FIELDS) -> list[Lever]:
    return [
        Lever(
            field=field,
            value=value,
            name=field,
            summary="s",
            expected="e",
            source="x",
            default=default,
        )
        for field, value in fields.items()
    ]


def situation() -> Situation:
    return Situation(
        device_kind="cpu",
        vendor="AMD",
        target="portable",
        cores=2,
        written=StepConfig(),
        optimizer_is_adamw=True,
        has_attention=True,
        trainable_bytes=0,
        peak_memory_bytes=0,
        memory_bytes=1,
    )


class Fake:
    """A step's time is the product of a factor for each pulled lever."""

    def __init__(self, factors: dict[str, float], wrong: frozenset[str] = frozenset()) -> None:
        self.factors, self.wrong = factors, wrong
        self.unused: list[str] = []
        self.screened = 0

    def time_s(self, config: StepConfig) -> float:
        time_s = 1.0
        for field, factor in self.factors.items():
            if getattr(config, field) == FIELDS[field]:
                time_s *= factor
        return time_s

    def screen(
        self, turn: object, incumbent: Candidate, new: Candidate, oracle: object
    ) -> LeverScreening:
        self.screened += 1
        bad = [f for f in self.wrong if getattr(new.config, f) == FIELDS[f]]
        ratio = self.time_s(incumbent.config) / self.time_s(new.config)
        return LeverScreening(
            passed=not bad,
            reason=f"gradients: {bad}" if bad else "",
            ratio=ratio,
            low=ratio * 0.999,
            high=ratio * 1.001,
            answer="faster" if ratio > 1 else "slower",
            step_time_s=1.0,
            setup_s=0.0,
            unused=[name for name in self.unused if name in new.config.kernels],
        )


def select(
    monkeypatch: pytest.MonkeyPatch,
    fake: Fake,
    tried: list[Lever],
    fits: int = 100,
    worth: Any = None,
    start: StepConfig | None = None,
) -> Selected:
    monkeypatch.setattr(selection_module, "screen", fake.screen)
    monkeypatch.setattr(selection_module, "expect", lambda *asked: None)
    monkeypatch.setattr(selection_module, "screening_s", lambda *asked: 1.0)

    class ScreeningsLeft(TurnSchedule):
        """Time for so many screenings."""

        @property
        def left_s(self) -> float:
            return float(fits - fake.screened)

    arms = SimpleNamespace(drop=lambda candidate: None)
    schedule = ScreeningsLeft(budget_s=1000.0)
    turn: Any = SimpleNamespace(arms=arms, schedule=schedule, warn=lambda words: None)
    selection = Selection(
        turn=turn,
        situation=situation(),
        start=with_config(start or StepConfig(), {}),
        proven={},
        worth=Worth(by_lever=worth or {}, step_time_s=1.0),
    )
    selection.prepare(tried)
    if selection.inside:
        selection.try_bundle()
    while fake.screened < fits and selection.needed_s() is not None:
        selection.try_next()
    return selection.snapshot()


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Selected]:
    return lambda fake, tried, **more: select(monkeypatch, fake, tried, **more)


def test_what_helps_is_kept_and_what_hurts_is_dropped(patched: Any) -> None:
    fake = Fake({"allocator": 0.8, "huge_pages": 0.9, "affinity": 1.1})
    tried = levers(fields={name: FIELDS[name] for name in fake.factors})
    found = patched(fake, tried)
    assert found.best.config.allocator == "mallopt"
    assert found.best.config.huge_pages
    assert not found.best.config.affinity
    decisions = {change.name: change.decision for change in found.changes}
    assert decisions == {"allocator": "kept", "huge_pages": "kept", "affinity": "dropped"}
    gains = {change.name: change.ratio for change in found.changes}
    assert gains["allocator"] == pytest.approx(1 / 0.8)


@given(st.lists(st.sampled_from([0.7, 0.9, 1.0, 1.1, 1.4]), min_size=5, max_size=5))
def test_a_selection_never_ends_slower_than_it_began(factors: list[float]) -> None:
    fake = Fake(dict(zip(FIELDS, factors, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        found = select(patch, fake, levers())
    assert fake.time_s(found.best.config) <= 1.0
    best_s = 1.0
    for factor in factors:
        best_s *= min(factor, 1.0)
    assert fake.time_s(found.best.config) == pytest.approx(best_s)


def test_a_wrong_lever_does_not_take_the_bundle_with_it(patched: Any) -> None:
    fake = Fake({"allocator": 0.5, "huge_pages": 0.5}, wrong=frozenset({"huge_pages"}))
    found = patched(fake, levers(fields={"allocator": "mallopt", "huge_pages": True}))
    assert found.best.config.allocator == "mallopt"
    assert not found.best.config.huge_pages
    refused = [change for change in found.changes if change.decision == "refused"]
    assert [change.name for change in refused] == ["huge_pages"]
    assert "gradients" in refused[0].reason


def test_a_kernel_may_replace_what_the_rival_has_where_the_bundle_was_wrong(patched: Any) -> None:
    class WithKernel(Fake):
        def time_s(self, config: StepConfig) -> float:
            return super().time_s(config) * (0.8 if config.optimizer == "kernel" else 1.0)

    fake = WithKernel({"allocator": 0.9}, wrong=frozenset({"huge_pages"}))
    tried = levers(fields={"allocator": "mallopt", "huge_pages": True})
    tried.append(next(one for one in kernel_levers() if one.name == "kernel:adamw"))
    found = patched(fake, tried, start=StepConfig(optimizer="fused"))
    assert found.best.config.optimizer == "kernel" and not found.best.config.huge_pages


def test_where_the_arithmetic_is_wrong_the_rest_of_the_bundle_is_kept(patched: Any) -> None:
    fake = Fake({"allocator": 0.5, "huge_pages": 0.9}, wrong=frozenset({"huge_pages"}))
    tried = [
        *levers(fields={"allocator": "mallopt"}),
        Lever(
            field="huge_pages",
            value=True,
            name="bf16",
            summary="s",
            expected="e",
            source="x",
            changes_arithmetic=True,
            default=True,
        ),
    ]
    found = patched(fake, tried)
    assert found.best.config.allocator == "mallopt" and not found.best.config.huge_pages
    decisions = {change.name: change.decision for change in found.changes}
    assert decisions == {"allocator": "kept", "bf16": "refused"}
    assert fake.screened == 3  # the bundle, the bundle without it, and the allocator alone


@pytest.mark.parametrize("default", [True, False])
def test_a_kernel_that_served_no_call_is_dropped(patched: Any, default: bool) -> None:
    """Its time is luck: whatever the clock says, the step ran without it."""
    fake = Fake({"allocator": 0.5})
    fake.unused = ["region:1234"]
    luck = fake.time_s
    fake.time_s = lambda config: luck(config) * (0.9999 if config.kernels else 1.0)  # type: ignore[method-assign]
    region = dataclasses.replace(region_lever("softmax_1234", "region:1234"), default=default)
    found = patched(fake, [*levers(fields={"allocator": "mallopt"}), region])
    assert found.best.config.allocator == "mallopt" and not found.best.config.kernels
    change = next(one for one in found.changes if one.kind == "kernel")
    assert change.decision == "dropped" and "served no call" in change.reason


def test_without_more_time_the_bundle_stands_as_a_bundle(patched: Any) -> None:
    fake = Fake({"allocator": 0.5, "huge_pages": 1.1})
    found = patched(fake, levers(fields={"allocator": "mallopt", "huge_pages": True}), fits=1)
    assert fake.screened == 1
    assert {change.decision for change in found.changes} == {"kept"}
    assert {change.basis for change in found.changes} == {"bundle"}
    assert all("proven whole" in change.reason for change in found.changes)


def test_without_any_time_nothing_is_kept(patched: Any) -> None:
    fake = Fake({"allocator": 0.5, "huge_pages": 1.1})
    found = patched(fake, levers(fields={"allocator": "mallopt", "huge_pages": True}), fits=0)
    assert fake.screened == 0
    assert found.best.config == StepConfig()
    assert {change.decision for change in found.changes} == {"not_tried"}


def test_the_most_promising_comes_first_and_the_hopeless_not_at_all(patched: Any) -> None:
    fake = Fake({"allocator": 0.9, "huge_pages": 0.9, "affinity": 0.9})
    worth = {"allocator": 0.1, "huge_pages": 0.001, "affinity": 0.4}
    fields = {name: FIELDS[name] for name in worth}
    found = patched(fake, levers(default=False, fields=fields), worth=worth)
    decisions = [(change.name, change.decision) for change in found.changes]
    assert decisions == [("huge_pages", "not_tried"), ("affinity", "kept"), ("allocator", "kept")]
    assert "at most 0.1% of the step" in found.changes[0].reason
    assert found.changes[1].winnable_s == 0.4


def test_a_regions_kernel_is_tried_for_less_than_a_lever(patched: Any) -> None:
    fake = Fake({"allocator": 0.9})
    tried = [region_lever("softmax_1234", "region:1234"), region_lever("sum_5678", "region:5678")]
    worth = {tried[0].name: 0.004, tried[1].name: 0.001}
    decisions = {one.name: one.decision for one in patched(fake, tried, worth=worth).changes}
    assert decisions == {tried[0].name: "dropped", tried[1].name: "not_tried"}


def test_levers_that_are_not_expected_to_help_are_tried_on_top(patched: Any) -> None:
    fake = Fake({"affinity": 0.9, "preallocate": 1.2})
    tried = levers(default=False, fields={"affinity": True, "preallocate": True})
    found = patched(fake, tried)
    assert found.best.config.affinity and not found.best.config.preallocate


def test_every_lever_is_accounted_for() -> None:
    blocked = Lever(
        field="affinity",
        value=True,
        name="blocked",
        summary="s",
        expected="e",
        source="x",
        applies=lambda situation: "not here",
    )
    changing = Lever(
        field="precision",
        value="bf16_master",
        name="bf16",
        summary="s",
        expected="e",
        source="x",
        changes_arithmetic=True,
    )
    chosen, changes = applicable(
        [blocked, changing, *levers()], situation(), refused_kernels={}, keep_arithmetic=True
    )
    assert [lever.name for lever in chosen] == list(FIELDS)
    assert {change.name: change.reason for change in changes} == {
        "blocked": "not here",
        "bf16": "it changes the arithmetic",
    }
