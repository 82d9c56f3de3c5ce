"""See that the work runs in the candidate's own code, for problems whose task is `own`.

While some batches run, at secret places among the timed ones, the judge stops the candidate at
random moments and samples whose code its threads run (`call_order`). A moment
counts against the candidate if any thread runs a library's code, or code that was not in the
compiled file. Waiting threads and the system do not count. The Python around a compiled kernel may
use its one thread for as long as calling the kernel can take. A kernel in Python first reports
which of torch's operations it used (`census`), and is sampled even if it reports none.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ratchet.base.process import families
from ratchet.judge.integrity.call_order import ThreadSample, Unseen, WatchedFamily, watch
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.view import compiler_folders
from ratchet.judge.verdict import Evidence, fault

# Find whose code a thread runs: from an address to a file, and from the file to its owner.
#
# A path alone proves nothing, because a candidate can give a file any name. The thread's
# instructions must also be those of the file as the judge reads it. So machine code that was
# copied, patched or made at run time belongs to nobody.

Owner = Literal["own", "run-time", "worker", "allowed", "library", "made"]
"""own: the library that the judge had compiled. run-time: libraries that every program of the
language may use. worker: the Python in which the kernel runs, with only the modules that a batch
needs. allowed: a library that the problem names. library: any other file. made: memory that became
code, or a file that the judge cannot read."""

RUNTIME: Final = re.compile(
    r"(libc|libm|libmvec|libpthread|libdl|librt|ld-linux.*|ld-musl.*|libgomp|libomp|libiomp5"
    r"|libstdc\+\+|libc\+\+|libc\+\+abi|libgcc_s|libatomic|libquadmath|libunwind)"
    r"([.-][\w.-]*)?\.so(\.[\d.]+)?"
)
WORKER: Final = re.compile(r"(libpython3[\w.]*|libffi)\.so(\.[\d.]+)?")
MODULES: Final = frozenset(
    {*("_ctypes", "_json", "_socket", "_struct", "array", "select", "time"), *("math", "cmath")}
)
"""Modules of the interpreter that count as the worker's although they lie in files of their own:
those that receive, run and answer a batch (Debian's Python has most of them built in), and the two
that give Python a sine. Any other module, such as `audioop` or `zlib`, is a library."""
BLAS: Final = re.compile(r"lib(scipy_)?(openblas|blas|cblas|mkl_|blis|atlas|f77blas|armpl)[\w.-]*")
LIBRARIES: Final = {"matmul": BLAS}  # The files of a library that a problem allows by name
CODE_FOLDERS: Final = ("/usr/", "/lib/", "/lib64/", "/lib32/", "/opt/")
PACKAGES: Final = ("/site-packages/", "/dist-packages/")
KERNELS_OWN: Final = ("[vdso]", "[vsyscall]", "[uprobes]")
COMPARED_BYTES: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CodePlace:
    """A place in the code: its owner, and its name in the evidence."""

    owner: Owner
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """One executable line of /proc/PID/maps (proc(5))."""

    start: int
    end: int
    offset: int
    device: tuple[int, int]
    inode: int
    path: str


def read_mappings(pid: int) -> list[Mapping]:
    """Return the executable mappings of a process; raises OSError if they cannot be read."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return [_mapping(line) for line in file if "x" in line.split(maxsplit=2)[1]]


def _mapping(line: str) -> Mapping:
    fields = line.rstrip("\n").split(maxsplit=5)
    start, _, end = fields[0].partition("-")
    major, _, minor = fields[3].partition(":")
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        offset=int(fields[2], 16),
        device=(int(major, 16), int(minor, 16)),
        inode=int(fields[4]),
        path=fields[5] if len(fields) == 6 else "",
    )


