"""The table of a workload's regions on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from ratchet.base.show.terminal import print_report
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.train.graph.regions import Region
from ratchet.train.graph.regions.capture import regions_report

CASE = Case(name="captured", timed=True, inputs=(TensorSpec(shape=(8, 16), dtype="float32"),))
REGION = Region(
    key="a" * 64,
    kind="fused",
    problem=Problem(name="mul_sum_aaaaaaaa", reference="reference", cases=(CASE,), text="pass"),
    count=32,
    direction="backward",
    ops=("mul", "sum"),
    bytes=1 << 20,
    flops=0.0,
    floor_s=1e-4,
    time_s=3e-4,
    timed_by="inductor",
    where="layers.0.norm",
)


def shown(*regions: Region, notes: tuple[str, ...] = ()) -> str:
    out = Console(file=io.StringIO(), width=160)
    print_report(regions_report("llama-8m", regions, notes), out)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_row_says_what_all_sites_of_a_step_can_win() -> None:
    text = shown(REGION)
    for words in ("mul_sum_aaaaaaaa", "layers.0.norm", "backward", "32", "1.00 MiB", "6.40 ms"):
        assert words in text
    assert "~" not in text


def test_estimates_are_marked_and_explained() -> None:
    text = shown(replace(REGION, timed_by="estimate"))
    assert text.count("~") == 2


def test_what_was_left_out_is_told() -> None:
    assert "left out, 2 times: topk" in shown(REGION, notes=("left out, 2 times: topk",))


def test_no_regions_are_one_line() -> None:
    assert shown().strip() == "llama-8m: 0 different regions at 0 sites of a step."
