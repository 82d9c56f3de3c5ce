"""The ops and the AdamW kernel under DDP and FSDP2: two gloo ranks learn what one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from ratchet.base.devices.probe import best_isa
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import LIBRARY, register_ops

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo"),
]

STEPS, RANKS = 3, 2
KINDS = ("ddp", "fsdp2")
OPS = ("rms_norm", "attention", "gated_activation", "adamw")


class Block(nn.Module):
    """Every elementwise op of the library, and attention, in one small block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_weight = nn.Parameter(torch.ones(32))
        self.gate = nn.Linear(32, 48, bias=False)
        self.up = nn.Linear(32, 48, bias=False)
        self.down = nn.Linear(48, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.ratchet
        y = ops.rms_norm(x, self.norm_weight, 1e-5)
        heads = y.view(*y.shape[:2], 4, 8).transpose(1, 2)
        mixed, _ = ops.attention(heads, heads, heads, True, 8**-0.5)
        y = y + mixed.transpose(1, 2).reshape(y.shape)
        return x + self.down(ops.gated_activation(self.gate(y), self.up(y), "silu"))


def activate() -> None:
    for name in OPS:
        for kernel in LIBRARY[name].kernels(best_isa()):
            registry.activate(kernel, cpp.compile_kernel(kernel))


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def batch(step: int) -> Tensor:
    return torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, shard: slice) -> None:
    from ratchet.judge.kernels.library.adamw import step_adamw

    # A large eps: an update of g over its own size would magnify the rounding of a tiny gradient.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        model(batch(step)[shard]).square().mean().backward()
        step_adamw(optimizer, clip_norm=0.05, gradients="drop")


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    register_ops()
    activate()
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    for kind in KINDS:
        train_sharded(rank, kind, folder)
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads may outlive the group; torch's teardown at exit then aborts the process.
    os._exit(0)


def train_sharded(rank: int, kind: str, folder: str) -> None:
    registry.fallbacks.clear()
    model = make()
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (RANKS,))
        for block in model.children():
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    train(model, slice(2 * rank, 2 * rank + 2))
    values = {
        name.removeprefix("module."): (p.full_tensor() if hasattr(p, "full_tensor") else p).detach()
        for name, p in model.named_parameters()
    }
    if rank == 0:
        torch.save((values, dict(registry.fallbacks)), Path(folder) / f"{kind}.pt")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two ranks learnt. Both start once, and find their kernels compiled."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in OPS:
        for kernel in LIBRARY[name].kernels(best_isa()):
            cpp.compile_kernel(kernel)
    mp.spawn(rank_main, (str(folder),), nprocs=RANKS)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_learn_what_one_learns(kind: str, learnt: Path) -> None:
    values, fallbacks = torch.load(learnt / f"{kind}.pt")
    assert fallbacks == {}
    alone = make()
    register_ops()
    train(alone, slice(0, 4))
    for name, expected in alone.named_parameters():
        torch.testing.assert_close(values[name], expected.detach(), rtol=2e-4, atol=2e-6)
