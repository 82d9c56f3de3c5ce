"""Who writes for a problem: the authors of a request, and why one of them cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Final

from ratchet.base.devices.probe import Device
from ratchet.base.errors import LearnError, LedgerError, RatchetError
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.write.author import AGENT, COMPILER, SEARCH, Author, Progress, Proposal
from ratchet.write.compiler import Backend, CompilerAuthor
from ratchet.write.search import Experience, SearchAuthor
from ratchet.write.writing_book import WritingBook
from ratchet.write.writing_result import GROUP, WritingRequest, unknown_author


class GivenAuthor:
    """Proposes kernels that exist already, each once."""

    def __init__(self, name: str, kernels: Sequence[Kernel], *, note: str) -> None:
        self.name = name
        self._left = list(kernels)
        self._note = note

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        taken, self._left = self._left[:count], self._left[count:]
        return [
            Proposal(kernel=one, author=self.name, note=self._note, opener=True) for one in taken
        ]


def library_author(problem: Problem) -> GivenAuthor:
    """Return the author that proposes the shipped kernels for a problem, in C++ and in Triton.

    A kernel of the library answers the problem that has its name; the judge finds out whether a
    file's problem of that name is another one.
    """
    from ratchet.base.devices.probe import best_isa
    from ratchet.judge.kernels.library import kernels_for
    from ratchet.judge.kernels.library.sources import ANY_GPU

    found = [kernels_for(target).get(problem.name) for target in (best_isa(), ANY_GPU)]
    kernels = [one for one in found if one is not None]
    return GivenAuthor("library", kernels, note="from the shipped library")


EARLIER: Final = "ledger"  # Name of the author that proposes what an earlier run proved


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The authors of one run, in the order of their turns."""

    authors: tuple[Author, ...]
    absent: dict[str, str]  # Authors that have nothing to say on this problem, with the reason


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    run: str
    problem: Problem
    request: WritingRequest
    book: WritingBook
    device: Device  # The GPU that Triton's kernels run on, or the machine's cores
    argument: str = ""
    """The text after the colon of an author's name: the folder in `policy:FOLDER`."""


Maker = Callable[[Setting], Author]


def make_roster(setting: Setting, *, proven: Sequence[Kernel]) -> Roster:
    """Return the authors that a request names, as far as they can write for this problem.

    `proven` are kernels that the ledger holds as proven; they are proposed first. Raises
    RatchetError: a mistake in the call: an unknown author, an agent without a key, a folder without
    a policy.
    """
    authors: list[Author] = []
    absent: dict[str, str] = {}
    if proven:
        note = "proven by an earlier run"
        authors.append(GivenAuthor(EARLIER, proven, note=note))
    for name in setting.request.authors:
        kind, _, argument = name.partition(":")
        make = _maker(kind)
        try:
            authors.append(make(replace(setting, argument=argument)))
        except RatchetError as error:
            if kind == AGENT or isinstance(error, (LedgerError, LearnError)):
                raise
            absent[name] = str(error)
    return Roster(authors=tuple(authors), absent=absent)


def _maker(kind: str) -> Maker:
    """Return the maker of an author: ours, or that of another package's entry point."""
    if kind in MAKERS:
        return MAKERS[kind]
    for other in entry_points(group=GROUP):
        if other.name == kind:
            made: Maker = other.load()
            return made
    raise RatchetError(unknown_author(kind))


def _agent(setting: Setting) -> Author:
    """Return the author that asks a language model, or replays what one answered."""
    from ratchet.write.agent import AgentBudget, agent_author

    chosen, request = setting.request.agent, setting.request
    return agent_author(
        model=chosen.model,
        base_url=chosen.base_url or None,
        strategy=chosen.strategy,
        samples=chosen.samples,
        budget=AgentBudget(tokens=chosen.tokens, seconds=request.budget_s),
        ledger=setting.book.ledger,
        run_id=setting.run,
        replay=chosen.replay or None,
        language=request.language,
        device=setting.device,
        target=request.target,
    )


def _search(setting: Setting) -> Author:
    """Return a search over the generator's kernels for the device.

    Triton where there is a GPU or it is asked for, C++ for the machine's cores.
    """
    from ratchet.write.generator import space_for

    request = setting.request
    if request.language == "hip":
        raise RatchetError("the generator writes C++ and Triton, not HIP: use the agent")
    on_gpu = setting.device.kind == "cuda" and request.language != "cpp"
    space = space_for(
        setting.problem, device="cuda" if on_gpu or request.language == "triton" else "cpu"
    )
    return SearchAuthor(
        space,
        seed=request.seed,
        experience=Experience(setting.book.earlier(SEARCH)),
        name=SEARCH,
    )


def _compiler(setting: Setting) -> Author:
    device = setting.device
    on_gpu: Backend = "rocm" if device.runtime.startswith("rocm") else "triton"
    return CompilerAuthor("cpp" if device.kind == "cpu" else on_gpu)


def _policy(setting: Setting) -> Author:
    from ratchet.write.learn.evaluate import policy_author

    return policy_author(setting.argument, seed=setting.request.seed)


MAKERS: Final[Mapping[str, Maker]] = {
    "library": lambda setting: library_author(setting.problem),
    SEARCH: _search,
    COMPILER: _compiler,
    AGENT: _agent,
    "policy": _policy,
}
"""The makers of our own authors; another package adds its own by an entry point of GROUP."""
