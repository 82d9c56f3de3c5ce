"""The outputs of commands, and the one check that none of them destroys an input.

An option that names an output has an `OutFile`, an `OutFolder` or an `OutEither` as its parser.
Every other word that names a file or a folder is an input, and so is the ledger. The check runs
before each command. An input is never overwritten, and what Ratchet did not write only with
`--force`.
"""

from __future__ import annotations

import gzip
import inspect
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ratchet.base import files
from ratchet.base.errors import FileError
from ratchet.cli.app import COMMAND, finite, option

Values = Mapping[str, Any]
HEAD_BYTES = 1 << 16  # Bytes at each end of a file that a sign is looked for in

PAGE = re.compile(rb"<title>[^<]*: Ratchet</title>")
RECIPE = re.compile(rb'"schema_version": \d+,\s+"workload": "')
HISTORY = re.compile(
    rb"\Abenchmark,metric,unit,better,revision,committed_at,value,low,high,device,"
)
GOOGLE = re.compile(rb'"executable": "ratchet history export"')
ASV = re.compile(rb'"result_columns": \[\s*"result",\s*"params",\s*"version",\s*"stats_ci_99_a",\s*'
                 rb'"stats_ci_99_b"\s*\]')  # fmt: skip
MERGED = re.compile(rb'\A\{"schemaVersion": 1, "displayTimeUnit": "ms", .{1,80}"merged": \[')
SITE = re.compile(rb'<meta name="generator" content="ratchet site">')
PARQUET = re.compile(rb"times in ns, sizes in bytes, rates in units a second")
SARIF = re.compile(rb'"driver": \{\s*"name": "ratchet port"')
JUNIT = re.compile(rb'<testsuites name="ratchet ')
COMMENT = re.compile(rb"\A<!-- ratchet watch -->")
TUNED = re.compile(rb'\A"""Written by ratchet tune|"ordered_by": "|\A\{\s*"(1|any)": \{')
LAYOUTS = re.compile(rb'\A(dp,tp,pp,vpp,cp,ep,micro_batch,|\[\s*\{\s*"dp": \d+,\s*"tp": )')
PATCH = re.compile(rb"\A--- a/.*^\+.*ratchet", re.DOTALL | re.MULTILINE)
FINDING = re.compile(rb'\A\{\s*"ratchet": "')
NUMERICS = re.compile(rb'\A\{.*"reproduces": ', re.DOTALL)
ROWS = re.compile(rb'\A\{"type": ?"\w+", ?"status": ?"')
CORPUS = re.compile(rb'"duplicates": \d+,\s*"hashes": \{')
POLICY = re.compile(rb'\A\{\s*"answers": "\w+",\s*"language": "')
RUN = re.compile(rb'\A\{\s*"seed": \d+,\s*"answers": "')


@dataclass(frozen=True)
class InputPath:
    """A file or a folder that a command reads."""

    path: Path
    what: str  # The option or argument that names it


@dataclass(frozen=True, kw_only=True)
class Output:
    """The parser of an option that names an output: what is written there, and how it is known.

    `signs` are patterns of which a file of Ratchet's own holds one, near its start or its end.
    `apart`: what is written is of the kind that is read, so that even a file of Ratchet's own in a
    folder that is read is an input. `default` returns where a call writes whose option is left out.
    """

    signs: tuple[re.Pattern[bytes], ...] = ()
    apart: bool = False
    default: Callable[[Values], Path | None] = lambda _: None
    __name__ = "path"  # typer shows it where an option has no metavar

    def __call__(self, text: str | Path) -> Path:
        if not str(text).strip():
            raise typer.BadParameter("the path is empty: name a file or a folder")
        return Path(text)

    def of(self, values: Values) -> Output:
        """Return the output that this call of the command writes."""
        return self

    def check(self, path: Path, option: str, read: list[InputPath], *, force: bool) -> None:
        """Raise a FileError if the output cannot be written, or must not be; this one is none."""

    def is_ours(self, path: Path) -> bool:
        """Return whether Ratchet wrote a file, or nobody wrote into it."""
        ends = _ends(path)
        return not ends or any(sign.search(ends) for sign in self.signs)


@dataclass(frozen=True, kw_only=True)
class OutFile(Output):
    """An output that is one file."""

    def check(self, path: Path, option: str, read: list[InputPath], *, force: bool) -> None:
        for one in read:
            if _same(path, one.path):
                raise FileError(f"{option} {path} is what the command reads ({one.what}): {OTHER}")
        files.check_new_file(path, option)
        if not path.is_file():
            return
        ours = self.is_ours(path)
        for one in read:
            if _lies_in(path, one.path) and (self.apart or not ours):
                raise FileError(
                    f"{option} {path} is a file of {one.path}, which the command reads "
                    f"({one.what}): {OTHER}"
                )
        if not ours and not force:
            raise FileError(
                f"{option} {path} holds something else than this command writes: {OTHER}, or give "
                "--force to lose it"
            )


