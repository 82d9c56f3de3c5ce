"""`ratchet site --serve`: it shows what `--out` writes, follows the ledger, and takes no orders."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HEEDING
from commands_guard import mistake
from history_rows import noisy, rows
from site_crawler import crawl

from ratchet.base.errors import LedgerError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import ObservationBook
from ratchet.guard.site import serve
from ratchet.guard.site.book import SiteBook
from ratchet.guard.site.serve import FollowedSite, SiteServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SiteServer]:
    """A server of a ledger that does not exist yet."""
    faults: list[str] = []
    site = FollowedSite(lambda: Ledger.open_to_read(tmp_path / "ledger.db"), "", faults.append)
    site.faults = faults  # type: ignore[attr-defined]
    server = SiteServer(site, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    server: SiteServer, path: str, method: str = "GET", host: str = ""
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def fill(tmp_path: Path, seed: int) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ObservationBook(ledger).record(rows(noisy(seed, factor=1.2), benchmark=f"b{seed}"))


def test_it_follows_its_ledger(server: SiteServer, tmp_path: Path) -> None:
    assert b"Nothing was measured yet" in ask(server, "/")[1]
    assert not server.site.look() and not (tmp_path / "ledger.db").exists()
    for seed in (0, 1):
        fill(tmp_path, seed)
        assert server.site.look() and not server.site.look()

    def page(name: str) -> bytes | None:
        status, body, _ = ask(server, f"/{name}")
        return body if status == 200 else None

    pages, outside = crawl(page)
    assert sum(name.startswith("series-") for name in pages) == 2
    assert outside == set()
    assert b'http-equiv="refresh"' in ask(server, "/matrix.html")[1]


def test_a_ledger_that_fails_is_told_once_and_the_pages_stay(
    server: SiteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 0)
    server.site.look()

    def down(self: SiteBook) -> tuple[int, ...]:
        raise LedgerError("the database is down")

    monkeypatch.setattr(SiteBook, "newest", down)
    assert not server.site.look() and not server.site.look()
    assert server.site.faults == ["the database is down"]  # type: ignore[attr-defined]
    assert ask(server, "/index.html")[0] == 200


def test_it_only_reads(server: SiteServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"):
        assert ask(server, "/", method)[0] == 501
    status, body, headers = ask(server, "/", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0
    assert headers["Cache-Control"] == "no-store" and "Python" not in headers["Server"]
    for path in ("/../../etc/passwd", "/%2e%2e/x", "//etc/passwd", "/series.html/", "/<b>", "/~"):
        status, body, _ = ask(server, path)
        assert status == 404 and b"<b>" not in body
    assert ask(server, "/index.html?x=1")[0] == 200
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "[::1]:80"):
        assert ask(server, "/", host=host)[0] == 421
    assert ask(server, "/", host="localhost:1")[0] == 200
    assert server.server_address[0] == serve.HOST


def test_a_browser_that_leaves_or_talks_nonsense_does_no_harm(
    server: SiteServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for sent in (
        b"",
        b"\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 70_000,
    ):
        with socket.create_connection(server.server_address[:2], timeout=10) as client:
            client.sendall(sent)
    assert ask(server, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_mistakes_are_told_in_a_line(
    server: SiteServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    port = str(server.server_address[1])
    for words, said in (
        (["--serve", "--port", port], f"--port {port} cannot be listened on"),
        (["--serve", "--out", str(tmp_path / "out")], "one of the two"),
        (["--serve", "--port", "70000"], "65535"),
        (["--serve", "--commit-url", "x"], "is no template"),
    ):
        assert said in mistake(capsys, "site", *words, *ledger)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    words = ["-m", "ratchet.cli", "site", "--serve", "--port", "0", "--json"]
    words = [*HEEDING, sys.executable, *words, "--ledger", str(tmp_path / "ledger.db")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stderr is not None
        try:
            text = ""
            while not text.rstrip().endswith("}"):
                text += run.stdout.readline()
            assert json.loads(text)["url"].startswith("http://127.0.0.1:")
            run.send_signal(number)
            assert (run.wait(60), run.stderr.read().count("\n")) == (code, 1)
        finally:
            run.kill()
