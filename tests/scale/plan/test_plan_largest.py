"""The largest model in some days, and plans with a micro-batch or a checkpointing given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.base.errors import PlanError
from ratchet.scale.plan import HIDDEN, PlanRequest, Trainables, ladder_shape, trainable_within
from ratchet.scale.plan.cluster import parse_cluster
from ratchet.scale.plan.layout import STACKS, Layout
from ratchet.scale.plan.search import make_asked, plan, plan_degrees, room_bytes
from ratchet.scale.plan.shape import find_shape

NODE = parse_cluster("a100:8x1")


def found(days: float) -> Trainables:
    request = PlanRequest(model=None, cluster="a100:8x1", sequence=2048, batch=512, price=2.0)
    return trainable_within(request, days, 20.0)


def test_the_largest_is_in_time_and_the_next_is_not() -> None:
    answer = found(3)
    best = answer.largest
    assert best.days <= 3 and best.tokens == pytest.approx(20 * best.shape.parameters)
    assert best.cost.money == pytest.approx(best.days * 24 * 8 * 2)
    larger = ladder_shape(HIDDEN[HIDDEN.index(best.shape.hidden) + 1], 2048)
    asked = make_asked(larger, NODE, STACKS["torch"], batch=512)
    seconds = 20 * larger.parameters / plan(asked).best.tokens_per_s
    assert seconds > 3 * 86400
    assert [one.shape.hidden for one in answer.tried] == sorted(
        one.shape.hidden for one in answer.tried
    )


def test_more_days_train_a_larger_model() -> None:
    sizes = [found(days).largest.shape.parameters for days in (0.2, 2, 20)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_question_without_an_answer_is_told() -> None:
    with pytest.raises(PlanError, match="trains no model of"):
        found(0.0001)


def test_a_given_micro_batch_and_checkpointing_are_kept() -> None:
    asked = make_asked(
        find_shape("llama2-7b"), NODE, STACKS["torch"], batch=48, micro_batch=3,
        checkpointing="full",
    )  # fmt: skip
    answer = plan(asked)
    assert {(one.layout.micro_batch, one.layout.checkpointing) for one in answer.front} == {
        (3, "full")
    }
    assert set(answer.every.layouts.micro_batch) == {3}


def test_degrees_alone_leave_the_rest_to_the_plan() -> None:
    degrees = Layout(dp=8, sharding="full")
    asked = make_asked(find_shape("llama2-7b"), NODE, STACKS["torch"], batch=64)
    answer = plan_degrees(asked, degrees)
    room = room_bytes(NODE)
    assert answer.best.memory_bytes <= room and 0 < answer.fitting < answer.counted == 12
    times, memory = answer.every.times.total, answer.every.memory.total
    assert answer.best.step_s == times[memory <= room].min()


def test_degrees_that_fit_nowhere_say_so() -> None:
    asked = make_asked(find_shape("gpt3-175b"), NODE, STACKS["torch"], batch=64)
    answer = plan_degrees(asked, Layout(tp=8))
    assert answer.fitting == 0
    assert answer.best.memory_bytes == answer.every.memory.total.min() > room_bytes(NODE)
    with pytest.raises(PlanError, match="micro-batches of 7"):
        plan_degrees(replace(asked, micro_batches=(7,)), Layout(tp=8))
