"""A candidate's process in its sandbox, as the judge drives it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec

from ratchet.base.errors import DeviceLost, JudgeError, KernelError
from ratchet.base.process import FIRST_CALL_S, STEP_S, Clock, families
from ratchet.base.process.channel import Message, close_descriptors
from ratchet.base.process.child import Child, ChildFailure, error_words, program
from ratchet.judge.integrity.census import told_as
from ratchet.judge.integrity.outputs import OutputSpots, Read, ReturnedOutputs, Unreadable, readable
from ratchet.judge.kernels.cuda_use import NEEDS_CUDA, TORCH_SAYS
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel, with_remedy
from ratchet.judge.kernels.languages.cpp import NAME
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.isolation import (
    Headroom,
    Sandbox,
    make_sandbox,
    most_threads,
)
from ratchet.judge.sandbox.serving import CHANGED, READY, UNPLACED
from ratchet.judge.sandbox.shared_memory import SEALS, BatchLayout, Handing, PackedFiles, seal
from ratchet.judge.sandbox.view import CPP_WORKER, TORCH_WORKER
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.targets import Build
from ratchet.judge.trial import sources
from ratchet.judge.verdict import Status, fault

NOT_STARTED = "a process for the kernel did not start on this machine"
REMEDY = (
    "to fix it: let a sandbox read Python, Ratchet and the compiler "
    "(docs/start/install.md says how)"
)
MAX_LIBRARY_BYTES = 64 << 20
MAX_ANSWER_BYTES = 1 << 20
MOST_NAMED: Final = 8
MOST_BUILDS: Final = 64  # Most programs that a process may order
OF_PROFILER: Final = ("USDT:", "STAGE:")
"""Beginnings of lines that torch's profiler prints while a census is taken."""
AGAIN_S: Final = 20.0
"""Seconds of work that a Python kernel's calls on known sizes may take in addition, all together:
it may compile again, for other strides, values or weights."""
IN_TRACEBACK: Final = '  File "'
PRINTED_LINES, PRINTED_CHARACTERS = 3, 300  # Most of a kernel's last output that a reason quotes
STATUS_OF_FAILURE: dict[str, Status] = {
    "timed_out": "timed_out",
    "woke": "cheating",
    "starved": "unmeasured",
}
"""Any other failure of a candidate's process is a crash."""
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
Code = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _RanBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `go`: the candidate's claims about a batch."""

    codes: list[Code]  # One machine word for each call
    cpu_time_s: Seconds
    device_s: Seconds | None = None
    census: object = None
    rejected: dict[str, str] = {}


class Held(NamedTuple):
    """The things that a candidate's processes hold; `bytes` of memory, without what is shared."""

    bytes: int
    descriptors: int
    threads: int
    processes: int


