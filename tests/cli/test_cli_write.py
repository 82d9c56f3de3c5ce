"""`ratchet write` as a user calls it: files, exit codes and mistakes."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import commands
import pytest
from commands import needs_judge

from ratchet.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write.md"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger and a folder of this test's own."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mistake(capsys: pytest.CaptureFixture[str]) -> functools.partial[str]:
    """Run a command that must fail; its one line."""
    return functools.partial(commands.mistake, capsys, "write")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "one of PROBLEM and --from WORKLOAD"),
        (("softmax", "--from", "gpt2-small"), "one of PROBLEM and --from WORKLOAD"),
        (("softmax", "--list"), "give --from WORKLOAD"),
        (("sofmax",), "softmax"),
        (("softmax", "--target", "gfx1030"), "unknown target 'gfx1030': use one of gfx90a, gfx942"),
        (("softmax", "--target", "gfx942", "--language", "cpp"), "leave out --language cpp"),
        (("softmax", "--target", "gfx942", "--device", "cuda"), "leave out --device"),
        (("softmax", "--budget", "soon"), "'soon' is not a duration"),
        (("softmax", "--budget", "5s"), "under 20 s"),
        (("softmax", "--language", "cuda"), "'cuda': use one of cpp, triton, torch"),
        (("softmax", "--authors", "me"), "'me': use one of library, search, compiler, agent"),
        (("softmax", "--authors", ","), "--authors names none"),
        (("softmax", "--authors", "agent"), "give --model, or --replay RUN"),
        (("softmax", "--base-url", "http://x"), "give --model too"),
        (("softmax", "--model", "m", "--replay", "r"), "leave --model out"),
        (("softmax", "--resume", "--fresh"), "give one of them"),
        (("softmax", "--device", "tpu"), "tpu"),
        (("softmax", "--seed", "-1"), "seed -1 is out of range"),
        (("softmax", "--resume"), "no unfinished run on 'softmax'"),
        (("softmax", "--out", "/dev/null"), "is a device: name a folder"),
        (("no_such.py",), "no_such.py"),
        (("--from", "gpt-2"), "gpt-2"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str, mistake) -> None:
    assert said in mistake(*words)


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    main(["write", "--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    page = PAGE.read_text()
    shared = {"--help", "--json", "--debug", "--ledger"}
    assert {one for one in options - shared if f"`{one}" not in page} == set()


@needs_judge
@pytest.mark.compiler
def test_a_problem_s_kernel_and_files_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["write", "squared_relu_tiny.py", "--authors", "library", "--json"]
    Path("squared_relu_tiny.py").write_text(TINY)
    code = main([*words, "--budget", "20s"])
    document = json.loads(capsys.readouterr().out)
    assert code == 1 and document["status"] == "none"
    folder = Path("ratchet-write/squared_relu_tiny")
    assert json.loads((folder / "result.json").read_text())["problem"] == "squared_relu_tiny"
    assert "No kernel for squared_relu_tiny was tried" in (folder / "report.html").read_text()
    assert not list(folder.glob("kernel.*"))


TINY = """
from ratchet import Case, Problem, TensorSpec

def squared_relu_tiny(x, scalars):
    return (x.relu().square(),)

PROBLEM = Problem(
    name="squared_relu_tiny", reference="squared_relu_tiny",
    cases=(Case(name="rows", timed=True, inputs=(
        TensorSpec(shape=(64, 32), dtype="float32"),)),),
)
"""