class CodePlaces:
    """Finds the owner of an address. Close it: it keeps the files open that it compares with."""

    def __init__(
        self,
        library: int | None,
        *,
        allowed: Iterable[str] = (),
        folders: Sequence[str] = (),
        interpreter: Sequence[str] = (),
    ) -> None:
        """`library` is the candidate's sealed library, which stays the caller's.

        `allowed` are names of LIBRARIES. `folders` hold run-time libraries besides the system's.
        `interpreter` are packages that run the kernel, such as Triton's.
        """
        self._library = library
        self._identity: tuple[int, int, int] | None = None
        if library is not None:
            found = os.fstat(library)
            self._identity = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
        self._allowed = [LIBRARIES[name] for name in allowed if name in LIBRARIES]
        self._folders = (*CODE_FOLDERS, *(f"{folder}/" for folder in folders))
        bases = (sys.base_prefix, sys.base_exec_prefix)
        self._python = tuple(f"{path}/" for path in (*bases, *map(os.path.realpath, bases)))
        packages = [os.path.realpath(one) for one in sys.path if f"/{Path(one).name}/" in PACKAGES]
        self._interpreter = tuple(f"{one}/{name}/" for one in packages for name in interpreter)
        self._installed = (*self._folders, *self._python, *(f"{one}/" for one in packages))
        self._files: dict[str, int | None] = {}

    def __enter__(self) -> CodePlaces:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._files.values():
            if descriptor is not None:
                os.close(descriptor)
        self._files.clear()

    def place(self, pid: int, address: int, mappings: Sequence[Mapping]) -> CodePlace:
        """Return the place of a stopped thread's instruction."""
        for mapping in mappings:
            if mapping.start <= address < mapping.end:
                return self._in(pid, address, mapping)
        return CodePlace(owner="made", name="memory without code")

    def _in(self, pid: int, address: int, mapping: Mapping) -> CodePlace:
        if mapping.path in KERNELS_OWN:
            return CodePlace(owner="run-time", name=mapping.path)
        own = (*mapping.device, mapping.inode) == self._identity
        name = "its own code" if own else _shown(mapping.path)
        descriptor = self._library if own else self._file(mapping.path)
        if descriptor is None or not _same_code(pid, address, mapping, descriptor):
            words = f"code in {name} that is not the file's" if mapping.path else name
            return CodePlace(owner="made", name=words)
        return CodePlace(owner="own" if own else self._owner(mapping.path), name=name)

    def _owner(self, path: str) -> Owner:
        name = os.path.basename(path)
        if path.startswith(self._interpreter):
            return "worker"
        if any(pattern.fullmatch(name) for pattern in self._allowed):
            return "allowed" if path.startswith(self._installed) else "library"
        if any(folder in path for folder in PACKAGES):
            return "library"
        if not path.startswith((*self._folders, *self._python)):
            return "library"
        if RUNTIME.fullmatch(name):
            return "run-time"
        interpreter = path == os.path.realpath(sys.executable)
        module = "/lib-dynload/" in path and name.partition(".")[0] in MODULES
        if interpreter or module or WORKER.fullmatch(name):
            return "worker"
        return "library"

    def _file(self, path: str) -> int | None:
        """Return a descriptor of the file as the judge sees it, or None."""
        if path not in self._files:
            descriptor = None
            with contextlib.suppress(OSError):  # a name may be too long for any file
                if path.startswith("/") and Path(path).is_file():  # opening a pipe would wait
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self._files[path] = descriptor
        return self._files[path]


def _same_code(pid: int, address: int, mapping: Mapping, descriptor: int) -> bool:
    """Return True if the instructions at an address are those of the file mapped there."""
    size = min(COMPARED_BYTES, mapping.end - address)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.pread(memory, size, address)
    finally:
        os.close(memory)
    return there == os.pread(descriptor, size, mapping.offset + address - mapping.start)


def _shown(path: str) -> str:
    """Return a file's name, made printable: a candidate may have chosen it."""
    if not path:
        return "memory that it made code of"
    words = os.path.basename(path) if path.startswith("/") else path
    return "".join(c if c.isprintable() else "?" for c in words)[:80]


CHECK: Final = "own work"
FOREIGN_SHARE: Final[dict[Language, float]] = {
    "cpp": 0.1,
    "torch": 0.25,
    "triton": 0.5,
    "hip": 0.5,
}
"""At most this share of the moments may count against a kernel. An honest one in cpp has none (none
of 891 moments of work of 89 kernels). In Python every kernel gets its memory from torch, and
Triton's interpreter uses torch too."""
NO_ACCIDENT: Final = 2
"""This many moments decide against a compiled kernel, whatever their share: it may spin."""
ENOUGH, MANY = 16, 40
"""Without this many moments of work, or this many looks in all, nothing is known. A kernel of a
microsecond, or one that waits for its threads, is at work at few of many moments. 16 moments miss a
third of the work once in 700 times. 40 looks miss a tenth of a batch once in 70 times, and a third
of it once in ten million."""
BATCH_S, CALL_S = 0.001, 0.00001
"""Seconds that the Python around a compiled kernel may seem to take: per batch, and per call."""
INTERPRETED_SHARE, INTERPRETED = 0.25, 8
"""It must also be seen at more than this share of the looks at which a thread ran, and this often:
one look represents much of a long batch. In 104 trials of honest kernels of 1 us to 4 ms a call, 25
of them beside two or three busy loops on two cores, it reached 0.37 of the allowed time where these
two held, and 0.8 at 4 looks of 25."""
PLENTY: Final = 80
"""Moments of a kernel in Python, if LOOKING_S has room for them. Between two calls of a few
microseconds the worker's Python dilutes torch's share: to 0.36 when torch did all of the work."""
LOOKING_S: Final = 0.2
"""Seconds for sampling a case, batches included, if the kernel is long enough to be seen."""
PATIENCE_S: Final = 5.0  # Seconds until ENOUGH is seen of a kernel that takes microseconds
MOST_BATCHES: Final = 8
BATCH_COST_S: Final = 0.02
"""Seconds for drawing a batch's values, stopping the reference worker and sampling."""
SHOWN: Final = 4
INTERPRETER: Final = ("triton", "numpy", "numpy.libs", "ratchet")
"""Packages that run a Triton kernel on a machine without a GPU."""
AGAINST: Final[frozenset[Owner]] = frozenset({"library", "made"})


