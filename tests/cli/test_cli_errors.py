"""Mistakes with `--json`: an error object on stdout beside the line on stderr, in every command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer

from ratchet.base.show.words import parse_share
from ratchet.cli import main
from ratchet.cli.app import print_json
from ratchet.cli.commands import app, commands


def callbacks(group: typer.Typer, words: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every command's words and its function."""
    for one in group.registered_commands:
        name = one.name or one.callback.__name__
        yield (*words, name), one.callback
    for below in group.registered_groups:
        yield from callbacks(below.typer_instance, (*words, below.name))


commands()  # gives every command what its options share
COMMANDS = dict(callbacks(app))


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the message of a call that fails with `--json`; both streams say the same."""
    code = main(list(words))
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    error = json.loads(captured.out)["error"]
    assert error == {"message": line.removeprefix("ratchet: "), "exit_code": code}
    assert code == 2
    return str(error["message"])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_unknown_option_of_any_command_is_an_error_object(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--no-such-option" in failed(capsys, *words, "--json", "--no-such-option")


MISTAKES = (
    "bench no-such-workload",
    "bench llama-tiny --parallel fsdp=0",
    "optimize llama-tiny --parallel tp",
    "optimize llama-tiny --parallel tp=2 --try compile",
    "optimize llama-tiny --parallel tp=2 --resume",
    "bisect HEAD~1 HEAD -- true",
    "compare one-side-only",
    "device --device tpu",
    "history import missing.csv",
    "history show --ledger /dev/null/x.db",
    "inspect missing.py missing-kernel.py",
    "judge missing.py kernel.cpp",
    "knowledge add missing",
    "knowledge remove missing",
    "learn sft missing",
    "learn loop --budget soon",
    "optimize no-such-workload",
    "repro 012345",
    "trace report missing.json",
    "trace diff missing.json other.json",
    "trace merge missing",
    "trace record",
    "watch --base main",
    "watch",
    "write relu --budget 1s",
)


@pytest.mark.parametrize("call", MISTAKES)
def test_a_mistake_is_an_error_object(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = call.split()
    at = words.index("--") if "--" in words else len(words)
    assert failed(capsys, *words[:at], "--json", *words[at:])


def test_an_unknown_command_and_a_fault_of_ours_are_error_objects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nosuch" in failed(capsys, "nosuch", "--json")

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("ratchet.guard.repro.repro", broken)
    assert main(["repro", "012345", "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 70


def test_words_of_a_measured_command_ask_for_no_error_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bisect", "HEAD~1", "HEAD", "--", "true", "--json"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_else_a_command_prints_is_not_on_its_stdout(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's file prints as it is imported, a library as it loads: the document stays alone."""

    def talking(*_: object, **__: object) -> int:
        print("importing train.py")
        print_json({"command": words, "ratio": float("nan")})
        return 0

    made = commands()
    for word in words:
        made = made.commands[word]
    monkeypatch.setattr(made, "invoke", talking)
    monkeypatch.setattr(made, "params", [one for one in made.params if one.name == "as_json"])
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out, parse_constant=pytest.fail)
    assert found == {"command": list(words), "ratio": None}
    assert captured.err == "importing train.py\n"


def test_a_document_is_not_followed_by_an_error_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*_: object, **__: object) -> None:
        print_json({})
        raise KeyboardInterrupt

    monkeypatch.setattr("ratchet.guard.repro.repro", printed)
    assert main(["repro", "012345", "--json"]) == 130
    assert capsys.readouterr().out == "{}\n"


def test_an_advisory_gate_that_cannot_run_is_an_error_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["watch", "--base", "main", "--advisory", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["exit_code"] == 0
    assert "advisory" in captured.err


# Numbers.


def float_options() -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield each option that takes a float: its command, its name, its parser."""
    for words, function in COMMANDS.items():
        for name, hint in get_type_hints(function, include_extras=True).items():
            if get_origin(hint) is not Annotated:
                continue
            kind, info, *_ = get_args(hint)
            if float in (kind, *get_args(kind)):
                [option, *_] = [*(info.param_decls or ()), f"--{name.replace('_', '-')}"]
                yield words, option, info.parser


FLOATS = [one for one in float_options() if getattr(one[2], "func", None) is not parse_share]
"""A share (`5%`) has the parser of shares, which tests/base tries."""


def test_no_option_takes_a_float_with_a_parser_of_its_own() -> None:
    assert len(FLOATS) >= 20
    assert {getattr(one, "__qualname__", one) for _, _, one in FLOATS} == {"finite.<locals>.parse"}


@pytest.mark.parametrize("text", ["nan", "-1", "2", "much"])
def test_a_share_refuses_what_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "sft", f"--replay={text}"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "NaN", "much"])
def test_every_float_option_refuses_what_is_no_finite_number(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, name, _ in FLOATS:
        assert main([*words, f"{name}={text}"]) == 2
        assert f"{text!r} is no finite number" in capsys.readouterr().err, (words, name)
