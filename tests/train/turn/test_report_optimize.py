"""report.html: complete, escaped, without scripts or loads, and whole in a real browser."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from html_pages import CHROMIUM, all_in_chromium, hostile, in_chromium, tags
from made_up_result import CHOICES, as_result, make_result
from rich.console import Console

from ratchet.base.measure import Sample
from ratchet.base.measure.estimate import summarise
from ratchet.base.show.model import text_of
from ratchet.base.show.terminal import print_report
from ratchet.train.turn import comparisons
from ratchet.train.turn.comparisons import answers_of, headline
from ratchet.train.turn.compose import ends_of
from ratchet.train.turn.optimize_result import LossResult, OptimizeResult
from ratchet.train.turn.show import changed_settings, optimize_report, render_page, tiles


def test_a_made_up_result_is_a_result() -> None:
    msgspec.convert(make_result(), OptimizeResult)


def test_the_page_says_everything(result: dict[str, Any]) -> None:
    page = render_page(as_result(result))
    for words in (
        "1.83x as fast as torch.compile&#39;s best",
        "2,183 - 2,245",
        "MFU",
        "bf16_master",
        "wrong: case &#39;outliers&#39;",
        "ratchet.compile(step, model, optimizer",
        "layers.3.attention.k.weight",
        "bubblewrap, fresh uid",
        "torch.compile max-autotune, bf16 autocast",
        "2.13.0+cpu",
        "A/A floor",
        "ratchet optimize llama-60m",
        "2026-01-31 09:14 UTC",
    ):
        assert words in page


def test_only_what_is_decided_is_large(result: dict[str, Any]) -> None:
    speedup = result["speedup"]
    speedup["vs_compile"] = {"ratio": 1.16, "low": 0.97, "high": 1.38, "answer": "undecided"}
    speedup["vs_written"] |= {"ratio": 1.16, "low": 1.02, "high": 1.3}
    result["floor"] = {"low": 0.8, "high": 1.25}
    found = tiles(as_result(result))
    assert {(tile.large, tile.look) for tile in found} == {("no clear difference", "undecided")}
    page = render_page(as_result(result))
    assert '<b class="undecided">no clear difference</b>' in page
    assert "<b>1.16x</b>" not in page
    assert "1.16x, 95 % interval 0.97 to 1.38" in page


def terminal(result: OptimizeResult) -> str:
    with io.StringIO() as text:
        print_report(optimize_report(result), Console(file=text, width=160))
        return text.getvalue()


@pytest.mark.parametrize(
    "why", ["the arithmetic was not changed", "the budget had no room to compare them"]
)
def test_losses_that_were_not_compared_have_their_reason(why: str) -> None:
    found = as_result(make_result(losses=None, not_measured={"losses": why}))
    assert f"The losses were not compared: {why}." in terminal(found)


def test_gradients_of_the_step_as_written_are_no_check() -> None:
    assert "no other gradients to check" in terminal(as_result(make_result(recipe_is="as_written")))


def test_an_interval_that_excludes_one_is_not_called_no_difference() -> None:
    document = make_result()
    speedup = {"ratio": 1.30, "low": 1.17, "high": 1.44, "answer": "undecided"}
    document["speedup"]["vs_written"] = speedup
    found = as_result(document)
    assert answers_of(found)["vs_written"] == "looks faster"
    assert "about 1.30x as fast as the step as written, which is not proven" in headline(found)
    assert "looks faster, not proven" in {tile.large for tile in tiles(found)}


def test_a_step_of_a_few_samples_has_no_interval() -> None:
    document = make_result()
    document["arms"][0] |= {"low_s": None, "high_s": None}
    found = as_result(document)
    row = next(line for line in terminal(found).splitlines() if "as written" in line.lower())
    assert " - " not in row
    assert render_page(found)


def test_two_launches_far_apart_give_no_interval() -> None:
    def of(times_s: list[float]) -> tuple[float | None, float | None]:
        samples = [
            Sample(
                arm="a",
                launch=launch,
                round=round_,
                position=0,
                iterations=1,
                wall_time_s=time_s * (1 + round_ / 100),
                cpu_time_s=time_s,
            )
            for launch, time_s in enumerate(times_s)
            for round_ in range(8)
        ]
        return ends_of(summarise(samples, "a"))

    assert of([0.2, 0.3]) == (None, None)
    low_s, high_s = of([0.2, 0.21, 0.2, 0.21])
    assert low_s is not None and high_s is not None and low_s < 0.21 < high_s


def test_a_turn_that_proved_nothing_says_what_more_time_is_for() -> None:
    document = make_result(recipe_is="rival")
    lacked = {"what": "single changes", "reason": "the budget has no room for it"}
    ruled_out = {"what": "a larger batch", "reason": "no", "for_want_of_budget": False}
    document["budget"] = {
        "budget_s": 60.0,
        "spent_s": 59.0,
        "reserved_for_proof_s": 20.0,
        "launches": 2,
        "launches_asked": 3,
        "omissions": [lacked, ruled_out],
    }
    said = "With more time it would try: single changes."
    assert said in " ".join(terminal(as_result(document)).split())
    document["recipe_is"] = "proven"
    assert said not in " ".join(terminal(as_result(document)).split())


def test_what_the_turn_left_out_and_what_is_left_stand_on_the_page(result: dict[str, Any]) -> None:
    row = {"category": "convolution", "time_s": 0.2, "least_s": 0.1, "unknown_s": 0.0}
    result |= {
        "recipe_because": "The final run called it faster.",
        "limit": {
            "arm": "ratchet",
            "title": "Ratchet",
            "step_time_s": 0.3,
            "least_s": 0.2,
            "share": 0.67,
            "most": 1.5,
            "categories": [row | {"winnable_s": 0.1}],
        },
        "budget": {
            "budget_s": 60.0,
            "spent_s": 59.0,
            "reserved_for_proof_s": 20.0,
            "launches": 2,
            "launches_asked": 3,
            "omissions": [
                {"what": "a third launch", "reason": "no time", "for_want_of_budget": True}
            ],
        },
    }
    msgspec.convert(result, OptimizeResult)
    page = render_page(as_result(result))
    for words in (
        "The final run called it faster.",
        "at 67% of what",
        "convolution",
        "a third launch",
    ):
        assert words in page


def test_the_page_is_small_and_loads_nothing(result: dict[str, Any]) -> None:
    page = render_page(as_result(result))
    assert len(page) < 200_000
    assert "default-src 'none'" in page
    for tag, attributes in tags(page):
        assert tag not in {"script", "img", "iframe", "object", "embed", "video", "audio"}
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
        assert not any(name.startswith("on") for name in attributes)
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page


def test_numbers_are_right_aligned_with_their_unit_in_the_head(result: dict[str, Any]) -> None:
    page = render_page(as_result(result))
    assert '<th scope="col" class="n">step, ms</th>' in page
    assert '<td class="n">2,214</td>' in page
    assert "td.n, th.n { text-align: right;" in page


def test_every_text_is_escaped(result: dict[str, Any]) -> None:
    calm, attacked = (
        render_page(as_result(result)),
        render_page(as_result(hostile(result, but=CHOICES))),
    )
    assert "<script" not in attacked
    assert "<img" not in attacked
    counted = [[tag for tag, _ in tags(page)] for page in (calm, attacked)]
    assert set(counted[1]) <= set(counted[0])


def test_a_result_with_little_in_it_is_still_a_page() -> None:
    empty: dict[str, Any] = {
        "arms": [],
        "speedup": {},
        "floor": {},
        "rivals": [],
        "changes": [],
        "profile_before": None,
        "profile_after": None,
        "gradients": None,
        "losses": None,
        "samples": [],
        "verdicts": [],
        "warnings": ["the budget ended early"],
    }
    page = render_page(as_result(make_result(**empty)))
    tags(page)
    assert "No change was tried." in page and "no change was proven" not in page
    assert "The gradients were not checked." in page
    assert "the budget ended early" in page


def test_only_the_second_profile_was_taken(result: dict[str, Any]) -> None:
    table = comparisons.category_table(as_result(result | {"profile_before": None}))
    _, before, _, saved = table.columns
    assert {text_of(one.cell(row)) for row in table.rows for one in (before, saved)} == {"-"}


def test_time_by_category_adds_up(result: dict[str, Any]) -> None:
    found = as_result(result)
    for profile in (found.profile_before, found.profile_after):
        assert profile is not None
        assert sum(comparisons.by_category(profile).values()) == pytest.approx(profile.total_s)


def test_an_unknown_category_counts_as_other(result: dict[str, Any]) -> None:
    profile = as_result(result).profile_before
    assert profile is not None
    op = msgspec.structs.replace(profile.ops[0], category="brand new", time_s=1.0)
    assert comparisons.by_category(msgspec.structs.replace(profile, ops=[op])) == {"other": 1.0}


def test_every_sample_is_one_dot(result: dict[str, Any]) -> None:
    report = optimize_report(as_result(result))
    (section,) = (one for one in report.sections if getattr(one, "title", "") == "Raw samples")
    plot = section.blocks[-1].data
    assert sum(series.path.count("M") for series in plot.series) == len(result["samples"])
    assert [tick.label for tick in plot.x_ticks] == ["launch 1", "launch 2", "launch 3"]
    assert len(plot.marks) == 2


def test_a_loss_that_is_not_finite_breaks_the_curve() -> None:
    losses = LossResult(passed=False, baseline=[[3.0, float("nan"), 2.0, 1.0]], detail="")
    plot = comparisons.losses_plot(losses)
    assert plot is not None
    assert plot.series[0].path.count("M") == 2
    assert "nan" not in plot.series[0].path


def test_changes_stand_on_the_side_of_one_they_belong_to(result: dict[str, Any]) -> None:
    changes = as_result(result).changes
    *rows, axis = comparisons.forest(changes, result["floor"])
    assert axis.look == "axis" and len(rows) == sum(change.ratio is not None for change in changes)
    ratios = {change.name: change.ratio or 1.0 for change in changes}
    for row in rows:
        band, one, whisker, dot = row.marks
        assert (dot.left > one.left) == (ratios[row.title] > 1)
        assert whisker.left <= dot.left <= whisker.left + (whisker.width or 0)
        assert band.left < one.left < band.left + (band.width or 0)
    assert comparisons.forest([], {}) == []


def test_the_settings_that_changed_are_listed(result: dict[str, Any]) -> None:
    assert changed_settings(as_result(result)) == [("precision", "fp32", "bf16_master")]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_browser_shows_the_page_whole(result: dict[str, Any], tmp_path: Path) -> None:
    page, widths = render_page(as_result(result)), (420, 1200)
    both, console = all_in_chromium([(page, width) for width in widths], tmp_path)
    assert console == ""
    for found, width in zip(both, widths, strict=True):
        assert found["title"] == "llama-60m: Ratchet"
        assert found["loads"] == []
        assert found["sections"] == 9
        assert found["scroll"] <= found["client"]
        assert found["dots"] > width / 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_browser_runs_nothing_that_a_name_holds(result: dict[str, Any], tmp_path: Path) -> None:
    found, _ = in_chromium(render_page(as_result(hostile(result, but=CHOICES))), tmp_path, 420)
    assert found["title"] != "owned"
    assert found["scripts"] == 0
    assert found["loads"] == []
    assert found["scroll"] <= found["client"]


def test_a_step_that_stays_as_it_is_is_shown_once(result: dict[str, Any]) -> None:
    result |= {"recipe_is": "as_written", "profile_after": None}
    said = terminal(as_result(result))
    assert "As written: " in said
    assert "Ratchet: " not in said and "Ratchet starts" not in said


def test_an_interval_of_hours_leaves_the_bars_readable(result: dict[str, Any]) -> None:
    result["arms"][1]["high_s"] = 1e6 * result["arms"][1]["step_time_s"]
    rows = comparisons.arm_bars(as_result(result).arms)
    assert min(row.marks[0].width for row in rows) > 4
    assert all(mark.left + mark.width <= 100.001 for row in rows for mark in row.marks)
