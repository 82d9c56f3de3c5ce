"""`ratchet write --model`: a server plays the model, and the judge decides as always."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import exploit_bench as bench
import openai_server as server
import pytest
import test_exploit_c_lying_docstring as lying
import test_exploit_constant_fill as constant
import test_exploit_right_then_garbage as garbage
from commands import needs_judge

from ratchet.cli import main
from ratchet.write.agent.ask import AskTerms

KEY = "sk-test-0123456789abcdef"
NAME = "scaled_silu"
PROBLEM = """
import torch
from ratchet import Case, Problem, TensorSpec

def scaled_silu(x, scalars):
    return (x * scalars[0] * (1 / (1 + torch.exp(-x))),)

def case(name, *shape, **kw):
    return Case(name=name, scalars=(1.5,), inputs=(TensorSpec(shape=shape, dtype="float32"),), **kw)

PROBLEM = Problem(
    name="scaled_silu", reference="scaled_silu", task="own",
    cases=(case("rows", 256, 512, timed=True), case("tails", 3, 33, hidden=True)),
)
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A ledger, a folder and a key of this test's own, and the problem's file."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{NAME}.py").write_text(PROBLEM)


def said(body: str) -> server.Behaviour:
    """Return a model's answer with a kernel under the problem's name."""
    code = (bench.HEAD + body).replace("int64_t answer(", f"int64_t {NAME}(")
    return server.answer(f"This is fast.\n\nChange: one pass\n\n```cpp\n{code}\n```\n")


def written(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command; its exit code and its document."""
    usual = ["--authors", "agent", "--budget", "120s", "--samples", "1", "--json"]
    code = main(["write", f"{NAME}.py", *usual, *words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and KEY not in captured.err + captured.out
    return code, json.loads(captured.out)


def agent_note(document: dict[str, Any]) -> str:
    [note] = [one["note"] for one in document["authors"] if one["name"].startswith("agent")]
    return str(note)


@needs_judge
@pytest.mark.compiler
@pytest.mark.slow
def test_a_model_s_kernel_is_judged_and_its_run_replayed_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    honest = bench.HONEST.source.removeprefix(bench.HEAD)
    words = ("--model", "tiny", "--candidates", "1")
    with server.serving(said(honest)) as served:
        code, first = written(capsys, *words, "--base-url", served.url)
        assert served.keys[0] == f"Bearer {KEY}"
    assert code == (0 if first["status"] == "proven" else 1)
    assert first["status"] in ("proven", "correct"), first["rows"]
    assert first["best"]["author"] == "agent:tiny"
    if code == 0:
        assert (Path("ratchet-write") / NAME / "kernel.cpp").read_text() == first["best"]["source"]

    _, again = written(capsys, "--replay", first["run"], "--candidates", "1", "--fresh")
    hashes = [{row["kernel_hash"] for row in one["rows"]} for one in (first, again)]
    assert hashes[0] == hashes[1] and again["run"] != first["run"]
    assert again["status"] in ("proven", "correct")


FAULTS = {
    "401": (server.error(401, f"bad key Bearer {KEY}"), "HTTP 401: bad key Bearer [key]; check"),
    "404": (server.error(404, "model not found"), "HTTP 404: model not found; check --model"),
    "429": (server.error(429, "slow down"), "HTTP 429: slow down; wait"),
    "429r": (server.error(429, "slow down", retry_after="100000"), "HTTP 429: slow down; wait"),
    "500": (server.error(500, "oops"), "HTTP 500: oops; check the endpoint"),
    "badjson": (server.raw('{"choices": [ {"mess', "application/json"), "breaks the protocol"),
    "notjson": (server.raw("hello", "text/plain"), "breaks the protocol"),
    "slow": (server.silent(), "give it more time with --budget"),
    "drip": (server.dripping("a "), "give it more time with --budget"),
    "redirect": (server.error(302, "", location="http://127.0.0.1:1/"), "a redirect to http"),
}
ASKED = {"429": 6, "500": 4, "badjson": 2, "notjson": 2, "slow": 2, "drip": 2}


@pytest.mark.compiler
@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=[pytest.mark.slow] * (one != "401")) for one in FAULTS]
)
def test_a_model_that_cannot_be_asked_ends_a_run_without_other_authors(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = functools.partial(AskTerms, time_limit_s=1.0, first_wait_s=0.01)
    monkeypatch.setattr("ratchet.write.agent.author.AskTerms", quick)
    behaviour, words = FAULTS[fault]
    with server.serving(behaviour) as served:
        usual = ("--authors", "agent", "--budget", "240s", "--samples", "1", "--json")
        options = ("--model", "tiny", "--base-url", served.url)
        code = main(["write", f"{NAME}.py", *usual, *options])
        captured = capsys.readouterr()
        asked = len(served.requests)
    error = json.loads(captured.out)["error"]
    assert code == error["exit_code"] == 2
    assert "the model 'tiny' cannot be asked" in error["message"] and words in error["message"]
    assert captured.err == f"ratchet: {error['message']}\n" and KEY not in captured.err
    assert asked == ASKED.get(fault, 1)


@pytest.mark.compiler
def test_an_endpoint_that_is_down_ends_a_run_without_other_authors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with server.serving(server.answer("")) as served:
        url = served.url
    code, document = written(capsys, "--model", "tiny", "--base-url", url)
    assert code == 2 and "start the server" in document["error"]["message"]


@pytest.mark.compiler
def test_nonsense_for_the_whole_budget_is_told_and_the_run_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with server.serving(server.answer("I like turtles.", usage=(100, 50))) as served:
        words = ("--model", "tiny", "--base-url", served.url, "--tokens", "100000")
        code, document = written(capsys, *words)
        asked = len(served.requests)
    assert code == 1 and document["status"] == "none" and document["screened"] == 0
    assert asked == 5 and "5 turns in a row brought no new kernel" in agent_note(document)


@needs_judge
@pytest.mark.compiler
@pytest.mark.slow
def test_a_model_s_exploits_are_not_proven(capsys: pytest.CaptureFixture[str]) -> None:
    exploits = [said(one) for one in (constant.ONES, lying.EXPLOIT, garbage.WHEN_TIMED)]
    with server.serving(*exploits) as served:
        words = ("--model", "cunning", "--base-url", served.url, "--candidates", "3")
        code, document = written(capsys, *words)
    assert code == 1 and document["status"] not in ("proven", "correct"), document["rows"]
    assert document["screened"] == len(exploits)
    assert not list((Path("ratchet-write") / NAME).glob("kernel.*"))
