"""`ratchet trace`: record, report and diff, their documents, and one line for what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import made_traces as mt
import made_up_trace as made
import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from ratchet.base.errors import TraceError
from ratchet.cli import main
from ratchet.cli.commands import app
from ratchet.trace.compare import check
from ratchet.trace.record import CommandFailed, Schedule
from ratchet.train.workloads.run_steps import main as run_steps

ROOT = Path(__file__).parents[2]
COMMANDS = ("record", "report", "diff", "merge")
TRAIN = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
assert parser.parse_args().debug
dist.init_process_group("gloo")
layers = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
os._exit(0)  # torch's own teardown aborts a rank now and then on a busy machine
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One rank's trace of two steps."""
    return mt.write(tmp_path / "trace.json.gz", made.steps(), **made.H100)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """Run a command that must succeed; its stdout."""

    def run(*words: object) -> str:
        assert main(["trace", *map(str, words)]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]):
    """Run a command that must fail; its one line."""

    def run(*words: object) -> str:
        assert main(["trace", *map(str, words)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1 and "Traceback" not in captured.err, captured.err
        return captured.err

    return run


def test_the_commands_are_these_and_say_what_they_take(said) -> None:
    (group,) = (found for found in app.registered_groups if found.name == "trace")
    names = {c.name or c.callback.__name__ for c in group.typer_instance.registered_commands}
    assert names == set(COMMANDS)
    overview = said()
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "how-to" / "trace.md").read_text()
    for command in COMMANDS:
        text = said(command, "--help")
        assert "--json" in text and "--debug" in text
        assert "--out" in text
        assert command in overview
        assert f"ratchet trace {command}" in page
        assert command in readme.split("| `ratchet trace ")[1].split("`")[0]
    documented = set(re.findall(r"`(--[a-z-]+)", page))
    known = "".join(said(command, "--help") for command in COMMANDS)
    assert len(documented) >= 10
    assert {option for option in documented if option not in known} == set()


def test_report_as_json_has_the_promised_keys(said, trace: Path) -> None:
    found = json.loads(said("report", trace, "--json"))
    assert found["window_ns"] == 318_000
    assert found["identity_ns"] == {
        "compute": 96_000, "exposed_communication": 80_000, "exposed_copy": 10_000, "idle": 132_000,
    }  # fmt: skip
    assert found["communication"]["overlap"] == pytest.approx(1 / 3)
    assert {row["name"] for row in found["kernels"]} >= {"nvjet_gemm_bf16", made.LONG}
    assert [row["operation"] for row in found["collectives"]] == ["all_reduce"] * 2
    assert [finding["name"] for finding in found["advice"]]
    for table in ("ops", "modules", "roofline", "streams", "copies", "matmuls",
                  "steps", "idle", "launches", "memory", "recompute", "timeline"):  # fmt: skip
        assert found[table], table


def test_the_figures_of_the_resnet(said) -> None:
    found = json.loads(said("report", mt.real_trace("mi300x-resnet-ddp-rank0of8"), "--json"))
    assert found["identity_ns"]["compute"] // 1000 == 19_234
    assert round(100 * found["communication"]["overlap"], 2) == 25.25
    assert sum(found["identity_ns"].values()) == found["window_ns"]


def test_the_device_of_the_roofline_can_be_named(said, mistake, trace: Path) -> None:
    rows = {
        name: json.loads(said("report", trace, "--device", name, "--json"))["roofline"][0]
        for name in ("MI300X", "B200")
    }
    assert rows["MI300X"]["ceiling"] == "MI300X, FLOP/s and bandwidth as measured and published"
    assert rows["MI300X"]["least"] > rows["B200"]["least"] > 0
    assert "MI300X" in mistake("report", trace, "--device", "MI9000")


def test_a_workbook_is_written_and_written_again(
    said, mistake, trace: Path, tmp_path: Path
) -> None:
    pytest.importorskip("xlsxwriter")
    book = tmp_path / "trace.xlsx"
    for words in (["report", trace], ["report", trace], ["diff", trace, trace]):
        assert f"written: {book}" in said(*words, "--out", book)
        assert book.read_bytes().startswith(b"PK")
    book.write_bytes(b"PK of somebody else")
    assert "--force" in mistake("report", trace, "--out", book)


def test_pages_and_tables_are_written(said, trace: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    tables, page = tmp_path / "tables", tmp_path / "page.html"
    text = said("report", trace, "--out", page, "--parquet", tables)
    assert f"written: {page}" in text and f"written: {tables}" in text
    assert page.read_text().startswith("<!doctype html>")
    found = json.loads(said("report", trace, "--json"))
    for name in ("kernels", "ops", "modules", "collectives", "streams", "copies", "roofline"):
        rows = parquet.read_table(tables / f"{name}.parquet").to_pylist()
        assert [{k: v for k, v in row.items() if k not in ("trace", "rank")} for row in rows] == [
            {k: v for k, v in row.items()} for row in found[name]
        ], name
    identity = parquet.read_table(tables / "identity.parquet").to_pylist()[0]
    assert identity["compute"] == found["identity_ns"]["compute"]
    empty = parquet.read_table(tables / "compiled.parquet")
    assert empty.num_rows == 0 and "graph_breaks" in empty.column_names


def test_diff_adds_up(said, trace: Path, tmp_path: Path) -> None:
    other = mt.write(tmp_path / "slower.json", made.steps(slower=9), **made.H100)
    found = json.loads(said("diff", trace, other, "--json"))
    rows = sum(row["change"] for row in found["rows"])
    assert rows == sum(row["change"] for row in found["groups"]) == 18_000
    assert rows == sum(row["change"] for row in found["categories"])
    assert rows + found["hidden_change_ns"] + found["idle_change_ns"] == found["window_change_ns"]
    assert sum(found["identity_change_ns"].values()) == found["window_change_ns"]
    page = tmp_path / "diff.html"
    text = said("diff", trace, other, "--out", page, "--parquet", tmp_path / "tables")
    assert "Slower: 1" in text and "slower.json" in page.read_text()
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "rows.parquet", "groups.parquet", "identity.parquet", "categories.parquet",
    }  # fmt: skip


def test_a_folder_of_ranks_is_reported_and_compared(said, mistake, tmp_path: Path) -> None:
    folder = made.write_ranks(tmp_path / "ranks")
    found = json.loads(said("report", folder, "--json"))
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert found["window_ns"] == sum(one["window_ns"] for one in found["ranks"])
    assert found["window_ns"] == sum(found["identity_ns"].values())
    assert found["communication"]["straggler"] == 1
    assert found["communication"]["waiting_ns"] == {"0": 40_000, "1": 0}
    one = json.loads(said("report", folder, "--rank", 1, "--json"))
    assert one["rank"] == 1 and "ranks" not in one
    assert "it has 0, 1" in mistake("report", folder, "--rank", 7)
    tables = tmp_path / "tables"
    assert "Rank 1 is the straggler" in said("report", folder, "--parquet", tables)
    assert (tables / "shared_collectives.parquet").exists()
    same = json.loads(said("diff", folder, folder, "--json"))
    assert (same["ranks"], same["window_change_ns"]) == (2, 0)
    assert "--rank" in mistake("diff", folder, folder / "r0.json")


def test_a_folder_of_one_trace_is_that_trace(said, trace: Path) -> None:
    (trace.parent / "notes.json").write_text("{}")
    found = json.loads(said("report", trace.parent, "--json"))
    assert found["name"] == "trace.json.gz" and found["rank"] is None
    assert found["faults"][0].startswith("notes.json has no traceEvents")


def test_ranks_are_merged_into_one_trace(said, mistake, tmp_path: Path) -> None:
    folder = made.write_ranks(tmp_path / "ranks")
    out = tmp_path / "all.json.gz"
    text = said("merge", folder, "--out", out)
    assert f"written: {out}" in text and "clocks meet" in text
    found = json.loads(said("merge", folder, "--out", out, "--json"))
    assert [rank["file"] for rank in found["ranks"]] == ["r0.json", "r1.json"]
    assert found["size_bytes"] == out.stat().st_size and found["aligned"]
    assert json.loads(said("report", out, "--json"))["window_ns"] > 0
    assert "is a file" in mistake("merge", out)
    assert "--out" in mistake("merge", folder, "--out", tmp_path / "no" / "all.json")
    assert "taken for a rank" in mistake("merge", folder, "--out", folder / "all.json")


@pytest.mark.parametrize(
    ("words", "left"),
    [(["trace", "report", "x"], "interrupted\n"), (["optimize", "x"], "--resume"), ([], "")],
)
def test_an_interrupt_says_what_the_command_left_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], left: str
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ratchet.cli.commands.commands", lambda: interrupted)
    assert main(words) == 130
    line = capsys.readouterr().err
    assert line.startswith("ratchet: interrupted") and line.endswith("\n") and left in line
    assert ("--resume" in line) == (words[:1] == ["optimize"])


