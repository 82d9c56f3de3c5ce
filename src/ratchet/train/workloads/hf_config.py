"""Configurations of Hugging Face models: read them, and make small ones of any type."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ratchet.base import Json
from ratchet.base.errors import WorkloadError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


LAYERS = re.compile(r"(^|_)(layers?|n_layers?|depth|layers_per_stack)$|^num_blocks$")
DEPTHS = re.compile(r"(^|_)(depths|layers_per_stage|num_blocks|num_layers_per_stage)$")
VOCABULARY = re.compile(r"vocab(ulary)?_size(_per_layer_input)?$|_vocab$")
EXPERTS = re.compile(r"experts$")
CHOSEN_EXPERTS = re.compile(r"experts_per_tok(en)?$|^(moe_|router_)?(top_?)?k$")
INDICES = re.compile(r"(_indices|_indexes|_layers|_layer_ids)$")
SPECIAL_ID = re.compile(r"_token_(id|index)$|^(bos|eos|pad|sep)_index$")
IMAGE_IDS = ("image_token_id", "image_token_index")
KEPT_LAYERS = frozenset({"num_feat_extract_layers", "vision_feature_layer", "num_mel_layers"})
"""Names that look like a depth and are none: they count the entries of another field."""
QUERIES = re.compile(r"^num_queries$")
GROUPS = re.compile(r"^(n_groups?|topk_group|num_expert_group|num_limited_groups)$")
SHARED_LAYERS = ("num_kv_shared_layers",)
"""Layers that reuse what earlier ones made: a few layers have none."""
MOST_LAYERS = 4  # Layers of a model whose layers differ: one of each kind, at most so many
EXPERTS_KEPT, EXPERTS_CHOSEN = 4, 2
QUERIES_KEPT = 8
"""Objects that a detector looks for: a small image has few places to choose them from."""
WINDOW, LABELS = 16, 10
RANDOM = frozenset({"mask_time_prob", "mask_feature_prob", "jitter_noise", "router_jitter_noise",
                    "input_jitter_noise", "apply_spec_augment"})  # fmt: skip
"""Sources of randomness in a training step besides dropout."""
_NOT_SWITCHES = frozenset({"model_type", "transformers_version", "_name_or_path", "dtype"})
_TIMM = ("timm_backbone", "timm_wrapper")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """The sizes that make a configuration small."""

    layers: int
    vocabulary: int
    widths: Widths | None = None
    """None keeps the type's own widths: one layer's time to compile does not depend on them."""
    derived: bool = False  # Let the configuration compute again what it computes from other fields


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """Sizes of one layer."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    positions: int
    own_head_dim: bool = False
    """Keep the type's size of a head, which its rotary embedding may depend on."""

    def by_name(self) -> dict[str, int]:
        """Return these sizes under the names that transformers' configurations use."""
        wide = ("intermediate_size", "intermediate_size_mlp", "ffn_dim", "encoder_ffn_dim",
                "decoder_ffn_dim", "d_ff")  # fmt: skip
        narrow = ("hidden_size", "d_model", "word_embed_proj_dim", "embedding_size",
                  "text_hidden_size", "hidden_size_global")  # fmt: skip
        heads = ("num_attention_heads", "num_heads", "encoder_attention_heads",
                 "decoder_attention_heads")  # fmt: skip
        head_dim = self.hidden // self.heads
        return {
            "max_position_embeddings": self.positions,
            "num_key_value_heads": self.kv_heads,
            **({} if self.own_head_dim else {"head_dim": head_dim, "d_kv": head_dim}),
            "image_size": 64,
            "out_hidden_size": self.hidden,
            "moe_intermediate_size": self.intermediate // 2,
            "shared_expert_intermediate_size": self.intermediate // 2,
            **dict.fromkeys(narrow, self.hidden),
            **dict.fromkeys(wide, self.intermediate),
            **dict.fromkeys(heads, self.heads),
        }


