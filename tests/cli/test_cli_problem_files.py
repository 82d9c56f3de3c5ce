"""Files of problems that raise, or that may not be read, as a user of the commands meets them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ratchet.base.errors import KernelError
from ratchet.cli import main
from ratchet.judge.problems.problem_file import read_source

NOBODY = 65534
MODEL = """
import torch
from torch import nn
AT_IMPORT
class Model(nn.Module):
    def forward(self, x):
        IN_FORWARD
        return torch.relu(x)
def get_inputs():
    IN_GET_INPUTS
    return [torch.randn(4, 8)]
def get_init_inputs():
    return []
"""
ANSWER = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0)
"""
PLACES = ("AT_IMPORT", "IN_GET_INPUTS", "IN_FORWARD")


def model(raising: str = "") -> str:
    """A problem that raises at one of the places."""
    text = MODEL
    for place in PLACES:
        line = "raise OSError('the weights are\\non Mars')" if place == raising else "pass"
        text = text.replace(place, line)
    return text


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_judge: None) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    Path("kernel.py").write_text(ANSWER)


@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_raises_is_refused_by_its_error(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("problem.py").write_text(model(place))
    assert main(["judge", "problem.py", "kernel.py", "--json"]) == 1
    captured = capsys.readouterr()
    verdict = json.loads(captured.out)
    assert verdict["status"] == "refused"
    assert "OSError: the weights are on Mars" in verdict["reason"]
    assert "\n" not in verdict["reason"] and "Traceback" not in captured.out + captured.err


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def unreadable() -> Path:
    """A file that nobody may read, in a folder where everybody may write."""
    Path.cwd().chmod(0o777)
    path = Path("unreadable.py")
    path.write_text(model())
    path.chmod(0)
    return path


def test_a_file_that_may_not_be_read_is_one_line(unreadable: Path) -> None:
    with (
        as_nobody(),
        pytest.raises(KernelError, match=r"unreadable\.py.*Permission denied") as found,
    ):
        read_source(unreadable)
    assert "\n" not in str(found.value)
    unreadable.chmod(0o644)
    with as_nobody():
        assert "class Model" in read_source(unreadable)


@pytest.mark.parametrize("command", ["judge", "inspect"])
@pytest.mark.parametrize("which", ["problem", "kernel"])
def test_a_command_names_the_file_that_may_not_be_read(
    command: str, which: str, unreadable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        [str(unreadable), "kernel.py"] if which == "problem" else ["squared_relu", str(unreadable)]
    )
    main([command, "squared_relu", "missing.py"])  # imports all that is imported late
    capsys.readouterr()
    with as_nobody():
        code = main([command, *words])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err, captured.err
    assert "unreadable.py" in captured.err and "Permission denied" in captured.err
