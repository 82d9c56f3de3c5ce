"""The command line: help, JSON, one line and exit code 2 for what a user got wrong."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from ratchet.base.devices import rates
from ratchet.cli import main
from ratchet.cli.commands import app

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)


@pytest.fixture
def mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> functools.partial[str]:
    """Run a command that must fail; its one line."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    return functools.partial(commands.mistake, capsys)


def test_the_commands_are_these() -> None:
    assert COMMANDS == [
        "bench",
        "bisect",
        "compare",
        "debug",
        "device",
        "emulate",
        "export",
        "inspect",
        "judge",
        "memory",
        "optimize",
        "plan",
        "port",
        "preflight",
        "repro",
        "site",
        "sweep",
        "tune",
        "watch",
        "write",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_of_the_docs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text and "--debug" in text
    assert "<bool>" not in text  # a flag takes no value


def test_the_documented_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "optimize.md").read_text()
    main(["optimize", "--help"])
    text = capsys.readouterr().out
    documented = {
        word.strip("`,")
        for line in page.splitlines()
        if line.startswith("| `--")
        for word in line.split("|")[1].split()
        if word.strip("`,").startswith("--")
    }
    assert len(documented) >= 10
    assert {option for option in documented if option not in text} == set()


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "optimize" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ratchet 0.")


def test_device_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # keeps what is measured so shortly
    monkeypatch.setitem(rates.GEMM_SIZES, "cpu", (128,))
    for budget in ("GEMM", "STREAM", "LOOP"):
        monkeypatch.setattr(rates, f"{budget}_BUDGET_S", 0.02)
    assert main(["device", "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"]["kind"] == "cpu"
    assert document["gemm_flops_per_s"]["fp32"] > 0


def test_an_unknown_option(mistake) -> None:
    assert "--speed" in mistake("optimize", "llama-8m", "--speed")


def test_an_unknown_command(mistake) -> None:
    assert "fly" in mistake("fly")


def test_an_unknown_workload_lists_the_known(mistake) -> None:
    line = mistake("optimize", "lama-8m", "--dry-run", "--device", "cpu")
    assert "lama-8m" in line and "llama-8m" in line and "hf:NAME" in line


def test_a_budget_that_is_none(mistake) -> None:
    assert "soon" in mistake("optimize", "llama-tiny", "--budget", "soon")


def test_a_device_that_is_not_there(mistake) -> None:
    assert "tpu" in mistake("optimize", "llama-tiny", "--device", "tpu")


def test_an_unknown_lever_lists_the_known(mistake) -> None:
    line = mistake("optimize", "llama-tiny", "--try", "magic", "--device", "cpu")
    assert "magic" in line and "bf16-weights" in line


def test_an_unknown_precision(mistake) -> None:
    assert "fp7" in mistake("optimize", "llama-tiny", "--precision", "fp7", "--device", "cpu")


def test_resume_without_anything_to_resume(mistake) -> None:
    line = mistake("optimize", "llama-tiny", "--resume", "--device", "cpu")
    assert "no unfinished turn" in line


def test_a_ledger_that_cannot_be(mistake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    place = str(tmp_path / "file" / "ledger.db")
    mistake("optimize", "llama-tiny", "--ledger", place, "--device", "cpu")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(  # test_an_exception_names_its_place_in_the_users_file raises one too
            "def make_workload():\n    raise KeyError('weights')\n",
            "weights",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "def make_workload():\n    return 3\n", "Workload", marks=pytest.mark.thorough
        ),
        ("x = = 1\n", "line 1"),
        ("y = 1\n", "make_workload"),
    ],
)
def test_a_script_that_is_wrong(mistake, tmp_path: Path, body: str, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(body)
    line = mistake("optimize", f"{script}:make_workload", "--dry-run", "--device", "cpu")
    assert said in line


def test_an_output_folder_that_is_a_file(mistake, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    line = mistake(
        "optimize", "llama-tiny", "--dry-run", "--out", str(tmp_path / "out"), "--device", "cpu"
    )
    assert "--out" in line


def test_dry_run_says_what_would_be_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["optimize", "llama-tiny", "--dry-run", "--json", "--device", "cpu"]
    assert main([*words, "--ledger", str(tmp_path / "ledger.db")]) == 0
    document = json.loads(capsys.readouterr().out)
    names = {lever["name"] for lever in document["levers"]}
    left_out = {change["name"] for change in document["skipped"]}
    assert "bf16-weights" in names | left_out  # left out where the CPU multiplies bf16 slowly
    assert "kernel:adamw" in names
    assert all(lever["source"] and lever["expected"] for lever in document["levers"])
    assert all(skipped["reason"] for skipped in document["skipped"])


def test_keep_precision_leaves_the_arithmetic_levers_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["optimize", "llama-tiny", "--dry-run", "--json", "--keep-precision"]
    assert main([*words, "--device", "cpu", "--ledger", str(tmp_path / "ledger.db")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not any(lever["changes_arithmetic"] for lever in document["levers"])


def test_the_installed_command_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("ratchet ")