def _put(folder: Path, what: str) -> Path:
    """Something that is no trace."""
    path = folder / what
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "noise.json.gz":
        path.write_bytes(gzip.compress(bytes(range(256)) * 9))
    elif what == "other.json":
        path.write_text('{"answer": 42}')
    elif what != "missing.json":
        path.touch()
    return path


@pytest.mark.parametrize("command", ["report", "diff"])
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("missing.json", "No such file"), ("folder", "has no traces"), ("pipe", "is a FIFO"),
        ("empty.json", "is empty"), ("zero.json.gz", "is empty"), ("other.json", "no traceEvents"),
        ("noise.json.gz", "no traceEvents"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_one_line(
    mistake, trace: Path, tmp_path: Path, command: str, what: str, why: str
) -> None:
    path = _put(tmp_path, what)
    line = mistake("report", path) if command == "report" else mistake("diff", trace, path)
    assert what in line and why in line


def test_what_may_not_be_read_is_one_line(
    mistake, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "readable" in mistake("report", trace)
    with pytest.raises(TraceError, match="may not be read"):
        check(trace)


def test_what_stands_before_a_cut_is_reported(said, trace: Path, tmp_path: Path) -> None:
    whole = trace.read_bytes()
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    text = said("report", cut)
    assert "warning: the gzip file is cut off" in text and "nvjet_gemm_bf16" in text


def test_where_nothing_can_be_written(
    mistake, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--out" in mistake("report", trace, "--out", tmp_path)
    assert "--out" in mistake("report", trace, "--out", tmp_path / "no" / "page.html")
    assert "is a file" in mistake("report", trace, "--parquet", trace)
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    line = mistake("report", trace, "--out", tmp_path / "tables.xlsx")
    assert "pip install 'torch-ratchet[excel]'" in line
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    line = mistake("report", trace, "--parquet", tmp_path / "tables")
    assert "pip install 'torch-ratchet[parquet]'" in line


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "none was given"), (["--"], "no command"),
        (["llama-tiny", "--", "x"], "both were given"),
        (["--batch-size", "2", "--", "x"], "--batch-size"), (["--steps", "0", "gpt2"], "--steps"),
        (["--", "no-such-program"], "cannot start"),
    ],
)  # fmt: skip
def test_a_recording_that_cannot_be(mistake, tmp_path: Path, words: list[str], why: str) -> None:
    assert why in mistake("record", "--out", tmp_path / "out", *words)


