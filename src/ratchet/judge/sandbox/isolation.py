"""Isolate a candidate from the machine, as strongly as works here.

With bubblewrap a candidate has PID, network, IPC and mount namespaces of its own, a read-only view
of the system's libraries and a small private /tmp; as root it also gets a fresh uid without
capabilities, because plain bubblewrap keeps root's. Without bubblewrap: a fresh uid when root, with
a guard that ends it when the judge is killed; a subreaper and rlimits otherwise. rlimits and
no_new_privs hold always, and a filter of system calls where `confine` knows their numbers. A
verdict carries the name of what was in force. Where a candidate in Python is forked from a zygote
in bubblewrap's sandbox, the fork takes the same for itself (`workers.zygote`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import ratchet
from ratchet.errors import CompilerMissing, JudgeError
from ratchet.judge.process import families
from ratchet.judge.sandbox import system_calls
from ratchet.judge.sandbox.accelerator import Accelerator, groups_of
from ratchet.judge.sandbox.confine import EXTENSIONS
from ratchet.judge.sandbox.worker_modules import ZYGOTE, package_files
from ratchet.kernels.languages.cpp import find_compiler

TMP_BYTES = 256 << 20
SHARED_MEMORY_BYTES = 64 << 20
MALLOC = (("mmap_max", 0), ("trim_threshold", 1 << 30), ("tcache_count", 0))
PROBE_TIMEOUT_S = 10.0
FIRST_UID, UID_COUNT = 1_000_000_000, 1_000_000_000
"""Uids that no account has: a fresh one for each process, so that RLIMIT_NPROC counts it alone."""
ROOM_FOR_OTHERS = 1024
"""What the user may start meanwhile, where the candidate has no uid of its own."""
CODE_FOLDER = "/ratchet-code"
SCRATCH_PREFIX = "ratchet-candidate-"
OPEN_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
"""Where every user may write: a candidate too, when it has no private view of the machine."""
SYSTEM_FOLDERS = ("/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc/alternatives", "/opt/rocm")
SYSTEM_FILES = ("/etc/ld.so.cache",)
GUARD = "ratchet.judge.sandbox.guard"
TORCH_FIRST = "import ctypes, torch; "
"""Both arms of a trial load torch's libraries first of all, so that they lie at the same places."""
BOOT = "import sys; sys.path.insert(0, {folder!r}); from {module} import main; main()"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits that a candidate's worker sets on itself before any candidate code runs."""

    address_space_bytes: int | None
    """None on a GPU, whose driver reserves terabytes."""
    cpu_time_s: int
    processes: int
    """Threads count too, and where the candidate has the judge's uid, all of that user's."""
    file_bytes: int = TMP_BYTES
    uid: int | None = None
    """To be taken by the worker itself, where no other program has done it before."""
    parent: int | None = None
    """The parent whose death the worker must not survive, where bubblewrap does not see to it."""
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
    guard: int | None = None
    """The process that ends what that uid runs, should the judge be killed."""

    @property
    def enclosed(self) -> bool:
        """True if it has a process namespace of its own, so that all it starts is below it."""
        return self.scratch is None

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
        if self.uid is not None and not self.enclosed:
            families.end_user(self.uid)
            for path in _left_by(self.uid):
                _remove(path)
        if self.guard is not None:
            _end_guard(self.guard)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def command(self, channel: int) -> list[str]:
        """The command line when the channel has this number in the child."""
        return [*self.program, str(channel)]


