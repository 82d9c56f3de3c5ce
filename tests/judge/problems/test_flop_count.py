"""Operations are counted as torch counts them, and torch.compile is not imported for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ratchet.judge.problems.references import FlopCount

X = torch.ones(2, 8, 16, 16)


@pytest.mark.parametrize(
    "call",
    [
        lambda: X @ X,
        lambda: torch.einsum("bhij,bhkj->bik", X, X),
        lambda: torch.nn.Linear(16, 3)(X),
        lambda: torch.nn.Conv2d(8, 4, 3)(X),
        lambda: torch.nn.ConvTranspose2d(8, 4, 3, stride=2)(X),
        lambda: torch.nn.functional.scaled_dot_product_attention(X, X, X, is_causal=True),
        lambda: torch.nn.MultiheadAttention(16, 2)(X[0], X[0], X[0]),
        lambda: torch.nn.LSTM(16, 5)(X[0]),
        lambda: X.exp().softmax(-1),
    ],
)
def test_the_count_is_torch_s(call: Callable[[], object]) -> None:
    with torch.no_grad(), FlopCounterMode(display=False) as theirs:
        call()
    with torch.no_grad(), FlopCount() as ours:
        call()
    assert ours.total == theirs.get_total_flops()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), FlopCount() as fake:
        call()
    assert fake.total == ours.total


def test_it_imports_no_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from ratchet.judge.problems.references import FlopCount\n"
        "with FlopCount() as counter:\n"
        "    torch.ones(2, 3) @ torch.ones(3, 4)\n"
        "assert counter.total == 48\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
