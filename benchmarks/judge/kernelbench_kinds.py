"""Define problems of KernelBench's kinds and sizes, in its format but our own: name to file text.

Each is given by its sizes, its layers, the forward pass's arguments and result, and its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

FILE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

{sizes}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {layers}

    def forward(self, {arguments}):
        return {result}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """One problem: lines of sizes, lines of layers, and three expressions."""

    sizes: str
    layers: str
    result: str
    inputs: str
    arguments: str = "x"

    def text(self) -> str:
        """Return the text of the problem's file."""
        return FILE.format(
            sizes=self.sizes.replace("; ", "\n"),
            layers=self.layers.replace("; ", "\n        ") or "pass",
            arguments=self.arguments,
            result=self.result,
            inputs=self.inputs,
        )


IMAGES = "batch_size = 16; width = 256"
IMAGE = "torch.rand(batch_size, 32, width, width)"
VOLUMES = "batch_size = 16; depth = 32; width = 64"
VOLUME = "torch.rand(batch_size, 16, depth, width, width)"
ROWS = "batch_size = 4096; dim = 16384"
TOKENS = "batch_size = 32; length = 512; dim = 768"
WORDS = "torch.rand(batch_size, length, dim)"

KINDS: dict[str, Kind] = {
    # Level 1: one operator.
    "matmul": Kind(
        "M = 4096; K = 4096; N = 4096",
        "",
        "x @ y",
        "torch.rand(M, K), torch.rand(K, N)",
        arguments="x, y",
    ),
    "batched_matmul": Kind(
        "batch_size = 128; m = 512; k = 1024; n = 2048",
        "",
        "torch.bmm(x, y)",
        "torch.rand(batch_size, m, k), torch.rand(batch_size, k, n)",
        arguments="x, y",
    ),
    "gelu": Kind(ROWS, "", "F.gelu(x)", "torch.randn(batch_size, dim)"),
    "softmax": Kind(ROWS, "", "torch.softmax(x, dim=1)", "torch.rand(batch_size, dim)"),
    "cumsum": Kind(ROWS, "", "torch.cumsum(x, dim=1)", "torch.rand(batch_size, dim)"),
    "argmax": Kind(ROWS, "", "torch.argmax(x, dim=1)", "torch.rand(batch_size, dim)"),
    "rms_norm": Kind(
        "batch_size = 112; features = 64; width = 512",
        "",
        "x * torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + 1e-5)",
        "torch.rand(batch_size, features, width, width)",
    ),
    "instance_norm": Kind(IMAGES, "self.norm = nn.InstanceNorm2d(32)", "self.norm(x)", IMAGE),
    "max_pool2d": Kind(IMAGES, "self.pool = nn.MaxPool2d(3, 2, 1)", "self.pool(x)", IMAGE),
    "avg_pool3d": Kind(VOLUMES, "self.pool = nn.AvgPool3d(3, 2, 1)", "self.pool(x)", VOLUME),
    "conv1d": Kind(
        "batch_size = 64; length = 65536",
        "self.conv = nn.Conv1d(16, 32, 5, dilation=2)",
        "self.conv(x)",
        "torch.rand(batch_size, 16, length)",
    ),
    "conv2d": Kind(IMAGES, "self.conv = nn.Conv2d(32, 64, 3)", "self.conv(x)", IMAGE),
    "depthwise_conv2d": Kind(
        IMAGES, "self.conv = nn.Conv2d(32, 32, 3, groups=32)", "self.conv(x)", IMAGE
    ),
    "conv3d": Kind(VOLUMES, "self.conv = nn.Conv3d(16, 32, 3)", "self.conv(x)", VOLUME),
    "conv_transpose1d": Kind(
        "batch_size = 64; length = 65536",
        "self.conv = nn.ConvTranspose1d(16, 16, 3, stride=2)",
        "self.conv(x)",
        "torch.rand(batch_size, 16, length)",
    ),
    "conv_transpose2d": Kind(
        IMAGES, "self.conv = nn.ConvTranspose2d(32, 32, 3, stride=2)", "self.conv(x)", IMAGE
    ),
    "conv_transpose3d": Kind(
        VOLUMES, "self.conv = nn.ConvTranspose3d(16, 32, 3, stride=2)", "self.conv(x)", VOLUME
    ),
    "attention": Kind(
        "batch_size = 32; heads = 32; length = 512; dim = 128",
        "",
        "F.scaled_dot_product_attention(q, k, v)",
        ", ".join(["torch.rand(batch_size, heads, length, dim)"] * 3),
        arguments="q, k, v",
    ),
    "cross_entropy": Kind(
        "batch_size = 32768; classes = 4096",
        "",
        "F.cross_entropy(x, y)",
        "torch.rand(batch_size, classes), torch.randint(0, classes, (batch_size,))",
        arguments="x, y",
    ),
    # Level 2: a few operators.
    "conv_batch_norm_relu": Kind(
        IMAGES,
        "self.conv = nn.Conv2d(32, 64, 3); self.norm = nn.BatchNorm2d(64)",
        "torch.relu(self.norm(self.conv(x)))",
        IMAGE,
    ),
    "gemm_group_norm_silu": Kind(
        "batch_size = 1024; inputs = 8192; outputs = 8192",
        "self.gemm = nn.Linear(inputs, outputs); self.norm = nn.GroupNorm(16, outputs)",
        "F.silu(self.norm(self.gemm(x)))",
        "torch.rand(batch_size, inputs)",
    ),
    "conv3d_softmax_pool": Kind(
        VOLUMES,
        "self.conv = nn.Conv3d(16, 16, 3); self.pool = nn.MaxPool3d(2)",
        "self.pool(torch.softmax(self.conv(x), dim=1))",
        VOLUME,
    ),
    "conv_transpose3d_mean_tanh": Kind(
        VOLUMES,
        "self.conv = nn.ConvTranspose3d(16, 16, 3); "
        "self.bias = nn.Parameter(torch.randn(16, 1, 1, 1))",
        "torch.tanh((self.conv(x) + self.bias).mean(dim=1, keepdim=True)) * 2.0",
        VOLUME,
    ),
    "gemm_log_sum_exp": Kind(
        "batch_size = 1024; inputs = 8192; outputs = 8192",
        "self.gemm = nn.Linear(inputs, outputs)",
        "F.leaky_relu(torch.logsumexp(self.gemm(x), dim=1, keepdim=True))",
        "torch.rand(batch_size, inputs)",
    ),
    # Level 3: whole blocks and networks.
    "lstm": Kind(
        "batch_size = 10; length = 512",
        "self.lstm = nn.LSTM(128, 256, 6, batch_first=True)",
        "self.lstm(x)[0][:, -1]",
        "torch.rand(batch_size, length, 128)",
    ),
    "gru_both_ways": Kind(
        "batch_size = 10; length = 512",
        "self.gru = nn.GRU(128, 256, 6, bidirectional=True)",
        "self.gru(x)[0]",
        "torch.rand(length, batch_size, 128)",
    ),
    "vanilla_rnn_step": Kind(
        "batch_size = 256; dim = 16384; hidden = 16384",
        "self.step = nn.Linear(dim + hidden, hidden); self.out = nn.Linear(hidden, 8192)",
        "self.out(torch.tanh(self.step(torch.cat((x, h), dim=1))))",
        "torch.rand(batch_size, dim), torch.rand(batch_size, hidden)",
        arguments="x, h",
    ),
    "transformer_block": Kind(
        TOKENS,
        "self.block = nn.TransformerEncoderLayer(dim, 12, 4 * dim, 0.0, batch_first=True)",
        "self.block(x)",
        WORDS,
    ),
    "mlp": Kind(
        "batch_size = 128; inputs = 16384; hidden = 16384; outputs = 8192",
        "self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), "
        "nn.Linear(hidden, outputs))",
        "self.net(x)",
        "torch.rand(batch_size, inputs)",
    ),
    "residual_block": Kind(
        "batch_size = 10; channels = 64; width = 224",
        "self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False); "
        "self.norm_one = nn.BatchNorm2d(channels); "
        "self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False); "
        "self.norm_two = nn.BatchNorm2d(channels)",
        "torch.relu(x + self.norm_two(self.two(torch.relu(self.norm_one(self.one(x))))))",
        "torch.rand(batch_size, channels, width, width)",
    ),
    "inverted_bottleneck": Kind(
        "batch_size = 10; width = 224",
        "self.net = nn.Sequential(nn.Conv2d(112, 672, 1, bias=False), nn.BatchNorm2d(672), "
        "nn.ReLU6(), nn.Conv2d(672, 672, 5, 2, 2, groups=672, bias=False), nn.BatchNorm2d(672), "
        "nn.ReLU6(), nn.Conv2d(672, 192, 1, bias=False), nn.BatchNorm2d(192))",
        "self.net(x)",
        "torch.rand(batch_size, 112, width, width)",
    ),
    "small_vgg": Kind(
        "batch_size = 32; width = 224; classes = 1000",
        "self.net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), "
        "nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), "
        "nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten()); "
        "self.head = nn.Linear(256 * 49, classes)",
        "self.head(self.net(x))",
        "torch.rand(batch_size, 3, width, width)",
    ),
}
