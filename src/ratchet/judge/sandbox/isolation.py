"""The sandbox of one worker: its command line, environment and limits.

`mechanism` decides what isolates a candidate. With bubblewrap it has PID, network, IPC and mount
namespaces of its own, a read-only view of the system's libraries and a small private /tmp
(`bubblewrap`). Without namespaces a `keeper` stands between it and the judge, and Landlock closes
the file system to it (`landlock`). rlimits and no_new_privs hold always, and a filter of system
calls where `confine` knows their numbers. Where a candidate is forked from a zygote in bubblewrap's
sandbox, the fork takes the same for itself (`workers.zygote`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from ratchet.base import scratch
from ratchet.base.errors import CompilerMissing, JudgeError
from ratchet.base.process import families, watchdog
from ratchet.judge.sandbox import bubblewrap, identity, landlock, system_calls, view
from ratchet.judge.sandbox.accelerator import Accelerator, groups_of
from ratchet.judge.sandbox.confine import EXTENSIONS
from ratchet.judge.sandbox.keeper import Orders
from ratchet.judge.sandbox.landlock import Opened
from ratchet.judge.sandbox.worker_modules import ZYGOTE
from ratchet.kernels.languages.cpp import find_compiler

Mechanism = Literal["bubblewrap", "landlock", "rlimits"]
NO_WALLS: Final = (
    "this kernel allows neither namespaces nor Landlock, and a candidate of root's needs a uid of "
    "its own, which cannot enter {closed}; to fix it: allow one of the two, or install Python and "
    "Ratchet where every user can read them"
)


def mechanism() -> Mechanism:
    """Return the first that works here."""
    if bubblewrap.program() is not None:
        return "bubblewrap"
    return "landlock" if landlock.abi() > 0 else "rlimits"


def has_namespaces() -> bool:
    """Return whether a candidate gets namespaces: a private /tmp, processes of its own."""
    return mechanism() == "bubblewrap"


def shows_own_files() -> bool:
    """Return whether a candidate can be shown a file out of the user's own folders."""
    return has_namespaces() or (mechanism() == "landlock" and uid_among_others() is None)


def uid_among_others() -> int | None:
    """Draw the uid of a candidate without namespaces; None where it has the judge's own.

    A fresh one must be able to read what the worker needs, and the judge to look into its
    processes. Else it is the judge's, which Landlock and the filter make harmless.
    """
    may_look = identity.has_capability(identity.SYS_PTRACE) or mechanism() == "rlimits"
    return identity.fresh_uid() if may_look and view.closed_to_others() is None else None


def check_walls() -> None:
    """Raise JudgeError where a candidate would be root among others, with no wall around it."""
    if mechanism() == "rlimits" and identity.is_root() and uid_among_others() is None:
        raise JudgeError(NO_WALLS.format(closed=view.closed_to_others() or "what it must read"))


def isolation_name(accelerator: Accelerator | None = None) -> str:
    """The isolation that a candidate gets on this machine, in words."""
    opened = ", the GPU's device files and parts of /sys" if accelerator is not None else ""
    if opened and not has_namespaces() and landlock.abi() < landlock.SCOPES_SINCE:
        opened += ", and local sockets, which others can reach"
    calls = "rlimits, system calls filtered" if system_calls.known() else "rlimits"
    if has_namespaces():
        uid = "own user" if identity.fresh_uids() is None else "fresh uid without capabilities"
        return f"bubblewrap (own PID, network, IPC and mount namespaces), {uid}, {calls}{opened}"
    uid = "own user" if uid_among_others() is None else "fresh uid"
    walls = f"Landlock (ABI {landlock.abi()})" if landlock.abi() else "no Landlock"
    return f"{walls}, no namespaces, {uid} without capabilities, {calls}{opened}"