class CandidateProcess:
    """One sandboxed process of a candidate. A failure in it decides the verdict."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        threads: int,
        memory_bytes: int,
        clock: Clock,
        accelerator: Accelerator | None = None,
        headers: Path | None = None,
        given: Mapping[str, PackedFiles] = MappingProxyType({}),
        zygote: CandidateZygote | None = None,
        build: Build | None = None,
    ) -> None:
        """Start it: a fork of the `zygote` if that can fork, else a new process.

        `headers` is a folder of precompiled headers for its compiler. `given` holds `extensions`
        and `triton`'s code that the candidate built before, and `compilations` of torch.compile for
        it. `build` compiles what it orders while it loads a kernel.
        """
        self._clock = clock
        self._build = build
        self._accelerator = accelerator
        self._given = given
        self.device_s: float | None = None
        """The last batch's time by the GPU's own clock, as the candidate claims it."""
        with_torch = kernel.language in WITH_TORCH
        self.returns_outputs = with_torch
        """True if its entry returns outputs instead of writing them to shared memory."""
        self.copies_outputs = with_torch and accelerator is not None
        """True if the worker copies the results to shared memory, inside the clock: on a GPU, or if
        the judge may not read its memory. In the latter case the reference copies nothing."""
        self.sandbox: Sandbox = make_sandbox(
            TORCH_WORKER if with_torch else CPP_WORKER,
            threads=threads,
            memory_bytes=memory_bytes,
            limit_s=clock.limit_s + STEP_S + FIRST_CALL_S,
            accelerator=accelerator,
            headers=headers,
            forked=zygote is not None and zygote.able,
        )
        self._headers = headers
        self._is_ready = False
        self._spots: OutputSpots | None = None
        self._returned: ReturnedOutputs | None = None
        self._layout: BatchLayout | None = None
        self.unplaced: list[str] = []
        """Parts of a problem's state that its model has no place for, as it claims."""
        self.rejected: dict[Handing, str] = {}
        """Errors that it raised, as it claims, where a call may raise: by the way of the call."""
        self._met: set[str] = set()  # The tensor sizes that its kernel was called on
        self.first_call_limit_s = FIRST_CALL_S
        """Seconds that a Python kernel's first call on new sizes may take in addition."""
        self._spare_s = AGAIN_S  # The rest of AGAIN_S
        self.first_call_s = 0.0
        """The longest first call on new sizes; a new process takes that time again."""
        self.censuses: list[tuple[BatchLayout, object]] | None = None
        """If it is a list, a Python kernel's batches are counted: their layout and the census."""
        if self.sandbox.kept and self.sandbox.uid is None:  # it is this user's, on this machine
            families.hide_memory()  # it holds the batches that this candidate must not see yet
        headroom = Headroom(
            self.sandbox.shared_folders,
            most_threads=most_threads(threads) if self.sandbox.kept else None,
        )
        try:
            self._child = Child(
                program(self.sandbox.command, self.sandbox.environment, kept=self.sandbox.kept)
                if zygote is None or self.sandbox.program
                else zygote.start(self.sandbox),
                max_bytes=MAX_ANSWER_BYTES,
                shortage=headroom.shortage,
                enclosed=True,
                kept=self.sandbox.kept,
                counts_work=True,
            )
        except (OSError, JudgeError):
            self.sandbox.clean()
            raise
        headroom.watch(self._child.pid)

    @property
    def pid(self) -> int:
        """The process id of the head of its family."""
        return self._child.pid

    def held(self) -> Held:
        """Return what its processes hold now."""
        family = families.family(self.pid, enclosed=True)
        return Held(
            bytes=self._child.own_bytes(),
            descriptors=sum(map(_descriptors, family)),
            threads=sum(one.threads for one in family.values()),
            processes=len(family),
        )

    @property
    def worked_s(self) -> float:
        """Seconds at work, in steps that were long enough to be sampled."""
        return self._child.worked_s

    @property
    def has_answered(self) -> bool:
        """True if it has sent an answer that was not fetched yet, or has ended."""
        if not self._is_ready and self._child.channel.has_answer:
            self._await_ready()
        return self._is_ready and self._child.channel.has_answer

    def run_under(self, clock: Clock) -> None:
        self._clock = clock

    def start_compiling(self, kernel: Kernel) -> None:
        """Send the source to be compiled; `library` fetches the answer."""
        message: Message = {"do": "compile", "kernel": kernel.as_json()}
        if self._headers is not None:
            message["included"] = str(self._headers / NAME)
        self._begin(message)

    def _begin(self, message: Message, handed: Sequence[int] = ()) -> None:
        """Send what it does first, which it may not have started for."""
        with _starts():
            self._child.send(message, handed, limit_s=self._clock.step_limit_s)

    def _reply(self, what: str) -> Message:
        """Wait for the answer, with which nothing is handed out."""
        reply, extra = self._child.receive(what, limit_s=self._clock.step_limit_s)
        close_descriptors(extra)
        return reply

    def _reply_with_file(self, what: str, refuse: Callable[[Message], None]) -> tuple[Message, int]:
        """Return the answer, unless it is refused, and a sealed copy of the file handed out."""
        with _decides():
            reply, handed = self._child.receive(what, limit_s=self._clock.step_limit_s)
        try:
            refuse(reply)
            if len(handed) != 1:
                raise fault(
                    "crashed", f"the process that was asked for '{what}' handed out no file"
                )
            return reply, sealed_copy(handed[0])
        finally:
            close_descriptors(handed)

    def _await_ready(self) -> None:
        """Wait for the worker's first message; raises CandidateFault `unmeasured` without one.

        No candidate code has run before it, so a failure is the machine's fault.
        """
        if self._is_ready:
            return
        with _starts():
            reply = self._reply("start")
        if reply != READY:
            raise fault("unmeasured", f"{NOT_STARTED}: it said {str(reply)[:100]}; {REMEDY}")
        self._is_ready = True

    def library(self) -> int:
        """Return the compiled library, copied into memory that the candidate cannot change."""

        def refuse(reply: Message) -> None:
            error = reply.get("error")
            if isinstance(error, dict) and error.get("kind") != KernelError.__name__:
                why = f"nothing can be compiled here: {error_words(error)}; {REMEDY}"
                raise fault("unmeasured", why)  # not the source's fault
            _raise_refusal(reply, "does not compile")

        self._await_ready()
        return self._reply_with_file("compile", refuse)[1]

    def load(self, kernel: Kernel, library: int | None) -> None:
        """Load the kernel: its library, or its source if it is written in Python."""
        self.begin_load(kernel, library)
        self.await_load(kernel)

    def begin_load(self, kernel: Kernel, library: int | None) -> None:
        """Let it load the kernel while others work; `await_load` comes next."""
        message = {"do": "load", "entry": kernel.entry, "kernel": kernel.as_json()}
        if self._accelerator is not None:
            message["device"] = self._accelerator.as_json()
        handed = [] if library is None else [library]
        if self._given:
            message["files"] = {what: packed.files for what, packed in self._given.items()}
            handed += [packed.descriptor for packed in self._given.values()]
        self._begin(message, handed)

    def await_load(self, kernel: Kernel) -> None:
        """Wait until it has loaded the kernel. Raises CandidateFault if it cannot."""
        self._await_ready()
        with _decides():
            reply = self._reply("load")
            for _ in range(MOST_BUILDS):
                if self._build is None or "build" not in reply:
                    break
                self._send_built(self._build, reply["build"])
                reply = self._reply("load")
        remedy = ""
        if "error" in reply:
            remedy = sources.remedy_for(kernel, reply) or _printed(self._child.output())
        _raise_refusal(reply, "cannot be loaded", remedy=remedy)
        self.unplaced = _named(reply.get(UNPLACED))
        if self.returns_outputs and not self.copies_outputs:
            self.copies_outputs = not readable(self._child.sender)

    def _send_built(self, build: Build, order: object) -> None:
        """Compile what the process ordered, and hand it over."""
        try:
            packed = build(order)
        except KernelError as error:
            self._child.send({"error": str(error)})
            return
        with contextlib.closing(packed):
            self._child.send({"files": packed.files}, [packed.descriptor])

    def start_warming(self) -> None:
        """Let it prepare to count a GPU's work while others work; `await_warm` comes next."""
        assert self._accelerator is not None
        self._begin({"do": "warm", "device": self._accelerator.as_json()})

    def await_warm(self) -> None:
        """Wait until it has; raises CandidateFault `unmeasured` if it cannot."""
        self._await_ready()
        with _starts():
            reply = self._reply("warm")
        _raise_refusal(reply, "cannot be counted", status="unmeasured")

    def built(self, what: str) -> PackedFiles | None:
        """Return the `extensions` or the code of `triton` that it built; the caller closes them."""
        with _decides():
            self._child.send({"do": "built", "what": what}, limit_s=self._clock.step_limit_s)
        refuse = partial(_raise_refusal, what="told nothing of what it built", status="crashed")
        reply, packed = self._reply_with_file("built", refuse)
        try:
            found = sources.checked(reply.get("files"), packed)
        except sources.NoFiles as error:
            os.close(packed)
            raise fault("crashed", f"the candidate's process answered nonsense: {error}") from error
        if found is None:
            os.close(packed)
        return found

    def prepare(
        self, layout: BatchLayout, memories: Sequence[int], read: Read | None = None
    ) -> None:
        """Announce the places of a batch's tensors; their memory comes with `go`."""
        outputs = "copied" if self.copies_outputs else "kept"
        with _decides():
            reply = self._child.ask(
                {"do": "prepare", "layout": layout.as_json(), "outputs": outputs},
                limit_s=self._clock.step_limit_s,
            )
        _raise_refusal(reply, "could not reserve its memory", status="crashed")
        if told := reply.get(CHANGED):
            raise fault(
                "wrong",
                f"its calls left their process changed, and a script would go on "
                f"so: {', '.join(_named(told)) or 'nonsense'}; set it back before they return",
            )
        self._spots, self._layout = OutputSpots(layout, memories, read), layout
        if self._returned is not None:
            self._returned.close()
        in_memory = self.returns_outputs and not self.copies_outputs
        self._returned = ReturnedOutputs(layout, memories) if in_memory else None

    def go(
        self,
        memories: Sequence[int],
        calls: int,
        *,
        limit_s: float,
        meanwhile: Callable[[Callable[[], bool]], None] | None = None,
    ) -> tuple[float, float, list[int]]:
        """Reveal a batch and wait for its calls; return our wall time, its CPU time and its codes.

        The CPU time is the candidate's claim. `meanwhile` is called once the batch has begun, with
        a function that returns True after the answer; the wall time is then useless. The calls may
        take `limit_s` of work, a Python kernel's first on new sizes more, later ones AGAIN_S more
        in all. The whole family is stopped when this returns. Raises CandidateFault if it wrote an
        output after it had answered.
        """
        began = self.begin_calls(memories, limit_s=limit_s)
        if meanwhile is not None:
            with _decides():
                meanwhile(lambda: self._child.channel.has_answer)
        return self.end_calls(calls, began, limit_s=limit_s)

    def begin_calls(self, memories: Sequence[int], *, limit_s: float) -> float:
        """Reveal a batch; return the time on our clock. `end_calls` comes next."""
        limit_s = limit_s + self._more_s
        with _decides():
            began = time.perf_counter()
            asked = {"do": "go"} if self.censuses is None else {"do": "go", "census": True}
            self._child.send(asked, memories, limit_s=limit_s)
        return began

    def end_calls(
        self, calls: int, began: float, *, limit_s: float
    ) -> tuple[float, float, list[int]]:
        """Wait for the calls of a batch that began then; return what `go` does."""
        assert self._layout is not None
        is_first, limit_s = self._sizes not in self._met, limit_s + self._more_s
        with _decides():
            reply, extra = self._child.receive("go", limit_s=limit_s)
            wall_time_s = time.perf_counter() - began
            answered = self._read_spots(reply, first=True)
            if self._accelerator is not None:  # work goes on there until the outputs are read
                wall_time_s = time.perf_counter() - began
            self._child.pause()
        close_descriptors(extra)
        self._met.add(self._sizes)
        if is_first:
            self.first_call_s = max(self.first_call_s, wall_time_s)
        else:
            self._spare_s -= min(self._spare_s, max(0.0, wall_time_s - limit_s))
        if answered != self._read_spots(reply):
            raise fault(
                "cheating",
                "it wrote its outputs after it had answered: the clock had stopped by then",
            )
        if "error" in reply:
            remedy = _printed(self._child.output())
            _raise_refusal(reply, "raised", status="crashed", remedy=remedy)
        ran = told_as(_RanBatch, reply)
        if len(ran.codes) != calls:
            raise fault("crashed", "the candidate's process answered nonsense: a wrong count")
        self.device_s = ran.device_s
        named = {str(int(how)): how for how in Handing}
        self.rejected = {named[at]: one[:200] for at, one in ran.rejected.items() if at in named}
        if self.censuses is not None:
            self.censuses.append((self._layout, ran.census))
        return wall_time_s, ran.cpu_time_s, ran.codes

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Take no census inside."""
        censuses, self.censuses = self.censuses, None
        try:
            yield
        finally:
            self.censuses = censuses

    @property
    def _more_s(self) -> float:
        """The seconds that a Python kernel's calls may take longer; most on sizes new to it."""
        if not self.returns_outputs:
            return 0.0
        is_first = self._sizes not in self._met
        return self.first_call_limit_s if is_first else min(self._spare_s, self.first_call_limit_s)

    @property
    def _sizes(self) -> str:
        """The sizes of the announced batch's tensors."""
        assert self._layout is not None
        return str([slot[3:] for slot in self._layout.calls[0]])

    def deliver(self, call: int) -> None:
        """Copy a call's outputs to shared memory, unless they are there; it must be stopped.

        Raises CandidateFault if one of them has no memory of its own.
        """
        if self._returned is not None:
            with _tells_outputs():
                shared = self._returned.shared(call)
                self._returned.deliver(call)
            if shared:
                raise fault("wrong", f"{shared}: return a copy")

    def _read_spots(self, reply: Mapping[str, object], *, first: bool = False) -> list[bytes]:
        """Return the bytes at secret spots of the batch's outputs now."""
        if self._returned is None:
            assert self._spots is not None
            return self._spots.read()
        if "error" in reply or "no_device" in reply:
            return []
        with _tells_outputs():
            if first:
                return self._returned.found(self._child.sender, reply.get("outputs"))
            return self._returned.spots()

    def pause(self) -> None:
        with _decides():
            self._child.pause()

    def resume(self) -> None:
        with _decides():
            self._child.resume()

    def work_at_rest_s(self, window_s: float) -> float:
        """Let it run for so long without an order, and stop it; return the seconds it works."""
        with _decides():
            return self._child.work_at_rest_s(window_s)

    def begin_close(self) -> None:
        """Let a stopped family end while others start; `close` must follow."""
        self._child.begin_close()

    def close(self) -> None:
        """Kill the whole family and remove what it left."""
        if self._returned is not None:
            self._returned.close()
        self._child.close()
        self.sandbox.clean()


