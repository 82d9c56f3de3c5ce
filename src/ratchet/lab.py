"""The lab's door: what its rooms add to the core, imported when first asked for.

The core is what `ratchet optimize`, `judge`, `trace` and their like need. The lab emulates and
profiles machine code that cannot run here, asks language models, trains authors, spreads over a
cluster, plans, ports and publishes. The core imports none of it, which an import contract checks:
it says `lab.without_gpu.emulated(...)`, and the room is imported at that moment. A new room is one
line in `ROOMS`, or in `COMMANDS` if it has a command.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ratchet.authors import agent as agent
    from ratchet.authors.search import optuna_search as optuna_search
    from ratchet.court.fleet import ray_fleet as ray_fleet
    from ratchet.judge.emulator.estimates import references as references
    from ratchet.judge.trial import without_gpu as without_gpu
    from ratchet.learn import policy as policy
    from ratchet.port import kernel
    from ratchet.static_profile import inspection as inspection

    cuda_kernel = kernel

ROOMS: Final[Mapping[str, str]] = {
    "agent": "ratchet.authors.agent",
    "cuda_kernel": "ratchet.port.kernel",
    "inspection": "ratchet.static_profile.inspection",
    "optuna_search": "ratchet.authors.search.optuna_search",
    "policy": "ratchet.learn.policy",
    "ray_fleet": "ratchet.court.fleet.ray_fleet",
    "references": "ratchet.judge.emulator.estimates.references",
    "without_gpu": "ratchet.judge.trial.without_gpu",
}
"""The module behind each attribute of this one: an author that asks a language model, CUDA
kernels as HIP, static profiles, Optuna's search, trained authors, judges on a Ray cluster, bounds
of compiled references, and kernels interpreted or emulated where there is no GPU."""
COMMANDS: Final = (
    "debug",
    "emulate",
    "export",
    "inspect",
    "knowledge",
    "learn",
    "memory",
    "plan",
    "port",
    "preflight",
)
"""The files of the lab's commands in `ratchet.cli`."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        if name not in ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(ROOMS[name])
