"""The signature of a model: what tells whether a recipe was proven for it."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict
from torch import nn


class ModelSignature(BaseModel):
    """The model that a recipe was proven for, by its parameters' shapes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensors: int
    parameters: int
    shapes: str
    """A hash of all shapes, in an order of their own: a wrapped model's names do not count."""

    def __str__(self) -> str:
        return f"a model of {self.tensors:,} tensors with {self.parameters:,} parameters"


def signature_of(model: nn.Module) -> ModelSignature:
    """Return what a recipe keeps of a model: how many parameters it has, of which shapes."""
    shapes = sorted(tuple(parameter.shape) for parameter in model.parameters())
    return ModelSignature(
        tensors=len(shapes),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shapes=hashlib.sha256(repr(shapes).encode()).hexdigest(),
    )
