"""`ratchet knowledge`: add, list, search, remove, in words and as JSON; mistakes are one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    made = tmp_path / "documents"
    made.mkdir()
    (made / "tips.md").write_text("# Tips\n\n## Blocking\n\nThe aardvark blocks by 96 rows.\n")
    (made / "kernel.o").write_bytes(b"\x7fELF\0\0")
    os.mkfifo(made / "pipe")
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["knowledge", *words])
    return code, capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code, out = run(capsys, *words, "--json")
    return code, json.loads(out)


def test_documents_are_added_listed_found_and_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capsys, "add", str(folder))
    assert code == 0
    lines = out.splitlines()
    assert f"added      {folder}/tips.md (1 passage)" in lines
    assert f"left out   {folder}/pipe: is a FIFO" in lines
    assert any(line.startswith(f"left out   {folder}/kernel.o: is binary") for line in lines)
    assert lines[-1].startswith("1 indexed, 2 left out; the index is ")

    code, out = run(capsys, "list")
    assert code == 0 and "ratchet/amd.md" in out and "tips.md" in out

    code, out = run(capsys, "search", "aardvark")
    assert code == 0 and f"{folder}/tips.md, Tips > Blocking" in out
    assert "The aardvark blocks by 96 rows." in out
    assert run(capsys, "search", "zzzzz")[0] == 1

    code, out = run(capsys, "remove", str(folder))
    assert (code, out) == (0, f"removed {folder}/tips.md\n")
    assert run(capsys, "search", "aardvark")[0] == 1


def test_every_answer_is_one_document_of_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = as_json(capsys, "add", str(folder))
    assert code == 0 and [one["change"] for one in found["indexed"]] == ["added"]
    assert sorted(one["path"] for one in found["left_out"]) == [
        f"{folder}/kernel.o",
        f"{folder}/pipe",
    ]
    assert found["index"] == str(folder.parent / "ledger-knowledge.db")
    _, found = as_json(capsys, "list")
    assert [one["shipped"] for one in found["documents"]] == [True, True, True, False]
    _, found = as_json(capsys, "search", "occupancy waves", "--most", "2")
    assert len(found["passages"]) == 2 and found["passages"][0]["source"].startswith("ratchet/amd")
    _, found = as_json(capsys, "remove", str(folder / "tips.md"))
    assert found == {"removed": [f"{folder}/tips.md"]}


def test_nothing_that_can_be_indexed_is_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "add", str(folder / "kernel.o"))[0] == 1
    assert run(capsys, "add", str(folder / "pipe"))[0] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "/no/such/place"), "'/no/such/place' does not exist"),
        (("add",), "Missing argument"),
        (("remove", "/no/such/place"), "no document '/no/such/place' is indexed"),
        (("remove", "ratchet/amd.md"), "ships with Ratchet"),
        (("search", "x", "--most", "0"), "--most"),
        (("find", "x"), "No such command"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["knowledge", *words]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_the_commands_import_no_torch_and_no_model_client() -> None:
    code = (
        "import sys; from ratchet.cli import main; main(['knowledge', 'search', 'occupancy']);"
        "print([one for one in ('torch', 'openai', 'pypdf') if one in sys.modules],"
        "file=sys.stderr)"
    )
    environment = {**os.environ, "RATCHET_LEDGER": "/nonexistent-ratchet/ledger.db"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
