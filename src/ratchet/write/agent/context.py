"""The common part of an agent's sessions: language, device, knowledge, book."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base.devices.probe import Device
from ratchet.base.errors import KnowledgeError
from ratchet.base.ledger.books import ExchangeBook
from ratchet.judge.kernels.kernel import Language
from ratchet.write.agent.brief import ProblemBrief
from ratchet.write.agent.facts import device_facts, target_facts
from ratchet.write.agent.profile import Profiles
from ratchet.write.agent.strategy import StrategyName
from ratchet.write.knowledge import Passage, open_index
from ratchet.write.knowledge.cite import cite, query_of

LOG = logging.getLogger(__name__)
AMD_TARGET: Final = "gfx942"
"""The GPU that Triton and HIP kernels are written for where none is here and none is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The terms of a run, for the sessions of all its problems."""

    run: str
    model: str
    language: Language
    strategy: StrategyName
    device: Device
    target: str | None
    """A GPU that is not here; None to write for `device`."""
    book: ExchangeBook
    """The ledger's, for what was asked before, and what is asked now."""
    replays: bool
    """The answers come from the ledger, so they are not recorded again."""
    profiles: Profiles
    knowledge: Path | None
    """The index of documents; None for no passages at all."""
    hide: Callable[[str], str]
    """Takes the key out of a text before it is stored: evidence may quote anything."""

    def facts(self) -> tuple[str, ...]:
        """Return the lines about the device to write for."""
        found = target_facts(self.target) if self.target else device_facts(self.device)
        return tuple(found)

    def passages(self, brief: ProblemBrief) -> tuple[Passage, ...]:
        """Return the passages that fit a problem; none if the index cannot be read."""
        if self.knowledge is None:
            return ()
        gpu = self.target is not None or self.device.kind == "cuda"
        amd = gpu and (self.target or self.device.target).startswith("gfx")
        avoid = ("x86",) if amd else ("x86", "AMD") if gpu else ("AMD GPUs",)
        words = "GPU wave LDS registers" if gpu else "CPU x86 cache vector threads OpenMP"
        query = query_of(
            *(brief.name, brief.summary, brief.reference, self.language, words),
            self.target or self.device.target,
        )
        try:
            with open_index(self.knowledge) as index:
                return tuple(cite(index, query, avoid=avoid))
        except KnowledgeError as error:
            LOG.warning("no passages for the agent: %s", error)
            return ()


def default_language(device: Device) -> Language:
    """Return the language to write in for a device: Triton on a GPU, else C++."""
    return "triton" if device.kind == "cuda" else "cpp"


def default_target(language: Language, device: Device) -> str | None:
    """Return the GPU to write for where a GPU's language meets a machine without one."""
    return AMD_TARGET if language in ("triton", "hip") and device.kind == "cpu" else None
