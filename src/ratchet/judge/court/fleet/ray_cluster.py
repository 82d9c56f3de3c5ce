"""A Ray cluster, as `spread.Cluster`; Ray is imported here alone."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import urlsplit

from ratchet.base import Json
from ratchet.base.errors import DeviceError, JudgeError
from ratchet.judge.court.fleet import seat as on_the_seat
from ratchet.judge.court.fleet.spread import CONTINUED, Seat, SeatLost

CONNECTED_S: Final = 10.0
"""Time limit of the first connection to a `ray://` address."""
READ_S: Final = 30.0
"""Time limit of fetching an answer that is there."""
PART: Final = 0.01
"""Part of a GPU that describing it takes; Ray hides a GPU from work that asks for none."""


class RayCluster:
    """The machines of a Ray cluster that have the wanted devices.

    Until it is closed, what this process prints goes to stderr: Ray tells of a dead machine on
    stdout, whatever it is asked to log, and stdout is for the result.
    """

    def __init__(self, address: str, *, device: str) -> None:
        self._ray = _connected(address)
        self._exceptions = self._ray.exceptions
        self._aside = ExitStack()
        self._aside.enter_context(redirect_stdout(sys.stderr))
        try:
            self._on_gpus = self._choose(device)
        except BaseException:
            self.close()
            raise
        self._describe = self._ray.remote(on_the_seat.describe)
        self._obey = self._ray.remote(on_the_seat.obey)

    def _choose(self, device: str) -> bool:
        """Return whether GPUs are judged on: where there are some, unless cores are asked for."""
        if device.startswith("cuda:"):
            raise DeviceError(f"a fleet picks the GPU itself: use --device cuda, not {device!r}")
        has_gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in self._nodes())
        if device == "cuda" and not has_gpus:
            raise DeviceError("no machine of the cluster offers a GPU to Ray: use --device cpu")
        return device != "cpu" and has_gpus

    def _nodes(self) -> list[dict[str, Json]]:
        try:
            return [node for node in self._ray.nodes() if node["Alive"]]
        except (ConnectionError, self._exceptions.RayError) as error:
            raise _gone(error) from error

    def seats(self) -> Sequence[Seat]:
        """Return a seat for each GPU, or one for all of a machine's cores."""
        found = []
        for node in self._nodes():
            cores = int(node["Resources"].get("CPU", 0))
            count = int(node["Resources"].get("GPU", 0)) if self._on_gpus else 1
            for index in range(count if cores >= count else 0):
                found.append(
                    Seat(
                        node=node["NodeID"],
                        index=index,
                        host=node["NodeManagerHostname"],
                        threads=cores // count,
                        gpus=int(self._on_gpus),
                    )
                )
        return found

    def describe(self, seat: Seat) -> object:
        """Ask a seat for its facts; needs none of its cores, so a busy machine answers too."""
        part = PART if seat.gpus else 0
        task = self._describe.options(**self._there(seat), num_cpus=0, num_gpus=part)
        return task.remote(seat.threads, bool(seat.gpus))

    def start(self, seat: Seat, order: bytes) -> object:
        """Give a seat an order: it claims the device, so no other run judges there meanwhile."""
        task = self._obey.options(**self._there(seat), num_cpus=seat.threads, num_gpus=seat.gpus)
        return task.remote(order, seat.threads, bool(seat.gpus))

    def _there(self, seat: Seat) -> dict[str, object]:
        """Return the options that bind a task to a machine; `Spread` tries again elsewhere."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node_id=seat.node, soft=False)
        return {"scheduling_strategy": where, "max_retries": 0}

    def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
        """Return the handles that are answered; see `Cluster.wait`."""
        if not handles:
            time.sleep(timeout_s)
            return []
        done, _ = self._ray.wait(list(handles), num_returns=1, timeout=timeout_s)
        return list(done)

    def result(self, handle: object) -> bytes:
        """Return an answer; see `Cluster.result`."""
        try:
            found: bytes = self._ray.get(handle, timeout=READ_S)
            return found
        except self._exceptions.RayTaskError as error:
            said = str(error.cause or error).strip().splitlines()
            raise JudgeError(said[-1] if said else repr(error)) from error
        except self._exceptions.RayError as error:
            raise SeatLost(str(error)) from error
        except ConnectionError as error:
            raise _gone(error) from error

    def cancel(self, handle: object) -> None:
        """End the process that works on an answer."""
        self._ray.cancel(handle, force=True)

    def close(self) -> None:
        """Leave the cluster; Ray ends this run's processes on all machines."""
        self._ray.shutdown()
        self._aside.close()


def _connected(address: str) -> ModuleType:
    """Return ray, connected to the cluster at an address; `ray` is the cluster at hand."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise JudgeError(
            "--fleet ray needs Ray: pip install 'torch-ratchet[fleet]' on every machine"
        ) from error
    at_hand = _at_hand() if address == "ray" else address
    if at_hand:
        _check_reachable(at_hand)
    try:
        ray.init(
            address="auto" if address == "ray" else address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            namespace="ratchet",
        )
    except (ConnectionError, TimeoutError, ValueError) as error:
        where = "at hand" if address == "ray" else f"at {address}"
        raise JudgeError(
            f"no Ray cluster {where} ({_words(error)}): start one with ray start --head, or "
            "give its address, --fleet ray://HOST:10001"
        ) from error
    except (RuntimeError, ImportError, ray.exceptions.RayError) as error:
        words = _words(error)
        if "ersion mismatch" in words:
            raise JudgeError(
                f"the cluster runs another version of Ray or Python: {words}; install the same "
                "ones on every machine"
            ) from error
        raise JudgeError(f"the Ray cluster at {address} cannot be used: {words}") from error
    found: ModuleType = ray
    return found


def _at_hand() -> str:
    """Return the address of the cluster at hand, if RAY_ADDRESS or the last `ray start` tells it.

    Otherwise Ray looks for it among this machine's processes.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return named
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    return noted.read_text().strip() if noted.is_file() else ""


def _check_reachable(address: str) -> None:
    """Refuse an address that nobody listens at; Ray would try for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        where = (parts.hostname or "", parts.port or 10001)
        socket.create_connection(where, CONNECTED_S).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise JudgeError(
            f"no Ray cluster at {address} ({why}): start its head with "
            "ray start --head --ray-client-server-port=10001"
        ) from error


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def _gone(error: BaseException) -> JudgeError:
    return JudgeError(f"the connection to the Ray cluster is lost ({_words(error)}): {CONTINUED}")
