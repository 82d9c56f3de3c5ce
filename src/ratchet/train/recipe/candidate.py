"""One way of running the step: a config and the proven kernels it needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import msgspec

from ratchet.base.serialise import document_of
from ratchet.train.recipe.installed import AnyKernel
from ratchet.train.workloads.config import AROUND_GRAPHS, StepConfig
from ratchet.train.workloads.names import LoadOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A config with the kernels that it names, ready to start in an arm."""

    title: str
    config: StepConfig
    kernels: tuple[AnyKernel, ...] = ()

    def key(self) -> str:
        """Hash everything that runs; the title does not count."""
        content = {
            "config": document_of(self.config),
            "kernels": sorted(kernel.hash for kernel in self.kernels),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    def graph_key(self) -> str:
        """Return a key shared by candidates whose steps torch.compile compiles to the same code."""
        config = msgspec.structs.replace(self.config, **AROUND_GRAPHS)
        return Candidate(title="", config=config, kernels=self.kernels).key()

    def arguments(self, workload: str, options: LoadOptions) -> dict[str, object]:
        """Return the JSON arguments of the arm's factory."""
        return {
            "workload": workload,
            "options": options,
            "config": document_of(self.config),
            "kernels": [document_of(kernel) for kernel in self.kernels],
        }


def wanted_libraries(config: StepConfig) -> set[str]:
    """Return the library kernels that a config requires, including the optimizer's."""
    return {*config.kernels, *(("adamw",) if config.optimizer == "kernel" else ())}


def with_config(config: StepConfig, proven: dict[str, tuple[AnyKernel, ...]]) -> Candidate:
    """Return the candidate of `config`, with its kernels taken from the proven ones."""
    kernels = tuple(
        kernel for name in sorted(wanted_libraries(config)) for kernel in proven.get(name, ())
    )
    return Candidate(title=describe(config), config=config, kernels=kernels)


def describe(config: StepConfig) -> str:
    """Describe a config in a few words: `torch.compile, bf16 autocast, fused optimizer`."""
    parts = ["eager" if config.compile_mode is None else _compile_words(config.compile_mode)]
    words = {"bf16_autocast": "bf16 autocast", "bf16_master": "bf16 weights"}
    parts.append(words.get(config.precision, config.precision))
    parts += [one.words(value) for _, value, one in config.changed()]
    return ", ".join(filter(None, parts))


def _compile_words(mode: str) -> str:
    return "torch.compile" if mode == "default" else f"torch.compile {mode}"
