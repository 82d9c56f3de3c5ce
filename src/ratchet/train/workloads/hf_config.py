"""Configurations of Hugging Face models: reading them and making them small."""

from __future__ import annotations

import difflib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.hf_small import without_dropout

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A training objective, transformers' class for it, and what its batches hold."""

    auto_class: str
    table: str
    """The table of `transformers.models.auto.modeling_auto` with the models that have it."""
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