@dataclass(frozen=True, kw_only=True)
class OutFolder(Output):
    """An output that is a folder; `names` are patterns of the files that are overwritten in it.

    A folder that is written as a `whole` is empty, or holds some of them already.
    """

    names: tuple[str, ...] = ()
    whole: bool = False

    def check(self, path: Path, option: str, read: list[InputPath], *, force: bool) -> None:
        files.check_new_folder(path, option)
        if self.apart and (same := next((one for one in read if _same(path, one.path)), None)):
            raise FileError(f"{option} {path} is what the command reads ({same.what}): {OTHERS}")
        try:
            there = [one for name in self.names for one in path.glob(name) if not one.is_dir()]
            other = sorted(path.iterdir())[:1] if self.whole and not there and path.exists() else []
        except OSError as error:
            raise FileError(
                f"{option} {path} cannot be read ({error.strerror}): {OTHERS}"
            ) from None
        for file in there:
            for one in read:
                if _same(file, one.path):
                    raise FileError(
                        f"{option} {path} holds {file.name}, which the command reads ({one.what}) "
                        f"and would overwrite: {OTHERS}"
                    )
        if force:
            return
        pages = [one for one in there if one.suffix == ".html" and not self.is_ours(one)]
        if pages or other or (there and not any(self.is_ours(one) for one in there)):
            name = (pages or other or there)[0].name
            raise FileError(
                f"{option} {path} holds {name}, which this command did not write: {OTHERS}, or "
                "give --force to lose it"
            )


@dataclass(frozen=True, kw_only=True)
class OutEither(Output):
    """An output that is a file or a folder, which the other options of the call decide."""

    choose: Callable[[Values], Output]

    def of(self, values: Values) -> Output:
        return self.choose(values)


Page = Annotated[
    Path | None,
    option(..., "Write a page that opens offline.", "PAGE.html", parser=OutFile(signs=(PAGE,))),
]
PageOrBook = Annotated[
    Path | None,
    option(
        ...,
        "Write a page that opens offline, or, to NAME.xlsx, every table as a sheet.",
        "PAGE.html",
        parser=OutFile(signs=(PAGE, PARQUET)),
    ),
]
MOST = 1_000_000_000
"""The largest number that an option takes: what is larger ends in no time."""
OTHER, OTHERS = "name another file", "name another folder"
UNNAMED = {"suite": "ratchet-watch.toml"}
"""Files that are read if an option names none."""
FORCE = option(..., "Overwrite files that Ratchet did not write, too.", flag="--force")


def checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that checks its outputs first; one with outputs also takes `--force`.

    A parameter of a dataclass (`StepOptions`) is an option for each of its fields. No number is
    larger than MOST, unless its option names another limit, and none is nan or infinite. A flag has
    no `--no-` form, unless its option names one.
    """
    given = inspect.signature(callback, eval_str=True).parameters.values()
    groups: dict[str, type[Any]] = {
        one.name: one.annotation
        for one in given
        if isinstance(one.annotation, type) and is_dataclass(one.annotation)
    }
    parameters = [one for of in given for one in _options_of(groups.get(of.name), of)]
    infos = _infos(parameters)
    outputs = [name for name, info in infos.items() if isinstance(info.parser, Output)]
    for one in parameters:
        kind, info = (*get_args(one.annotation), None)[0], infos.get(one.name)
        if info is None:
            continue
        if kind in (int, int | None) and info.max is None and info.callback is None:
            info.max = MOST
        if kind in (float, float | None) and info.parser is None:  # typer's own would take nan
            info.parser = finite(least=info.min, most=MOST if info.max is None else info.max)
            info.min = info.max = None
        if kind is bool and info.default is ... and not info.param_decls:
            info.param_decls = (_flag(one.name),)
    context = next((one.name for one in parameters if one.annotation is typer.Context), "")
    own = "force" in infos

    def run(**values: Any) -> Any:
        call = values[context or "call"]
        force = values["force"] if own else bool(outputs) and values.pop("force")
        words = call.meta.get(COMMAND) or ()
        read = check_outputs(infos, values, words, force=force)
        if not context:
            del values["call"]
        for name, group in groups.items():
            values[name] = group(**{one.name: values.pop(one.name) for one in fields(group)})
        # `port --write` changes what it reads.
        with files.kept_whole([] if values.get("write") else [one.path for one in read]):
            return callback(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    found = [one.replace(kind=keyword) for one in parameters]
    if not context:
        found.insert(0, inspect.Parameter("call", keyword, annotation=typer.Context))
    if outputs and not own:
        annotation = Annotated[bool, FORCE]
        found.append(inspect.Parameter("force", keyword, default=False, annotation=annotation))
    update_wrapper(run, callback)
    del run.__wrapped__  # type: ignore[attr-defined]  # its signature is another
    run.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in found}
    return run


def check_outputs(
    infos: Mapping[str, Any], values: Values, words: Iterable[str], *, force: bool
) -> list[InputPath]:
    """Return what a call reads; FileError if an output is an input, another output, or not ours.

    `infos` describes the command's parameters; `words` are those after `--`.
    """
    parsers = {
        name: info.parser.of(values)
        for name, info in infos.items()
        if isinstance(info.parser, Output)
    }
    places = {name: values.get(name) or one.default(values) for name, one in parsers.items()}
    outputs = {name: (path, parsers[name]) for name, path in places.items() if path is not None}
    read = [
        InputPath(path, _shown(name, infos[name]))
        for name, value in values.items()
        if name in infos and name not in outputs and name != "ledger"
        for path in _paths(value or UNNAMED.get(name))
    ]
    ledger = ledger_files(values.get("ledger"))
    for one in read:
        if ledger and _same(ledger[0], one.path):
            raise FileError(f"--ledger {ledger[0]} is what the command reads ({one.what}): {OTHER}")
    read += [InputPath(path, "after --") for word in words for path in _paths(_split(word))]
    read += [InputPath(path, "the ledger") for path in ledger]
    written: list[InputPath] = []
    for name, (path, output) in outputs.items():
        option = _shown(name, infos[name])
        if isinstance(output, OutFile) and any(_same(path, one.path) for one in written):
            raise FileError(f"{option} {path} is another output's too: {OTHER}")
        output.check(path, option, read, force=force)
        written.append(InputPath(path, option))
    return read


def ledger_files(ledger: str | None) -> list[Path]:
    """Return the file of a command's ledger, those that SQLite keeps beside it, and the index."""
    text = files.ledger_place(ledger)
    if "://" in text:
        if not text.startswith("sqlite"):
            return []
        text = text.partition("://")[2].partition("?")[0].removeprefix("/")
    if not text or text == ":memory:":
        return []
    path = Path(text).expanduser()
    books = (path, path.with_name(f"{path.stem}-knowledge.db"))
    return [
        one.with_name(one.name + end) for one in books for end in ("", "-wal", "-shm", "-journal")
    ]