@contextlib.contextmanager
def _decides() -> Iterator[None]:
    """Turn the failure of a candidate's process into its verdict."""
    try:
        yield
    except ChildFailure as error:
        status = STATUS_OF_FAILURE.get(error.how, "crashed")
        raise fault(status, f"the candidate's process {error}") from error


@contextlib.contextmanager
def _starts() -> Iterator[None]:
    """Blame the machine if a process fails before it has read a kernel."""
    try:
        yield
    except ChildFailure as error:
        raise fault("unmeasured", f"{NOT_STARTED}: it {error}; {REMEDY}") from error


@contextlib.contextmanager
def _tells_outputs() -> Iterator[None]:
    """Turn a false report of where outputs lie into the candidate's verdict."""
    try:
        yield
    except Unreadable as error:
        raise fault("crashed", f"the candidate's process: {error}") from error


def _raise_refusal(
    reply: Mapping[str, object], what: str, *, status: Status = "refused", remedy: str = ""
) -> None:
    if "no_device" in reply:
        words = " ".join(str(reply["no_device"]).split())[:500]
        raise fault("unmeasured", f"the GPU cannot be used in the sandbox: {words}")
    if "error" in reply:
        error = reply["error"]
        words = error_words(error)
        if isinstance(error, dict) and error.get("kind") == "FormError":
            why = f"what the kernel returned has the wrong form: {words}"
            raise fault("wrong", why, raised=True)
        if isinstance(error, dict) and not error.get("known") and TORCH_SAYS.search(words):
            raise fault("unmeasured", f"the kernel needs CUDA ({words[:200]}): {NEEDS_CUDA}")
        lost = DeviceLost.told_by(words, "the kernel's process")
        if lost is not None:
            raise fault("unmeasured", str(lost))
        told = with_remedy(f"the kernel {what}: {words}", remedy)
        raise fault(status, told, raised=status == "crashed")


