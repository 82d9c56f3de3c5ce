"""No output destroys an input: every output of every command, against all that it reads."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from commands import mistake

from ratchet.base import files
from ratchet.base.devices.probe import probe
from ratchet.base.errors import FileError
from ratchet.base.git import diff_of
from ratchet.base.serialise import encoded, json_text
from ratchet.base.show.model import ResultReport
from ratchet.base.show.page import render_page
from ratchet.cli import main, outputs
from ratchet.cli.commands import _registered, app, commands
from ratchet.cli.outputs import OutEither, OutFolder, Output
from ratchet.guard.numerics.find import NumericsResult
from ratchet.guard.repro import environment_report
from ratchet.guard.sweep import TypeRow
from ratchet.guard.watch import junit_xml, markdown_comment
from ratchet.guard.watch.suite import WatchResult
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import CorpusCard
from ratchet.write.learn.models import PolicyCard

CONTENT = b"a day of somebody's work\n"
READ = {
    "bisect --repository",
    "debug DUMPS...",
    "export --script",
    "history import FILE_OR_FOLDER",
    "inspect KERNEL",
    "judge --candidate",
    "judge --kernelbench",
    "judge [KERNEL]...",
    "knowledge add PATH_OR_FOLDER",
    "knowledge remove PATH_OR_FOLDER",
    "learn corpus --text",
    "learn eval --corpus",
    "learn eval POLICY",
    "learn grpo --base",
    "learn grpo --corpus",
    "learn grpo POLICY",
    "learn loop --text",
    "learn pretrain --corpus",
    "learn sft --corpus",
    "learn sft POLICY",
    "plan --calibrate",
    "plan --savings",
    "port --problems",
    "port PATH",
    "trace diff AFTER",
    "trace diff BEFORE",
    "trace merge FOLDER",
    "trace report --capture",
    "trace report FILE_OR_FOLDER",
    "tune KERNEL",
    "watch --against",
    "watch --suite",
}
"""Paths that are read, so that no output: a new path is either declared as one or added here."""
OF_A_KIND = {
    "compare": ["--numerics"],
    "export": ["--to", "patch"],
    "history export": ["--format", "csv"],
}
"""Options with which a command's output is one, or a file."""


@dataclass(frozen=True)
class Parameter:
    """An option or an argument of a command, as typer was told of it."""

    name: str
    info: Any
    default: object
    texts: bool  # It takes any text or path
    path: bool

    @property
    def shown(self) -> str:
        return outputs._shown(self.name, self.info)

    def words(self, value: str) -> list[str]:
        """Give the value: arguments stand after all options."""
        return [self.shown, value] if self.shown.startswith("--") else [value]


def all_commands() -> dict[str, Callable[..., object]]:
    commands()

    def of(group: Any, before: str) -> Iterator[tuple[str, Callable[..., object]]]:
        for one in group.registered_commands:
            yield f"{before}{one.name or one.callback.__name__}", one.callback
        for inner in group.registered_groups:
            yield from of(inner.typer_instance, f"{before}{inner.name} ")

    return dict(of(app, ""))


def parameters(callback: Callable[..., object]) -> list[Parameter]:
    found = []
    given = inspect.signature(callback, eval_str=True).parameters.values()
    infos = outputs._infos(given)
    for one in given:
        if one.name in infos:
            kind = str(get_args(one.annotation)[0])
            path = "Path" in kind
            texts = infos[one.name].parser is None and (path or re.search(r"\bstr\b", kind))
            found.append(Parameter(one.name, infos[one.name], one.default, bool(texts), path))
    return found


def outputs_of(command: str) -> dict[str, Output]:
    found = {one.name: one.info.parser for one in parameters(COMMANDS[command])}
    return {name: parser for name, parser in found.items() if isinstance(parser, Output)}


def names_of(command: str) -> set[str]:
    return {one.name for one in parameters(COMMANDS[command])}


COMMANDS = all_commands()
OUTPUTS = [(command, name) for command in COMMANDS for name in outputs_of(command)]


def call(command: str, given: dict[str, str], *, force: bool = False) -> list[str]:
    """Words of a command with these values; what it needs beside them is `x`."""
    options, arguments = [], []
    extra = OF_A_KIND.get(command, [])
    for one in parameters(COMMANDS[command]):
        needed = one.default is inspect.Parameter.empty and one.shown not in extra
        if one.name in given or needed:
            words = one.words(given.get(one.name, "x"))
            (options if len(words) == 2 else arguments).extend(words)
    options += [*extra, *(["--force"] if force else [])]
    after = ["--", given["--"]] if "--" in given else []
    return [*command.split(), *options, *arguments, *after]


def file_in(folder: Path, output: OutFolder) -> Path:
    """A file that the output would overwrite."""
    name = output.names[0] if output.names else "x"
    return folder / name.replace("**/", "").replace("*", "x")


def chosen(command: str, name: str) -> Output:
    """The output of a command's option, for the options of OF_A_KIND."""
    found = outputs_of(command)[name]
    values = {"numerics": True, "to": "patch", "format": "csv", name: Path("x")}
    return found.of(values) if isinstance(found, OutEither) else found


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "default.db"))
    monkeypatch.chdir(tmp_path)


