"""A writing run's request and its result: plain typed data for files and pages."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ratchet.base import Json
from ratchet.base.serialise import document_of
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.verdict import Verdict
from ratchet.write.author import Answer

AUTHORS: Final = ("library", "search", "compiler", "agent")
"""In the order of their first turns; `roster.MAKERS` makes them."""
LANGUAGES: Final[tuple[Language, ...]] = ("cpp", "triton", "torch", "hip")
Reuse = Literal["never", "same budget", "always"]
Stopped = Literal["budget", "floor", "no more proposals", "candidates", "recalled", "interrupted"]


class AgentChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The language model that the agent asks."""

    model: str = ""
    """Empty for no agent."""
    base_url: str = ""
    strategy: str = "beam"
    """`beam` or `evolve`."""
    samples: int = 2
    """Answers that are asked for in a turn."""
    tokens: int | None = None
    """Limit of prompts and answers together."""
    replay: str = ""
    """A run whose recorded answers stand in for the model's."""


class WritingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to write kernels for a problem."""

    budget_s: float = 60.0
    seed: int = 0
    authors: tuple[str, ...] = ("library", "search", "compiler")
    language: Language | None = None
    """Only kernels in this language; None for any."""
    device: str = "auto"
    target: str | None = None
    """An AMD GPU that is not here: kernels are in Triton, and their machine code is emulated."""
    search: str = "evolution"
    """The search's strategy: evolution, optuna or random."""
    agent: AgentChoice = AgentChoice()
    resume: bool = False
    reuse: Reuse = "same budget"
    """When a kernel that the ledger holds as proven ends the run at once. `same budget`: if an
    earlier run on the problem had at least this budget."""
    against_compile: bool = False
    """Time torch.compile of the reference beside the kernel in the verdicts."""
    candidates: int | None = None
    """Kernels that may be screened at most; None for as many as the budget allows."""

    @property
    def judged_device(self) -> str:
        """The name of the device that judges: what runs on cores alone, or is emulated, needs no
        GPU."""
        return "cpu" if self.target is not None or self.language == "cpp" else self.device


class WrittenKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel that the run ended with, by its verdict."""

    kernel_hash: str
    name: str
    language: str
    entry: str
    author: str
    source: str
    status: str
    reason: str
    verdict: Verdict
    """As the judge gave it, without its raw samples and static profile."""
    judged_at: str = ""
    recalled: bool = False
    """The verdict is one that the ledger held before this run, and was not given again."""


class AuthorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One author's part in a run."""

    name: str
    proposals: int
    right: int
    note: str = ""
    """Why it proposed nothing, if so."""


class WritingResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run on one problem, finished or going on: the document behind result.json and the page."""

    run: str
    problem: str
    problem_hash: str
    running: bool
    status: str
    """The best kernel's: `proven`, `correct`, ...; `none` if no kernel is right."""
    best: WrittenKernel | None
    stopped: Stopped | None
    """Why the search ended; None while it goes on."""
    budget_s: float
    spent_s: float
    screened: int
    """Kernels that were screened."""
    judged: int
    """Verdicts that were given in this run."""
    planned_verdicts: int
    """Verdicts with a time that may count: the level of each pays for all of them."""
    floor_s: float | None
    """Least time of the timed cases by the roofline; None if unknown."""
    authors: tuple[AuthorRow, ...]
    rows: tuple[Answer, ...]
    sources: dict[str, str]
    """Source of the kernels that the page shows, by hash."""
    device: dict[str, object]
    versions: dict[str, str]
    command: str
    started_at: str
    notes: tuple[str, ...] = ()
    static: dict[str, Json] | None = None
    """The static profile of the best kernel on AMD targets, for Triton."""

    def to_json(self) -> dict[str, object]:
        """Return dicts, lists, numbers and strings."""
        found: dict[str, object] = msgspec.to_builtins(
            msgspec.structs.replace(self, rows=()), enc_hook=_as_document
        )
        return found | {"rows": [one.as_json() for one in self.rows]}


def _as_document(verdict: Verdict) -> dict[str, object]:
    found = document_of(verdict)
    return {name: value for name, value in found.items() if name not in ("samples", "static")}