class Watch:
    """The samples of one candidate's threads, over all of its launches."""

    def __init__(self, places: CodePlaces, language: Language, *, mixed: bool = False) -> None:
        """`mixed`: allowed and other code share a file, so samples cannot convict a candidate."""
        self._places = places
        self._compiled = language == "cpp"
        self._mixed = mixed
        self._most = FOREIGN_SHARE.get(language, 0.0)
        self.looked = 0  # Looks before the answer came
        self.moments = 0  # Looks at which a thread worked
        self.against = 0
        self.firsts = 0
        """Moments that were the first look at a batch: the process cannot foresee it."""
        self.first_against = 0
        self.active = 0  # Looks at which a thread ran, the Python around a compiled kernel included
        self.interpreted = 0  # Looks at which that Python ran
        self._interpreted_s = self._allowed_s = 0.0
        self._worker = 0
        self._by_name: Counter[str] = Counter()
        self._made = 0

    def looks(
        self, family: WatchedFamily, expected_s: float, calls: int
    ) -> Callable[[Callable[[], bool]], None]:
        """Return a function to call once a batch has begun, which takes about `expected_s`.

        The family is stopped now. The function raises Unseen if it cannot be sampled.
        """
        self._worker = family.worker
        rng = secrets.SystemRandom()
        before_s = _on_core_s(family.worker)

        def meanwhile(over: Callable[[], bool]) -> None:
            looked, interpreted = self.looked, self.interpreted
            watch(family, self._note, over=over, expected_s=expected_s, draw=rng.random)
            share = (self.interpreted - interpreted) / max(1, self.looked - looked)
            # On a busy machine it mostly waits for a core, at the Python that woke up.
            after_s = _on_core_s(family.worker)
            ran_s = after_s - before_s if after_s else expected_s
            self._note_batch(share * min(expected_s, ran_s), calls)

        return meanwhile

    def _note(self, stands: Sequence[ThreadSample], *, first: bool) -> None:
        self.looked += 1
        mappings: dict[int, list[Mapping]] = {}
        seen: list[CodePlace | None] = []
        for stand in stands:
            try:
                if stand.pid not in mappings:
                    mappings[stand.pid] = read_mappings(stand.pid)
                if not mappings[stand.pid]:
                    continue  # it has ended and only waits to be reaped
                place = self._places.place(stand.pid, stand.address, mappings[stand.pid])
                seen.append(self._counted(stand, place))
            except PermissionError as error:
                raise Unseen("this machine does not let the judge read its memory") from error
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError as error:
                seen.append(CodePlace(owner="made", name=f"code that cannot be read ({error})"))
        self.active += bool(seen)
        self.interpreted += None in seen
        working = {place for place in seen if place is not None}
        if not working:
            return
        foreign = {place for place in working if place.owner in AGAINST}
        self.moments += 1
        self.firsts += first
        self.against += bool(foreign)
        self.first_against += bool(foreign) and first
        self._made += any(place.owner == "made" for place in foreign)
        # One name a moment, so that idle threads do not dilute a library's.
        self._by_name[min(place.name for place in foreign or working)] += 1

    def _counted(self, stand: ThreadSample, place: CodePlace) -> CodePlace | None:
        """Return the place as it counts; None for the Python that calls a compiled kernel.

        That has one thread. Python in any other thread does the kernel's work.
        """
        if not self._compiled or place.owner != "worker":
            return place
        if stand.pid == stand.thread == self._worker:
            return None
        return CodePlace(owner="library", name=f"{place.name} in another thread")

    def _note_batch(self, interpreted_s: float, calls: int) -> None:
        """Note how long the Python around a compiled kernel seems to have run in one batch."""
        self._interpreted_s += interpreted_s
        self._allowed_s += BATCH_S + calls * CALL_S

    @property
    def _interpreter_works(self) -> bool:
        """True if the Python around a compiled kernel ran longer than calling it can take."""
        return (
            self._interpreted_s > self._allowed_s
            and self.interpreted >= INTERPRETED
            and self.interpreted > INTERPRETED_SHARE * self.active
        )

    @property
    def enough(self) -> bool:
        """True if there are enough samples for an answer."""
        return self.moments >= ENOUGH or self.looked >= MANY

    @property
    def plenty(self) -> bool:
        """True if more looks would not help: shares near the limit take more moments."""
        return self.enough and (self._compiled or self.moments >= PLENTY)

    @property
    def failed(self) -> bool:
        """True if the work ran elsewhere than in the candidate's code."""
        at_once = self._compiled and (
            self.against >= NO_ACCIDENT
            or self.first_against > self._most * self.firsts
            or self._interpreter_works
        )
        return at_once or self.against > self._most * self.moments

    @property
    def _mostly_made(self) -> bool:
        """True if most of the moments against it were in code that no file holds."""
        return 2 * self._made > self.against

    def shares(self) -> str:
        """Return the share of the moments by file, the largest first."""
        shown = [
            f"{100 * count / self.moments:.0f} % {name}"
            for name, count in self._by_name.most_common(SHOWN)
        ]
        more = len(self._by_name) - SHOWN
        return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])

    def evidence(self) -> Evidence:
        passed = None if self._unseen and not self.failed else self.enough and not self.failed
        return Evidence(check=CHECK, passed=passed, detail=self._detail)

    @property
    def _unseen(self) -> bool:
        """True if a compiled kernel was seen too rarely, and never outside of its own code."""
        return not self.enough and not self.against and self._compiled

    @property
    def _detail(self) -> str:
        seen = f"{self.shares()}, of " if self.moments else ""
        detail = f"{seen}{self.moments} moments of work among {self.looked} that were looked at"
        if self._interpreter_works:
            detail += f", at {self.interpreted} of which the Python around it worked"
        return detail

    def conclude(self) -> str:
        """Return why it is not known whose work it was, or "".

        A compiled kernel that was seen at work too rarely, and never outside of its own code, is
        not `proven`, but nothing counts against it. For a kernel in Python only its own process's
        report is left. Raises CandidateFault, `cheating` or `unmeasured`.
        """
        detail = self._detail
        if self.failed and self._mostly_made and not self._compiled:
            why = f"the judge cannot tell whose work it is: code was made at run time: {detail}"
            raise fault("unmeasured", f"right, but {why}; write it in cpp")
        if self.failed and self._mixed:
            why = (
                "the judge cannot tell whose work it is: the allowed library is in one file with "
                f"torch's other operations: {detail}; write it in cpp, or in Triton for a GPU"
            )
            raise fault("unmeasured", f"right, but {why}")
        if self.failed:
            reason = f"the problem asks for its own work, and it runs elsewhere: {detail}"
            raise fault("cheating", reason)
        if self.enough:
            return ""
        why = (
            "it runs too shortly to say whose code works: it was seen at "
            f"{self.moments} moments, and {ENOUGH} are needed; give the problem a larger "
            "case, or judge where less else is going on"
        )
        if not self._unseen:
            raise fault("unmeasured", f"right, but {why}; {detail}")
        return why