@functools.cache
def bubblewrap() -> str | None:
    """The path of a bubblewrap that works on this machine, or None: tried with `true`."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    command = [program, *_namespaces(), *_binds(()), *_privileges(0), "true"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 else None


def isolation_name(accelerator: Accelerator | None = None) -> str:
    """The isolation that a candidate gets on this machine, in words."""
    opened = ", the GPU's device files and parts of /sys" if accelerator is not None else ""
    uid = "fresh uid without capabilities" if os.geteuid() == 0 else "own user"
    calls = "rlimits, system calls filtered" if system_calls.known() else "rlimits"
    if bubblewrap():
        return f"bubblewrap (own PID, network, IPC and mount namespaces), {uid}, {calls}{opened}"
    return f"no namespaces, {uid}, subreaper, {calls}"


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
    wrapped = bubblewrap()
    root = os.geteuid() == 0
    uid = FIRST_UID + secrets.randbelow(UID_COUNT)
    limits = Limits(
        address_space_bytes=None if accelerator else memory_bytes,
        cpu_time_s=int(time_limit_s * threads) + 5,
        processes=_most_processes(threads),
        uid=uid if root and (forked or not wrapped) else None,
        parent=None if wrapped else os.getpid(),
        filtered=system_calls.known(),
        groups=tuple(groups_of(accelerator.nodes)) if accelerator else (),
        local_sockets=accelerator is not None and wrapped is not None,
    )
    if forked:
        return Sandbox(
            isolation=isolation_name(), program=(), environment={}, limits=limits, uid=limits.uid
        )
    if limits.uid is not None and with_torch and not _enterable(sys.base_prefix):
        raise JudgeError(
            f"Python under {sys.base_prefix} cannot be read by the fresh uid of a candidate: "
            "install bubblewrap, or a Python outside of root's home"
        )
    program = [*_program(module, with_torch), json.dumps(asdict(limits))]
    if wrapped:
        binds = [] if with_torch else compiler_folders()
        if headers is not None:
            binds.append(str(headers))
        if accelerator is not None:
            binds += [*accelerator.folders, *_compiler_if_any()]
        walls = _walls(wrapped, module, with_torch, binds, accelerator)
        program = [*walls, *_privileges(uid, limits.groups), *program]
    scratch = None if wrapped else private_folder(limits.uid)
    return Sandbox(
        isolation=isolation_name(accelerator),
        program=tuple(program),
        environment=_environment(threads, with_torch, scratch or Path("/tmp"))
        | (accelerator.environment() if accelerator else {}),
        limits=limits,
        scratch=scratch,
        uid=uid if root else None,
        guard=_start_guard(limits.uid) if limits.uid is not None else None,
    )


def zygote_program(
    module: str = ZYGOTE, *, with_torch: bool = True, folders: Sequence[str] = ()
) -> list[str]:
    """The command line of a zygote of candidates; it takes the channel's number.

    It stands in bubblewrap's sandbox with the privileges to make namespaces there, and sees these
    `folders` besides the usual ones. Empty where bubblewrap does not work.
    """
    wrapped = bubblewrap()
    if wrapped is None:
        return []
    walls = _walls(wrapped, module, with_torch, folders, None)
    return [*walls, *_program(module, with_torch=with_torch)]


def zygote_environment(threads: int, *, with_torch: bool = True) -> dict[str, str]:
    """Its environment, and that of its forks."""
    return _environment(threads, with_torch, Path("/tmp"))


def _program(module: str, with_torch: bool) -> list[str]:
    """Python running a worker, which finds Ratchet's code where it is bound, or installed."""
    folder = CODE_FOLDER if bubblewrap() else str(Path(ratchet.__file__).parents[1])
    boot = BOOT.format(folder=folder, module=module)
    return [*_python(with_torch), "-c", TORCH_FIRST + boot if with_torch else boot]


def _walls(
    wrapped: str,
    module: str,
    with_torch: bool,
    binds: Sequence[str],
    accelerator: Accelerator | None,
) -> list[str]:
    """Bubblewrap with what a worker may see of the machine."""
    package = Path(ratchet.__file__).parent
    seen = [*_python_folders(with_torch), *binds]
    hidden = _hidden(package, [*SYSTEM_FOLDERS, *seen])
    inside = [*_binds(seen, accelerator), *hidden, *_code(module), "--remount-ro", "/"]
    return [wrapped, *_namespaces(), *inside]


def _start_guard(uid: int) -> int:
    """A process that ends what a uid runs when this one dies."""
    boot = BOOT.format(folder=str(Path(ratchet.__file__).parents[1]), module=GUARD)
    command = [*_python(with_torch=False), "-c", boot, str(os.getpid()), str(uid)]
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    return os.posix_spawn(command[0], command, {"PATH": os.defpath}, file_actions=silent)


