"""`ratchet watch`: its answers, its reports, its example."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands_guard import mistake
from history_rows import noisy, rows
from noisy_repository import git, make_repository

from ratchet.base.measure import Ratio
from ratchet.base.show.page import render_page
from ratchet.cli import main
from ratchet.guard.history import gather
from ratchet.guard.history.formats import write_results
from ratchet.guard.watch import MARKER, junit_xml, markdown_comment, run_gate, watch_page
from ratchet.guard.watch.suite import (
    SMOKE,
    Benchmark,
    BenchmarkResult,
    GateLimits,
    WatchResult,
    WatchSuite,
    read_suite,
    watch_history,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "github-actions" / "ratchet-watch.yml"
SUITE = f"""\
pairs = 6
fail_if_slower = "5%"
[[benchmark]]
name = "steps"
command = ['{sys.executable}', "program.py"]
metric = "steps: (.*)"
unit = "steps"
[[benchmark]]
name = "again"
command = "{sys.executable} program.py"
metric = "last-number"
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commits of which the last two are slower by half."""
    folder = tmp_path / "repository"
    make_repository(folder, commits=4, slow_at=2, factor=1.5)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
    (tmp_path / "suite.toml").write_text(SUITE)
    return folder


def _watch(tmp_path: Path, *words: str) -> int:
    files = ["--markdown", str(tmp_path / "w.md"), "--junit", str(tmp_path / "w.xml"), "--json"]
    return main(["watch", "--suite", str(tmp_path / "suite.toml"), *files, *words])


def test_a_slower_head_closes_the_gate(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _watch(tmp_path, "--base", "HEAD~3") == 1
    report = json.loads(capsys.readouterr().out)
    assert [one["answer"] for one in report["results"]] == ["slower", "slower"]
    assert report["red"]
    assert "2 slower" in (tmp_path / "w.md").read_text()
    assert 'failures="2"' in (tmp_path / "w.xml").read_text()
    assert git(repository, "worktree", "list").count("\n") == 0

    assert _watch(tmp_path, "--base", "HEAD~3", "--advisory", "--pairs", "3") == 0
    assert 'failures="0" errors="0" skipped="2"' in (tmp_path / "w.xml").read_text()


def test_an_undecided_benchmark_gets_more_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_repository(tmp_path / "own", commits=2, slow_at=1, factor=1.12)
    monkeypatch.chdir(tmp_path / "own")
    monkeypatch.setenv("COUNTER", str(tmp_path / "counter"))
    (tmp_path / "suite.toml").write_text(SUITE.partition('[[benchmark]]\nname = "again')[0])
    assert _watch(tmp_path, "--base", "HEAD~1", "--pairs", "4") == 1
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["answer"] == "slower" and found["runs"] in (8, 16)
    assert len(found["values"]["base"]) == len(found["values"]["head"]) == found["runs"]

    suite, limits = read_suite(tmp_path / "suite.toml", tmp_path), GateLimits(time_s=0.0)
    report = run_gate(tmp_path / "own", suite, limits, lambda name, runs: None, base="HEAD~1")
    (first,) = report.results
    assert first.answer == "undecided" and first.runs == 3, "these run whatever the time"
    assert re.search(r": about \d+ more pairs would tell$", first.why)


def test_a_benchmark_that_the_base_lacks_is_warned_of(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "mv", "program.py", "renamed.py")
    git(repository, "commit", "--quiet", "-m", "rename")
    (tmp_path / "suite.toml").write_text(SUITE.replace("program.py", "renamed.py"))
    assert _watch(tmp_path, "--base", "HEAD~1", "--pairs", "3") == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["answer"] for one in report["results"]] == ["no baseline"] * 2
    assert "No such file" in report["results"][0]["why"]
    assert "**Warning:** no baseline for steps, again" in (tmp_path / "w.md").read_text()


def test_advisory_is_never_red(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _watch(tmp_path, "--base", "v9", "--advisory") == 0
    assert "has no commit 'v9'; git log --oneline lists them (advisory" in capsys.readouterr().err


def _against(device: str, values: object, *, head: float) -> BenchmarkResult:
    suite = WatchSuite(
        pairs=3,
        benchmark=[
            Benchmark(
                name="step", command=[sys.executable, "-c", f"print({head})"], metric="last-number"
            )
        ],
    )
    history = gather(rows(values, device=device))  # type: ignore[arg-type]
    (found,) = watch_history(
        suite, Path(), history, "machine", GateLimits(), lambda name, runs: None
    )
    return found


@pytest.mark.parametrize(
    ("head", "answer"),
    [(0.1, "undecided"), (0.12, "slower"), (0.09, "faster"), (0.102, "undecided")],
)
def test_the_newest_level_of_a_history_is_the_baseline(head: float, answer: str) -> None:
    values = noisy(3, at=50, factor=1.0)
    values[:50] *= 3
    assert _against("machine", values, head=head).answer == answer


def test_an_undecided_benchmark_names_its_cause() -> None:
    calm = _against("machine", noisy(3), head=0.102)
    assert calm.why == "the interval holds what is allowed (2%): run the base too, with --base"
    wild = _against("machine", [0.1, 0.2, 0.4] * 10, head=0.2)
    assert wild.answer == "undecided"
    assert wild.why.startswith("the machine was too noisy (interval ")
    assert wild.why.endswith("): run the base too, with --base")


def test_a_quiet_history_says_not_slower() -> None:
    assert _against("machine", [0.1, 0.1001] * 20, head=0.1).answer == "not slower"


def test_histories_that_are_no_baseline() -> None:
    assert "another machine" in _against("other", noisy(0), head=0.1).why
    assert "needs 5" in _against("machine", [0.1] * 3, head=0.1).why


def test_a_history_file_on_another_machine_warns(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "old.csv", rows(noisy(0), benchmark="steps"))
    assert _watch(tmp_path, "--against", str(tmp_path / "old.csv"), "--pairs", "3") == 0
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert (first["answer"], first["why"]) == (
        "no baseline",
        "its results are from another machine",
    )
    assert second["why"] == "no results in the history"


def test_what_was_measured_can_be_recorded(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    assert _watch(tmp_path, "--base", "HEAD~1", "--pairs", "3", "--record", *ledger) in (0, 1)
    assert main(["history", "export", str(tmp_path / "out.csv"), *ledger]) == 0
    assert (tmp_path / "out.csv").read_text().count(git(repository, "rev-parse", "HEAD")) == 2


def _report() -> WatchResult:
    slower = BenchmarkResult(
        name="a|b <script> @everyone\x01",
        unit="s",
        better="lower",
        answer="slower",
        why="",
        base=0.1,
        head=0.2,
        ratio=Ratio(ratio=1 / 2.0, low=1 / 2.1, high=1 / 1.9),
        runs=20,
        time_s=3.0,
    )
    failed = replace(slower, name="f", answer="failed", why="it exited with 1: *boom*")
    quiet = replace(slower, name="q", answer="not slower")
    missing = replace(slower, name="m", answer="no baseline", ratio=None)
    return WatchResult(
        base="1" * 40,
        head="2" * 40,
        margin=0.02,
        confidence=0.9875,
        results=(slower, failed, quiet, missing),
        notes=("a note",),
        advisory=False,
    )


@pytest.mark.parametrize("advisory", [False, True])
def test_junit_is_as_its_readers_want_it(advisory: bool) -> None:
    etree = pytest.importorskip("lxml.etree", reason="lxml reads XML schemas")
    schema = etree.XMLSchema(etree.parse(str(Path(__file__).parent / "junit.xsd")))
    document = etree.fromstring(junit_xml(replace(_report(), advisory=advisory)))
    schema.assertValid(document)
    kinds = [child.tag for child in document.iter("failure", "error", "skipped")]
    assert kinds == (["skipped"] * 3 if advisory else ["failure", "error", "skipped"])


def test_names_cannot_break_the_comment() -> None:
    text = markdown_comment(_report())
    assert text.startswith(MARKER)
    row = next(line for line in text.splitlines() if "everyone" in line)
    assert row.replace("\\|", "").count("|") == 8
    assert "<script>" not in text and "@everyone" not in text


def test_the_example_is_a_workflow(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema carries GitHub's schema")
    import subprocess

    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    examples = sorted(EXAMPLE.parent.glob("*.yml"))
    assert len(examples) == 2
    for name, code in (*((one, 0) for one in examples), (tmp_path / "bad.yml", 1)):
        (tmp_path / "bad.yml").write_text("on: pull_request\njobs: 3\n")
        done = subprocess.run(
            [*words, "vendor.github-workflows", str(name)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout


def test_the_page_shows_every_pair() -> None:
    values = {"base": (1.0, 1.1, 0.9), "head": (1.2, 1.3, 1.1)}
    ratio = Ratio(ratio=0.8, low=0.7, high=0.9, confidence=0.95)
    slow = BenchmarkResult(
        name="<b>slow", unit="s", better="lower", answer="slower", why="", ratio=ratio,
        values=values, runs=3,
    )  # fmt: skip
    other = replace(slow, name="none", answer="no baseline", values={"base": (), "head": ()})
    found = WatchResult(
        base="a" * 40, head="b" * 40, margin=0.02, confidence=0.95, results=(slow, other),
        notes=("a note",), advisory=False,
    )  # fmt: skip
    page = render_page(watch_page(found))
    assert "<b>slow" not in page and "&lt;b&gt;slow" in page and "a note" in page
    assert [one.count("h.01") for one in re.findall(r'<path class="\w+" d="([^"]*)"', page)] == [
        3,
        3,
    ]
    assert "median 1 s, 3 runs" in page and "median 1.2 s, 3 runs" in page


def test_without_a_file_the_smoke_workloads_run(tmp_path: Path) -> None:
    assert read_suite(None, tmp_path) is SMOKE
    command = SMOKE.benchmark[0].measured()
    assert "llama-tiny" in command.words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = = 1", "cannot be read"),
        ("pairs = 3", "missing required field `benchmark`"),
        ("[[benchmark]]\nname = 'a'", "needs a command or a workload"),
        (
            "[[benchmark]]\nname = 'a'\ncommand = 'x'\nmetrics = 'y'",
            "`metrics` - at `$.benchmark[0]`",
        ),
        ("[[benchmark]]\nname = 'a'\ncommand = 'x'\nmetric = '('", "no regular expression"),
        ("fail_if_slower = 'much'\n[[benchmark]]\nname = 'a'\ncommand = 'x'", "is no share"),
        ("[[benchmark]]\nname = 'a'\ncommand = 'x'\n" * 2, "two benchmarks are called 'a'"),
    ],
)
def test_a_suite_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "s.toml").write_text(text)
    line = mistake(capsys, "watch", "--base", "HEAD", "--suite", str(tmp_path / "s.toml"))
    assert said in line


def test_calls_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "one of them" in mistake(capsys, "watch")
    assert "one of them" in mistake(capsys, "watch", "--base", "a", "--against", "b")
    assert "folder" in mistake(capsys, "watch", "--base", "a", "--junit", str(tmp_path / "x" / "y"))
