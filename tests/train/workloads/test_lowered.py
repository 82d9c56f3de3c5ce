"""bf16 weights without bf16 parameters: what a forward pass reads, and what stays fp32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.lowered import mixed_precision
from ratchet.train.workloads.step import TrainingStep


def read(values: Tensor, *, enabled: bool = True) -> Tensor:
    """Run a product with a weight; return the weight's value as the product saw it."""
    weight = nn.Parameter(values)
    with mixed_precision("bf16_master", "cpu"), torch.autocast("cpu", torch.bfloat16, enabled):
        return F.linear(torch.eye(len(values)), weight).t()


def test_products_read_rounded_weights() -> None:
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(read(values), values.bfloat16())


def test_a_region_without_autocast_reads_what_is_stored() -> None:
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(read(values, enabled=False), values)


def test_a_view_of_a_weight_beside_an_fp32_vector_is_read_as_fp32() -> None:
    """`torch.nn.utils.spectral_norm` multiplies a view of its weight with a buffer."""
    torch.manual_seed(0)
    layer = nn.utils.spectral_norm(nn.Linear(8, 8))
    with mixed_precision("bf16_master", "cpu"):
        lowered = layer(torch.eye(8))
        assert torch.mv(torch.eye(2).bfloat16(), torch.ones(2).bfloat16()).dtype == torch.bfloat16
    lowered.float().sum().backward()
    assert layer.weight_orig.grad.dtype == torch.float32
    assert torch.allclose(lowered.float(), layer(torch.eye(8)), atol=0.05)


def test_nothing_is_lowered_where_no_gradient_is_recorded() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    with mixed_precision("bf16_master", "cpu"), torch.no_grad():
        assert F.embedding(torch.arange(4), weight).dtype == torch.float32
        assert torch.equal(weight + 0, weight)


class Parts(nn.Module):
    """Each way in which a model reads a weight of two or more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.place = nn.Parameter(torch.randn(1, 4, 8))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.experts = nn.Parameter(torch.randn(2, 8, 8))
        self.norm = nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.dtypes: list[torch.dtype] = []

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        self.dtypes = [x.dtype]
        x = x + self.place
        self.dtypes.append(x.dtype)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        self.dtypes.append(x.dtype)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        self.dtypes.append(x.dtype)
        x = x @ self.experts[0] + torch.einsum("bth,ho->bto", x, self.experts[1].T)
        self.dtypes.append(x.dtype)
        return self.norm(x) * self.scale + (x.float() @ self.table.weight.t()).mean()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_activations_are_bf16_and_gradients_fp32(compiled: bool) -> None:
    torch.manual_seed(0)
    model, ids = Parts(), torch.randint(16, (2, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    call = torch.compile(model, backend="aot_eager") if compiled else model
    model(ids).square().mean().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    with mixed_precision("bf16_master", "cpu"):
        call(ids).square().mean().backward()
    assert model.dtypes == [torch.bfloat16] * 5
    for name, parameter in model.named_parameters():
        exact, found = expected[name], parameter.grad
        assert exact is not None and found is not None
        assert found.dtype == parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
        assert (found - exact).norm() < 0.05 * exact.norm() + 1e-4, name


def test_small_updates_and_many_gradients_are_kept() -> None:
    """bf16 has 8 bits: a weight of 1 would lose steps of 1e-3, and a sum its 257th term."""
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.SGD([weight], lr=1e-5)
    for _ in range(512):
        with mixed_precision("bf16_master", "cpu"):
            F.linear(torch.ones(1, 2), weight).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.full((2, 2), 512.0))
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 1 - 512e-5))


def test_a_step_leaves_the_model_as_it_is() -> None:
    workload = load("gpt2-tiny")
    step = TrainingStep(workload, StepConfig(precision="bf16_master"))
    losses = [float(step(workload.batch(0))) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert workload.model.head.weight is workload.model.embedding.weight
    assert {parameter.dtype for parameter in step.parameters.values()} == {torch.float32}