def _end_guard(guard: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it was ended before
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


def _most_processes(threads: int) -> int:
    """The limit for a uid: its own where it is fresh, else beside what the user runs already."""
    own = 64 + 8 * threads
    return own if os.geteuid() == 0 else own + ROOM_FOR_OTHERS + families.threads_of(os.getuid())


def _namespaces() -> list[str]:
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    # A user namespace would map only one uid, and setpriv could not take a fresh one.
    user = [] if os.geteuid() == 0 else ["--unshare-user"]
    return [*apart, *user, "--unshare-cgroup-try", "--die-with-parent", "--new-session"]


def _binds(folders: Sequence[str], accelerator: Accelerator | None = None) -> list[str]:
    # The private /tmp comes first: what is bound below it (a checkout there) would be hidden.
    arguments = ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    for folder in dict.fromkeys((*SYSTEM_FOLDERS, *SYSTEM_FILES, *folders)):
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
    """The files of Ratchet's that a worker needs, each where Python looks for it."""
    files = {f"{CODE_FOLDER}/{place}": str(path) for path, place in package_files(module)}
    folders = sorted({str(folder) for place in files for folder in Path(place).parents} - {"/"})
    made = [word for folder in folders for word in ("--perms", "0755", "--dir", folder)]
    return made + [word for place, path in files.items() for word in ("--ro-bind", path, place)]


def _hidden(package: Path, folders: Sequence[str]) -> list[str]:
    """An empty folder in the place of our package, where it is installed in a folder that is bound.

    Its place there is told by the folder's own name: that may be a link.
    """
    installed, arguments = package.resolve(), []
    for folder in dict.fromkeys(folders):
        real = Path(folder).resolve()
        if installed.is_relative_to(real):
            place = str(Path(folder) / installed.relative_to(real))
            arguments += ["--perms", "0755", "--tmpfs", place, "--remount-ro", place]
    return arguments


def _ancestors(folder: str) -> list[str]:
    """Make the folders above one that everybody may enter; bubblewrap's own are for root alone."""
    above = [str(parent) for parent in reversed(Path(folder).parents)][1:]
    return [word for parent in above for word in ("--perms", "0755", "--dir", parent)]


def _privileges(uid: int, groups: Sequence[int] = ()) -> list[str]:
    if os.geteuid() != 0:
        return []
    taken = str(uid or FIRST_UID)
    others = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    identity = ["--reuid", taken, "--regid", taken, *others]
    return ["setpriv", *identity, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]


@functools.cache
def fixed_layout() -> tuple[str, ...]:
    """The command before one whose libraries and stack are to lie where they always do.

    The same torch differs by up to a tenth in short calls between two random layouts. Forks of one
    process share theirs, so a candidate that is started beside them would win or lose by it. Empty
    where setarch is missing or may not (Docker's default filter denies it): layouts are random.
    """
    program = shutil.which("setarch")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "-R", "true"],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (program, "-R") if done.returncode == 0 else ()


def _python(with_torch: bool) -> list[str]:
    if with_torch:
        return [*fixed_layout(), sys.executable, "-P"]
    # Without site-packages: the worker of a compiled kernel needs the standard library alone.
    return [os.path.realpath(sys.executable), "-I", "-S"]


def _python_folders(with_torch: bool) -> list[str]:
    folders = [sys.base_prefix, sys.base_exec_prefix]
    if with_torch:
        packages = ("site-packages", "dist-packages")
        inside = [entry for entry in sys.path if Path(entry).name in packages]
        folders += [sys.prefix, *inside]
    return [folder for folder in folders if folder not in ("/", "/usr")]


def compiler_folders() -> list[str]:
    """The compiler's own installation, where it is not the system's."""
    compiler = find_compiler().resolve()
    return [] if compiler.is_relative_to("/usr") else [str(compiler.parent.parent)]


def _compiler_if_any() -> list[str]:
    """Return Triton's folders, as it compiles its launchers; torch's own kernels need none."""
    with contextlib.suppress(CompilerMissing):
        return compiler_folders()
    return []


def _enterable(folder: str) -> bool:
    """Return True if any user may read what lies in a folder."""
    path = Path(folder)
    return all(entry.stat().st_mode & 0o001 for entry in (path, *path.parents))


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


def private_folder(uid: int | None) -> Path:
    """A new folder, given to a uid; one whose judge was killed goes when the next is made."""
    _clear_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-{pid_namespace()}-"))
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


def _clear_abandoned() -> None:
    """Remove the folders of judges that were killed: each carries its judge's process id.

    Containers may share a folder for temporary files: another's process ids say nothing here.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*-*-*"):
        pid, namespace, _ = folder.name.removeprefix(SCRATCH_PREFIX).split("-", 2)
        if namespace == pid_namespace() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def pid_namespace() -> str:
    """Return what tells this process's namespace of process ids from others (namespaces(7))."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _left_by(uid: int) -> list[Path]:
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
        passed = ("CUDA_VISIBLE_DEVICES",)
        return own | {name: os.environ[name] for name in passed if name in os.environ}
    with contextlib.suppress(CompilerMissing):  # the verdict says so; its PATH is not ours
        own["RATCHET_CXX"] = str(find_compiler())
    return own