def test_every_path_is_an_output_or_is_read() -> None:
    found = {
        f"{command} {one.shown}"
        for command, callback in COMMANDS.items()
        for one in parameters(callback)
        if (one.path or re.search("FILE|FOLDER|PATH|DIR|PAGE", str(one.info.metavar)))
        and not isinstance(one.info.parser, Output)
    }
    texts = {one for one in found if re.search(r" --(text|python-[ab]|ledger)$", one)}
    assert found - texts | {"learn corpus --text", "learn loop --text"} == READ


def test_every_command_that_writes_takes_force() -> None:
    for command, name in OUTPUTS:
        assert "force" in names_of(command), (command, name)


def inputs_of(command: str) -> list[str]:
    """Names of what may name an input; `--` stands for the words after it."""
    kind = OF_A_KIND.get(command, [])
    every = parameters(COMMANDS[command])
    found = [one.name for one in every if one.texts and one.shown not in kind]
    usage = next(one for one in _registered(app) if one.callback is COMMANDS[command]).cls
    return found + (["--"] if "AfterDashes" in usage.__name__ else [])


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "soft link": lambda link, file: link.symlink_to(file.absolute()),
    "hard link": lambda link, file: link.hardlink_to(file),
}


@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_an_output_that_is_an_input_is_refused(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = chosen(command, name)
    for at, source in enumerate(inputs_of(command)):
        folder = Path(f"at{at}")
        folder.mkdir()
        if isinstance(output, OutFolder):
            read = file_in(folder, output)
            places = [folder, folder / ".." / folder.name]
        else:
            read = folder / "input"
            places = [read, folder / ".." / folder.name / "input"]
        read.write_bytes(CONTENT)
        for way, link in WAYS.items():
            place = folder / way
            if isinstance(output, OutFolder):
                place = Path(f"{at} {way}")
                place.mkdir()
                link(file_in(place, output), read)
            else:
                link(place, read)
            places.append(place)
        if isinstance(output, OutFolder) and not output.names:
            places = [read]
        for place in places:
            for force in (False, True):
                words = call(command, {source: str(read), name: str(place)}, force=force)
                line = mistake(capsys, *words)
                assert str(place) in line and "internal" not in line, words
                assert "the command reads" in line or "is a file" in line, line
                assert read.read_bytes() == CONTENT, words


@pytest.mark.parametrize(("command", "name"), OUTPUTS)
@pytest.mark.parametrize("named", [True, False])
def test_no_output_is_the_ledger_or_what_lies_beside_it(
    command: str, name: str, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if named and "ledger" not in names_of(command):
        pytest.skip("it has no option that names a ledger")
    given = {"ledger": "sqlite:///own.db"} if named else {}
    stem = "own" if named else "default"
    output = chosen(command, name)
    for end in (".db", ".db-wal", ".db-shm", "-knowledge.db"):
        place = Path(f"{stem}{end}")
        if isinstance(output, OutFolder):
            place.write_bytes(CONTENT)
        line = mistake(capsys, *call(command, given | {name: str(place)}, force=True))
        assert "the command reads (the ledger)" in line or "is a file" in line, line
        assert not place.exists() or place.read_bytes() == CONTENT


@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_what_ratchet_did_not_write_is_kept_without_force(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = chosen(command, name)
    if isinstance(output, OutFolder) and not output.names:
        pytest.skip("it overwrites nothing in its folder")
    kept = Path("out")
    if isinstance(output, OutFolder):
        kept.mkdir()
        kept = file_in(kept, output)
    for content in (CONTENT, b"\xff\xfe\0", b"\x1f\x8b no gzip", b"<title>My page</title>"):
        kept.write_bytes(content)
        line = mistake(capsys, *call(command, {name: "out"}))
        assert "--force" in line, line
        assert kept.read_bytes() == content


def test_a_file_of_a_folder_that_is_read_is_kept_even_by_force(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("ranks").mkdir()
    rank = Path("ranks/r0.json")
    rank.write_bytes(CONTENT)
    Path("link.html").hardlink_to(rank)
    for place in (str(rank), "link.html"):
        line = mistake(capsys, "trace", "report", "ranks", "--out", place, "--force")
        assert "is a file of ranks" in line
    assert rank.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["write", "softmax"], "ratchet-write/softmax/kernel.cpp"),
        (["write", "--from", "llama-tiny"], "ratchet-write/llama-tiny/report.html"),
        (["repro", "0123abcd"], "ratchet-repro/0123abcd/issue.md"),
    ],
)
def test_the_folder_of_a_call_that_names_none_is_checked_too(
    words: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Path(file)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    line = mistake(capsys, *words)
    assert f"--out {kept.parent} holds {kept.name}" in line and "--force" in line, line
    assert kept.read_bytes() == CONTENT


def test_two_outputs_are_not_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, "watch", "--base", "x", "--markdown", "out", "--junit", "./out")
    assert "--junit out is another output's too" in line


def test_a_ledger_is_no_other_input(capsys: pytest.CaptureFixture[str]) -> None:
    Path("results.csv").touch()
    line = mistake(capsys, "history", "import", "results.csv", "--ledger", "results.csv")
    assert "what the command reads" in line and Path("results.csv").read_bytes() == b""


def test_an_output_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is empty" in mistake(capsys, "optimize", "llama-tiny", "--out", "")


def test_no_library_call_writes_over_an_input(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(CONTENT)
    with files.kept_whole([path]):
        for write in (files.write_whole, lambda to, text: files.write_all({to: text})):
            with pytest.raises(FileError, match="what the command reads"):
                write(path, b"other")
    assert path.read_bytes() == CONTENT
    files.write_whole(path, b"other")


# What Ratchet wrote is written again without being asked.

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 8}
    for at in (0, 10)
]
AGAIN = [
    ["history", "show", "--out", "out.html"],
    ["history", "export", "out.csv"],
    ["history", "export", "out.json"],
    ["history", "export", "out"],
    ["trace", "report", "t.json", "--out", "out.html"],
    ["trace", "report", "ranks", "--out", "ranks/out.html"],
    ["trace", "report", "t.json", "--parquet", "out"],
    ["trace", "diff", "t.json", "t.json", "--out", "out.html"],
    ["trace", "merge", "ranks", "--out", "out.json"],
    ["trace", "merge", "ranks", "--out", "out.json.gz"],
    ["port", "src", "--target", "none", "--sarif", "src/out.sarif", "--out", "out"],
    ["plan", "llama-tiny", "--cluster", "h100:2", "--out", "out", "--layouts", "l.csv"],
    ["plan", "llama-tiny", "--cluster", "h100:2", "--layouts", "l.json"],
]


