"""A writing run's request, made of the command line's text, and its result. Imports no torch."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Final, Literal, cast

import msgspec

from ratchet.base import Json
from ratchet.base.errors import RatchetError
from ratchet.base.serialise import document_of
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.terms import one_of, parse_device, parse_target
from ratchet.judge.verdict import Verdict
from ratchet.write.author import Answer

AUTHORS: Final = ("library", "search", "compiler", "agent")
"""Those that a call without --authors has, in the order of their first turns."""
GROUP: Final = "ratchet.authors"
"""Entry points of other packages: a name, and what `roster.Setting` is given to for its author."""
LANGUAGES: Final[tuple[Language, ...]] = ("cpp", "triton", "torch", "hip")
Reuse = Literal["never", "same budget", "always"]
Stopped = Literal["budget", "floor", "no more proposals", "candidates", "recalled", "interrupted"]


class AgentChoice(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""  # Empty for no agent
    base_url: str = ""
    strategy: str = "beam"  # `beam` or `evolve`
    samples: int = 2  # Answers that are asked for in a turn
    tokens: int | None = None  # Limit of prompts and answers together
    replay: str = ""  # A run whose recorded answers stand in for the model's


class WritingRequest(msgspec.Struct, frozen=True, kw_only=True):
    budget_s: float = 60.0
    seed: int = 0
    authors: tuple[str, ...] = ("library", "search", "compiler")
    language: Language | None = None  # Only kernels in this language; None for any
    device: str = "auto"
    target: str | None = None
    """An AMD GPU that is not here: kernels are in Triton, and their machine code is emulated."""
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
    verdict: Verdict  # As the judge gave it, without its raw samples and static profile
    judged_at: str = ""
    recalled: bool = False
    """The verdict is one that the ledger held before this run, and was not given again."""


class AuthorRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    proposals: int
    right: int
    note: str = ""  # Why it proposed nothing, if so


class WritingResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run on one problem, finished or going on: the document behind result.json and the page."""

    run: str = ""
    problem: str
    problem_hash: str
    running: bool = False
    status: str = "none"
    """The best kernel's: `proven`, `correct`, ...; `not_judged` if kernels were screened as right
    and the run ended before a verdict on one; `none` if no kernel is right."""
    best: WrittenKernel | None = None
    unjudged: str = ""  # Hash of the kernel that was screened best; empty unless `not_judged`
    stopped: Stopped | None = None  # Why the search ended; None while it goes on
    budget_s: float
    spent_s: float = 0.0
    screened: int = 0
    judged: int = 0  # Verdicts that were given in this run
    planned_verdicts: int
    """Verdicts with a time that may count: the level of each pays for all of them."""
    floor_s: float | None = None  # Least time of the timed cases by the roofline; None if unknown
    authors: tuple[AuthorRow, ...] = ()
    rows: tuple[Answer, ...] = ()
    sources: dict[str, str] = {}  # Source of the kernels that the page shows, by hash
    device: dict[str, object] = {}
    versions: dict[str, str] = {}
    command: str
    started_at: str = ""
    notes: tuple[str, ...] = ()
    static: dict[str, Json] | None = None
    """The static profile of the best kernel on AMD targets, for Triton."""

    def to_json(self) -> dict[str, object]:
        """Return dicts, lists, numbers and strings."""
        found: dict[str, object] = msgspec.to_builtins(
            msgspec.structs.replace(self, rows=()), enc_hook=_verdict_alone
        )
        return found | {"rows": [one.as_json() for one in self.rows]}


def _verdict_alone(verdict: Verdict) -> dict[str, object]:
    found = document_of(verdict)
    return {name: value for name, value in found.items() if name not in ("samples", "static")}


SHORTEST_BUDGET_S: Final = 20.0
LARGEST_SEED: Final = 2**32 - 1


