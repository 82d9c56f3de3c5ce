"""`ratchet write --fleet`: on two Ray machines of which one dies, and without a cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from ratchet.base.errors import DeviceError, JudgeError, LedgerError
from ratchet.base.ledger import Ledger, schema
from ratchet.cli.commands import app
from ratchet.judge.court import ray_cluster
from ratchet.judge.court.court import open_court

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="pip install 'torch-ratchet[fleet]'"
)
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
RATCHET = str(Path(sys.executable).with_name("ratchet"))
NOWHERE = "postgresql://nobody@127.0.0.1:1/ledger"
BUDGET = "6m"
"""Time enough on a busy machine; the number of candidates ends the search."""
STARTED_S, RUN_S = 240.0, 560.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Machines:
    """Two Ray machines with one core each, which are really this one."""

    head: subprocess.Popen[bytes]
    other: subprocess.Popen[bytes]
    address: str
    """Of the head."""


def processes(of: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(of.pid)
        return [root, *root.children(recursive=True)]
    return []


def kill_all(of: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """End a machine as a lost power cord does."""
    found = processes(of)
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    of.wait()
    return found


@pytest.fixture
def machines() -> Iterator[Machines]:
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    gcs, client = free_port(), free_port()
    while 10002 <= client <= 19999:  # Ray's own range for its workers
        client = free_port()
    environment = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_TMPDIR": home,
    }
    common = ("--num-cpus=1", "--object-store-memory=80000000", "--block", "--disable-usage-stats")
    head_only = ("--head", f"--port={gcs}", f"--ray-client-server-port={client}")
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        log = Path(home, f"{name}.log")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *common]
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        until = time.monotonic() + STARTED_S
        while b"Ray runtime started" not in log.read_bytes():
            assert started[-1].poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        return started[-1]

    try:
        flags = ("--node-ip-address=127.0.0.1", "--include-dashboard=false", f"--temp-dir={home}")
        head = start("head", *head_only, *flags)
        other = start("other", f"--address=127.0.0.1:{gcs}")
        yield Machines(head=head, other=other, address=f"127.0.0.1:{gcs}")
    finally:
        for one in started:
            kill_all(one)
        shutil.rmtree(home, ignore_errors=True)


@NEEDS_RAY
@NEEDS_COMPILER
@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.timeout(900)
def test_a_machine_dies_while_it_judges_and_nothing_is_lost_or_written_twice(
    machines: Machines, new_database: Callable[[], str], tmp_path: Path
) -> None:
    url = new_database()
    words = f"write hard_swish_backward --authors search --candidates 6 --budget {BUDGET}"
    fleet = f"--fleet ray --json --out {tmp_path / 'out'}"
    with (tmp_path / "errors").open("wb") as errors:
        run = subprocess.Popen(
            [RATCHET, *words.split(), *fleet.split()],
            env=os.environ | {"RATCHET_LEDGER": url, "RAY_ADDRESS": machines.address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        until = time.monotonic() + RUN_S
        while not any("bwrap" in _name(one) for one in processes(machines.other)):
            assert run.poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        gone = kill_all(machines.other)
        out, _ = run.communicate(timeout=RUN_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode in (0, 1), (tmp_path / "errors").read_text()
    result = json.loads(out)
    assert result["status"] in ("proven", "correct") and result["screened"] == 6
    with Ledger.open(url) as ledger, ledger.engine.connect() as connection:
        answers = connection.execute(schema.writing_answers.select()).all()
        verdicts = connection.execute(schema.verdicts.select()).all()
        devices = {row.device for row in connection.execute(schema.devices.select())}
    places = Counter((row.kernel_hash, row.stage, row.payload["rung"]) for row in answers)
    assert max(places.values()) == 1
    judged = {row.kernel_hash for row in answers if row.stage == "judged"}
    assert Counter(row.kernel_hash for row in verdicts) == dict.fromkeys(judged, 1)
    assert result["best"]["kernel_hash"] in judged
    for row in verdicts:
        seat = row.payload["environment"]["seat"]
        assert seat["device"] == row.device and row.device in devices
    assert not any(one.is_running() and one.status() != "zombie" for one in gone)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def refused(*words: str, ledger: str = NOWHERE) -> str:
    """The one line of a call that is a mistake."""
    command = ["write", "softmax", "--budget", "20s", "--ledger", ledger, *words]
    found = subprocess.run([RATCHET, *command], capture_output=True, text=True, timeout=240)
    assert found.returncode == 2 and found.stdout == ""
    (line,) = found.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize("given", ["roy", "ray://", "ray://host:99999", "ray://me@host:1", ""])
def test_an_unknown_fleet_is_one_line(given: str) -> None:
    found = CliRunner().invoke(app, ["write", "softmax", "--fleet", given])
    assert "use local, ray or ray://HOST:PORT" in str(found.exception)


def test_a_fleet_needs_a_ledger_on_postgresql(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"needs a ledger on PostgreSQL, and .*l\.db is a file"):
        open_court(str(tmp_path / "l.db"), "ray")
    assert not (tmp_path / "l.db").exists()


@NEEDS_RAY
def test_no_cluster_at_an_address_is_one_line() -> None:
    assert "no Ray cluster at ray://127.0.0.1:1 (Connection refused)" in refused(
        "--fleet", "ray://127.0.0.1:1"
    )


@NEEDS_RAY
def test_a_cluster_that_is_gone_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    with pytest.raises(JudgeError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        open_court(NOWHERE, "ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    with pytest.raises(JudgeError, match=r"no Ray cluster at 127\.0\.0\.1:2"):
        open_court(NOWHERE, "ray")


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JudgeError, match=r"pip install 'torch-ratchet\[fleet\]'"):
        open_court(NOWHERE, "ray")


class OtherRay:
    """Ray on a cluster of another version, as it says so."""

    class exceptions:  # Ray's name
        class RayError(Exception):
            pass

    @staticmethod
    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n")


def test_another_version_of_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", OtherRay)  # type: ignore[arg-type]
    monkeypatch.setattr(ray_cluster, "_check_reachable", lambda address: None)
    with pytest.raises(JudgeError, match="another version of Ray or Python"):
        open_court(NOWHERE, "ray://host:10001")


class StrawRay(OtherRay):
    """A cluster of a login machine, one with two GPUs, one with cores alone, and a dead one."""

    gpus = 2

    @staticmethod
    def init(**_: object) -> None:
        pass

    @staticmethod
    def shutdown() -> None:
        print("(raylet) the cluster is left")

    @staticmethod
    def remote(function: object) -> object:
        return function

    @classmethod
    def nodes(cls) -> list[dict[str, object]]:
        print(
            "\x1b[33m(raylet)\x1b[0m a machine died. Last 20 lines:\n    [state-dump] a\n    [b] c"
        )
        given = {"login": {}, "gpus": {"CPU": 16.0, "GPU": cls.gpus}, "cores": {"CPU": 4.0}}
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": True, "Resources": resources}
            for name, resources in given.items()
        ] + [{"NodeID": "dead", "Alive": False, "Resources": {"CPU": 8.0}}]


def test_a_seat_is_a_gpu_with_its_part_of_the_cores_or_all_cores_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", StrawRay)  # type: ignore[arg-type]
    monkeypatch.setattr(ray_cluster, "_check_reachable", lambda address: None)

    def seats(device: str) -> list[tuple[str, int, int, int]]:
        cluster = ray_cluster.RayCluster("ray://host:1", device=device)
        found = cluster.seats()
        cluster.close()
        return [(one.host, one.index, one.threads, one.gpus) for one in found]

    assert seats("auto") == seats("cuda") == [("gpus", 0, 8, 1), ("gpus", 1, 8, 1)]
    assert seats("cpu") == [("gpus", 0, 16, 0), ("cores", 0, 4, 0)]
    with pytest.raises(DeviceError, match="use --device cuda, not 'cuda:1'"):
        seats("cuda:1")
    monkeypatch.setattr(StrawRay, "gpus", 0)
    assert seats("auto") == [("gpus", 0, 16, 0), ("cores", 0, 4, 0)]
    with pytest.raises(DeviceError, match="no machine of the cluster offers a GPU"):
        seats("cuda")


def test_what_ray_prints_is_kept_from_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", StrawRay)  # type: ignore[arg-type]
    monkeypatch.setattr(ray_cluster, "_check_reachable", lambda address: None)
    cluster = ray_cluster.RayCluster("ray://host:1", device="cpu")
    cluster.seats()
    cluster.close()
    print("the result")
    told = capsys.readouterr()
    assert told.out == "the result\n" and "a machine died.\n" in told.err
    assert "state-dump" not in told.err and "the cluster is left" in told.err
