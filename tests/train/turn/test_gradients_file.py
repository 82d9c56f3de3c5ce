"""Gradients on disk: what safetensors reads is what the step had, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ratchet.train.recipe.comparison import write_gradients


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    gradients = {
        "layers.0.größe": torch.randn(3, 5),
        "bf16": torch.randn(4, 2, 3, dtype=torch.bfloat16),
        "turned": torch.randn(6, 7).t(),
        "broadcast": torch.randn(1, 4).expand(3, 4),
        "double": torch.randn(2, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "needs": torch.nn.Parameter(torch.ones(2)),
    }
    path = tmp_path / "gradients.safetensors"
    write_gradients(gradients, path)
    found = load_file(path)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert found[name].dtype == torch.float32 and found[name].shape == gradient.shape
        torch.testing.assert_close(found[name], gradient.detach().float(), rtol=0, atol=0)


def test_complex_and_sparse_gradients_are_written_whole(tmp_path: Path) -> None:
    table = torch.nn.Embedding(4, 3, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    rows = table.weight.grad
    assert rows is not None and rows.is_sparse
    wave = torch.randn(2, 3, dtype=torch.cfloat)
    write_gradients({"wave": wave.conj(), "rows": rows}, tmp_path / "gradients")
    found = load_file(tmp_path / "gradients")
    assert torch.equal(torch.view_as_complex(found["wave"]), wave.conj().resolve_conj())
    assert torch.equal(found["rows"], rows.to_dense()) and found["rows"][1].eq(2).all()


@pytest.mark.parametrize("gradients", [{}, {"empty": torch.empty(0)}])
def test_a_model_without_gradients_has_an_empty_file(
    gradients: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "gradients.safetensors"
    write_gradients(gradients, path)
    assert load_file(path).keys() == gradients.keys()