MALLOC = (("mmap_max", 0), ("trim_threshold", 1 << 30), ("tcache_count", 0))
TORCH_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Folders of a worker's own, where torch would look for one by the user's name and home."""
ROOM_FOR_OTHERS = 1024
"""What the user may start meanwhile, where the candidate has no uid of its own."""
KEEPER = "ratchet.judge.sandbox.keeper"
TORCH_FIRST = "import ctypes, torch; "
"""Both arms of a trial load torch's libraries first of all, so that they lie at the same places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that a candidate's worker sets on itself before any candidate code runs."""

    address_space_bytes: int | None
    """None on a GPU, whose driver reserves terabytes."""
    cpu_time_s: int
    processes: int
    """Threads count too, and where the candidate has the judge's uid, all of that user's."""
    file_bytes: int = bubblewrap.TMP_BYTES
    uid: int | None = None
    """To be taken by the worker itself, where no other program has done it before."""
    among_others: bool = False
    """Whether it has no process namespace of its own."""
    filtered: bool = True
    """Whether system calls that no kernel needs are denied."""
    groups: tuple[int, ...] = ()
    """Groups to be taken with the uid: those of a GPU's device files."""
    local_sockets: bool = False
    """Whether sockets inside the machine may be made: NVIDIA's driver does not start without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A command line and environment for one worker, and the isolation's name."""

    isolation: str
    program: tuple[str, ...]
    """Empty for a fork of the zygote."""
    environment: Mapping[str, str]
    limits: Limits
    scratch: Path | None = None
    """A private folder of this process, where no private /tmp could be made; remove it after."""
    uid: int | None = None
    """The fresh uid, where there is one."""

    @property
    def kept(self) -> bool:
        """True if its first process is a `keeper`; else it has namespaces of its own."""
        return self.scratch is not None

    @property
    def shares_user(self) -> bool:
        """True if the candidate is the judge's own user on the judge's own machine."""
        return self.scratch is not None and self.uid is None

    @property
    def shared_folders(self) -> list[Path]:
        """Folders of the machine that the process can fill."""
        if self.scratch is None:
            return []
        return [folder for folder in (self.scratch, *OPEN_FOLDERS) if folder.is_dir()]

    def clean(self) -> None:
        """End what still runs under the fresh uid, and remove what the process left on the disk."""
        if self.uid is not None and self.kept:
            families.end_user(self.uid)
            for path in left_by(self.uid):
                remove(path)
        if self.scratch is not None:
            scratch.remove(self.scratch)

    def command(self, channel: int) -> list[str]:
        """The command line when the channel has this number in the child."""
        return [*self.program, str(channel)]


def make_sandbox(
    module: str,
    *,
    threads: int,
    memory_bytes: int,
    time_limit_s: float,
    with_torch: bool,
    accelerator: Accelerator | None = None,
    headers: Path | None = None,
    forked: bool = False,
) -> Sandbox:
    """Return the sandbox of the worker `module`, as strict as this machine allows.

    `headers` is a folder that its compiler may read. A worker that is `forked` comes from a zygote
    in a sandbox of `zygote_sandbox`, and takes its uid itself.
    """
    wrapped = bubblewrap.program()
    if wrapped is None:
        check_walls()
    uid = identity.fresh_uid() if wrapped else uid_among_others()
    limits = Limits(
        address_space_bytes=None if accelerator else memory_bytes,
        cpu_time_s=int(time_limit_s * threads) + 5,
        processes=_most_processes(threads, uid),
        uid=uid if forked else None,
        among_others=wrapped is None,
        filtered=system_calls.known(),
        groups=tuple(groups_of(accelerator.nodes)) if accelerator else (),
        local_sockets=accelerator is not None,
    )
    name = isolation_name(accelerator)
    if forked:
        return Sandbox(isolation=name, program=(), environment={}, limits=limits, uid=uid)
    folders = [] if with_torch else view.compiler_folders()
    if headers is not None:
        folders.append(str(headers))
    if accelerator is not None:
        folders += [*accelerator.folders, *view.compiler_if_any()]
    scratch = None if wrapped else private_folder(uid)
    if scratch is None:
        assert wrapped is not None
        walls = bubblewrap.around(
            wrapped, module, with_torch=with_torch, folders=folders, accelerator=accelerator
        )
        walls += bubblewrap.privileges(uid, limits.groups)
    else:
        opened = view.opened(
            module, scratch, with_torch=with_torch, folders=folders, accelerator=accelerator
        )
        walls = _keeper(uid, limits.groups, scratch, opened)
    return Sandbox(
        isolation=name,
        program=(*walls, *_program(module, with_torch), json.dumps(asdict(limits))),
        environment=_environment(threads, with_torch, scratch or Path("/tmp"))
        | (accelerator.environment() if accelerator else {}),
        limits=limits,
        scratch=scratch,
        uid=uid,
    )


def _keeper(uid: int | None, groups: tuple[int, ...], scratch: Path, opened: Opened) -> list[str]:
    """The command before one that runs among the machine's other processes."""
    orders = Orders(
        judge=os.getpid(),
        folder=str(scratch),
        mark=watchdog.mark(),
        uid=uid,
        groups=groups,
        opened=asdict(opened) if mechanism() == "landlock" else None,
    )
    boot = view.BOOT.format(folder=view.code_folder(), module=KEEPER)
    return [*view.python(with_torch=False), "-c", boot, json.dumps(asdict(orders))]


