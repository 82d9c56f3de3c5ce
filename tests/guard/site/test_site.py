"""`ratchet site`: no dead end, nothing that loads, honest limits, and ledgers that are hostile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands_guard import mistake
from history_rows import noisy, revision_of, rows
from site_crawler import crawl
from sqlalchemy import insert

from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Fingerprint, Ledger, schema
from ratchet.base.ledger.books import ObservationBook
from ratchet.base.measure import Sample
from ratchet.cli import main
from ratchet.guard import site
from ratchet.guard.history import analyse, gather
from ratchet.guard.history.incidents import follow, incidents, mark
from ratchet.guard.site import facts as site_facts
from ratchet.guard.site import links, lists
from ratchet.guard.site.links import check_commit_url, digits_of

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{ 7*7 }} ../../etc \N{RIGHT-TO-LEFT OVERRIDE}"
HERE = Fingerprint(device="d" * 16, software="s" * 16)
KERNEL, PROBLEM = "ab" * 32, "cd" * 32
RATIO = {"ratio": 1.5, "low": 1.4, "high": 1.6, "confidence": 0.983}
FORGE = "https://forge.example/p/commit/{commit}"


def fill(ledger: Ledger, name: str = "llama") -> None:
    """One thing of each kind, all with the same name."""
    book = ObservationBook(ledger)
    book.record(rows(noisy(0, factor=1.2), benchmark=f"{name} (cpu, fp32)", device=HERE["device"]))
    book.record(rows(noisy(1), benchmark=name, metric="memory", unit="B", device="build-7"))
    kernel = {"name": name, "language": "cpp", "source": f"// {name}", "entry": "f"}
    kernel |= {"schedule": [["chunk", 512], ["isa", "amx"]]}
    ledger.record_kernel(KERNEL, name, kernel, fingerprint=HERE)
    problem = {"name": name, "reference": "def reference(): pass\n", "cases": []}
    ledger.record_problem(PROBLEM, name, problem, fingerprint=HERE)
    ledger.record_verdict(
        {
            "kernel_hash": KERNEL,
            "problem_hash": PROBLEM,
            "status": "proven",
            "reason": name,
            "isolation": "none",
            "evidence": [{"check": name, "passed": True, "detail": name}],
            "speedup": {"vs_reference": RATIO},
        },
        fingerprint=HERE,
    )
    turn = ledger.start_turn("key", {"workload": name}, fingerprint=HERE)
    samples = [
        Sample(arm=arm, launch=0, round=at, position=0, iterations=1, wall_time_s=0.1, cpu_time_s=0)
        for arm in ("as_written", "ratchet")
        for at in range(3)
    ]
    ledger.record_measurements(turn, samples, purpose="proof")
    kernels = [{"hash": KERNEL, "library": "x"}]
    recipe = {"workload": name, "kernels": kernels, "speedup": {"vs_written": RATIO}}
    ledger.record_recipe(turn, recipe | {"config": {"precision": name}, "checksum": "1"})
    ledger.finish_turn(turn, {"speedup": {"vs_written": RATIO}, "recipe_is": "proven"})
    failed = ledger.start_turn(name, {}, fingerprint=HERE, command="compare")
    with pytest.raises(RatchetError), ledger.failing(failed):
        raise RatchetError(name)
    bench = {"device": "cpu", "precision": "fp32", "commit": revision_of(3), "step_time_s": 0.1}
    ledger.remember("bench", name, bench | {"versions": {"torch": name}}, fingerprint=HERE)
    run = {"problem_hash": PROBLEM, "name": name, "payload": {}, "fingerprint": HERE}
    ledger.append_writing_run("f" * 32, "started", **run)  # type: ignore[arg-type]
    answer = {"problem_hash": PROBLEM, "kernel_hash": KERNEL, "author": name, "stage": "judged"}
    ledger.append_writing_answer("f" * 32, {**answer, "status": "proven"}, fingerprint=HERE)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def crawled(ledger: Ledger, commit_url: str = FORGE) -> tuple[dict[str, str], set[str]]:
    """Return the text of every page that the index leads to, and the links that leave the site."""
    pages = site.site_pages(ledger, commit_url)
    rendered = {name: pages.render(name) for name in pages.reports}
    assert max(map(len, rendered.values())) <= site.MOST_BYTES
    found, outside = crawl(rendered.get)
    assert set(found) == set(rendered), "a page that nothing links to"
    return {name: page.decode() for name, page in rendered.items()}, outside


@pytest.mark.parametrize("name", ["llama", HOSTILE, "x" * 100_000, ""])
def test_every_page_is_linked_and_harmless(ledger: Ledger, name: str) -> None:
    fill(ledger, name)
    pages, outside = crawled(ledger)
    kinds = {page.partition("-")[0] for page in pages if "-" in page}
    assert kinds == {"series", "run", "recipe", "kernel", "verdict", "device", "incident"}
    assert outside and all(one.startswith("https://forge.example/p/commit/") for one in outside)
    assert f"https://forge.example/p/commit/{revision_of(60)}" in outside
    assert not any("<img" in page or "49 .." in page for page in pages.values())
    assert not any("damaged" in page for page in pages.values())


def test_the_overview_says_what_happened(ledger: Ledger) -> None:
    fill(ledger)
    pages, _ = crawled(ledger)
    index = pages["index.html"]
    assert "1 incident needs somebody" in index
    assert 'class="chip regression"' in index and 'class="chip quiet"' in index
    assert "1.50x" in index and "proven faster" in index
    assert any("chunk 512, isa amx" in page for page in pages.values())
    (series,) = (page for name, page in pages.items() if "regression, last" in page or (
        name.startswith("series-") and "regressed, last change" in page))  # fmt: skip
    assert "date of the commit (UTC), 2026-01-01 to 2026-01-05" in series
    assert series.count('class="point"') == 100
    assert 'class="divider regression"' in series
    assert 'chip regression" href' in pages["matrix.html"]


@pytest.mark.parametrize("recipe_is", ["as_written", "rival"])
def test_a_recipe_that_was_not_proven_is_not_called_so(ledger: Ledger, recipe_is: str) -> None:
    turn = ledger.start_turn("key", {"workload": "w"}, fingerprint=HERE)
    ledger.record_recipe(turn, {"workload": "w", "kernels": [], "speedup": {}})
    ledger.finish_turn(turn, {"speedup": {}, "recipe_is": recipe_is})
    pages, _ = crawled(ledger)
    assert "Nothing was proven yet." in pages["index.html"]
    said = lists.RECIPE_IS[recipe_is].replace("'", "&#39;")
    (recipe,) = (page for name, page in pages.items() if name.startswith("recipe-"))
    assert said in recipe and said in pages["recipes.html"]
    assert "chip improvement" not in recipe


def test_a_site_does_not_change_its_ledger(ledger: Ledger) -> None:
    fill(ledger)
    before = ledger.counts()
    assert "1 regressed" in site.badge(site.site_pages(ledger).facts)
    crawled(ledger)
    assert ledger.counts() == before
    book = ObservationBook(ledger)
    every = analyse(gather(book.observations()))
    (incident,) = follow(book, incidents(every), [one.series.key for one in every])
    mark(book, incident.id, "resolved", "accepted")
    pages, _ = crawled(ledger)
    assert "No incident is open" in pages["index.html"]
    assert "no regression" in site.badge(site.site_pages(ledger).facts)
    assert "state-resolved" in pages["incidents.html"]
    assert "accepted" in pages[f"incident-{digits_of(incident.id)}.html"]


def test_an_empty_ledger_is_a_site_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "public"
    words = ["site", "--out", str(out), "--ledger", str(tmp_path / "none.db"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["pages"] == len(list(out.glob("*.html"))) == 9
    assert "nothing measured" in (out / "badge.svg").read_text()
    crawl(lambda name: (out / name).read_bytes() if (out / name).exists() else None)
    assert "Nothing was measured yet" in (out / "index.html").read_text()
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("payload", ["null", "[]", "{", '{"a": [1, {"b": null}]}', '"text"'])
def test_a_damaged_row_costs_its_own_page(ledger: Ledger, payload: str) -> None:
    fill(ledger)
    tables = [one for one in schema.metadata.sorted_tables if "payload" in one.c]
    with ledger.engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"UPDATE {table.name} SET payload = ?", (payload,))
    with pytest.MonkeyPatch.context() as patch:
        # Without the payload of its events, nothing knows the series of an incident.
        patch.setattr(ObservationBook, "events", lambda self: [])
        pages, _ = crawled(ledger)
    assert any("damaged" in page for page in pages.values())


def test_a_result_that_is_no_number_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path / "ledger.db")
    with Ledger.open(place) as ledger:
        ObservationBook(ledger).record(rows([1.0, 2.0]))
        with ledger.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE observations SET value = 'fast' WHERE id = 1")
    for words in (["site", "--out", str(tmp_path / "out")], ["history", "show"]):
        assert "'fast', which is no number" in mistake(capsys, *words, "--ledger", place)


def test_series_that_cannot_be_drawn_are_named(ledger: Ledger) -> None:
    other = rows([1.0] * 5, benchmark="fine") + rows([float("nan")] * 5, benchmark="nan")
    ObservationBook(ledger).record(other + rows([1.0], benchmark="two"))
    with ledger.engine.begin() as connection:
        row = rows([2.0], benchmark="two", unit="B")[0]
        values = {name: getattr(row, name) for name in row.__dataclass_fields__}
        odd = {"committed_at": "<b>soon</b>", "value": 3.0, "at": ""}
        connection.execute(insert(schema.observations).values(**values | odd))
        named = {"benchmark": "odd time", "unit": "s"}
        connection.execute(insert(schema.observations).values(**values | odd | named))
    pages, _ = crawled(ledger)
    assert "give one metric one unit" in pages["index.html"]
    assert "none" not in pages["series.html"] or "nan" in pages["series.html"]
    assert "<b>soon" not in "".join(pages.values())


def test_long_lists_are_cut_and_say_so(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(ledger)
    book = ObservationBook(ledger)
    for at in range(12):
        book.record(rows([1.0, 2.0], benchmark=f"b{at:02}", device=f"machine {at}"))
    monkeypatch.setattr(site_facts, "MOST_SERIES", 10)
    monkeypatch.setattr(links, "PER_PAGE", 4)
    pages, _ = crawled(ledger)
    assert {"series.html", "series-2.html", "series-3.html"} <= set(pages)
    assert "10 of 14 series are shown; the changed ones come first." in pages["series.html"]
    assert "Page 2 of 3" in pages["series-2.html"]
    assert "8 of 10 devices are shown" in pages["matrix.html"]
    assert site.write_site(ledger, tmp_path / "out").left_out == {"series": 4}


def test_what_is_too_large_for_a_page_gives_way(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    monkeypatch.setattr(site, "MOST_BYTES", 30_000)
    pages, _ = crawled(ledger)
    assert any("too large for a page" in page for page in pages.values())


def test_old_pages_go_and_others_stay(ledger: Ledger, tmp_path: Path) -> None:
    out = tmp_path / "public"
    book = ObservationBook(ledger)
    book.record(rows([1.0, 2.0]))
    site.write_site(ledger, out)
    for name in ("run-abc.html", "mine.html"):
        (out / name).write_text("mine")
    (out / "run-def.html").write_text(site.MARK)
    written = site.write_site(ledger, out)
    assert written.removed == 1
    assert (out / "run-abc.html").read_text() == (out / "mine.html").read_text() == "mine"


def test_mistakes_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    mine = tmp_path / "mine"
    (mine / "src").mkdir(parents=True)
    report = tmp_path / "report"
    report.mkdir()
    (report / "index.html").write_text("<title>A turn: Ratchet</title>")
    (tmp_path / "file").write_text("x")
    (tmp_path / "bad.db").write_text("this is no database")
    with Ledger.open(tmp_path / "torn.db") as opened:
        fill(opened)
    torn = (tmp_path / "torn.db").read_bytes()
    (tmp_path / "torn.db").write_bytes(torn[:8192] + b"\xff" * (len(torn) - 8192))
    out = ["--out", str(tmp_path / "out")]
    for words, said in (
        ([*ledger], "give --out FOLDER"),
        (["--out", str(mine), *ledger], "holds src, which this command did not write"),
        (["--out", str(report), *ledger], "holds index.html, which this command did not write"),
        (["--out", str(tmp_path / "file"), *ledger], "is a file: name a folder"),
        (["--out", str(tmp_path / "file" / "x"), *ledger], "is a file: name a folder"),
        (["--out", "", *ledger], "the path is empty"),
        ([*out, "--ledger", str(tmp_path / "bad.db")], "not a ledger"),
        ([*out, "--ledger", str(tmp_path / "torn.db")], "damaged"),
        ([*out, "--ledger", str(tmp_path)], "is a folder"),
        ([*out, "--ledger", "mysql://me@host/db"], "SQLite or PostgreSQL"),
        ([*out, "--commit-url", "javascript:alert({commit})", *ledger], "is no template"),
        ([*out, "--commit-url", "https://forge/commit/", *ledger], "is no template"),
        ([*out, "--commit-url", "https:///{commit}", *ledger], "is no template"),
    ):
        assert said in mistake(capsys, "site", *words), words
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_names_of_files_are_safe() -> None:
    assert digits_of("ab" * 32) == "ab" * 6
    for name in ("../../x", "", "\udcff", "a" * 10_000, "con"):
        assert len(digits_of(name)) == 12 and digits_of(name).isalnum()
    assert check_commit_url("") == ""
    shown = links.SiteLinks(commit_url=check_commit_url(FORGE)).forge("v1/../<x>+changes")
    assert shown == "https://forge.example/p/commit/v1%2F..%2F%3Cx%3E"


def test_a_ledger_on_postgresql_makes_the_same_pages(
    ledger: Ledger, new_database: Callable[[], str]
) -> None:
    fill(ledger)
    with Ledger.open(new_database()) as other:
        fill(other)
        pages = [
            {name for name in crawled(one)[0] if "run-" not in name} for one in (ledger, other)
        ]
    assert pages[0] == pages[1]


def test_a_long_series_is_also_drawn_whole(ledger: Ledger) -> None:
    ObservationBook(ledger).record(rows(noisy(0, at=350, factor=1.2, count=400)))
    pages, _ = crawled(ledger)
    (series,) = (page for name, page in pages.items() if name.startswith("series-"))
    assert 'class="plot points dense"' in series and 'style="--count: 400"' in series
    assert "300 of 400 results are shown" in series
