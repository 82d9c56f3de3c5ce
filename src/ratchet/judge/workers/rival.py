"""The rival of a kernel: the reference in a process of its own, run by a candidate's worker.

The reference worker first of all forks a zygote, which has imported torch and runs no thread of
OpenMP or autograd yet. For each problem a fork of it imports what the reference needs, which can
take longer than anything else a rival does. Each rival is a fork of that one, loads the reference,
and has its own heap and threads from there, like a Python candidate forked from its zygote. It
handles a batch with the code of the candidate's worker.

The first zygote also forks the keepers of problem files, which need torch too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.base.process import families
from ratchet.base.process.channel import Channel, Message, close_descriptors, open_pair
from ratchet.judge.problems import file_keeper
from ratchet.judge.problems.model_file import on_cores, run_source
from ratchet.judge.problems.problem import Case, Problem, Reference
from ratchet.judge.problems.suites.forms import gradient_of
from ratchet.judge.sandbox import confine
from ratchet.judge.sandbox.serving import Reply, quiet_fork, serve, serve_forks
from ratchet.judge.sandbox.shared_memory import BatchLayout, shift_heap
from ratchet.judge.workers.candidate.with_torch import COMPILATION_CACHE, Entry, TorchWorker, settle
from ratchet.judge.workers.device import WorkerDevice, open_device
from ratchet.judge.workers.gate import owned

MOST_CPU_S = 1_000_000


class RivalWorker(TorchWorker):
    """Loads and calls the reference."""

    def _load(self, message: Message, _: list[int]) -> Reply:
        torch.set_num_threads(message["threads"])
        problem = Problem.from_json(message["problem"])
        self._device = open_device(message["device"])
        if message["compiled"]:
            with alarm(message["limit_s"]):
                self._entry = _compiled(problem, self._device)
        else:
            self._entry = problem.load_timed()
        settle()
        _confine()
        return {"value": None}, []

    def _changes(self, layout: BatchLayout) -> list[str]:
        """Return nothing: the reference is trusted with its process."""
        return []


def start_zygote(inherited: Sequence[int]) -> socket.socket:
    """Fork the zygote, which closes the `inherited` descriptors; return its channel."""
    ours, theirs = open_pair()
    parent = os.getpid()
    if quiet_fork():
        theirs.close()
        return ours
    ours.close()
    close_descriptors(inherited)
    families.die_with_parent(parent)
    serve_forks(Channel(theirs), _run)


def _run(order: Message, descriptors: list[int]) -> None:
    if "file" in order:
        _describe(order, descriptors[0])
    os.setsid()
    if "problem" in order:
        channel = Channel(socket.socket(fileno=descriptors[0]))
        channel.send({"able": _imported(order["problem"])})
        serve_forks(channel, _run)
    shift_heap()
    torch.default_generator.seed()  # as a candidate's
    serve(Channel(socket.socket(fileno=descriptors[0])), RivalWorker().answer)
    os._exit(0)


def _describe(order: Message, answer: int) -> NoReturn:
    """Keep the process of a problem file, without output."""
    zygote = os.getppid()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    file_keeper.keep(answer, order["limit_s"], order["file"], zygote)
    os._exit(0)


def _imported(problem: dict[str, object]) -> bool:
    """Import what a reference needs; return True if this process can still be forked."""
    torch.set_num_threads(1)
    found = Problem.from_json(problem)
    try:
        if found.model is not None:
            from ratchet.judge.problems import model_file  # noqa: F401
        if found.text:  # each rival runs it again
            with on_cores(found.text):
                reference = getattr(run_source(found.text), found.reference, None)
        else:
            reference = found.load_reference()
        if getattr(reference, "__module__", "") == gradient_of.__module__:
            # The first call of torch.autograd.grad imports it and sympy, which takes 0.4 s.
            from torch.fx.experimental import symbolic_shapes  # noqa: F401
    except Exception:  # a rival will report it
        return False
    return len(os.listdir("/proc/self/task")) == 1


def _compiled(problem: Problem, device: WorkerDevice) -> Entry:
    def draw(case: Case) -> list[Tensor]:
        drawn = problem.build_inputs(case, secrets.randbits(48), device.memory.device)
        return [device.place(one) for one in drawn]

    compiled = problem.compile_reference()
    for case in problem.cases:
        if case.timed:
            warm(compiled, case, functools.partial(draw, case))
    return compiled


def _confine() -> None:
    """Set those limits of a candidate that cost time: CPU accounting and the call filter."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    bound = hard if hard != resource.RLIM_INFINITY else MOST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (bound, bound))
    families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
    if confine.known():
        confine.deny_needless(among_others=False, local_sockets=False)


@contextlib.contextmanager
def kept_in(folder: str) -> Iterator[None]:
    """Keep what is compiled inside in the folder, with the checks of the CPU's vectors."""
    import torch._inductor.config as config

    before = os.environ.get(COMPILATION_CACHE)
    os.environ[COMPILATION_CACHE] = folder
    try:
        with config.patch(cpp_cache_precompile_headers=False):
            yield
            _check_vectors()
    finally:
        if before is None:
            os.environ.pop(COMPILATION_CACHE, None)
        else:
            os.environ[COMPILATION_CACHE] = before


def _check_vectors() -> None:
    """Compile Inductor's checks of the CPU's vectors, whose result this process may have cached."""
    from torch._inductor import cpu_vec_isa

    for isa in cpu_vec_isa.valid_vec_isa_list():
        isa.check_build(cpu_vec_isa.VecISA._avx_code)


def warm(compiled: Reference, case: Case, draw: Callable[[], Sequence[Tensor]]) -> None:
    """Call it twice on inputs of a case: the first call compiles, and the second may again."""
    for _ in range(2):
        compiled(*owned(case, draw()), case.scalars)


@contextlib.contextmanager
def alarm(limit_s: float) -> Iterator[None]:
    """Raise KernelError inside if it takes longer than the limit."""

    def ring(number: int, frame: object) -> None:
        raise KernelError(f"torch.compile took longer than {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
