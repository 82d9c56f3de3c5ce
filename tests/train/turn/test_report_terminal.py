"""What the terminal shows: whole at 80 columns, plain when piped."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from made_up_result import as_result, make_result
from rich.console import Console

from ratchet.base.devices import DeviceReport, Paper, device_report
from ratchet.base.devices.probe import fingerprint, probe
from ratchet.base.show.model import grid
from ratchet.base.show.terminal import FittedTable, make_console, print_report
from ratchet.judge.verdict import PredictedTime
from ratchet.train.graph.scope import CapturedSite
from ratchet.train.levers.base import Lever
from ratchet.train.recipe.facts import StepFacts
from ratchet.train.turn.comparisons import TurnProgress
from ratchet.train.turn.dry_run import DryRun
from ratchet.train.turn.optimize_result import Change
from ratchet.train.turn.predicted_step import PredictedStep, TargetKernel, TargetSite
from ratchet.train.turn.show import dry_run_report, optimize_report
from ratchet.train.workloads.bench import BenchResult, bench_report
from ratchet.train.workloads.config import StepConfig

MANY = {str(place): (1000, 1000) for place in range(9)}
FACTS = StepFacts(
    source="a.py",
    unit="tokens",
    trainable_bytes=4,
    tokens_per_batch=8,
    flops_per_step=None,
    optimizer_is_adamw=True,
    written=StepConfig(),
    has_attention=False,
)

BENCHED = BenchResult(
    workload="llama-60m",
    device="cpu",
    precision="fp32",
    compile_mode=None,
    steps=3,
    parameters=8,
    step_time_s=2.2,
    low_s=2.1,
    high_s=2.3,
    first_step_s=3.0,
    tokens_per_s=465.0,
    unit="tokens",
    flops_per_step=4,
    mfu=0.0,
    peak_memory_bytes=2**31,
    loss=1.0,
)


def _console(width: int = 80, *, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
    return console, file


def _said(document: dict[str, Any], width: int = 80) -> str:
    console, file = _console(width)
    print_report(optimize_report(as_result(document)), console)
    return file.getvalue()


def test_the_table_has_every_arm_and_figure(result: dict[str, Any]) -> None:
    said = _said(result)
    for words in ("as written", "torch.compile's best", "arithmetic", "Ratchet"):
        assert words in said
    assert "step, ms" in said
    assert "301 - 313" in said
    assert "3,339" in said
    assert "38%" in said
    assert "2.14 GiB" in said


@pytest.mark.parametrize("same", [True, False])
def test_a_way_of_running_that_is_another_one_has_no_row(same: bool) -> None:
    """A recipe in fp32 keeps the arithmetic of a step in fp32."""
    document = make_result()
    by_key = {arm["key"]: arm for arm in document["arms"]}
    other = {**by_key["ratchet"]["config"], "precision": "bf16"}
    for key in ("best_compile_same", "same_arithmetic"):
        whole = by_key["best_compile" if key == "best_compile_same" else "ratchet"]
        by_key[key]["config"] = whole["config"] if same else other
    said = _said(document)
    assert ("Ratchet, arithmetic" in said) is not same
    assert said.count("torch.compile's best,") == (0 if same else 1)


def test_kept_and_dropped_come_with_their_reasons(result: dict[str, Any]) -> None:
    said = " ".join(_said(result, 200).split())
    assert "kernel:attention 1.29x (1.27 to 1.31) the step is not faster without it" in said
    assert "allocator_mallopt - kept with the bundle" in said
    assert "Dropped" in said
    assert "Refused change why" in said
    assert "checkpointing the step fits in memory without it" in said
    assert "huge_pages the budget ended before it" in said


def test_comparisons_say_their_interval(result: dict[str, Any]) -> None:
    said = _said(result, 200)
    assert re.search(
        r"against torch.compile's best +1.83x +faster; 95 % interval 1.78 to 1.88", said
    )
    assert "the A/A floor" in said
    assert "recovers that after 25 steps" in said


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_nothing_but_verbatim_lines_is_wider_than_the_terminal(
    result: dict[str, Any], width: int
) -> None:
    verbatim = {f"    {line}" for line in result["paste"]["apply"] + result["paste"]["undo"]}
    verbatim |= {f"    {path}" for path in result["paths"].values()}
    verbatim.add(f"    {result['profile_before']['trace']}")
    for line in _said(result, width).splitlines():
        assert len(line) <= width or line in verbatim


def test_lines_to_paste_are_never_broken(result: dict[str, Any]) -> None:
    long_path = "a-very-long-folder-name/" * 6 + "recipe.json"
    result["paths"]["recipe"] = long_path
    lines = _said(result, 60).splitlines()
    for line in (*result["paste"]["apply"], long_path):
        assert f"    {line}" in lines


def test_a_piped_report_is_plain_text(result: dict[str, Any]) -> None:
    assert "\x1b" not in _said(result)


def test_names_are_printed_as_they_are() -> None:
    said = _said(make_result(workload="[bold]x[/bold] :smile:", warnings=["[red]low[/red]"]))
    assert "a step of [bold]x[/bold] :smile: runs" in said
    assert "warning: [red]low[/red]" in said


def test_a_result_with_little_in_it() -> None:
    said = _said(
        make_result(
            speedup={},
            floor={},
            changes=[],
            verdicts=[],
            gradients=None,
            losses=None,
            profile_before=None,
            profile_after=None,
            samples=[],
            resumed=True,
            compile={"extra_setup_s": 0.0, "pays_after_steps": None},
        )
    )
    assert "No change was tried." in said
    assert "The gradients were not checked." in said
    assert "No A/A floor was measured." in said
    assert "with measurements from the ledger" in " ".join(said.split())


def test_the_bench_table() -> None:
    console, file = _console()
    images = replace(BENCHED, workload="vit", unit="images", step_time_s=0.12)
    print_report(bench_report([BENCHED, images]), console)
    said = " ".join(file.getvalue().split())
    assert "workload step, ms tokens or images/s MFU peak memory" in said
    assert "llama-60m 2,200 465 - 2.00 GiB" in said
    assert "vit 120" in said


def test_the_device_table() -> None:
    console, file = _console()
    here = probe("cpu")
    report = DeviceReport(
        device=replace(here, model="AMD EPYC 9554 64-Core Processor"),
        target="avx512_bf16",
        fingerprint=fingerprint(here),
        gemm_flops_per_s={"fp32": 1.8e12, "bf16": 9.1e10},
        loop_flops_per_s={"fp32": 2.4e12},
        copy_bytes_per_s={"dram": 3.1e10},
        triad_bytes_per_s={"dram": 3.3e10},
        ridge_flops_per_byte={},
        busy=0.0,
        provisional=False,
        paper=Paper(
            name="EPYC", peak_flops_per_s={"x": 1e12}, memory_bytes_per_s=4.6e11, sources={}
        ),
        notes=("made up",),
    )
    print_report(device_report(report), console)
    said = " ".join(file.getvalue().split())
    assert "AMD EPYC 9554 64-Core Processor" in said
    assert "matrix product, fp32 1.8 TFLOP/s" in said
    assert "matrix product, bf16 91 GFLOP/s" in said
    assert "multiply-adds in registers, fp32 2.4 TFLOP/s" in said
    assert "copy, dram 31.0 GB/s" in said
    assert "memory 460.0 GB/s" in said
    assert "note: made up" in said
    print_report(device_report(replace(report, paper=None)), console)


def test_the_plan_says_what_would_and_would_not_be_tried() -> None:
    console, file = _console()
    lever = Lever(
        name="threads", summary="s", expected="1.1x", source="x", field="threads", value=2
    )
    skipped = Change(name="a", kind="lever", decision="not_applicable", reason="no GPU")
    plan = DryRun(workload=FACTS, levers=(lever,), skipped=(skipped,))
    print_report(dry_run_report(plan), console)
    said = " ".join(file.getvalue().split())
    assert "threads 1.1x" in said
    assert "Would be skipped change why" in said
    assert "a no GPU" in said


def test_a_plan_for_a_gpu_that_is_not_here_lists_verdicts_and_bounds() -> None:
    console, file = _console()
    time = PredictedTime(device="MI300X", time_s=2e-6, low_s=8e-7, high_s=1e-5)
    called = TargetSite(
        shapes={"x": (64, 8)}, calls=1, bound_s=2e-6, bound_by="memory", predicted=time
    )
    unbounded = TargetSite(shapes={"x": (64, 8)}, calls=2)
    about = {"library": "rope", "device": "MI300X"}
    right = TargetKernel(
        **about, entry="rope_forward", sites=(called,), status="correct", reason="right"
    )
    wrong = TargetKernel(
        **about, entry="rope_backward", sites=(unbounded,), status="wrong", reason="case timed: off"
    )
    silent = replace(unbounded, no_prediction="it spills")
    spilled = replace(right, entry="norm", sites=(silent,))
    site = CapturedSite(
        pattern="rope",
        kernel="rope",
        shapes={"x": (64, 8)},
        dtypes={"x": "bf16"},
        scalars={},
        count=2,
    )
    plan = DryRun(
        workload=FACTS,
        levers=(),
        skipped=(),
        target="gfx942",
        device="MI300X",
        arithmetic="bf16_master",
        sites=(site, replace(site, pattern="adamw", kernel="adamw", shapes=MANY)),
        kernels=(right, wrong, spilled),
        predicted=PredictedStep(kernels=time, products=None, covered=0.25, left_out=("the host",)),
    )
    print_report(dry_run_report(plan), console)
    said = " ".join(file.getvalue().split())
    assert f"A step of {FACTS.tokens_per_batch:,} tokens" in said
    assert "on MI300X, in bf16_master" in said
    assert "rope 2 bf16 x [64, 8]" in said and "adamw 2 9 tensors, 9.0 M elements" in said
    assert "Kernels on gfx942" in said and "Nothing is timed" in said
    assert "rope_forward 1 2.00 µs memory 2.00 µs (0.80 to 10.0) correct" in said
    assert "Predicted, not measured: 2.00 µs (0.80 to 10.0) of a step, 25% of its" in said
    assert "Not in it: the host." in said
    assert "rope_backward 2 - - - wrong" in said and "rope_backward: case timed: off" in said
    assert "norm 2 - - - correct" in said and "norm at the step's sizes: it spills" in said


def test_a_plan_without_call_sites_says_so() -> None:
    console, file = _console()
    plan = DryRun(workload=FACTS, levers=(), skipped=(), target="gfx942", device="MI300X")
    print_report(dry_run_report(plan), console)
    said = " ".join(file.getvalue().split())
    assert "no kernel for any call of this step" in said and "runs no kernel" in said


_EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("start", {"title": "as written"}),
    ("profile", {"title": "as written"}),
    ("screened", {"title": "bf16_master", "ratio": 1.03}),
    ("screened", {"title": "refused", "ratio": None}),
    ("judging", {"kernel": "rope"}),
    ("judged", {"kernel": "rope", "status": "proven", "reason": ""}),
    ("losses", {"title": "Ratchet", "seed": 1}),
    ("proof", {"launch": 1, "rounds": 12}),
    ("trial", {"kind": "warm", "arm": "ratchet", "round": -1}),
    ("trial", {"kind": "round", "arm": "", "round": 3}),
    ("something new", {}),
)


def test_piped_progress_is_a_plain_line_for_each_stage() -> None:
    console, file = _console()
    with TurnProgress(60.0, console=console) as progress:
        for event, details in _EVENTS:
            progress(event, details)
    lines = file.getvalue().splitlines()
    assert all(re.match(r"\[ *\d+ s\] \S", line) for line in lines)
    said = [line.partition("] ")[2] for line in lines]
    assert "starting as written" in said and "kernel rope: proven" in said
    assert "final run, launch 2" in said
    assert not any("round" in words for words in said)


def test_progress_follows_a_turn_on_a_terminal() -> None:
    console, file = _console(terminal=True)
    with TurnProgress(60.0, console=console) as progress:
        for event, details in _EVENTS:
            progress(event, details)
            assert progress._bar is not None
            progress._bar.refresh()
    said = file.getvalue()
    for words in (
        "starting as written",
        "kernel rope: proven",
        "bf16_master: 1.03x",
        "launch 2, round 4 of 12",
        "something new",
    ):
        assert words in said


def test_the_default_console_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("[bold]plain[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]plain[/bold] :smile:\n"


FIGURES = ("step", "2,200,123", "12,345,678", "101.50%", "1,022.25 GiB", "301.5 - 313.7")


@pytest.mark.parametrize("width", [24, 30, 40, 50, 60, 80])
@pytest.mark.parametrize("left", [1, 2])
def test_no_figure_is_cut_on_a_narrow_terminal(width: int, left: int) -> None:
    console, file = _console(width)
    texts = ("a workload with a long name", "a second text of some length")[:left]
    columns = (
        *("name", "what it is")[:left],
        "runs",
        "step, ms",
        "rate/s",
        "MFU",
        "memory",
        "95 %",
    )
    rows = [(*texts, *FIGURES, "a reason in words")]
    console.print(FittedTable.of(grid((*columns, "why"), rows, left=left)))
    lines = file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    for figure in FIGURES:
        assert any(figure in line for line in lines), figure


@pytest.mark.parametrize("width", [32, 40])
def test_every_table_is_whole_at_forty_columns(result: dict[str, Any], width: int) -> None:
    said = _said(result, width)
    for figure in ("301 - 313", "3,339", "38%", "2.14 GiB"):
        assert any(figure in line for line in said.splitlines()), figure
    console, file = _console(width)
    mine = replace(BENCHED, workload="a-workload-of-mine.py:f", tokens_per_s=465678.0, mfu=0.41)
    print_report(bench_report([mine]), console)
    for figure in ("2.20", "465,678", "41%", "2.00 GiB"):
        assert any(figure in line for line in file.getvalue().splitlines()), figure
    assert "…" not in said + file.getvalue()