def zygote_program(
    module: str = ZYGOTE, *, with_torch: bool = True, folders: Sequence[str] = ()
) -> list[str]:
    """The command line of a zygote of candidates; it takes the channel's number.

    It stands in bubblewrap's sandbox with the privileges to make namespaces there, and sees these
    `folders` besides the usual ones. Empty where bubblewrap does not work.
    """
    wrapped = bubblewrap.program()
    if wrapped is None:
        return []
    walls = bubblewrap.around(wrapped, module, with_torch=with_torch, folders=folders)
    return [*walls, *_program(module, with_torch=with_torch)]


def zygote_environment(threads: int, *, with_torch: bool = True) -> dict[str, str]:
    """Its environment, and that of its forks."""
    return _environment(threads, with_torch, Path("/tmp"))


def _program(module: str, with_torch: bool) -> list[str]:
    """Python running a worker, which finds Ratchet's code where it is bound, or installed."""
    folder = bubblewrap.CODE_FOLDER if bubblewrap.program() else view.code_folder()
    boot = view.BOOT.format(folder=folder, module=module)
    return [*view.python(with_torch), "-c", TORCH_FIRST + boot if with_torch else boot]


def most_threads(threads: int) -> int:
    """Return the most processes and threads that a candidate may have in all."""
    return 64 + 8 * threads


def _most_processes(threads: int, uid: int | None) -> int:
    """The limit for a uid: its own where it is fresh, else beside what the user runs already."""
    own = most_threads(threads)
    return own if uid is not None else own + ROOM_FOR_OTHERS + families.threads_of(os.getuid())


def arm_environment(threads: int) -> dict[str, str]:
    """Return the settings of OpenMP and malloc in both arms of a kernel's trial.

    Threads that spin while they wait take the core from the one they wait for: on two busy cores
    a reference took 25 ms where it takes 0.5, and intervals were useless; passive waiting mends it.
    glibc maps what is larger than 32 MB anew each time, unless its heap happens to have such a gap:
    a ReLU of 44 MB took 38 ms in a young process and 15 in one that had freed much. Here nothing is
    mapped apart and 1 GiB stays in the heap, so that both are alike once they are warm. The cache
    of each thread is off: where glibc has its bug 30723 (2.36 has), it keeps the remainders of
    aligned pieces, and freed tensors are never found again.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "PYTHONHASHSEED": "0",  # else each start's dictionaries have a layout of their own
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC),
    }


def _environment(threads: int, with_torch: bool, home: Path) -> dict[str, str]:
    own = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        **arm_environment(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if with_torch:
        own["PATH"] += f":{Path(sys.prefix) / 'bin'}"  # ninja may lie there
        own[EXTENSIONS] = str(home / "extensions")
        own |= {name: str(home / folder) for name, folder in TORCH_CACHES.items()}
        own["LOGNAME"] = "candidate"  # torch asks for the user's name, and a fresh uid has none
        passed = ("CUDA_VISIBLE_DEVICES",)
        return own | {name: os.environ[name] for name in passed if name in os.environ}
    with contextlib.suppress(CompilerMissing):  # the verdict says so; its PATH is not ours
        own["RATCHET_CXX"] = str(find_compiler())
    return own


OPEN_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Where every user may write: a candidate too, when it has no private view of the machine."""


def private_folder(uid: int | None) -> Path:
    """Make a folder of one candidate, given to a uid; what killed judges have left goes."""
    for base in _bases():
        scratch.clear_abandoned(base)
    folder = scratch.make(f"candidate-{os.getpid()}", place=_base())
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def _bases() -> list[Path]:
    return list(dict.fromkeys((Path(tempfile.gettempdir()), *OPEN_FOLDERS)))


def _base() -> Path:
    """The first of these that takes files whose code may run: what a candidate builds, it loads."""
    return next((base for base in _bases() if _takes_code(base)), _bases()[0])


def _takes_code(folder: Path) -> bool:
    try:
        is_open = os.access(folder, os.W_OK | os.X_OK)
        return is_open and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def left_by(uid: int) -> list[Path]:
    """Return what a user has put into the folders where everybody may write."""
    found = []
    for folder in OPEN_FOLDERS:
        with contextlib.suppress(OSError):
            found += [Path(entry.path) for entry in os.scandir(folder) if _owner(entry) == uid]
    return found


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
