"""A site on 127.0.0.1: it only reads, and follows its ledger while a run goes on.

Pages are rendered when they are asked for. A ledger that grew is read again in the background, and
the pages of the last reading are shown meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Ledger
from ratchet.guard.site import site_pages
from ratchet.guard.site.book import SiteBook

HOST: Final = "127.0.0.1"
RELOAD_S: Final = 10  # A page loads itself again
LOOK_S: Final = 2.0  # Between two looks at the ledger
LIMIT_S: Final = 10.0  # For a browser to send its request
HEADERS: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class FollowedSite:
    """The pages of a ledger, read again when it grew."""

    def __init__(
        self, open_ledger: Callable[[], Ledger], commit_url: str, fault: Callable[[str], None]
    ) -> None:
        """Read the ledger for the first time; `fault` hears of each later failure once."""
        self._open, self._commit_url, self._fault = open_ledger, commit_url, fault
        self._said = ""
        self._stop = threading.Event()
        self._ledger = open_ledger()
        self._newest = SiteBook(self._ledger).newest()
        self.pages = site_pages(self._ledger, commit_url)

    def look(self) -> bool:
        """Read the ledger again if it grew; return whether it did. A failure is told once."""
        try:
            if not self._ledger.engine.url.database:  # it stands in for a file that was missing
                self._ledger = self._open()
            newest = SiteBook(self._ledger).newest()
            grew = newest != self._newest
            if grew:
                self.pages, self._newest = site_pages(self._ledger, self._commit_url), newest
        except RatchetError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._fault(self._said)
            return False
        self._said = ""
        return grew

    def follow(self) -> None:
        """Look at the ledger until `end` is called."""
        while not self._stop.wait(LOOK_S):
            self.look()

    def end(self) -> None:
        self._stop.set()


class SiteServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, site: FollowedSite, port: int) -> None:
        """Listen on a port, 0 for any that is free; RatchetError if it is taken."""
        self.site = site
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise RatchetError(
                f"--port {port} cannot be listened on ({error.strerror}): give another, or 0 for "
                "any that is free"
            ) from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def run(self) -> None:
        """Serve, and follow the ledger, until interrupted."""
        follower = threading.Thread(target=self.site.follow, daemon=True)
        follower.start()
        try:
            self.serve_forever()
        finally:
            self.site.end()
            self.server_close()

    def handle_error(self, request: object, address: object) -> None:
        """Say nothing of a browser that left; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            raise


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of the site's own pages; everything else is refused."""

    server: SiteServer
    server_version, sys_version = "ratchet", ""
    timeout = LIMIT_S

    def do_GET(self) -> None:
        # Another site may have its own name resolve to this machine (DNS rebinding).
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        name = urlsplit(self.path).path.removeprefix("/") or "index.html"
        site = self.server.site.pages
        if name not in site.reports:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            page = site.render(name, reload_s=RELOAD_S)
        except RatchetError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        self.send_response(HTTPStatus.OK)
        for key, value in {**HEADERS, "Content-Length": str(len(page))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the terminal is the user's."""