def _descriptors(pid: int) -> int:
    """Return how many descriptors a process has open; 0 if nobody may look."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _named(told: object) -> list[str]:
    """Return the beginnings of the first words that a candidate tells."""
    return [str(one)[:80] for one in told[:MOST_NAMED]] if isinstance(told, list) else []


def _printed(output: str) -> str:
    """Return the last lines that a kernel printed before the error's traceback."""
    before = output.partition("Traceback (most recent call last)")[0]
    if IN_TRACEBACK in before:  # whose beginning is cut off
        return ""
    lines = [line.strip() for line in before.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(OF_PROFILER)]
    shown = " | ".join(lines[-PRINTED_LINES:])[-PRINTED_CHARACTERS:]
    return f"it printed: {shown}" if shown else ""


def sealed_copy(descriptor: int) -> int:
    """Copy a file, which a candidate may have handed out, into sealed memory: at most 64 MiB.

    The file's position stays as it was. Raises CandidateFault.
    """
    copy = os.memfd_create("ratchet-kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe would keep the judge waiting
            raise fault("crashed", "the compiler's process handed out no file")
        total = 0
        while chunk := os.pread(descriptor, 1 << 20, total):
            total += len(chunk)
            if total > MAX_LIBRARY_BYTES:
                raise fault("refused", f"the library is over {MAX_LIBRARY_BYTES} bytes")
            os.write(copy, chunk)
    except BaseException as error:
        os.close(copy)
        if isinstance(error, OSError):
            raise fault("crashed", "the library that was handed out cannot be read") from error
        raise
    seal(copy, SEALS)
    return copy
