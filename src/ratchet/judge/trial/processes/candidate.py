"""A candidate's worker in its sandbox, as the judge drives it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process import families
from ratchet.base.process.channel import close_descriptors
from ratchet.base.process.child import Child, ChildFailure, error_words, program
from ratchet.base.process.time_limits import FIRST_CALL_S, STEP_S, Clock
from ratchet.judge.integrity.outputs import OutputSpots, Read, ReturnedOutputs, Unreadable, readable
from ratchet.judge.options import WITH_TORCH
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.headroom import Headroom
from ratchet.judge.sandbox.isolation import (
    Sandbox,
    make_sandbox,
    most_threads,
)
from ratchet.judge.sandbox.worker_modules import CPP_WORKER, TORCH_WORKER
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.stage_result import fault
from ratchet.judge.trial.processes import built_extensions
from ratchet.judge.verdict import Status
from ratchet.judge.workers.memory.mapping import seal
from ratchet.judge.workers.memory.packed_files import SEALS, PackedFiles
from ratchet.judge.workers.serving import READY
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages.precompiled_headers import NAME

NOT_STARTED = "a process for the kernel did not start on this machine"
REMEDY = (
    "to fix it: let a sandbox read Python, Ratchet and the compiler "
    "(docs/start/install.md says how)"
)
MAX_LIBRARY_BYTES = 64 << 20
MAX_ANSWER_BYTES = 1 << 20
MOST_SECONDS = 1e9
STATUS_OF_FAILURE: dict[str, Status] = {"timed_out": "timed_out", "woke": "cheating"}
"""Every other failure of a candidate's process is a crash."""


