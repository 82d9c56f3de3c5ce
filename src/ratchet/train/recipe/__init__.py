"""The recipe file, and its installation in a workload or a training script."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.base import Json, files
from ratchet.base.errors import ForeignRecipe, RecipeError
from ratchet.base.serialise import document_of, encoded
from ratchet.train.recipe.installed import AnyKernel, as_kernel
from ratchet.train.workloads.config import AROUND_GRAPHS, StepConfig
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.parallel import ParallelTuning, TunedLayout

if TYPE_CHECKING:
    from torch import nn


# A candidate is one way of running a step; a recipe stores the one that was proven.

SCHEMA = 1
MOST_BYTES = 1 << 23
"""Size limit of a recipe file: a few thousand bytes, and up to 50,000 for a region's kernel."""
ADDED = ("model", "optimizer", "parallel")
"""Fields that older recipes lack; an empty one is left out of the checksum."""


class ModelSignature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that a recipe was proven for, identified by its parameters' shapes."""

    tensors: int
    parameters: int
    shapes: str  # Hash of all shapes in sorted order, so a wrapped model's names do not matter

    def __str__(self) -> str:
        return f"a model of {self.tensors:,} tensors with {self.parameters:,} parameters"


def signature_of(model: nn.Module) -> ModelSignature:
    """Return a model's signature: the number of its parameters and their shapes."""
    shapes = sorted(tuple(parameter.shape) for parameter in model.parameters())
    return ModelSignature(
        tensors=len(shapes),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shapes=hashlib.sha256(repr(shapes).encode()).hexdigest(),
    )


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document that `ratchet.apply` and `ratchet.compile` install."""

    schema_version: int = SCHEMA
    workload: str
    device: str  # Fingerprint of the device that it was proven on
    device_name: str
    software: str  # Fingerprint of torch, the compiler and Ratchet itself
    versions: dict[str, str]
    config: StepConfig
    kernels: tuple[AnyKernel, ...]
    model: ModelSignature | None = None  # None in old recipes, which accept any model
    optimizer: str = ""  # Class of the workload's optimizer; empty in old recipes
    parallel: TunedLayout | None = None  # None for a step of one process
    speedup: dict[str, dict[str, Json]]
    changes_arithmetic: bool
    created_at: str
    checksum: str = ""

    def sealed(self) -> Recipe:
        """Return the same recipe with the checksum of its content."""
        return msgspec.structs.replace(self, checksum=self._digest())

    def _digest(self) -> str:
        content = {
            name: value
            for name, value in document_of(self).items()
            if name != "checksum" and (value or name not in ADDED)
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the sealed recipe as JSON, atomically."""
        files.make_folder(path.parent)
        files.write_whole(path, encoded(self.sealed(), indent=2))

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe; raise RecipeError if it is missing, damaged or from a newer version."""
        path = Path(path)
        try:
            recipe = cls._parse(path, read_text(path))
            intact = recipe.checksum == recipe._digest()
        except (RecursionError, ValueError) as error:
            raise RecipeError(
                f"recipe {path} is damaged (it is nested too deeply): run `ratchet optimize` again"
            ) from error
        if not intact:
            raise RecipeError(
                f"recipe {path} was changed after it was written (its checksum does not match): "
                "run `ratchet optimize` again"
            )
        return recipe

    @classmethod
    def _parse(cls, path: Path, text: str) -> Recipe:
        try:
            document = json.loads(text)
        except ValueError as error:
            where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise RecipeError(
                f"recipe {path} is damaged (not JSON{where}): run `ratchet optimize` again"
            ) from error
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise RecipeError(
                f"recipe {path} has schema {version}, but this Ratchet reads only up to {SCHEMA}: "
                "install the Ratchet that wrote it, or run `ratchet optimize` again"
            )
        try:
            return msgspec.convert(document, cls, dec_hook=as_kernel)
        except msgspec.ValidationError as error:
            raise RecipeError(
                f"recipe {path} is damaged ({error}): run `ratchet optimize` again"
            ) from error

    def check_here(self, *, device: str, device_name: str, software: str) -> None:
        """Refuse a recipe that was proven on another device or with other software."""
        if self.device != device:
            raise ForeignRecipe(
                f"the recipe was proven on {self.device_name}, but this is {device_name}: "
                "run `ratchet optimize` here"
            )
        if self.software != software:
            known = ", ".join(f"{name} {version}" for name, version in self.versions.items())
            raise ForeignRecipe(
                f"the recipe was proven with {known}, but other versions are installed here: "
                "run `ratchet optimize` again"
            )


def read_text(path: Path) -> str:
    """Read a recipe's text; raise RecipeError unless it is a regular file of a plausible size."""
    remedy = "give the recipe.json that `ratchet optimize` wrote"
    try:
        if why := files.why_not_file(path):
            raise RecipeError(f"recipe {path} {why}: {remedy}")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:  # ValueError: not text, or a path with a null byte
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RecipeError(f"recipe {path} cannot be read ({reason}): {remedy}") from error
    if len(content) > MOST_BYTES:
        raise RecipeError(f"recipe {path} has more than {MOST_BYTES} bytes: {remedy}")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A config with the kernels that it names, ready to start in an arm."""

    title: str
    config: StepConfig
    kernels: tuple[AnyKernel, ...] = ()
    tuning: ParallelTuning = field(default_factory=ParallelTuning)
    """Settings of how its ranks communicate, if it runs on several."""

    def key(self) -> str:
        """Hash everything that runs; the title does not count."""
        content = {
            "config": document_of(self.config),
            "kernels": sorted(kernel.hash for kernel in self.kernels),
        }
        if self.tuning != ParallelTuning():
            content["tuning"] = document_of(self.tuning)
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
    compiled = {None: "eager", "default": "torch.compile"}
    parts = [compiled.get(config.compile_mode, f"torch.compile {config.compile_mode}")]
    words = {"bf16_autocast": "bf16 autocast", "bf16_master": "bf16 weights"}
    parts.append(words.get(config.precision, config.precision))
    parts += [one.words(value) for _, value, one in config.changed()]
    return ", ".join(filter(None, parts))
