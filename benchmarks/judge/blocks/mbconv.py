"""An EfficientNet block: an inverted bottleneck with squeeze and excitation."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, expanded, squeezed):
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(channels, expanded, 1, bias=False), nn.BatchNorm2d(expanded), nn.SiLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded, bias=False),
            nn.BatchNorm2d(expanded),
            nn.SiLU(),
        )
        self.squeeze = nn.Conv2d(expanded, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, expanded, 1)
        self.project = nn.Sequential(
            nn.Conv2d(expanded, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        weight = torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(y.mean((2, 3), True)))))
        return x + self.project(y * weight)


batch_size = 4
side = 28


def get_inputs():
    return [torch.randn(batch_size, 40, side, side)]


def get_init_inputs():
    return [40, 240, 10]
