"""`ratchet history`: the commands, the page, and files that are too large or wrong."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands_guard import mistake
from history_rows import noisy, revision_of, rows

from ratchet.cli import main
from ratchet.guard.history import analyse, gather
from ratchet.guard.history.formats import write_results
from ratchet.guard.history.incidents import incidents
from ratchet.guard.history.show import render_history_page


@pytest.fixture
def filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Words that name a ledger with a regressed and a quiet benchmark."""
    written = rows(noisy(0, factor=1.2), benchmark="slow <b>") + rows(noisy(1), benchmark="quiet")
    write_results(tmp_path / "results.csv", written)
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    assert main(["history", "import", str(tmp_path / "results.csv"), *ledger]) == 0
    assert "200 results" in capsys.readouterr().out
    return ledger


def test_show_names_the_commit(filled: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "show", "--json", *filled]) == 1
    document = json.loads(capsys.readouterr().out)
    (incident,) = document["incidents"]
    assert incident["revision"] == revision_of(60)
    assert incident["series"][0]["change"] == pytest.approx(0.2, abs=0.02)
    assert [one["regressed"] for one in document["series"]] == [False, True]

    assert main(["history", "show", *filled]) == 1
    assert revision_of(60)[:10] in capsys.readouterr().out
    assert main(["history", "acknowledge", incident["id"], "--note", "mine", *filled]) == 0
    assert main(["history", "show", "--only", "quiet", *filled]) == 0
    assert main(["history", "show", *filled]) == 0
    assert "acknowledged" in capsys.readouterr().out
    assert main(["history", "resolve", incident["id"], *filled]) == 0
    assert "is resolved" in capsys.readouterr().out


def test_the_page_is_one_file(
    filled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "show", "--out", str(tmp_path / "page.html"), *filled]) == 1
    capsys.readouterr()
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', page)
    assert "slow <b>" not in page and "slow &lt;b&gt;" in page
    tiles = re.findall(r'class="multiple (\w+)" data-key="([^"]+)"', page)
    assert [tone for tone, _ in tiles] == ["regression", "quiet"]


def test_the_page_shows_every_result_and_what_changed() -> None:
    software = ["old"] * 30 + ["new"] * 70
    analysed = analyse(gather(rows(noisy(0, factor=1.2), software=software)))
    (incident,) = found = incidents(analysed)
    page = render_history_page(analysed, found)
    titles = re.findall(r'<path class="point"[^>]*><title>([^<]*)</title>', page)
    assert len(titles) == 100
    assert all(one in titles[60] for one in (revision_of(60)[:10], "2026-01-03T12:00", "new"))
    assert re.search(rf'title="regression \+\d+\.\d%, incident {incident.id}"', page)
    assert "new environment, same level" in page
    (anchor,) = re.findall(r'<a href="#(series-\w+)">', page)
    assert f'id="{anchor}"' in page
    assert "unsafe-eval" not in page


def test_nothing_measured_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "show", "--ledger", str(tmp_path / "new.db")]) == 0
    assert "No results yet" in capsys.readouterr().out


def test_mistakes_are_told_in_a_line(
    filled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text("benchmark,value\nx,1\nx,fast\n")
    for words, said in (
        (["import", str(tmp_path / "none.csv")], "No such file"),
        (["import", str(tmp_path / "bad.csv")], "bad.csv:3: 'fast' is no number"),
        (["import", str(tmp_path / "bad.csv"), "--time", "soon"], "is no time"),
        (["show", "--only", "("], "no regular expression"),
        (["show", "--only", "zz"], "'zz' matches none of 2 series"),
        (["export", "x.csv", "--only", "zz"], "'zz' matches none of 2 series"),
        (["show", "--at-least", "lots"], "is no share"),
        (["show", "--out", str(tmp_path / "x" / "page.html")], "folder"),
        (["export", str(tmp_path / "x" / "y.csv")], "folder"),
        (["resolve", "f00"], "no incident 'f00'"),
    ):
        assert said in mistake(capsys, "history", *words, *filled)
    assert main(["history", "export", str(tmp_path / "all.csv"), "--json", *filled]) == 0
    assert json.loads(capsys.readouterr().out)["exported"] == 200  # of bad.csv nothing was kept


def test_a_file_that_is_imported_again_counts_once(
    filled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["history", "show", "--json", *filled])
    before = json.loads(capsys.readouterr().out)
    assert main(["history", "import", str(tmp_path / "results.csv"), "--json", *filled]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["imported"], said["skipped"]) == (0, 200)
    main(["history", "show", "--json", *filled])
    assert json.loads(capsys.readouterr().out) == before
    assert main(["history", "import", str(tmp_path / "results.csv"), *filled]) == 0
    assert "200 that it held already were skipped" in capsys.readouterr().out


def test_an_import_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [{"name": f"b{at}", "error_occurred": True, "error_message": "x"} for at in range(7)]
    ran = {"name": "ok", "real_time": 1, "cpu_time": 1}
    document = {"context": {"date": "2026-01-01"}, "benchmarks": [ran, *failed]}
    (tmp_path / "run.json").write_text(json.dumps(document))
    words = ["history", "import", str(tmp_path / "run.json"), "--ledger", str(tmp_path / "l.db")]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "2 results" in text and "7 without a result: b0: it failed (x); b1" in text
    assert "and 2 more" in text
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["left_out"]) == 7


def test_an_export_that_cannot_hold_all_says_so(
    filled: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "export", str(tmp_path / "g.json"), *filled]) == 0
    assert "left out: 198 results, and 0 of 2 series altogether" in capsys.readouterr().out
    assert main(["history", "export", str(tmp_path / "g.json"), "--json", *filled]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"results": 198, "series": 0}


@pytest.mark.parametrize("command", ["show", "import", "export", "acknowledge", "resolve"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "ratchet.cli", *sys.argv[1:]], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command in a process without other children, and prints its peak memory in KiB."""


@pytest.mark.thorough
def test_a_million_lines_are_read(tmp_path: Path) -> None:
    with (tmp_path / "large.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["benchmark", "revision", "time", "value"])
        writer.writerows(("x", f"c{i}", 1700000000 + i, 1 + i % 7) for i in range(1_000_000))
    words = ["history", "import", str(tmp_path / "large.csv"), "--ledger", str(tmp_path / "l.db")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, timeout=400
    )
    assert done.stdout.startswith("1000000 results"), done.stderr
    assert int(done.stdout.split()[-1]) < 1_500_000
