"""Models that users bring: their sizes in words, and configurations of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.base.errors import PlanError, WorkloadError
from ratchet.scale.plan.shape import find_shape, of_config


def test_sizes_in_words_are_the_published_model() -> None:
    own = find_shape("gpt:layers=96,hidden=12288,heads=96")
    assert own.parameters == find_shape("gpt3-175b").parameters
    assert own.flops_per_token == find_shape("gpt3-175b").flops_per_token
    llama = find_shape("llama:layers=32,hidden=4096,heads=32,vocabulary=32000,sequence=4096")
    assert llama.parameters == find_shape("llama2-7b").parameters


# Billions of parameters, all and active, as the papers of the shapes count them.
PUBLISHED = {
    "deepseek-v2": (236, 21), "deepseek-v2-lite": (15.7, 2.4), "deepseek-v3": (671, 37),
    "kimi-k2": (1040, 32.6), "gpt-oss-20b": (20.91, 3.61), "gpt-oss-120b": (116.83, 5.13),
    "qwen3-30b-a3b": (30.5, 3.3), "qwen3-235b-a22b": (235, 22),
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_a_published_mixture_has_its_parameters(name: str, billions: tuple[float, float]) -> None:
    shape = find_shape(name)
    every, active = (count / 1e9 for count in (shape.parameters, shape.active_parameters))
    # Papers count the embedding among the active ones, or leave it and the output layer out.
    assert every == pytest.approx(billions[0], rel=0.015)
    assert active == pytest.approx(billions[1], rel=0.1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gpt:layers=24", "lacks hidden, heads"),
        ("gpt:layers=24,hidden=2048,heads=0", "'heads=0'"),
        ("gpt:layers=24,hidden=2048,heads=x", "'heads=x'"),
        ("gpt:layers=24,hidden=2048,heads=16,depth=3", "'depth=3'"),
        ("gpt:layers=24,layers=2,hidden=2048,heads=16", "gives layers twice"),
        ("gpt:layers=24,hidden=2048,heads=17", "17 heads do not divide"),
        ("gpt:", "'' in 'gpt:'"),
        ("llama:layers=2,hidden=512,heads=4,kv_heads=3", "3 of keys and values do not divide"),
    ],
)
def test_sizes_that_are_none_are_told(words: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        find_shape(words)


# Billions of parameters that transformers counts for each type's own configuration.
COUNTED = {
    "gemma": 8.538, "gemma2": 2.614, "falcon": 6.922, "gpt_oss": 116.829, "phi": 1.418,
    "opt": 0.125, "llama4": 107.770, "granitemoe": 37.039, "mistral": 7.242, "starcoder2": 3.030,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "billions"), COUNTED.items())
def test_a_type_has_the_parameters_that_transformers_counts(kind: str, billions: float) -> None:
    assert find_shape(f"hf:{kind}").parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("t5", "an encoder and a decoder"),
        ("whisper", "an encoder and a decoder"),
        ("vit", "no vocab_size"),
        ("mamba", "no num_attention_heads"),
        ("jamba", "layers beside attention"),
        ("siglip", "one tower of two"),
    ],
)
def test_models_that_no_plan_knows_are_refused(kind: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        find_shape(f"hf:{kind}")


def config(**given: Any) -> Any:
    from transformers import MistralConfig

    return MistralConfig(**given)


def test_a_window_saves_attention_and_no_parameter() -> None:
    whole = of_config("hf:mine", config(sliding_window=None))
    window = of_config("hf:mine", config(sliding_window=1024))
    assert whole.parameters == window.parameters and whole.attended == whole.sequence == 8192
    # 1024 keys a token, fewer at the start: 1024 - 1024^2 / (2 x 8192) of 4096 on average.
    assert window.attended == pytest.approx(8192 * (1024 - 64) / 4096)
    assert window.flops_per_token < whole.flops_per_token
    wide = of_config("hf:mine", config(sliding_window=100_000))
    assert wide.attended == wide.sequence


def test_layers_without_a_window_see_everything() -> None:
    from transformers import Gemma2Config

    shape = of_config("hf:mine", Gemma2Config())
    assert shape.windowed == 13 and shape.window == 4096


def test_a_folder_whose_heads_are_none_is_told(tmp_path: Path) -> None:
    sizes = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 0}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(WorkloadError, match="transformers cannot read"):
        find_shape(f"hf:{tmp_path}")
