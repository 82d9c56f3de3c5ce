"""Checks of every path that a user names, and the one way to write a file: whole or not at all.

A check returns a reason to print after the path, such as "is a FIFO", or an empty text if the path
is fine. None of them opens the file, since opening a FIFO could block forever. What is to be
written is tried: only a write tells about a full disk, and permission bits do not bind root.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ratchet.base.errors import FileError

LEDGER = "RATCHET_LEDGER"  # The environment's variable that names the ledger
SQLITE = b"SQLite format 3\0"  # The first bytes of a database's file
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def cache_folder(name: str) -> Path:
    """Return one of Ratchet's cache folders, under RATCHET_CACHE or the platform's cache folder.

    What lies there can be made again: compiled kernels, tokens, measured ceilings, searches.
    """
    if asked := os.environ.get("RATCHET_CACHE", ""):
        return Path(asked) / name
    from platformdirs import user_cache_path

    return user_cache_path("ratchet", appauthor=False) / name


def default_ledger() -> Path:
    """Return the file of the ledger that is used where none is named."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("ratchet", appauthor=False)) / "ledger.db"


def ledger_place(given: str | os.PathLike[str] | None = None) -> str:
    """Return the ledger's path or URL: the given one, RATCHET_LEDGER or the default."""
    text = os.fspath(given) if given is not None else ""
    return text or os.environ.get(LEDGER, "") or str(default_ledger())


def kind(mode: int) -> str:
    """Name the kind of a file by its mode: `a folder`."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def slug(text: str) -> str:
    """Return a text as a part of a file's name, of at most 80 characters."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:80] or "unnamed"


def why_not_file(path: Path) -> str:
    """Return the reason why a file cannot be read."""
    return _why_not(path, stat.S_IFREG, os.R_OK)


def why_not_folder(path: Path) -> str:
    """Return the reason why the files of a folder cannot be read."""
    return _why_not(path, stat.S_IFDIR, os.R_OK | os.X_OK)


def why_not_new_folder(path: Path) -> str:
    """Return the reason why a folder cannot be created or written, such as a file in its place."""
    for place in (path, *path.parents):
        try:
            found = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"cannot be created as a folder ({error.strerror})"
        if stat.S_ISDIR(found):
            why = _why_no_room(place)
            return f"cannot be written ({why})" if why else ""
        return (
            f"is {kind(found)}" if place == path else f"lies below {place}, which is {kind(found)}"
        )
    return ""


def why_not_new_file(path: Path) -> str:
    """Return the reason why a file cannot be written; its folder must exist."""
    try:
        found = path.stat().st_mode
    except FileNotFoundError:
        if why_not_folder(path.absolute().parent):
            return "is in a folder that does not exist"
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    else:
        if stat.S_ISCHR(found):  # /dev/null and /dev/stdout are devices
            return ""
        if not stat.S_ISREG(found):
            return f"is {kind(found)}"
    why = _why_no_room(Path(os.path.realpath(path)).parent)
    return f"cannot be written ({why})" if why else ""


def check_new_folder(path: Path, option: str = "--out") -> None:
    """Raise a FileError if an option's folder cannot be created, or takes no files."""
    if why := why_not_new_folder(path):
        raise FileError(f"{option} {path} {why}: name a folder")


def check_new_file(path: Path | None, option: str = "--out") -> None:
    """Raise a FileError if an option's file cannot be written; none is fine."""
    if path is not None and (why := why_not_new_file(path)):
        raise FileError(f"{option} {path} {why}: name a file in a folder that can be written")


def make_folder(path: Path, option: str = "the folder") -> None:
    """Create a folder, and those above it; `option` names it in the error.

    FileError if it cannot be created, or takes no files.
    """
    check_new_folder(path, option)
    with _told(path):
        path.mkdir(parents=True, exist_ok=True)


_inputs: set[tuple[int, int]] = set()  # Files that `whole_file` refuses, by device and inode


@contextlib.contextmanager
def kept_whole(paths: Iterable[Path]) -> Iterator[None]:
    """Let no file take the place of these while the block runs: they are a command's inputs."""
    before = set(_inputs)
    for path in paths:
        with contextlib.suppress(OSError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                _inputs.add((found.st_dev, found.st_ino))
    try:
        yield
    finally:
        _inputs.clear()
        _inputs.update(before)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: no reader sees half of it.

    FileError if it cannot be written; what was there before is as it was.
    """
    write_all({path: content})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write several files that belong together, or none; FileError if one cannot be written."""
    with contextlib.ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(whole_file(path))
            with _told(path):
                file.write(content)
                file.flush()


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file whole or not at all, with its permissions.

    FileError if the source cannot be read, or the copy cannot be written.
    """
    with _told(source), source.open("rb") as content, whole_file(path) as file:
        shutil.copyfileobj(content, file)
    with _told(path):
        shutil.copymode(source, path)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield an open file that takes the place of `path` once the block ends without an error.

    A link is followed, and a device such as /dev/null is written as it is.
    FileError if it cannot be written; what was there before is as it was.
    """
    target = Path(os.path.realpath(path))
    with _told(path):
        found = target.stat() if target.exists() else None
        mode = None if found is None else found.st_mode
        if found is not None and (found.st_dev, found.st_ino) in _inputs:
            raise FileError(f"{path} is what the command reads: name another file or folder")
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as file:
                yield file
            return
        partial = target.with_name(f".{secrets.token_hex(8)}.partial")
        try:
            with partial.open("xb") as file:
                yield file
            if mode is not None:
                partial.chmod(stat.S_IMODE(mode))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn the system's error about a file into a `FileError` that names it."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError.of(error, path, "written") from error


def _why_no_room(folder: Path) -> str:
    """Return why a folder takes no file, in the system's words; the trial leaves nothing."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _why_not(path: Path, wanted: int, access: int) -> str:
    try:
        found = path.stat().st_mode
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if stat.S_IFMT(found) != wanted:
        return f"is {kind(found)}"
    return "" if os.access(path, access) else "may not be read"