class CandidateProcess:
    """One sandboxed process of a candidate. What goes wrong in it decides the verdict."""

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
    ) -> None:
        """`headers` is a folder of precompiled headers for its compiler. `given` holds its
        `extensions`, that it has built before, and `compilations` of torch.compile's for it.
        It is forked from the `zygote`, where that is able to.
        """
        self._clock = clock
        self._accelerator = accelerator
        self._given = given
        self.device_s: float | None = None
        """What a GPU's own clock named for the last batch: the candidate's word."""
        with_torch = kernel.language in WITH_TORCH
        self.returns_outputs = with_torch
        """Whether its entry returns its outputs, and does not write them to shared memory."""
        self.copies_outputs = with_torch and accelerator is not None
        """Whether the worker copies what is returned to shared memory, inside the clock: on a GPU,
        and where the judge may not read its memory; there the reference copies nothing."""
        self.sandbox: Sandbox = make_sandbox(
            TORCH_WORKER if with_torch else CPP_WORKER,
            threads=threads,
            memory_bytes=memory_bytes,
            time_limit_s=clock.limit_s + STEP_S + FIRST_CALL_S,
            with_torch=with_torch,
            accelerator=accelerator,
            headers=headers,
            forked=zygote is not None and zygote.able,
        )
        self._headers = headers
        self._is_ready = False
        self._spots = OutputSpots({"calls": []}, ())
        self._returned: ReturnedOutputs | None = None
        self._layout: Mapping[str, Any] = {}
        self._met: set[str] = set()
        """The sizes of tensors that its kernel was called on."""
        self.first_call_limit_s = FIRST_CALL_S
        """What a Python kernel's first call on new sizes may take on top."""
        self.first_call_s = 0.0
        """The longest first call on new sizes, by the wall clock: a new process has it again."""
        self.censuses: list[tuple[Mapping[str, Any], Any]] | None = None
        """Where it is a list, a Python kernel's batches are counted: the layout, what it tells."""
        if self.sandbox.shares_user:
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
    def _fate(self) -> str:
        return "copied" if self.copies_outputs else "kept"

    @property
    def pid(self) -> int:
        """The process at the head of its family."""
        return self._child.pid

    @property
    def worked_s(self) -> float:
        """Seconds at work in steps that were long enough to be looked at."""
        return self._child.worked_s

    @property
    def has_answered(self) -> bool:
        """Return whether it has sent an answer that was not fetched yet, or is gone."""
        if not self._is_ready and self._child.has_answer:
            self._await_ready()
        return self._is_ready and self._child.has_answer

    def run_under(self, clock: Clock) -> None:
        """Let this clock limit it from now on."""
        self._clock = clock

    def start_compiling(self, kernel: Kernel) -> None:
        """Send the source to be compiled; the answer is fetched by `library`."""
        message: dict[str, Any] = {"do": "compile", "kernel": kernel.as_json()}
        if self._headers is not None:
            message["included"] = str(self._headers / NAME)
        with _starts():
            self._child.send(message, timeout_s=self._clock.step_s)

    def _await_ready(self) -> None:
        """Wait for the worker's first word. CandidateFault `unmeasured` where it has none.

        No candidate code has run before it, so whatever went wrong is the machine's fault.
        """
        if self._is_ready:
            return
        with _starts():
            reply, extra = self._child.receive("start", timeout_s=self._clock.step_s)
        close_descriptors(extra)
        if reply != READY:
            raise fault("unmeasured", f"{NOT_STARTED}: it said {str(reply)[:100]}; {REMEDY}")
        self._is_ready = True

    def library(self) -> int:
        """The compiled library, copied into sealed memory that the candidate cannot change."""
        self._await_ready()
        with _decides():
            reply, handed = self._child.receive("compile", timeout_s=self._clock.step_s)
        try:
            _raise_if_machine_s(reply)
            _raise_refusal(reply, "does not compile")
            if len(handed) != 1:
                raise fault("crashed", "the compiler's process handed out no library")
            return _sealed_copy(handed[0])
        finally:
            close_descriptors(handed)

    def load(self, kernel: Kernel, library: int | None) -> None:
        """Load the kernel: its library, or its source where the language is Python's."""
        message = {"do": "load", "entry": kernel.entry, "kernel": kernel.as_json()}
        if self._accelerator is not None:
            message["device"] = self._accelerator.as_json()
        handed = [] if library is None else [library]
        if self._given:
            message["files"] = {what: packed.files for what, packed in self._given.items()}
            handed += [packed.descriptor for packed in self._given.values()]
        with _starts():
            self._child.send(message, handed, timeout_s=self._clock.step_s)
        self._await_ready()
        with _decides():
            reply, extra = self._child.receive("load", timeout_s=self._clock.step_s)
        close_descriptors(extra)
        if "error" in reply and built_extensions.uses_extensions(kernel):
            words = f"{error_words(reply['error'])}; {built_extensions.REMEDY}"
            raise fault("refused", f"the kernel cannot be loaded: {words}")
        _raise_refusal(reply, "cannot be loaded")
        if self.returns_outputs and not self.copies_outputs:
            self.copies_outputs = not readable(self._child.sender)

    def start_warming(self) -> None:
        """Let it get ready to count a GPU's work, beside others; `await_warm` comes next."""
        assert self._accelerator is not None
        with _starts():
            message = {"do": "warm", "device": self._accelerator.as_json()}
            self._child.send(message, timeout_s=self._clock.step_s)

    def await_warm(self) -> None:
        """Wait until it is; CandidateFault `unmeasured` where it cannot be."""
        self._await_ready()
        with _starts():
            reply, extra = self._child.receive("warm", timeout_s=self._clock.step_s)
        close_descriptors(extra)
        _raise_refusal(reply, "cannot be counted", status="unmeasured")

    def extensions(self) -> PackedFiles | None:
        """Return what it has built as it loaded the kernel; the caller closes it."""
        with _decides():
            self._child.send({"do": "extensions"}, timeout_s=self._clock.step_s)
            reply, handed = self._child.receive("extensions", timeout_s=self._clock.step_s)
        try:
            _raise_refusal(reply, "told nothing of what it built", status="crashed")
            if len(handed) != 1:
                raise fault("crashed", "the candidate's process handed out no extensions")
            packed = _sealed_copy(handed[0])
        finally:
            close_descriptors(handed)
        try:
            found = built_extensions.checked(reply.get("files"), packed)
        except built_extensions.NoFiles as error:
            os.close(packed)
            raise fault("crashed", f"the candidate's process answered nonsense: {error}") from error
        if found is None:
            os.close(packed)
        return found

    def prepare(
        self, layout: Mapping[str, Any], memories: Sequence[int], read: Read | None = None
    ) -> None:
        """Announce the places of a batch's tensors; their memory comes with `go`.

        `read` is who can read the outputs, where the judge cannot.
        """
        with _decides():
            reply = self._child.ask(
                {"do": "prepare", "layout": layout, "outputs": self._fate},
                timeout_s=self._clock.step_s,
            )
        _raise_refusal(reply, "could not reserve its memory", status="crashed")
        self._spots, self._layout = OutputSpots(dict(layout), memories, read), layout
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
        """Reveal a batch and wait for its calls: wall time by our clock, CPU time claimed, codes.

        `meanwhile` is called once it has begun, with what tells whether it has answered; the wall
        time is then of no use. `limit_s` of work is what its calls may take; a Python kernel's
        first on new sizes gets more. The whole family stands still when this returns. Raises
        CandidateFault if it wrote an output after it had answered.
        """
        sizes = str([slot[3:] for slot in self._layout["calls"][0]])
        is_first = sizes not in self._met
        timeout_s = limit_s + (
            self.first_call_limit_s if is_first and self.returns_outputs else 0.0
        )
        with _decides():
            began = time.perf_counter()
            asked = {"do": "go"} if self.censuses is None else {"do": "go", "census": True}
            self._child.send(asked, memories, timeout_s=timeout_s)
            if meanwhile is not None:
                meanwhile(lambda: self._child.has_answer)
            reply, extra = self._child.receive("go", timeout_s=timeout_s)
            wall_time_s = time.perf_counter() - began
            answered = self._read_spots(reply, first=True)
            if self._accelerator is not None:  # work goes on there until the outputs are read
                wall_time_s = time.perf_counter() - began
            self._child.pause()
        close_descriptors(extra)
        self._met.add(sizes)
        if is_first:
            self.first_call_s = max(self.first_call_s, wall_time_s)
        if answered != self._read_spots(reply):
            raise fault(
                "cheating",
                "it wrote its outputs after it had answered: the clock had stopped by then",
            )
        _raise_refusal(reply, "raised", status="crashed")
        codes, cpu_time_s = reply.get("codes"), reply.get("cpu_time_s")
        claimed = reply.get("device_s")
        self.device_s = float(cast(float, claimed)) if _is_time(claimed) else None
        if not _are_codes(codes, calls) or not _is_time(cpu_time_s):
            raise fault("crashed", "the candidate's process answered nonsense")
        if self.censuses is not None:
            self.censuses.append((self._layout, reply.get("census")))
        return wall_time_s, float(cast(float, cpu_time_s)), cast("list[int]", codes)

    def deliver(self, call: int) -> None:
        """See that the outputs of a call lie in shared memory; it must stand still."""
        if self._returned is not None:
            with _tells_outputs():
                self._returned.deliver(call)

    def _read_spots(self, reply: Mapping[str, Any], *, first: bool = False) -> list[bytes]:
        """Return what stands now at secret places of the outputs of the batch."""
        if self._returned is None:
            return self._spots.read()
        if "error" in reply or "no_device" in reply:
            return []
        with _tells_outputs():
            if first:
                return self._returned.found(self._child.sender, reply.get("outputs"))
            return self._returned.spots()

    def pause(self) -> None:
        """Stop the whole family."""
        with _decides():
            self._child.pause()

    def resume(self) -> None:
        """Let the family run."""
        with _decides():
            self._child.resume()

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
    """Turn the failure of a process that has not read a kernel yet into the machine's fault."""
    try:
        yield
    except ChildFailure as error:
        raise fault("unmeasured", f"{NOT_STARTED}: it {error}; {REMEDY}") from error


