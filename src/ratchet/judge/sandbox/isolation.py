"""The sandbox of one worker: its command line, environment and limits.

The judge takes the strongest mechanism that works on this machine, from the top:

| mechanism | condition |
|---|---|
| bubblewrap | namespaces may be made; the wheel's program is tried, then the system's |
| Landlock | the kernel has it; it needs nothing that a container's runtime denies |
| rlimits | neither; as root, only if a candidate can have a uid of its own |

With bubblewrap a candidate has its own PID, network, IPC and mount namespaces, a read-only view of
the system's libraries and a small private /tmp (`bubblewrap`). Without namespaces a `keeper` stands
between it and the judge, and Landlock closes the file system to it (`keeper`). rlimits,
no_new_privs and the lack of capabilities always hold, and a filter of system calls if
`confine` knows their numbers. A fork of a zygote in bubblewrap's sandbox confines itself in
the same way (`serving`).
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
from ratchet.base.process.channel import Shortage
from ratchet.base.process.memory import memory
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.judge.sandbox import bubblewrap, confine, keeper, privileges, rocm, view
from ratchet.judge.sandbox.accelerator import Accelerator, groups_of
from ratchet.judge.sandbox.confine import EXTENSIONS
from ratchet.judge.sandbox.keeper import KeeperOrders, Opened

Mechanism = Literal["bubblewrap", "landlock", "rlimits"]
NO_WALLS: Final = (
    "this kernel allows neither namespaces nor Landlock, and a candidate of root's needs a uid of "
    "its own, which cannot enter {closed}; to fix it: allow one of the two, or install Python and "
    "Ratchet where every user can read them"
)


def mechanism() -> Mechanism:
    """Return the first mechanism that works here."""
    if bubblewrap.program() is not None:
        return "bubblewrap"
    return "landlock" if keeper.abi() > 0 else "rlimits"


def has_namespaces() -> bool:
    """Return True if a candidate gets namespaces: a private /tmp, processes of its own."""
    return mechanism() == "bubblewrap"


def shows_own_files() -> bool:
    """Return True if a candidate can be shown a file from the user's own folders."""
    return has_namespaces() or (mechanism() == "landlock" and uid_among_others() is None)


def uid_among_others() -> int | None:
    """Draw the uid of a candidate without namespaces; None if it has the judge's own.

    A fresh uid must be able to read what the worker needs, and the judge must be able to inspect
    its processes. Otherwise the judge's uid is used, which Landlock and the filter make harmless.
    """
    may_look = privileges.has_capability(privileges.SYS_PTRACE) or mechanism() == "rlimits"
    return privileges.fresh_uid() if may_look and view.closed_to_others() is None else None


def isolation_name(accelerator: Accelerator | None = None) -> str:
    """Return in words the isolation that a candidate gets on this machine."""
    opened = ", the GPU's device files and parts of /sys" if accelerator is not None else ""
    if opened and not has_namespaces() and keeper.abi() < keeper.SCOPES_SINCE:
        opened += ", and local sockets, which others can reach"
    calls = "rlimits, system calls filtered" if confine.known() else "rlimits"
    if has_namespaces():
        uid = "own user" if privileges.fresh_uids() is None else "fresh uid without capabilities"
        return f"bubblewrap (own PID, network, IPC and mount namespaces), {uid}, {calls}{opened}"
    uid = "own user" if uid_among_others() is None else "fresh uid"
    walls = f"Landlock (ABI {keeper.abi()})" if keeper.abi() else "no Landlock"
    return f"{walls}, no namespaces, {uid} without capabilities, {calls}{opened}"


