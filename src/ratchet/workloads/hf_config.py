"""Configurations of Hugging Face models: reading them and making them small."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ratchet.errors import WorkloadError


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A training objective, transformers' class for it, and the table of models that have it."""

    auto_class: str
    table: str
    unit: Literal["tokens", "images"] = "tokens"


HEADS = {
    # Masked comes before causal: BERT has both heads and is trained on the masked one.
    "masked": Head(auto_class="AutoModelForMaskedLM", table="MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "causal": Head(auto_class="AutoModelForCausalLM", table="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "sequence": Head(
        auto_class="AutoModelForSeq2SeqLM",
        table="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    ),
    "image": Head(
        auto_class="AutoModelForImageClassification",
        table="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        unit="images",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """The sizes that make a configuration small."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    positions: int

    def by_name(self) -> dict[str, int]:
        """Return these sizes under the names that transformers' configurations use."""
        wide = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff")
        deep = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers")
        heads = (
            "num_attention_heads",
            "num_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
        )
        head_dim = self.hidden // self.heads
        return {
            "hidden_size": self.hidden,
            "d_model": self.hidden,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.positions,
            "num_key_value_heads": self.kv_heads,
            "head_dim": head_dim,
            "d_kv": head_dim,
            "num_decoder_layers": self.layers,
            "num_labels": 10,
            "image_size": 64,
            "num_experts": 4,
            "num_local_experts": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": self.intermediate // 2,
            "shared_expert_intermediate_size": self.intermediate // 2,
            "word_embed_proj_dim": self.hidden,
            "embedding_size": self.hidden,
            **dict.fromkeys(wide, self.intermediate),
            **dict.fromkeys(deep, self.layers),
            **dict.fromkeys(heads, self.heads),
        }


def read_config(name: str) -> tuple[Any, bool]:
    """Return the configuration that `name` means, and True if `name` is a model type.

    A model type takes precedence over a folder of the same name; `./NAME` is always a folder.
    """
    from transformers import AutoConfig

    types = model_types()
    if name in types:
        return AutoConfig.for_model(name), True
    folder = Path(name).expanduser()
    if folder.is_dir():
        return without_dropout(_from_folder(folder)), False
    if name.startswith((".", "/", "~")):
        raise WorkloadError(f"hf:{name} is not a folder; give one that holds a config.json")
    if "/" not in name:
        near = difflib.get_close_matches(name, types, n=1)
        hint = f"did you mean hf:{near[0]}? " if near else ""
        raise WorkloadError(
            f"hf:{name} is neither a model type nor a folder; {hint}give a type such as hf:qwen3, "
            "a folder with a config.json, or OWNER/NAME on the hub"
        )
    return without_dropout(_from_hub(name)), False


def model_types() -> list[str]:
    """List the model types that the installed transformers supports."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def _from_folder(folder: Path) -> Any:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise WorkloadError(f"hf:{folder} has no config.json; give a folder that holds one")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(
            f"hf:{folder} has a config.json that transformers cannot read ({_first(error)}); "
            "give one with a known model_type"
        ) from error


def _from_hub(name: str) -> Any:
    from huggingface_hub.errors import HFValidationError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError, HFValidationError) as error:
        raise WorkloadError(
            f"hf:{name} cannot be read from the hub ({_first(error)}); check the name and the "
            "network, or give a local folder or a model type such as hf:qwen3"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of a message that may have many."""
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "no reason"


def head_of(config: Any, spec: str) -> Head:
    """Return the head of the first of its `architectures`, or the first that its type supports."""
    from transformers.models.auto import modeling_auto

    tables = {key: getattr(modeling_auto, head.table) for key, head in HEADS.items()}
    for architecture in config.architectures or ():
        for key, table in tables.items():
            if table.get(config.model_type) == architecture:
                return HEADS[key]
    for key, table in tables.items():
        if config.model_type in table:
            return HEADS[key]
    raise WorkloadError(
        f"{spec}: model type {config.model_type!r} has no language-model or image-classification "
        "head; choose another, or write a file.py:function"
    )


def small_config(config: Any, dimensions: Dimensions) -> Any:
    """Return a configuration of the same class and switches, with these sizes and no dropout."""
    kept = {
        name: value
        for name, value in config.to_diff_dict().items()
        if isinstance(value, bool | str | float) and name not in _NOT_SWITCHES
    }
    known = set(inspect.signature(type(config).__init__).parameters) | set(config.to_dict())
    mapped = type(config).attribute_map
    sizes = {
        name: value
        for name, value in dimensions.by_name().items()
        if name in known or mapped.get(name) in known or name == "num_labels"
    }
    if "kv_lora_rank" in known:
        # Latent attention has as many key-value heads as heads.
        sizes["num_key_value_heads"] = dimensions.heads
    ids = {
        name: 0
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
        if isinstance(getattr(config, name, None), int)
        and getattr(config, name) >= dimensions.vocabulary
    }
    return without_dropout(type(config)(**{**kept, **sizes, **ids}))


_NOT_SWITCHES = frozenset({"model_type", "transformers_version", "_name_or_path", "dtype"})


def without_dropout(config: Any) -> Any:
    """Set every dropout to 0 and disable the key-value cache, in place; return the config."""
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("drop" in name):
            setattr(config, name, 0.0)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config