def small_config(config: PretrainedConfig, dimensions: Dimensions) -> PretrainedConfig:
    """Return a configuration of the same class and switches, with these sizes and no dropout."""
    left_out = _NOT_SWITCHES | (_derived(config) if dimensions.derived else set())
    kept = {
        name: value
        for name, value in config.to_diff_dict().items()
        if isinstance(value, bool | str | int | float | list) and name not in left_out
    }
    nested = {
        name: _small_part(config, name, dimensions)
        for name in config.sub_configs
        if getattr(config, name, None) is not None
    }
    # Fields without a value of their own have one for each kind of layer.
    by_layer = getattr(config, "per_layer_attributes", None) or ()
    own = {
        name: getattr(config, name, None)
        for name in config.to_dict()
        if name not in (*nested, *_NOT_SWITCHES, *by_layer)
    }
    layers = _layers(own, dimensions)
    sizes = _sized(config, own, dimensions, max(len(layers), dimensions.layers))
    ids = _ids(own, dimensions.vocabulary)
    rope, chosen = _rope(config, own, sizes), _chosen(own, layers)
    if "out_indices" in chosen:
        kept.pop("out_features", None)
    small = type(config)(**{**kept, **nested, **sizes, **chosen, **ids, **rope, **_language(own)})
    for name in own:
        if not hasattr(small, name):  # given to the nested configuration by the one around it
            setattr(small, name, own[name])
    return without_dropout(small)


def _derived(config: PretrainedConfig) -> set[str]:
    """Return the fields that the constructor computes, for nobody gave them."""
    declared = getattr(type(config), "__dataclass_fields__", {})
    return {
        name
        for name in config.to_dict()
        if name not in declared or getattr(declared[name], "default", name) is None
    }


def _small_part(config: PretrainedConfig, name: str, dimensions: Dimensions) -> PretrainedConfig:
    part = getattr(config, name)
    if part.model_type not in _TIMM or name != "backbone_config":
        return small_config(part, dimensions)
    from transformers import AutoConfig

    # transformers has the same networks as timm's, which may not be installed.
    several = len(getattr(part, "out_indices", None) or ()) > 1
    stages = ["stage2", "stage3", "stage4"] if several else ["stage4"]
    resnet = AutoConfig.for_model("resnet", depths=[1, 1, 1, 1], out_features=stages)
    return without_dropout(resnet)


def _layers(own: Mapping[str, Json], dimensions: Dimensions) -> list[int]:
    """Return the layers that stay, by their number: one of each kind before others."""
    depth = _depth(own)
    wanted = dimensions.layers
    listed = [value for name, value in own.items() if _is_indices(name, value)]
    wanted = max([wanted, *(len(value) for value in listed)])
    if depth is None or depth <= wanted:
        return list(range(depth or wanted))
    each = [value for value in own.values() if _is_list(value) and len(value) == depth]
    kinds: dict[str, int] = {}
    for index in range(depth):
        kinds.setdefault(repr([value[index] for value in each]), index)
    first = sorted(kinds.values())[: max(wanted, MOST_LAYERS)]
    others = [index for index in range(depth) if index not in first]
    return sorted([*first, *others[: max(0, wanted - len(first))]])


def _depth(own: Mapping[str, Json]) -> int | None:
    names = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers")
    found = (own[name] for name in names if isinstance(own.get(name), int))
    return next(found, None)


def _sized(
    config: PretrainedConfig, own: Mapping[str, Json], dimensions: Dimensions, layers: int
) -> dict[str, Json]:
    """Return the fields that hold a size, small."""
    sizes = _widths(type(config).attribute_map, own, dimensions)
    largest = (  # of the fields whose names have a form; None counts as larger
        (LAYERS, layers),
        (VOCABULARY, dimensions.vocabulary),
        (EXPERTS, EXPERTS_KEPT),
        (CHOSEN_EXPERTS, EXPERTS_CHOSEN),
        (GROUPS, 1),
        (QUERIES, QUERIES_KEPT),
    )
    for name, value in own.items():
        most = next((most for form, most in largest if form.search(name)), None)
        if DEPTHS.search(name) and _is_list(value):
            sizes[name] = [1] * len(value)
        elif name == "attention_window":  # Longformer pads its input to a multiple of it
            sizes[name] = [WINDOW] * layers if _is_list(value) else WINDOW
        elif name in SHARED_LAYERS:
            sizes[name] = 0
        elif name in KEPT_LAYERS or most is None or isinstance(value, bool):
            continue
        elif isinstance(value, int):
            sizes[name] = min(value, most)
        elif value is None and not LAYERS.search(name):
            sizes[name] = most
    if "id2label" in own:
        sizes["num_labels"] = LABELS
    return sizes