MALLOC = (("mmap_max", 0), ("trim_threshold", 1 << 30), ("tcache_count", 0))
TORCH_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""A worker's own folders, which torch would otherwise derive from the user's name and home."""
ROOM_FOR_OTHERS = 1024
"""Processes that the user may start meanwhile, if the candidate has no uid of its own."""
TORCH_FIRST = "import ctypes, gc; gc.disable(); import torch; gc.freeze(); gc.enable(); "
"""Both arms of a trial load torch's libraries first, so they lie at the same addresses. Collecting
garbage meanwhile finds none, and takes a tenth of the time. Nor do later collections look at
torch's objects: with them, importing Triton took 0.25 s instead of 0.1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that a candidate's worker sets on itself before any candidate code runs."""

    address_space_bytes: int | None  # None on a GPU, whose driver reserves terabytes
    cpu_time_s: int
    processes: int
    """Threads count too. If the candidate has the judge's uid, all of that user's do."""
    file_bytes: int = bubblewrap.TMP_BYTES
    uid: int | None = None  # The uid that the worker takes itself, if no other program has set it
    among_others: bool = False  # True if it has no process namespace of its own
    filtered: bool = True  # True if system calls that no kernel needs are denied
    groups: tuple[int, ...] = ()  # Groups that go with the uid: those of a GPU's device files
    local_sockets: bool = False
    """True if local sockets may be made, which NVIDIA's driver needs to start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandbox:
    """A command line and environment for one worker, and the isolation's name."""

    isolation: str
    program: tuple[str, ...]  # Empty for a fork of the zygote
    environment: Mapping[str, str]
    limits: Limits
    scratch: Path | None = None
    """A private folder of this process, if it has no private /tmp; remove it afterwards."""
    uid: int | None = None  # The fresh uid, if there is one

    @property
    def kept(self) -> bool:
        """True if its first process is a `keeper`; else it has namespaces of its own."""
        return self.scratch is not None

    @property
    def shared_folders(self) -> list[Path]:
        """Folders of the machine that the process can fill."""
        if self.scratch is None:
            return []
        return [folder for folder in (self.scratch, *OPEN_FOLDERS) if folder.is_dir()]

    def clean(self) -> None:
        """End what still runs under the fresh uid; remove what the process left on the disk."""
        if self.uid is not None and self.kept:
            families.end_user(self.uid)
            for path in left_by(self.uid):
                remove(path)
        if self.scratch is not None:
            scratch.remove(self.scratch)

    def command(self, channel: int) -> list[str]:
        """Return the command line, given the channel's number in the child."""
        return [*self.program, str(channel)]


def make_sandbox(
    module: str,
    *,
    threads: int,
    memory_bytes: int,
    limit_s: float,
    accelerator: Accelerator | None = None,
    headers: Path | None = None,
    forked: bool = False,
    cross_compiles: bool = False,
) -> Sandbox:
    """Return the sandbox of the worker `module`, as strict as this machine allows.

    `headers` is a folder that its compiler may read. A `forked` worker comes from a zygote in
    bubblewrap's sandbox, and takes its uid itself. One that `cross_compiles` for GPUs that are not
    here sees this machine's LLVM and ROCm, and is no arm of a trial.
    """
    wrapped = bubblewrap.program()
    uid = privileges.fresh_uid() if wrapped else uid_among_others()
    if mechanism() == "rlimits" and privileges.is_root() and uid is None:
        # It would be root among other processes, without any wall.
        raise JudgeError(NO_WALLS.format(closed=view.closed_to_others() or "what it must read"))
    processes = most_threads(threads)
    if uid is None:  # the limit is the user's, who runs other processes already
        processes += ROOM_FOR_OTHERS + families.threads_of(os.getuid())
    limits = Limits(
        address_space_bytes=None if accelerator else memory_bytes,
        cpu_time_s=int(limit_s * threads) + 5,
        processes=processes,
        uid=uid if forked else None,
        among_others=wrapped is None,
        filtered=confine.known(),
        groups=tuple(groups_of(accelerator.nodes)) if accelerator else (),
        local_sockets=accelerator is not None,
    )
    name = isolation_name(accelerator)
    if forked:
        return Sandbox(isolation=name, program=(), environment={}, limits=limits, uid=uid)
    with_torch = view.needs_torch(module)
    folders = [] if with_torch else view.compiler_folders()
    if headers is not None:
        folders.append(str(headers))
    folders += _folders_of(accelerator)
    if cross_compiles:
        folders += rocm.folders_to_show([*view.python_folders(with_torch), *folders])
    scratch = None if wrapped else private_folder(uid)
    if scratch is None:
        assert wrapped is not None
        walls = bubblewrap.around(wrapped, module, folders=folders, accelerator=accelerator)
        walls += bubblewrap.privileges(uid, limits.groups)
    else:
        opened = view.opened(module, scratch, folders=folders, accelerator=accelerator)
        walls = _keeper(uid, limits.groups, scratch, opened)
    worker = _program(module, is_arm=with_torch and not cross_compiles)
    environment = _environment(module, threads, scratch or Path("/tmp"), accelerator)
    return Sandbox(
        isolation=name,
        program=(*walls, *worker, json.dumps(asdict(limits))),
        environment=rocm.told(environment) if cross_compiles else environment,
        limits=limits,
        scratch=scratch,
        uid=uid,
    )