@pytest.mark.parametrize("words", AGAIN, ids=" ".join)
def test_what_ratchet_wrote_is_written_again(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--parquet" in words:
        pytest.importorskip("pyarrow")
    if words[0] == "port":
        pytest.importorskip("tree_sitter")
    Path("ranks").mkdir()
    Path("src").mkdir()
    Path("src/k.cu").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    for name in ("t.json", "ranks/r0.json", "ranks/r1.json"):
        Path(name).write_text(json.dumps({"traceEvents": EVENTS}))
    lines = [f"step,{1 + at / 9},s,c{at}000000,{1767225600 + at}" for at in range(9)]
    Path("in.csv").write_text("\n".join(["benchmark,value,unit,commit,time", *lines]))
    if words[0] == "history":
        assert main(["history", "import", "in.csv"]) == 0
    assert main(words) in (0, 1), capsys.readouterr().err
    assert main(words) in (0, 1), capsys.readouterr().err


def written() -> dict[str, bytes]:
    """What other commands write, each made by its own code."""
    from own_recipes import recipe

    numerics = NumericsResult(
        titles=("a", "b"), divergence=None, not_finite=None, oracle="fp64", compared=1,
        losses=((), ()),
    )  # fmt: skip
    corpus = CorpusCard(hash="h", counts={}, duplicates=0, hashes={}, train={}, unseen={}, bytes=0)
    policy = PolicyCard(answers="schedule", language="cpp", stage="sft", parameters=3)
    watched = WatchResult(
        base="a", head="b", margin=0.1, confidence=0.9, results=(), notes=(), advisory=False
    )
    old, new = b"step()\n", b"import ratchet\nstep()\n"
    return {
        "PAGE": render_page(ResultReport(heading="a <b>", title="t")).encode(),
        "RECIPE": encoded(recipe().sealed(), indent=2),
        "NUMERICS": encoded(numerics.as_json(), indent=2),
        "FINDING": json_text(environment_report(probe("cpu"))).encode(),
        "ROWS": msgspec.json.encode(TypeRow(type="bert", status="works")),
        "CORPUS": encoded(corpus, indent=2),
        "POLICY": encoded(policy, indent=2),
        "RUN": encoded(LearnConfig(), indent=2),
        "COMMENT": markdown_comment(watched).encode(),
        "JUNIT": junit_xml(watched),
        "PATCH": diff_of({"t.py": old}, {"t.py": new}),
    }


def test_the_signs_are_those_of_what_is_written() -> None:
    for name, text in written().items():
        assert getattr(outputs, name).search(text), (name, text)
        assert not getattr(outputs, name).search(CONTENT)


def test_a_run_folder_is_continued(capsys: pytest.CaptureFixture[str]) -> None:
    """A turn that was killed has left a page or a recipe, and `make demo` runs twice."""
    folder = Path("ratchet-demo")
    folder.mkdir()
    output = outputs_of("optimize")["out"]
    (folder / "result.json").write_bytes(CONTENT)
    with pytest.raises(FileError, match=r"result\.json"):
        output.check(folder, "--out", [], force=False)
    (folder / "report.html").write_bytes(written()["PAGE"])
    output.check(folder, "--out", [], force=False)
    (folder / "report.html").write_bytes(b"<title>My page</title>")
    with pytest.raises(FileError, match=r"report\.html"):
        output.check(folder, "--out", [], force=False)
    (folder / "report.html").unlink()
    (folder / "recipe.json").write_bytes(written()["RECIPE"])
    output.check(folder, "--out", [], force=False)
