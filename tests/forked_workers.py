"""`--workers N`: one process imports and collects the tests, and N forks of it run them.

Each worker of pytest-xdist collects all tests by itself, which takes some 12 s of CPU time, and
about as much is spent on telling each other of tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import groupby, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

SHARED = pytest.StashKey[Path]()
"""The folder in which each fork has one of its own."""
NUMBER = 4
"""Bytes of a file's number in the pipe from which the forks take files."""
LISTED_S = 0.005
"""pytest lists no phase of a test that took less, unless it failed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="run tests in so many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; None, which leaves them to pytest, where one process is enough."""
    option = session.config.option
    files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    count = min(option.workers, len(files))
    if count < 2 or option.collectonly or session.testsfailed:
        return None
    _Forks(session, files, count).run()
    return True


def in_turn(count: int) -> list[int]:
    """Take files of the first and of the second half in turn.

    Two forks that begin with one room compile what it needs twice.
    """
    half = (count + 1) // 2
    return sorted(range(count), key=lambda index: (index % half, index))


class _Teller:
    """Sends what a fork reports."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self.config, self.sender = config, sender

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.sender.send((nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        quick = report.passed and report.when != "call" and report.duration < LISTED_S
        if quick and not self.config.option.xmlpath:  # nobody would show it
            return
        told = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.sender.send(told)


class _Forks:
    """Processes that take the next file from a pipe until it is empty."""

    def __init__(self, session: pytest.Session, files: list[list[pytest.Item]], count: int) -> None:
        self.session, self.files = session, files
        self.queue, numbers = os.pipe()
        with open(numbers, "wb") as pipe:
            pipe.write(b"".join(index.to_bytes(NUMBER, "little") for index in in_turn(len(files))))
        self.at_work: dict[Connection, tuple[int, int]] = {}
        """The process behind each connection, and a descriptor that tells when it has ended."""
        self.running: dict[Connection, tuple[str, Any]] = {}
        """The test that each last began."""
        self.started = 0
        self.shared = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        session.config.stash[SHARED] = self.shared
        for _ in range(count):
            self.start([])

    def start(self, first: list[pytest.Item]) -> None:
        """Fork a process, which begins with these tests."""
        receiver, sender = Pipe(duplex=False)
        folder = self.shared / f"fork{self.started}"
        folder.mkdir(mode=0o700)
        self.started += 1
        child = os.fork()
        if child == 0:
            receiver.close()
            self.work(first, sender, folder)
        sender.close()
        self.at_work[receiver] = child, os.pidfd_open(child)

    def work(self, first: list[pytest.Item], sender: Connection, folder: Path) -> NoReturn:
        """Run tests to the end of the pipe, and then the process ends."""
        code = 1
        try:
            config = self.session.config
            manager = config.pluginmanager
            config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
            capture = manager.getplugin("capturemanager")
            capture.stop_global_capturing()  # its files are the parent's and those of other forks
            capture.start_global_capturing()
            for name in ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin"):
                if manager.has_plugin(name):
                    manager.unregister(name=name)
            manager.register(_Teller(config, sender))
            for item, following in self.taken(first):
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            code = 0
        finally:
            os._exit(code)

    def taken(self, items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Yield tests with the one that follows; the next file is taken before the last begins."""
        items = items or self.next_file()
        while items:
            yield from pairwise(items)
            following = self.next_file()
            yield items[-1], following[0] if following else None
            items = following

    def next_file(self) -> list[pytest.Item]:
        number = os.read(self.queue, NUMBER)
        return self.files[int.from_bytes(number, "little")] if number else []

    def run(self) -> None:
        """Report what the forks tell until each has ended."""
        session = self.session
        try:
            while self.at_work:
                wait(
                    [
                        one
                        for connection, (_, end) in self.at_work.items()
                        for one in (connection, end)
                    ]
                )
                for connection in [*self.at_work]:
                    self.hear(connection)
                if session.shouldfail or session.shouldstop:
                    raise session.Failed(session.shouldfail or session.shouldstop)
        finally:
            for child, _ in self.at_work.values():
                os.kill(child, signal.SIGTERM)
                os.waitpid(child, 0)

    def hear(self, connection: Connection) -> None:
        """Take what a fork has told: which test begins, or a report."""
        config, (child, end) = self.session.config, self.at_work[connection]
        ended = bool(wait([end], timeout=0))
        while connection.poll():
            try:
                told = connection.recv()
            except EOFError:
                break
            if isinstance(told, tuple):
                self.running[connection] = told
            else:
                report = config.hook.pytest_report_from_serializable(config=config, data=told)
                config.hook.pytest_runtest_logreport(report=report)
        if ended:
            del self.at_work[connection]
            os.close(end)
            if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                self.go_on(self.running.pop(connection, None), code)

    def go_on(self, running: tuple[str, Any] | None, code: int) -> None:
        """Report the test in which a process died; another one goes on with its file."""
        if running is None:
            raise self.session.Failed(f"a process of --workers ended before its first test: {code}")
        nodeid, location = running
        words = f"its process ended: {code}"
        report = pytest.TestReport(nodeid, location, {}, "failed", words, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        for items in self.files:
            names = [item.nodeid for item in items]
            if nodeid in names:
                self.start(items[names.index(nodeid) + 1 :])