def _keeper(uid: int | None, groups: tuple[int, ...], scratch: Path, opened: Opened) -> list[str]:
    """Return the command that runs another one among the machine's processes."""
    orders = KeeperOrders(
        judge=os.getpid(),
        folder=str(scratch),
        mark=watchdog.mark(),
        uid=uid,
        groups=groups,
        opened=opened if mechanism() == "landlock" else None,
    )
    boot = view.BOOT.format(folder=view.code_folder(), module=keeper.__name__)
    return [*view.python(with_torch=False), "-c", boot, json.dumps(asdict(orders))]


def _folders_of(accelerator: Accelerator | None) -> list[str]:
    """Return what a sandbox shows for a GPU: its driver's libraries, and a compiler for Triton."""
    return [*accelerator.folders, *view.compiler_if_any()] if accelerator is not None else []


def zygote_program(
    module: str,
    threads: int,
    *,
    folders: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of a zygote of candidates, before the channel's number, and the
    environment of it and its forks.

    The zygote runs in bubblewrap's sandbox with the privileges to make namespaces, and also sees
    these `folders` and the GPU's files. The command is empty if bubblewrap does not work.
    """
    environment = _environment(module, threads, Path("/tmp"), accelerator)
    wrapped = bubblewrap.program()
    if wrapped is None:
        return [], environment
    shown = [*folders, *_folders_of(accelerator)]
    walls = bubblewrap.around(wrapped, module, folders=shown, accelerator=accelerator)
    return [*walls, *_program(module, is_arm=view.needs_torch(module))], environment


def _program(module: str, *, is_arm: bool) -> list[str]:
    """Return the command of a worker, which finds Ratchet's code as bound, or installed."""
    folder = bubblewrap.CODE_FOLDER if bubblewrap.program() else view.code_folder()
    boot = view.BOOT.format(folder=folder, module=module)
    python = view.python(view.needs_torch(module))
    return [*python, "-c", TORCH_FIRST + boot if is_arm else boot]


def most_threads(threads: int) -> int:
    """Return the most processes and threads that a candidate may have in all."""
    return 64 + 8 * threads


def arm_environment(threads: int) -> dict[str, str]:
    """Return the settings of OpenMP and malloc in both arms of a kernel's trial.

    Threads that spin while they wait take the core from the thread that they wait for: on two busy
    cores a reference took 25 ms instead of 0.5, and intervals were useless. Passive waiting avoids
    this. glibc maps blocks over 32 MB anew each time, unless its heap has such a gap: a ReLU of
    44 MB took 38 ms in a young process and 15 in one that had freed much. Here no block is mapped
    apart and 1 GiB stays in the heap, so both arms are alike once they are warm. The cache of each
    thread is off: with bug 30723 of glibc (2.36 has it), it keeps the remainders of aligned blocks,
    and freed tensors are never found again. numpy's OpenBLAS knows nothing of OpenMP: its threads
    would spin, for 0.05 to 0.13 s of CPU time as soon as it is loaded.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "OPENBLAS_THREAD_TIMEOUT": "4",  # wait 2^4 cycles for work, then sleep
        "PYTHONHASHSEED": "0",  # else each process orders its dictionaries differently
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC),
    }


def _environment(
    module: str, threads: int, home: Path, accelerator: Accelerator | None
) -> dict[str, str]:
    own = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        **arm_environment(threads),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if view.needs_torch(module):
        own["PATH"] += f":{Path(sys.prefix) / 'bin'}"  # ninja may lie there
        own[EXTENSIONS] = str(home / "extensions")
        own |= {name: str(home / folder) for name, folder in TORCH_CACHES.items()}
        own["LOGNAME"] = "candidate"  # torch asks for the user's name, and a fresh uid has none
        passed = ("CUDA_VISIBLE_DEVICES",)
        own |= {name: os.environ[name] for name in passed if name in os.environ}
        return own | (accelerator.environment() if accelerator else {})
    with contextlib.suppress(CompilerMissing):  # the verdict says so; its PATH is not ours
        own["RATCHET_CXX"] = str(find_compiler())
    return own


OPEN_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Folders where every user may write, also a candidate without namespaces."""


def private_folder(uid: int | None) -> Path:
    """Make one candidate's folder for a uid; remove those that killed judges left."""
    bases = list(dict.fromkeys((Path(tempfile.gettempdir()), *OPEN_FOLDERS)))
    for base in bases:
        scratch.clear_abandoned(base)
    # Its files may be executed, if any folder's may: a candidate loads what it builds.
    place = next((base for base in bases if _takes_code(base)), bases[0])
    folder = scratch.make(f"candidate-{os.getpid()}", place=place)
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def _takes_code(folder: Path) -> bool:
    try:
        is_open = os.access(folder, os.W_OK | os.X_OK)
        return is_open and not os.statvfs(folder).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def left_by(uid: int) -> list[Path]:
    """Return what a user has put into the folders where every user may write."""
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
    """Remove a file or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# Reserves of the machine while a candidate runs: memory, disk space, processes.
#
# No rlimit bounds a family of processes as a whole, a memfd belongs to no process, and the number
# of root's processes is not limited (RLIMIT_NPROC, getrlimit(2)).

KEPT_SHARE: Final = 0.05
"""Share of the whole that must stay free; a candidate may always use half of what was free."""


class Headroom:
    """The floors of one candidate's run, set at its start."""

    def __init__(self, folders: Sequence[Path] = (), *, most_threads: int | None = None) -> None:
        """`most_threads` is the limit for the family that `watch` names."""
        self._most_threads = most_threads
        self._root: int | None = None
        self._threads = _threads()
        self._folders = list(folders)
        self._free_bytes, total_bytes = memory()
        self._memory_floor = _floor(self._free_bytes, total_bytes)
        self._disk_floors = [_floor(*_disk_bytes(folder)) for folder in self._folders]

    def watch(self, root: int) -> None:
        """Count the threads of a process and its descendants from now on."""
        self._root = root

    def shortage(self) -> Shortage | None:
        """Return what has run short, or None.

        Memory was taken by others if the family itself holds less than half of what was taken.
        """
        if self._root is not None and self._most_threads is not None:
            # The machine's own count is one line to read; a family's is many files.
            more = _threads() - self._threads
            if more > self._most_threads < families.threads_below(self._root):
                return Shortage(
                    f"it had started more than {self._most_threads} processes and threads"
                )
        free, _ = memory()
        if free < self._memory_floor:
            words = f"the machine had {free >> 20} MiB of memory left while it ran"
            own = self._own_bytes()
            if 2 * own >= self._free_bytes - free:
                return Shortage(words)
            words += f", and its own processes held only {own >> 20} MiB: judge again"
            return Shortage(words, of_others=True)
        for folder, floor in zip(self._folders, self._disk_floors, strict=True):
            free, _ = _disk_bytes(folder)
            if free < floor:
                return Shortage(f"the disk had {free >> 20} MiB left while it ran")
        return None

    def _own_bytes(self) -> int:
        """Return the memory of the family; all of it where nobody named a family."""
        if self._root is None:
            return self._free_bytes
        return sum(map(families.resident_bytes, families.family(self._root)))


def _floor(free: int, total: int) -> float:
    return min(KEPT_SHARE * total, free / 2)


def _threads() -> int:
    """Return how many threads the machine has, from /proc/loadavg."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])


def _disk_bytes(folder: Path) -> tuple[int, int]:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