def make_request(
    *,
    budget: str,
    language: str | None = None,
    authors: str | None = None,
    agent: AgentChoice | None = None,
    device: str = "auto",
    target: str | None = None,
    seed: int = 0,
    resume: bool = False,
    fresh: bool = False,
    against_compile: bool = False,
    candidates: int | None = None,
) -> WritingRequest:
    """Return the request that the texts of a command line make.

    Raises RatchetError: a value that an option cannot have.
    """
    chosen = agent or AgentChoice()
    if not 0 <= seed <= LARGEST_SEED:
        raise RatchetError(f"seed {seed} is out of range: give one from 0 to {LARGEST_SEED}")
    if resume and fresh:
        raise RatchetError("--resume continues a run and --fresh begins one: give one of them")
    if target is not None and language not in (None, "triton", "hip"):
        raise RatchetError(
            f"--target is for kernels in Triton or HIP: leave out --language {language}"
        )
    if target is None and language == "hip":
        raise RatchetError(
            "kernels in HIP run in the emulator alone: name a GPU too, such as --target gfx942"
        )
    if target is not None and device.startswith("cuda"):
        raise RatchetError("--target is for a GPU that is not here: leave out --device")
    if chosen.base_url and not chosen.model:
        raise RatchetError("--base-url names an endpoint without a model: give --model too")
    if chosen.model and chosen.replay:
        raise RatchetError("--replay needs no model: leave --model out")
    return WritingRequest(
        budget_s=parse_budget_s(budget),
        seed=seed,
        authors=parse_authors(authors, has_agent=bool(chosen.model or chosen.replay)),
        language=_language(language or (None if target is None else "triton")),
        device=parse_device(device) if target is None else "cpu",
        target=None if target is None else parse_target(target),
        agent=chosen,
        resume=resume,
        reuse="never" if fresh else "same budget",
        against_compile=against_compile,
        candidates=candidates,
    )


def parse_budget_s(text: str) -> float:
    """Return the seconds of a budget that a search and a verdict fit into."""
    return parse_duration_s(
        text, "budget", least_s=SHORTEST_BUDGET_S, too_short="a search and a verdict"
    )


def parse_fleet(text: str) -> str:
    """Return `local`, `ray` for the Ray cluster at hand, or the `ray://HOST:PORT` of another."""
    if text in ("local", "ray"):
        return text
    match = re.fullmatch(r"ray://[^\s:/@]+(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[1] or 10001) < 65536:
        raise RatchetError(f"unknown fleet {text!r}: use local, ray or ray://HOST:PORT")
    return text


def parse_authors(text: str | None, *, has_agent: bool) -> tuple[str, ...]:
    """Return the authors of a comma-separated list; by default all, the agent if it has a model."""
    if text is None:
        return tuple(one for one in AUTHORS if one != "agent" or has_agent)
    names = [one for one in re.split(r"[,\s]+", text.strip()) if one]
    others = {one.name for one in entry_points(group=GROUP)}
    for name in names:
        kind, _, argument = name.partition(":")
        if kind == "policy" and not argument:
            raise RatchetError("--authors policy names no folder: write policy:FOLDER")
        if name not in AUTHORS and kind not in {"policy", *others}:
            raise RatchetError(unknown_author(name))
    if not names:
        raise RatchetError(f"--authors names none: use some of {', '.join(AUTHORS)}")
    if "agent" in names and not has_agent:
        raise RatchetError("the author agent needs a model: give --model, or --replay RUN")
    return tuple(dict.fromkeys(names))


def unknown_author(name: str) -> str:
    """Return the error for a name that neither an author of ours nor another package's has."""
    known = (*AUTHORS, "policy:FOLDER", *sorted(one.name for one in entry_points(group=GROUP)))
    return f"unknown author {name!r}: use one of {', '.join(known)}"


def _language(given: str | None) -> Language | None:
    if given is None:
        return None
    return cast(Language, one_of("language", given, LANGUAGES))