def _options_of(group: Any, of: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Yield a parameter, or those of its group's fields, with what typer is told as annotation."""
    if group is None:
        info = of.default
        if hasattr(info, "param_decls"):
            of = of.replace(annotation=Annotated[of.annotation, info], default=info.default)
            info.default = ...  # in an annotation it would be a flag
            if of.default is ...:
                of = of.replace(default=of.empty)
        yield of
        return
    hints = get_type_hints(group, include_extras=True)
    for one in fields(group):
        yield of.replace(name=one.name, default=one.default, annotation=hints[one.name])


def _infos(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Return what typer knows of each option and argument of a command."""
    found = {}
    for one in parameters:
        infos = [info for info in get_args(one.annotation)[1:] if hasattr(info, "param_decls")]
        if infos:
            found[one.name] = infos[0]
    return found


def _shown(name: str, info: Any) -> str:
    """Return an option's flag, or an argument's name in the command's usage."""
    # In an `Annotated`, typer.Option takes the first flag for its default.
    for one in (info.default, *(info.param_decls or ())):
        if isinstance(one, str) and one.startswith("--"):
            return one
    if type(info).__name__ == "ArgumentInfo":
        return str(info.metavar or name.upper())
    return _flag(name)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _paths(value: object) -> Iterator[Path]:
    """Yield the files and folders that a value names: FILE, FILE:FUNCTION, hf:FOLDER, A,B."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _paths(one)
    elif isinstance(value, (str, Path)) and (text := str(value)):
        parts = {text, *text.split(",")}
        parts |= {one.rpartition(":")[0] for one in parts} | {
            one.partition(":")[2] for one in parts
        }
        yield from (Path(one) for one in sorted(parts) if one and os.path.lexists(one))


def _split(word: str) -> list[str]:
    """Return a word after `--`, and its own words if it is a command."""
    try:
        return [word, *shlex.split(word)]
    except ValueError:
        return [word]


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths are one file: by their real paths, or by inode."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _lies_in(file: Path, folder: Path) -> bool:
    """Return whether a file is one of a folder's, under this name or as a hard link."""
    if not folder.is_dir():
        return False
    if Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        return True
    return file.stat().st_nlink > 1 and any(
        os.path.samefile(file, os.path.join(root, name))
        for root, _, names in os.walk(folder)
        for name in names
        if os.path.exists(os.path.join(root, name))
    )


def _ends(path: Path) -> bytes:
    """Return the first and the last bytes of a file, unpacked if it is gzip's; none of a device."""
    if not stat.S_ISREG(path.stat().st_mode):
        return b""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            if head.startswith(b"\x1f\x8b"):
                with gzip.open(path) as packed:
                    return packed.read(HEAD_BYTES)
            file.seek(max(len(head), path.stat().st_size - HEAD_BYTES))
            return head + file.read(HEAD_BYTES)
    except (OSError, EOFError):
        return b"?"  # It holds something that nobody can tell
