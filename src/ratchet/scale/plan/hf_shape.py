"""The shape that a Hugging Face configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ratchet.base.errors import PlanError
from ratchet.scale.plan.shape import Shape

if TYPE_CHECKING:
    from transformers import PretrainedConfig

EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configurations of transformers hold the number of experts."""
GATED: Final = ("silu", "swiglu")
"""Activations that only MLPs with a gate have. Others are in both kinds."""
GATED_TYPES: Final = ("gemma", "recurrent_gemma", "t5gemma", "vaultgemma")
"""Beginnings of model types whose MLP has a gate with another activation."""
OTHER_LAYERS: Final = ("attn_layer_period", "mamba_d_state", "ssm_state_size", "lru_width",
                       "linear_num_value_heads", "conv_L_cache")  # fmt: skip
"""Fields of configurations that put other layers beside attention."""


def of_config(name: str, config: PretrainedConfig) -> Shape:
    """Return the shape that a transformers configuration of a decoder describes.

    Raises PlanError, which names the fields, if sizes are missing.
    """
    config = getattr(config, "text_config", None) or config
    known = config.to_dict()
    for part in ("attn_config", "ffn_config"):  # DBRX and MPT
        known = {**(known.get(part) or {}), **known}
    _check_kind(name, known)

    def read(*fields: str) -> int:
        return next((int(known[one]) for one in fields if known.get(one)), 0)

    needed = {
        "num_hidden_layers": read("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        "hidden_size": read("hidden_size", "n_embd", "d_model"),
        "num_attention_heads": read("num_attention_heads", "n_head", "num_heads", "n_heads"),
        "vocab_size": read("vocab_size"),
    }
    if missing := [field for field, value in needed.items() if not value]:
        raise PlanError(
            f"the configuration of {name!r} has no {', '.join(missing)}: give a decoder-only "
            "transformer"
        )
    layers, hidden, heads, vocabulary = needed.values()
    experts = read(*EXPERTS)
    chosen = read("num_experts_per_tok", "moe_top_k", "moe_k")
    if not experts and chosen and any(one in known for one in EXPERTS):
        raise PlanError(
            f"the configuration of {name!r} has 0 experts and sends a token to {chosen} of them: "
            "give 1 expert or more, or none to each token"
        )
    inner = read("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    every = read("interleave_moe_layer_step", "decoder_sparse_step") or 1
    dense_layers = read("first_k_dense_replace") or layers - layers // every
    of_expert = read("moe_intermediate_size") or inner
    shared = of_expert * read("n_shared_experts") or read("shared_expert_intermediate_size")
    if known.get("model_type") == "llama4_text":
        shared, inner = of_expert, read("intermediate_size_mlp")
    rank, kinds = read("kv_lora_rank"), known.get("layer_types") or ()
    window = read("sliding_window")
    windowed = sum(one == "sliding_attention" for one in kinds)
    if window and not kinds and known.get("use_sliding_window", True):
        windowed = layers
    one_key = known.get("multi_query") and not known.get("new_decoder_architecture")
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads
        if rank
        else 1
        if one_key
        else read("num_key_value_heads", "num_kv_heads", "kv_n_heads") or heads,
        head_dim=read("v_head_dim" if rank else "head_dim") or max(1, hidden // heads),
        intermediate=0 if experts and not dense_layers else inner,
        vocabulary=vocabulary,
        sequence=min(read("max_position_embeddings", "n_positions", "max_seq_len") or 4096, 8192),
        gated=_is_gated(known) or experts > 0,
        tied=bool(known.get("tie_word_embeddings")),
        experts=experts,
        experts_per_token=chosen if experts else 0,
        expert_intermediate=of_expert if experts else 0,
        shared_intermediate=shared if experts else 0,
        dense_layers=dense_layers if experts else 0,
        latent_rank=rank,
        window=window if windowed else 0,
        windowed=windowed,
    )


def _is_gated(known: Mapping[str, object]) -> bool:
    activation = known.get("hidden_act", known.get("activation_function", ""))
    return activation in GATED or str(known.get("model_type")).startswith(GATED_TYPES)


def _check_kind(name: str, known: Mapping[str, object]) -> None:
    """Raise PlanError for a model whose layers are not all a decoder's attention and MLP."""
    other = [one for one in OTHER_LAYERS if known.get(one)]
    if known.get("is_encoder_decoder"):
        why = "has an encoder and a decoder"
    elif other and known.get("num_attention_heads"):
        why = f"has layers beside attention ({other[0]})"
    elif str(known.get("model_type")).endswith("text_model"):
        why = "is one tower of two"
    else:
        return
    raise PlanError(f"{name} {why}, which no plan knows: give a decoder-only transformer")
