"""Vision Transformer: an image as a sequence of patches (Dosovitskiy et al. 2020).

Shapes: B batch, P patches, H hidden, N heads, C classes.

The images are synthetic, because no image data set is present on every machine. Each class has its
own pattern of coarse coloured tiles, and each image is its class's pattern, shifted, with noise.
Images depend only on the seed and the index, can be learned, and cost a step as much as
photographs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.family import Data, Family, initialise
from ratchet.train.workloads.gpt2 import GeluBlock
from ratchet.train.workloads.workload import BatchFunction

TILES = 4  # Tiles along an edge of a class's pattern
NOISE = 0.5  # Standard deviation of the noise; the patterns have standard deviation 1
CHANNELS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTSize:
    """The dimensions of one Vision Transformer and of its batches."""

    hidden: int
    layers: int
    heads: int
    image: int
    patch: int
    classes: int
    batch_size: int
    sequence: int = 0  # Unused; the image and patch sizes determine the number of patches

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


class ViT(nn.Module):
    """images fp32 [B, 3, image, image] -> logits [B, C], read from the class token."""

    def __init__(self, size: ViTSize) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, size.hidden, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, size.hidden))
        positions = torch.empty(1, size.patches + 1, size.hidden).normal_(std=0.02)
        self.positions = nn.Parameter(positions)
        self.layers = nn.ModuleList(
            GeluBlock(size.hidden, size.heads, causal=False, eps=1e-6, approximate="none")
            for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.hidden, eps=1e-6)
        self.head = nn.Linear(size.hidden, size.classes)
        initialise(self, size.layers)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(images.shape[0], -1, -1).to(patches.dtype)
        x = torch.cat((first, patches), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x[:, 0])))


def class_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the image's class, with the softmax in fp32."""
    images, classes = batch
    return F.cross_entropy(model(images).float(), classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeImages:
    """Make (images fp32 [B, 3, image, image], classes int64 [B])."""

    size: ViTSize
    seed: int
    device: torch.device

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng((self.seed, index))
        classes = rng.integers(0, self.size.classes, self.size.batch_size)
        images = np.stack([self._image(int(label), rng) for label in classes])
        return (
            torch.from_numpy(images).to(self.device),
            torch.from_numpy(classes).to(self.device),
        )

    def _image(self, label: int, rng: np.random.Generator) -> np.ndarray:
        # A class looks the same under every seed, so seeds change the order and not the task.
        tiles = np.random.default_rng(label).standard_normal((CHANNELS, TILES, TILES))
        edge = -(-self.size.image // TILES)
        pattern = np.kron(tiles, np.ones((1, edge, edge)))[:, : self.size.image, : self.size.image]
        shift = rng.integers(0, self.size.patch, 2)
        moved = np.roll(pattern, tuple(int(s) for s in shift), axis=(1, 2))
        noise = rng.standard_normal(moved.shape, dtype=np.float32)
        return (moved + NOISE * noise).astype(np.float32)


def build_batches(size: ViTSize, data: Data) -> BatchFunction:
    return MadeImages(size=size, seed=data.seed, device=data.device)


def _published(hidden: int, layers: int, heads: int, patch: int) -> ViTSize:
    """Return a size from the paper's table 1, at 224 pixels and ImageNet's 1,000 classes."""
    return ViTSize(
        hidden=hidden,
        layers=layers,
        heads=heads,
        image=224,
        patch=patch,
        classes=1000,
        batch_size=8,
    )


SIZES = {
    "tiny": ViTSize(hidden=64, layers=2, heads=4, image=32, patch=8, classes=10, batch_size=16),
    "11m": ViTSize(hidden=384, layers=6, heads=6, image=128, patch=16, classes=100, batch_size=16),
    "b16": _published(768, 12, 12, 16),
    "l16": _published(1024, 24, 16, 16),
    "h14": _published(1280, 32, 16, 14),
}

FAMILY = Family(
    name="vit",
    summary="image classifier: patches, bidirectional attention, LayerNorm, GELU; synthetic images",
    sizes=SIZES,
    on_gpu={"11m": 512, "b16": 256, "l16": 128, "h14": 64},
    alone="11m",
    build_model=ViT,
    build_batches=build_batches,
    loss=class_loss,
    unit="images",
)