def _widths(
    mapped: Mapping[str, str], own: Mapping[str, Json], dimensions: Dimensions
) -> dict[str, Json]:
    """Return the sizes of one layer, by the names that this configuration has."""
    if dimensions.widths is None:
        return {}
    sizes: dict[str, Json] = {
        name: value
        for name, value in dimensions.widths.by_name().items()
        if isinstance(own.get(mapped.get(name, name)), int)
        or (name in own and own[name] is None and name != "image_size")
    }
    head_dim = dimensions.widths.hidden // dimensions.widths.heads
    if "kv_lora_rank" in own:
        # Latent attention has as many key-value heads as heads, and heads of two parts.
        sizes["num_key_value_heads"] = dimensions.widths.heads
        parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        sizes |= dict.fromkeys((name for name in parts if name in own), head_dim)
    if "expand" in own and "head_dim" in sizes:
        sizes["head_dim"] *= own["expand"]
    if "rotary_dim" in own:
        sizes["rotary_dim"] = head_dim
    return sizes | _mamba_heads(own, dimensions.widths)


def _mamba_heads(own: Mapping[str, Json], widths: Widths) -> dict[str, Json]:
    """Return a state-space layer's heads, which share the expanded hidden size."""
    if not isinstance(expand := own.get("mamba_expand"), int | float):
        return {}
    inner = int(expand * widths.hidden)
    sizes = {
        **dict.fromkeys(("mamba_n_heads", "n_mamba_heads"), widths.heads),
        **dict.fromkeys(("mamba_d_head", "mamba_headdim"), inner // widths.heads),
        "mamba_d_ssm": inner,
    }
    return {name: size for name, size in sizes.items() if own.get(name) is not None}


def _chosen(own: Mapping[str, Json], layers: Sequence[int]) -> dict[str, Json]:
    """Return the lists that have an entry for each layer, and those that number layers."""
    depth = _depth(own)
    chosen: dict[str, Json] = {}
    for name, value in own.items():
        if DEPTHS.search(name):
            continue
        if depth is not None and _is_list(value) and len(value) == depth:
            chosen[name] = [value[index] for index in layers]
        elif _is_indices(name, value) and depth is not None and len(layers) < depth:
            first = 1 if max(value) == depth else 0
            chosen[name] = [first + index for index in range(len(value))]
    return chosen


def _rope(
    config: PretrainedConfig, own: Mapping[str, Json], sizes: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the rotary embedding's parameters with sections that fill a smaller head."""
    rope = own.get("rope_parameters")
    if not isinstance(rope, dict) or "mrope_section" not in rope or "hidden_size" not in sizes:
        return {}
    sections, heads = rope["mrope_section"], sizes.get("num_attention_heads", 1)
    before = own.get("head_dim") or own["hidden_size"] // own["num_attention_heads"]
    after = sizes.get("head_dim") or own.get("head_dim") or sizes["hidden_size"] // heads
    total = sum(sections) * after // before
    rest = [one * after // before for one in sections[1:]]
    return {"rope_parameters": {**rope, "mrope_section": [total - sum(rest), *rest]}}


def _ids(own: Mapping[str, Json], vocabulary: int) -> dict[str, int]:
    """Return special ids that the small vocabulary has; distinct ones stay distinct."""
    outside = [
        name
        for name, value in own.items()
        if (SPECIAL_ID.search(name) and isinstance(value, int) and value >= vocabulary)
        or (value is None and name in IMAGE_IDS)
    ]
    generation = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    others = [name for name in outside if name not in generation]
    if "mask_token_id" in own and own.get("pad_token_id") is None:
        outside.append("pad_token_id")  # ESM compares with both
        others += ["mask_token_id"] if own["mask_token_id"] is None else []
    return {
        **dict.fromkeys((name for name in outside if name in generation), 0),
        **{name: vocabulary - 1 - place for place, name in enumerate(others)},
    }


def _language(own: Mapping[str, Json]) -> dict[str, str]:
    """Return the language of words that name none, for a model that has a layer for each."""
    languages: Sequence[str] = own.get("languages") or ()
    unset = bool(languages) and own.get("default_language", "") is None
    return {"default_language": languages[0]} if unset else {}


def _is_list(value: Json) -> bool:
    return isinstance(value, list | tuple) and bool(value)


def _is_indices(name: str, value: Json) -> bool:
    return (
        bool(INDICES.search(name))
        and _is_list(value)
        and all(isinstance(one, int) and one >= 0 for one in value)
        and len(set(value)) == len(value)  # a flag for each layer numbers none
    )


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """Set all dropout and other randomness to 0, disable the cache, in place; return the config."""
    for name in config.sub_configs:
        if getattr(config, name, None) is not None:
            without_dropout(getattr(config, name))
    for name, value in config.to_dict().items():
        if (isinstance(value, float) and "drop" in name) or (value and name in RANDOM):
            setattr(config, name, type(value)(0))
        elif "drop" in name and _is_list(value) and all(type(one) in (int, float) for one in value):
            setattr(config, name, [0.0] * len(value))
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A training objective, transformers' class for it, and what its batches hold."""

    auto_class: str
    table: str  # The table of `transformers.models.auto.modeling_auto` with the models that have it
    inputs: Inputs = "words"
    unit: Literal["tokens", "images", "samples"] = "tokens"


Inputs = Literal["words", "masked", "captions", "classes", "maps", "masks", "boxes", "clips",
                 "audio", "labels"]  # fmt: skip
"""Contents of a batch: words to continue, words to fill in, an image with words after it, images
with classes, with a class or a depth for each pixel, with masks or with boxes, clips with classes,
audio with its words, or audio with classes.
"""


def _head(auto_class: str, table: str, **named: Any) -> Head:
    return Head(auto_class=f"AutoModelFor{auto_class}", table=f"MODEL_FOR_{table}_MAPPING_NAMES",
                **named)  # fmt: skip


_IMAGES: Final = {"unit": "images"}
_AUDIO: Final = {"unit": "samples"}
HEADS = {
    # The first head that a type has is trained. Masked comes before causal: BERT has both heads.
    "masked": _head("MaskedLM", "MASKED_LM", inputs="masked"),
    "speech": _head("SpeechSeq2Seq", "SPEECH_SEQ_2_SEQ", inputs="audio", **_AUDIO),
    "ctc": _head("CTC", "CTC", inputs="audio", **_AUDIO),
    "image_text": _head("ImageTextToText", "IMAGE_TEXT_TO_TEXT", inputs="captions"),
    "sequence": _head("Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "causal": _head("CausalLM", "CAUSAL_LM"),
    "image": _head("ImageClassification", "IMAGE_CLASSIFICATION", inputs="classes", **_IMAGES),
    "semantic": _head("SemanticSegmentation", "SEMANTIC_SEGMENTATION", inputs="maps", **_IMAGES),
    "instances": _head("InstanceSegmentation", "INSTANCE_SEGMENTATION", inputs="boxes", **_IMAGES),
    "detection": _head("ObjectDetection", "OBJECT_DETECTION", inputs="boxes", **_IMAGES),
    "masks": _head("UniversalSegmentation", "UNIVERSAL_SEGMENTATION", inputs="masks", **_IMAGES),
    "depth": _head("DepthEstimation", "DEPTH_ESTIMATION", inputs="maps", **_IMAGES),
    "video": _head("VideoClassification", "VIDEO_CLASSIFICATION", inputs="clips", **_IMAGES),
    "audio": _head("AudioClassification", "AUDIO_CLASSIFICATION", inputs="labels", **_AUDIO),
}


CONFIGURED: Final = re.compile(r"""["']([\w.-]+)["']\s*[,:]\s*["']\w+Config["']""")
"""A model type beside its configuration's class, as transformers' tables write them."""


def check_transformers() -> None:
    """Raise WorkloadError if transformers, which makes models named `hf:`, is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise WorkloadError("hf: needs transformers: pip install 'torch-ratchet[hf]'")


def read_config(name: str) -> tuple[PretrainedConfig, bool]:
    """Return the configuration that `name` means, and True if `name` is a model type.

    A model type takes precedence over a folder of the same name; `./NAME` is always a folder.
    """
    check_known(name)
    from transformers import AutoConfig

    if name in model_types():
        return AutoConfig.for_model(name), True
    folder = Path(name).expanduser()
    if folder.is_dir():
        return without_dropout(_from_folder(folder)), False
    return without_dropout(_from_hub(name)), False


def check_known(name: str) -> None:
    """Raise WorkloadError if `name` is no model type, no folder and no name on the hub.

    It does not import transformers, which takes seconds: the tables of types are read as text.
    """
    check_transformers()
    if Path(name).expanduser().is_dir():
        return
    if name.startswith((".", "/", "~")):
        raise WorkloadError(f"hf:{name} is not a folder; give one that holds a config.json")
    if "/" in name or name in (types := written_types() or model_types()):
        return
    near = difflib.get_close_matches(name, types, n=1)
    hint = f"did you mean hf:{near[0]}? " if near else ""
    raise WorkloadError(
        f"hf:{name} is neither a model type nor a folder; {hint}give a type such as hf:qwen3, "
        "a folder with a config.json, or OWNER/NAME on the hub"
    )


def written_types() -> list[str]:
    """List the words that the text of transformers' tables gives a configuration's class.

    They hold all model types, and a few that `model_types` lacks. Empty if none is found.
    """
    package = importlib.util.find_spec("transformers")
    folders = (package and package.submodule_search_locations) or ()
    texts = (
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((Path(folder) / "models" / "auto").glob("*.py"))
    )
    return sorted({one for text in texts for one in CONFIGURED.findall(text)})


def model_types() -> list[str]:
    """List the model types that the installed transformers supports."""
    check_transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def trained_types() -> dict[str, Head]:
    """Return the model types that have a loss which Ratchet knows, with the head it trains."""
    types = model_types()
    found: dict[str, Head] = {}
    for head in HEADS.values():
        for name in table_of(head):
            found.setdefault(name, head)
    return {name: found[name] for name in types if name in found}


def _from_folder(folder: Path) -> PretrainedConfig:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise WorkloadError(f"hf:{folder} has no config.json; give a folder that holds one")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise WorkloadError(
            f"hf:{folder} has a config.json that transformers cannot read ({_first(error)}); "
            "give one with a known model_type"
        ) from error


def _from_hub(name: str) -> PretrainedConfig:
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


def table_of(head: Head) -> dict[str, str | tuple[str, ...]]:
    """Return transformers' class names by model type; empty if this version lacks the head."""
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, head.table, {}))


def head_of(config: PretrainedConfig, spec: str) -> Head:
    """Return the head of the first of its `architectures`, or the first that its type supports."""
    tables = {key: table_of(head) for key, head in HEADS.items()}
    for architecture in config.architectures or ():
        for key, table in tables.items():
            named = table.get(config.model_type, ())
            if architecture in ((named,) if isinstance(named, str) else named):
                return HEADS[key]
    for key, table in tables.items():
        if config.model_type in table:
            return HEADS[key]
    raise WorkloadError(
        f"{spec}: model type {config.model_type!r} has no head with a loss of its own "
        "that Ratchet knows; choose another, or write a file.py:function"
    )