def test_a_recording_does_not_mix_with_another(mistake, trace: Path) -> None:
    line = mistake("record", "--out", trace.parent, "--", sys.executable, "-c", "pass")
    assert "already holds traces" in line


def test_a_workload_is_recorded_by_a_process_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_path = tmp_path / "rank0-1.json.gz"
    asked: dict[str, Any] = {}

    def recorded(command: list[str], folder: Path, schedule: Schedule, **_: object) -> list[Path]:
        asked.update(command=command, folder=folder, schedule=schedule)
        made_path.touch()
        return [made_path]

    monkeypatch.setattr("ratchet.trace.record.record", recorded)
    words = ["--steps", "2", "--wait", "0", "--warmup", "1", "--batch-size", "2", "--device", "cpu"]
    assert main(["trace", "record", "llama-tiny", "--out", str(tmp_path), *words]) == 0
    printed = capsys.readouterr().out
    assert f"recorded: {made_path}" in printed and f"trace report {tmp_path}" in printed
    assert asked["schedule"] == Schedule(wait=0, warmup=1, active=2)
    python, dash_m, module, *rest = asked["command"]
    assert (python, dash_m, module) == (sys.executable, "-m", "ratchet.train.workloads.run_steps")

    stepped = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer))
    assert run_steps(rest) == 0
    hook.remove()
    assert len(stepped) == 4, "one that starts the profiler, one of warm-up, two that are kept"


def test_a_workload_that_is_not_there_is_said_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_steps(["lama-tiny", "1", "{}"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "did you mean 'llama-tiny'" in line

    def failed(*_: object, **__: object) -> None:
        raise CommandFailed("the workload's process", 2)

    monkeypatch.setattr("ratchet.trace.record.record", failed)
    words = ["trace", "record", "llama-tiny", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr() == ("", ""), "its process has said it"


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 15)", 143)])
def test_a_command_s_exit_code_is_passed_on(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, ends: str, code: int
) -> None:
    command = [sys.executable, "-S", "-c", f"import os, sys; {ends}"]
    assert main(["trace", "record", "--out", str(tmp_path / "out"), "--", *command]) == code
    said = capfd.readouterr().err
    assert said.startswith("ratchet: ") and said.count("\n") == 1 and "ended with code" in said


def test_two_ranks_under_torchrun(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(TRAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "2", str(script), "--debug"]  # fmt: skip
    words = ["record", "--json", "--out", str(out), "--steps", "2", "--wait", "0", "--warmup", "1"]
    assert main(["trace", *words, "--", *torchrun]) == 0
    recorded: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert len(recorded["traces"]) == 2
    assert main(["trace", "report", str(out), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert found["shared_collectives"] and found["communication"]["total_ns"] > 0
    for one in found["ranks"]:
        assert len(one["steps"]) == 2
        assert sum(one["identity_ns"].values()) == one["window_ns"]
