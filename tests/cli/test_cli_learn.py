"""`ratchet learn`: help, and one line with exit code 2 for what a user got wrong."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import commands
import pytest

from ratchet.cli import main

STAGES = ("corpus", "pretrain", "sft", "grpo", "eval", "loop")
Mistake = functools.partial[str]


@pytest.fixture
def mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Mistake:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    return functools.partial(commands.mistake, capsys)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_help(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", stage, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text and "--debug" in text


def test_learn_alone_shows_its_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn"]) == 0
    text = capsys.readouterr().out
    assert all(stage in text for stage in STAGES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("corpus", "--families", "gemm"), "unknown family 'gemm'"),
        (("corpus", "--unseen", "losses", "--families", "losses"), "both trained on and unseen"),
        (("corpus", "--answers", "poems"), "answers 'poems' is out of range"),
        (("pretrain",), "holds no corpus: run ratchet learn corpus"),
        (("pretrain", "--size", "7b"), "size '7b' is out of range"),
        (("pretrain", "--rate", "0"), "rate 0.0 is out of range: give more than 0"),
        (("pretrain", "--minutes", "nan"), "'nan' is no finite number"),
        (("pretrain", "--context", "4"), "context 4 is out of range"),
        (("sft", "nothing-here"), "holds no corpus"),
        (("sft", "x", "--replay", "much"), "replay 'much' is no share"),
        (("sft", "x", "--on-forgetting", "shrug"), "on-forgetting 'shrug'"),
        (("eval", "nothing-here"), "holds no policy"),
        (("loop", "--budget", "soon"), "'soon' is not a duration"),
        (("loop", "--rounds", "0"), "rounds 0 is out of range: give 1 to 1000"),
        (("loop", "--fleet", "moon"), "unknown fleet 'moon'"),
        (("loop", "--seed", "-1"), "seed -1 is out of range"),
    ],
)
def test_a_mistake_is_one_line(mistake: Mistake, words: tuple[str, ...], said: str) -> None:
    assert said in mistake("learn", *words)


def test_a_policy_that_is_none_is_one_line(mistake: Mistake) -> None:
    said = mistake("write", "softmax", "--authors", "search,policy:nothing-here")
    assert "holds no policy" in said


def test_a_corpus_from_an_empty_ledger_has_triples_and_its_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("a", "b", "c"):
        (text / f"{name}.md").write_text(f"document {name} " * 40)
    words = ["learn", "corpus", "--families", "activations", "--per-family", "1"]
    words += ["--out", str(tmp_path / "corpus"), "--text", str(text), "--json"]
    assert main([*words, "--ledger", str(tmp_path / "ledger.db")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["counts"]["generated"] > 0 and card["counts"]["documents"] == 3
    assert list(card["train"]) == ["activations"]
    assert set(card["hashes"]) == {"examples", "text", "held_out"}
    assert (tmp_path / "corpus" / "examples.jsonl").exists()
    assert main([*words, "--ledger", str(tmp_path / "ledger.db")]) == 0
    assert json.loads(capsys.readouterr().out)["hash"] == card["hash"]


def test_source_without_a_proven_kernel_says_what_to_do(mistake: Mistake) -> None:
    said = mistake(
        "learn", "corpus", "--answers", "source", "--families", "activations", "--per-family", "1"
    )
    assert "holds no proven kernel" in said


def test_each_stage_names_the_size_of_the_model_that_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        lines = (f"document {name}, line {line} of many words\n" for line in range(90))
        (tmp_path / f"{name}.md").write_text("".join(lines))
    words = ("--families", "activations", "--per-family", "1", "--text", str(tmp_path))
    assert main(["learn", "corpus", *words]) == 0
    capsys.readouterr()
    assert main(["learn", "pretrain", "--size", "tiny", "--steps", "2", "--json"]) == 0
    base = json.loads(capsys.readouterr().out)
    assert base["config"]["size"] == "tiny" and base["parameters"] > 100_000
    policy = base["policy"]
    assert main(["learn", "sft", policy, "--steps", "2"]) == 0
    said = capsys.readouterr().out
    assert f"sft: {base['parameters']:,} parameters, 2 steps" in said
    assert "size=" not in said and "vocabulary=" not in said, "those of another model"
    page = (tmp_path / "ratchet-learn" / "sft" / "report.html").read_text()
    assert f"{base['parameters']:,} parameters" in page and "<dt>size</dt>" not in page
