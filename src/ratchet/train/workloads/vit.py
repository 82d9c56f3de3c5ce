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

from ratchet.train.workloads.family import Data, Family, Size, initialise, sizes_of
from ratchet.train.workloads.gpt2 import GeluBlock

TILES = 4  # Tiles along an edge of a class's pattern
NOISE = 0.5  # Standard deviation of the noise; the patterns have standard deviation 1
CHANNELS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ViTSize(Size):
    """The dimensions of one Vision Transformer and of its batches."""

    image: int
    patch: int
    classes: int

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

    image: int
    patch: int
    classes: int
    batch_size: int
    seed: int
    device: torch.device

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng((self.seed, index))
        classes = rng.integers(0, self.classes, self.batch_size)
        images = np.stack([self._image(int(label), rng) for label in classes])
        return (
            torch.from_numpy(images).to(self.device),
            torch.from_numpy(classes).to(self.device),
        )

    def _image(self, label: int, rng: np.random.Generator) -> np.ndarray:
        # A class looks the same under every seed, so seeds change the order and not the task.
        tiles = np.random.default_rng(label).standard_normal((CHANNELS, TILES, TILES))
        edge = -(-self.image // TILES)
        pattern = np.kron(tiles, np.ones((1, edge, edge)))[:, : self.image, : self.image]
        shift = rng.integers(0, self.patch, 2)
        moved = np.roll(pattern, tuple(int(s) for s in shift), axis=(1, 2))
        noise = rng.standard_normal(moved.shape, dtype=np.float32)
        return (moved + NOISE * noise).astype(np.float32)


def build_batches(size: ViTSize, data: Data) -> MadeImages:
    return MadeImages(
        image=size.image,
        patch=size.patch,
        classes=size.classes,
        batch_size=size.batch_size,
        seed=data.seed,
        device=data.device,
    )


# From b16 on: table 1 of the paper, at 224 pixels and ImageNet's 1,000 classes.
SIZES = sizes_of(
    ViTSize,
    """
    size hidden layers heads image patch classes batch_size on_gpu
    tiny     64      2     4    32     8      10         16      0
    11m     384      6     6   128    16     100         16    512
    b16     768     12    12   224    16    1000          8    256
    l16    1024     24    16   224    16    1000          8    128
    h14    1280     32    16   224    14    1000          8     64
    """,
)

FAMILY = Family(
    name="vit",
    summary="image classifier: patches, bidirectional attention, LayerNorm, GELU; synthetic images",
    sizes=SIZES,
    alone="11m",
    build_model=ViT,
    build_batches=build_batches,
    loss=class_loss,
    unit="images",
)
