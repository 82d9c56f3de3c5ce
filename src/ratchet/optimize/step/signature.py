"""The signature of a model, which identifies the recipes that were proven for it."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict
from torch import nn


class ModelSignature(BaseModel):
    """A model that a recipe was proven for, identified by its parameters' shapes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensors: int
    parameters: int
    shapes: str
    """Hash of all shapes in sorted order, so a wrapped model's names do not matter."""

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
