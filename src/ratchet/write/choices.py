"""The choices of a call to `write`, from the command line's text. Imports no torch."""

from __future__ import annotations

import re
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.terms import one_of, parse_device, parse_target
from ratchet.write.writing_result import AUTHORS, LANGUAGES, AgentChoice, WritingRequest

SHORTEST_BUDGET_S: Final = 20.0
SEARCHES: Final = ("evolution", "optuna", "random")
LARGEST_SEED: Final = 2**32 - 1
POLICY: Final = "policy:"
"""Begins the name of an author that `ratchet learn` trained; its folder follows."""


def make_request(
    *,
    budget: str,
    language: str | None = None,
    authors: str | None = None,
    search: str = "evolution",
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

    Raises:
        RatchetError: a value that an option cannot have.
    """
    chosen = agent or AgentChoice()
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
    return WritingRequest(
        budget_s=parse_budget_s(budget),
        seed=_seed(seed),
        authors=parse_authors(authors, has_agent=bool(chosen.model or chosen.replay)),
        language=_language(language) if target is None else _language(language or "triton"),
        device=parse_device(device) if target is None else "cpu",
        target=None if target is None else parse_target(target),
        search=one_of("search", search, SEARCHES),
        agent=_agent(chosen),
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
    for name in names:
        if not name.startswith(POLICY):
            one_of("author", name, AUTHORS)
    if not names:
        raise RatchetError(f"--authors names none: use some of {', '.join(AUTHORS)}")
    if "agent" in names and not has_agent:
        raise RatchetError("the author agent needs a model: give --model, or --replay RUN")
    return tuple(dict.fromkeys(names))


def _agent(chosen: AgentChoice) -> AgentChoice:
    if chosen.base_url and not chosen.model:
        raise RatchetError("--base-url names an endpoint without a model: give --model too")
    if chosen.model and chosen.replay:
        raise RatchetError("--replay needs no model: leave --model out")
    return chosen


def _language(given: str | None) -> Language | None:
    if given is None:
        return None
    found = next((one for one in LANGUAGES if one == given), None)
    if found is None:
        raise RatchetError(f"unknown language {given!r}: use one of {', '.join(LANGUAGES)}")
    return found


def _seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise RatchetError(f"seed {seed} is out of range: give one from 0 to {LARGEST_SEED}")
    return seed