@contextlib.contextmanager
def _tells_outputs() -> Iterator[None]:
    """Turn what a candidate told of its outputs, and is not so, into its verdict."""
    try:
        yield
    except Unreadable as error:
        raise fault("crashed", f"the candidate's process: {error}") from error


def _are_codes(codes: Any, calls: int) -> bool:
    """Return True if an answer holds one machine word for each call."""
    words = isinstance(codes, list) and all(type(code) is int for code in codes)
    return words and len(codes) == calls and all(abs(code) < 1 << 63 for code in codes)


def _is_time(claimed: Any) -> bool:
    """True if a claim is a time in seconds; a whole number may be too large for any float."""
    return type(claimed) in (int, float) and 0 <= claimed < MOST_SECONDS


def _raise_if_machine_s(reply: Mapping[str, Any]) -> None:
    """Raise `unmeasured` where the compiler's worker failed otherwise than by what it compiles."""
    error = reply.get("error")
    if isinstance(error, dict) and error.get("kind") != KernelError.__name__:
        raise fault("unmeasured", f"nothing can be compiled here: {error_words(error)}; {REMEDY}")


def _raise_refusal(reply: Mapping[str, Any], what: str, *, status: Status = "refused") -> None:
    if "no_device" in reply:
        words = " ".join(str(reply["no_device"]).split())[:500]
        raise fault("unmeasured", f"the GPU cannot be used in the sandbox: {words}")
    if "error" in reply:
        error = reply["error"]
        if isinstance(error, dict) and error.get("kind") == "FormError":
            raise fault(
                "wrong", f"what the kernel returned has the wrong form: {error_words(error)}"
            )
        raise fault(status, f"the kernel {what}: {error_words(error)}")


def _sealed_copy(descriptor: int) -> int:
    """Copy at most 64 MiB of a file into sealed memory."""
    copy = os.memfd_create("ratchet-kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe would keep the judge waiting
            raise fault("crashed", "the compiler's process handed out no file")
        total = 0
        while chunk := os.read(descriptor, 1 << 20):
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
