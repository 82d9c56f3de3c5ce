"""Every pattern on tiny Hugging Face models: how often it is installed, and the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

VOCABULARY = 97
COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
GROUPED = COMMON | {"num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED,
    "qwen3": GROUPED | {"head_dim": 16},
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": VOCABULARY,
        "n_positions": 64,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "bert": COMMON | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
DECODER = {"linear_cross_entropy": 1, "attention": 2, "rope": 4, "gated_activation": 2}
INSTALLED = {
    "llama": DECODER | {"rms_norm": 5},
    "mistral": DECODER | {"rms_norm": 5},
    "qwen3": DECODER | {"rms_norm": 9},
    "gpt2": {"linear_cross_entropy": 1, "attention": 2, "layer_norm": 5},
    "bert": {"linear_cross_entropy": 1, "attention": 2, "layer_norm": 6},
}
LINEAR_LAYERS = {"llama": 14, "mistral": 14, "qwen3": 14, "gpt2": 0, "bert": 13}
"""Under autocast. GPT-2's layers are addmm with a transposed weight, which the pattern leaves."""


def tiny(kind: str) -> tuple[nn.Module, Any]:
    """A tiny model of the type and its loss on one random batch."""
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    config.use_cache = False
    masked = kind == "bert"
    maker = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    model = maker.from_config(config).train()
    if not masked:
        model.loss_type = "ForCausalLM"  # unset for GPT-2, whose warning breaks the graph
    tokens = torch.randint(0, VOCABULARY, (2, 16))
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


@pytest.mark.parametrize("kind", CONFIGS)
def test_fp32(kind: str, compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    model, loss = tiny(kind)
    compiled = compile_loss(model, loss)
    assert compiled.report.installed == INSTALLED[kind]
    assert compiled.report.declined == []
    assert_same(compiled, plain_loss(model, loss))


@pytest.mark.parametrize("kind", CONFIGS)
def test_autocast(kind: str, compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    model, loss = tiny(kind)
    compiled = compile_loss(model, loss, autocast=True)
    layers = {"linear": LINEAR_LAYERS[kind]} if LINEAR_LAYERS[kind] else {}
    assert compiled.report.installed == INSTALLED[kind] | layers
    assert_same(compiled, plain_loss(model, loss, autocast=True), autocast=True)


def test_padding_mask_is_declined(compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    model, _ = tiny("llama")
    tokens, mask = torch.randint(0, VOCABULARY, (2, 16)), torch.ones(2, 16, dtype=torch.long)
    mask[1, 12:] = 0

    def loss() -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens, attention_mask=mask, labels=tokens).loss
        return found

    compiled = compile_loss(model, loss)
    assert "attention" not in compiled.report.installed
    reasons = [reason for pattern, reason in compiled.report.declined if pattern == "attention"]
    assert len(reasons) == 2
    assert "not known when compiling" in reasons[0]
    assert_same(compiled, plain_loss(model, loss))


def test_sum_over_num_items(compile_loss: Any, plain_loss: Any, assert_same: Any) -> None:
    model, _ = tiny("llama")
    tokens = torch.randint(0, VOCABULARY, (2, 16))
    labels = tokens.masked_fill(torch.arange(16) < 5, -100)

    def loss() -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens, labels=labels, num_items_in_batch=22).loss
        return found

    compiled = compile_loss(model, loss, kernels=["linear_cross_entropy"])
    assert compiled.report.installed == {"linear_cross_entropy": 1}
    assert_same(compiled, plain_loss(model, loss))
