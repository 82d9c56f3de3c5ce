"""`ratchet compare` and `ratchet repro` on commands, revisions and environments."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.base.ledger import Ledger
from ratchet.base.measure import contest
from ratchet.cli import main


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setattr(contest, "MOST_ROUNDS", 6)  # printed numbers need no more
    monkeypatch.chdir(tmp_path)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose second commit prints a number that is 10 % larger."""
    folder = tmp_path / "repo"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init")
    for value in (100, 110):
        (folder / "sub" / "value").write_text(f"{value}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-m", str(value))
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = main(["compare", "--budget", "30s", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_two_commands_and_their_repro(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = said(capsys, "--printed", "--", "echo loss=100", "echo loss=90")
    assert code == 0 and found["answer"] == "faster"
    first = found["metrics"][0]
    assert first["metric"]["name"] == "loss" and first["ratio"] == pytest.approx(100 / 90)
    with Ledger.open() as book:
        assert len(book.measurements(found["id"])) == 3 * first["pairs"]
        kept = book.recall("compare_readings", found["id"])
        assert kept is not None
        assert {one["value"] for one in kept["readings"] if one["metric"] == "loss"} == {100, 90}
    assert main(["repro", found["id"][:10], "--out", str(tmp_path / "out"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["files"] == ["environment.json", "issue.md", "reproduce.py"]
    assert "loss: faster" in (tmp_path / "out" / "issue.md").read_text()


def test_what_repro_writes_for_timed_commands_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, found = said(capsys, "--", "true", "true")
    assert main(["repro", found["id"][:12]]) == 0
    script = tmp_path / "ratchet-repro" / found["id"][:12] / "reproduce.py"
    done = subprocess.run(
        [sys.executable, str(script), "4"], capture_output=True, text=True, check=True
    )
    assert "A / B" in done.stdout


def reproduction(capsys: pytest.CaptureFixture[str], found: dict, out: Path) -> dict:
    """Return what `ratchet repro` says of a comparison."""
    capsys.readouterr()
    assert main(["repro", found["id"], "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_repro_pins_commits_folder_and_budget_and_says_what_it_needs(
    capsys: pytest.CaptureFixture[str],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository)
    first, second = git(repository, "rev-parse", "HEAD~1", "HEAD").split()
    words = ("--printed", "--rev-a", "HEAD~1", "--", "cat", "sub/value")
    _, found = said(capsys, *words)
    git(repository, "commit", "--allow-empty", "-m", "later")  # HEAD~1 is another commit now
    made = reproduction(capsys, found, tmp_path / "out")
    needs = "\n".join(made["needs"])
    assert f"the folder {repository}, at commit {second}" in needs
    assert f"commit {first} in" in needs and "torch-ratchet" in needs
    script = tmp_path / "out" / "reproduce.py"
    pinned = ("'--rev-a', '" + first, "'--rev-b', '" + second, "'--budget', '30s'")
    assert all(one in script.read_text() for one in (*pinned, *made["needs"]))
    assert all(one in (tmp_path / "out" / "issue.md").read_text() for one in made["needs"])
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert f"({first[:10]})" in done.stdout and f"({second[:10]})" in done.stdout
    assert f"is at {git(repository, 'rev-parse', 'HEAD')}, and was at {second}" in done.stderr
    gone = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "gone")], capture_output=True, text=True
    )
    assert gone.returncode == 1 and gone.stderr.count("\n") == 1
    assert "this needs the folder" in gone.stderr


def test_repro_says_that_changes_of_your_files_cannot_be_pinned(
    capsys: pytest.CaptureFixture[str],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository)
    (repository / "sub" / "value").write_text("90\n")
    _, found = said(capsys, "--printed", "--rev-a", "HEAD", "--", "cat", "sub/value")
    made = reproduction(capsys, found, tmp_path / "out")
    assert any("no commit holds them" in one for one in made["needs"])
    assert "--rev-b" not in (tmp_path / "out" / "reproduce.py").read_text()


def test_a_repro_of_two_commands_has_their_pairs_whatever_its_folder_is_called(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / 'a \\x "quoted" """ folder'
    odd.mkdir()
    monkeypatch.chdir(odd)
    _, found = said(capsys, "--", "true", "true")
    made = reproduction(capsys, found, tmp_path / "out")
    assert made["needs"][0].startswith("Python 3.9")
    text = (tmp_path / "out" / "reproduce.py").read_text()
    assert f"else {max(one['pairs'] for one in found['metrics'])}\n" in text
    compile(text, "reproduce.py", "exec")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "out" / "reproduce.py"), "2"],
        capture_output=True,
        text=True,
    )
    assert "A / B" in done.stdout, done.stderr


def test_slower_is_exit_code_1_and_a_budget_allows_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--printed", "--", "echo 100", "echo 104")
    code, found = said(capsys, *words)
    assert (code, found["answer"]) == (1, "slower")
    code, found = said(capsys, "--fail-if-slower", "5%", *words)
    assert (code, found["answer"]) == (0, "equivalent")
    code, found = said(capsys, "--higher", "value", *words)
    assert (code, found["answer"]) == (0, "faster")


def test_two_revisions(
    capsys: pytest.CaptureFixture[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "sub")
    (repository / "sub" / "value").write_text("90\n")  # a change that is not committed
    before = git(repository, "status", "--porcelain")
    compared = ("--printed", "--rev-a", "HEAD~1")
    code, found = said(capsys, *compared, "--rev-b", "HEAD", "--", "cat", "value")
    assert code == 1 and found["baseline"].startswith("HEAD~1 (")
    assert "not committed" in found["warnings"][0]
    code, found = said(capsys, *compared, "--", "cat", "value")
    assert code == 0 and found["new"] == "your files" and found["answer"] == "faster"
    assert git(repository, "status", "--porcelain") == before
    assert git(repository, "worktree", "list").count("\n") == 0


def test_a_setup_runs_in_each_revision(
    capsys: pytest.CaptureFixture[str], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    words = ("--printed", "--rev-a", "HEAD~1", "--rev-b", "HEAD", "--setup", "cp sub/value made")
    code, _ = said(capsys, *words, "--", "cat made")
    assert code == 1
    assert not (repository / "made").exists()


def test_two_environments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, value in (("one", 10), ("two", 20)):
        (tmp_path / name / "bin").mkdir(parents=True)
        python = tmp_path / name / "bin" / "python"
        python.write_text(f"#!/bin/sh\necho {value}\n")
        python.chmod(0o755)
    code, found = said(
        capsys, "--printed", "--python-a", "one", "--python-b", "two", "--", "python", "-V"
    )
    assert code == 1 and found["metrics"][0]["ratio"] == pytest.approx(0.5)


MISTAKES = [
    ((), "needs two sides"),
    (("llama-tiny",), "alone is one side"),
    (("llama-tiny", "gpt2-tiny", "moe-tiny"), "takes two workloads"),
    (("llama-tinyy", "gpt2-tiny"), "did you mean"),
    (("llama-tiny", "--b", "fast"), "mode 'fast' is unknown"),
    (("llama-tiny", "--b", "x.json,compile"), "a recipe sets"),
    (("llama-tiny", "--b", "none.json"), "none.json"),
    (("llama-tiny", "--", "true", "true"), "both were given"),
    (("--", "true"), "quote each of the two"),
    (("--", "python", "a.py", "b.py"), "quote each of the two"),
    (("--a", "compile", "--", "true", "true"), "modes of a workload"),
    (("--printed", "--", "true", "true"), "printed no number"),
    (("--printed", "--", "echo 1", "echo 1 2"), "printed the metrics"),
    (("--printed", "--higher", "zz", "--", "echo a=1", "echo a=3"), "'zz' is no metric"),
    (("--printed", "--", "echo 0", "echo 1"), "needs values above 0"),
    (("--", "false", "true"), "exited with 1"),
    (("--higher", "x", "--", "true", "true"), "add --printed"),
    (("--setup", "x", "--", "true", "true"), "give --rev-a"),
    (("--fail-if-slower", "fast", "--", "true", "true"), "is no share"),
    (("--fail-if-slower", "2", "--", "true", "true"), "is no share"),
    (("--budget", "1s", "--", "true", "true"), "too short"),
    (("--rev-a", "HEAD", "--", "true"), "not a git repository"),
    (("--python-a", "nowhere", "--", "true"), "interpreter"),
    (("--seed", "-1", "--", "true", "true"), "seed -1"),
    (("--numerics", "--", "true", "true"), "two workloads"),
]


@pytest.mark.parametrize(("words", "why"), MISTAKES)
def test_mistakes_are_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    captured = capsys.readouterr()
    assert why in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_a_revision_that_does_not_exist(
    capsys: pytest.CaptureFixture[str],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository)
    assert main(["compare", "--rev-a", "v9", "--", "true"]) == 2
    assert "has no commit 'v9'" in capsys.readouterr().err
    git(tmp_path, "clone", "--depth", "1", f"file://{repository}", "shallow")
    monkeypatch.chdir(tmp_path / "shallow")
    assert main(["compare", "--rev-a", "HEAD~1", "--", "true"]) == 2
    assert "git fetch --unshallow" in capsys.readouterr().err


def test_an_interrupt_says_what_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ratchet.guard.compare.request.make_sides", interrupted)
    assert main(["compare", "--", "true", "true"]) == 130
    assert "the ledger holds its samples" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
def test_instructions_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    loop = "for i in 1 2 3 4 5 6 7 8 9; do :; done; echo 1"
    _, found = said(capsys, "--instructions", "--printed", "--", "echo 1", loop)
    counts = found["instructions"]
    assert counts["new"] > counts["baseline"] > 1000 and counts["ratio"] < 1


def test_a_command_that_fails_at_last_loses_no_sample(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    count = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -lt 20"
    assert main(["compare", "--", "true", count]) == 2
    assert "exited with 1" in capsys.readouterr().err
    with Ledger.open() as book:
        (turn,) = book.turns_named("")
        assert len(book.measurements(turn.turn)) > 20


def test_a_command_that_takes_too_long_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = said(capsys, "--", "sleep 2", "sleep 2")
    assert code == 3 and found["metrics"] == [] and found["needed_s"] > 30


@pytest.mark.parametrize("named", ["xyz", "12", "0123456789ab"])
def test_a_finding_that_is_not_there(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", named]) == 2
    assert capsys.readouterr().err.count("\n") == 1