def _on_core_s(pid: int) -> float:
    """Return the seconds for which a process's first thread was on a core; 0 if nobody tells."""
    return families.work_done([pid]).get((pid, pid), (0, 0))[0] / 1e9


@contextlib.contextmanager
def places_of(problem: Problem, kernel: Kernel, library: int | None) -> Iterator[CodePlaces | None]:
    """Yield the owners of code for a kernel; None if the problem allows any code to do the work."""
    if problem.task == "any":
        yield None
        return
    with CodePlaces(
        library,
        allowed=problem.libraries,
        folders=compiler_folders() if kernel.language == "cpp" else (),
        interpreter=INTERPRETER if kernel.language in ("triton", "hip") else (),
    ) as places:
        yield places


def watch_for(places: CodePlaces | None, problem: Problem, kernel: Kernel) -> Watch | None:
    """Return a watch over a kernel, or None without places.

    In Python, a library that is allowed by name lies in the same file as torch's other operations.
    """
    if places is None:
        return None
    mixed = kernel.language != "cpp" and bool(problem.libraries)
    return Watch(places, kernel.language, mixed=mixed)


def batches_to_watch(expected_s: float, cases: int) -> int:
    """Return how many batches of a case, over all launches, are sampled: at least one."""
    fitting = int(LOOKING_S / cases / (expected_s + BATCH_COST_S))
    return max(1, min(MOST_BATCHES, fitting))
