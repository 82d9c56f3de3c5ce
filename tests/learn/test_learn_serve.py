"""A policy behind the real agent: endpoint, prompt, answer, kernel."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_bench import tasks

from ratchet.authors.agent import agent_author
from ratchet.authors.author import Progress
from ratchet.base.errors import LearnError
from ratchet.learn.models import Policy, load_policy
from ratchet.learn.policy import PolicyAuthor, policy_authors
from ratchet.learn.serve import PolicyServer


@contextlib.contextmanager
def serving(policy: Policy) -> Iterator[PolicyServer]:
    server = PolicyServer(policy, port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def test_the_agent_gets_a_kernel_from_the_endpoint(
    taught_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    problem = tasks()[0].problem
    with serving(load_policy(taught_folder)) as server:
        author = agent_author(
            model="policy",
            base_url=server.url,
            ledger=tmp_path / "ledger.db",
            samples=1,
            knowledge=False,
            device="cpu",
        )
        (found,) = author.propose(Progress(problem=problem), 1)
    assert found.kernel.language == "cpp"
    assert found.kernel.entry == problem.name
    assert "RATCHET_ENTRY" in found.kernel.source
    assert "width" in found.note


def ask(server: PolicyServer, path: str, body: bytes) -> tuple[int, dict[str, object]]:
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("POST" if body else "GET", path, body or None)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_requests_that_are_no_chats_are_told(taught_folder: Path) -> None:
    with serving(load_policy(taught_folder)) as server:
        assert server.url.startswith("http://127.0.0.1:")
        code, models = ask(server, "/v1/models", b"")
        assert code == 200 and models["data"][0]["id"] == "policy"  # type: ignore[index]
        assert ask(server, "/v1/chat/completions", b"{")[0] == 400
        chat = {"messages": [{"role": "user", "content": "hello"}]}
        code, said = ask(server, "/v1/chat/completions", json.dumps(chat).encode())
        assert code == 400 and "names no problem" in str(said)
        assert ask(server, "/v1/other", b"{}")[0] == 404


def test_a_port_in_use_is_one_line(taught: Policy) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(LearnError, match=r"cannot be bound .* give another --port"):
            PolicyServer(taught, port=other.getsockname()[1])


def test_the_policy_is_an_author(taught: Policy) -> None:
    author = PolicyAuthor(taught, "policy:x")
    progress = Progress(problem=tasks()[0].problem)
    found = author.propose(progress, 4)
    more = author.propose(progress, 4)
    hashes = [one.kernel.hash for one in (*found, *more)]
    assert found and len(hashes) == len(set(hashes))
    assert all(one.author == "policy:x" and one.schedule for one in found)
    assert len(found[0].features) == len(tasks()[0].space.features(found[0].schedule))


def test_a_folder_without_a_policy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match="holds no policy"):
        policy_authors([f"policy:{tmp_path}"])
    with pytest.raises(LearnError, match="names no folder"):
        policy_authors(["search", "policy:"])
