from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.check import check
from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.hf import tiny_hf
from ratchet.train.workloads.hf_config import MOST_LAYERS, model_types, written_types
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import TrainingStep


def message(spec: str) -> str:
    with pytest.raises(WorkloadError) as error:
        load(spec)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_tables_read_as_text_hold_every_model_type() -> None:
    assert set(model_types()) <= set(written_types())


def test_an_unknown_type_is_refused_before_transformers_is_imported() -> None:
    told = (
        "import sys; from ratchet.train.workloads.names import check_name\n"
        "from ratchet.base.errors import WorkloadError\n"
        "check_name('hf:qwen3')\n"
        "try: check_name('hf:qwen33')\n"
        "except WorkloadError as error: print(error, {'torch', 'transformers'} & {*sys.modules})"
    )
    line = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True
    ).stdout
    assert "did you mean hf:qwen3?" in line and line.endswith(" set()\n")


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "bert", "mistral", "t5"])
def test_a_model_type_trains_offline(name: str) -> None:
    shrink = load(f"hf:{name}").shrink
    assert shrink is not None
    small = shrink(1)
    check(small)
    step = TrainingStep(small, StepConfig())
    losses = [step(small.batch(index)).item() for index in range(30)]
    assert losses[-1] < losses[0]
    assert small.tokens_per_batch == 8 * 64


def test_an_image_model_is_trained_on_images() -> None:
    workload = load("hf:vit", batch_size=4)
    check(workload)
    assert (workload.unit, workload.tokens_per_batch) == ("images", 4)


def test_the_default_size_is_small_and_depends_on_the_seed() -> None:
    first, again, other = (load("hf:qwen3", seed=seed) for seed in (1, 1, 2))
    config = first.model.config
    assert (config.hidden_size, config.num_hidden_layers) == (256, 4)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    weights = [w.model.lm_head.weight for w in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_dropout_is_off_so_that_steps_can_be_compared() -> None:
    workload = load("hf:gpt2")
    first = workload.loss(workload.model.train(), workload.batch(0)).detach().item()
    again = workload.loss(workload.model, workload.batch(0)).detach().item()
    assert first == again


def test_a_local_config_is_read(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": 600,
        "max_position_embeddings": 48,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    workload = load(f"hf:{tmp_path}")
    check(workload)
    assert workload.batch(0)["input_ids"].shape == (2, 48)
    assert {p.dtype for p in workload.model.parameters()} == {torch.float32}
    assert workload.shrink is not None
    assert workload.shrink(0).model.config.model_type == "qwen3"


def test_a_folder_without_or_with_a_damaged_config_is_one_line(tmp_path: Path) -> None:
    assert "has no config.json" in message(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{")
    assert "that transformers cannot read" in message(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "nothing_known"}')
    assert "that transformers cannot read" in message(f"hf:{tmp_path}")
    assert "is not a folder" in message("hf:./nowhere")


def test_an_unknown_type_is_one_line_with_the_nearest() -> None:
    assert "did you mean hf:qwen3?" in message("hf:qwen33")


def test_a_hub_name_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot be read from the hub" in message("hf:nobody/nothing-here")


def test_a_model_without_a_known_objective_is_one_line() -> None:
    assert "has no head with a loss of its own" in message("hf:encodec")


def test_the_types_are_those_of_transformers() -> None:
    assert {"llama", "qwen3", "mistral", "gpt2", "bert", "vit"} <= set(model_types())


@pytest.mark.parametrize("name", ["smollm3", "hrm_text"])
def test_flags_for_each_layer_number_none_and_stacks_are_small(name: str) -> None:
    """A list of flags was read as numbers of layers, and 36 layers stayed."""
    model = tiny_hf(name, torch.device("cpu")).model
    layers = [one for one in model.modules() if type(one).__name__.endswith("DecoderLayer")]
    assert 1 <= len(layers) <= MOST_LAYERS


def test_heads_of_a_state_space_layer_share_its_width() -> None:
    config = tiny_hf("bamba", torch.device("cpu")).model.config
    assert config.mamba_n_heads * config.mamba_d_head == config.mamba_expand * config.hidden_size


def test_what_a_configuration_computes_is_computed_again() -> None:
    """A head of two parts kept its old size."""
    config = tiny_hf("longcat_flash", torch.device("cpu")).model.config
    assert config.qk_head_dim == config.qk_nope_head_dim + config.qk_rope_head_dim


@pytest.mark.parametrize(
    ("name", "what"),
    [
        # A sweep of all types builds and trains these too.
        pytest.param("rf_detr", "queries fit a small image's places", marks=pytest.mark.thorough),
        pytest.param("blt", "the width of another part is small", marks=pytest.mark.thorough),
        pytest.param("glm4v", "sections of an embedding fill heads", marks=pytest.mark.thorough),
        ("idefics", "a mask says which words see an image"),
        ("vision-encoder-decoder", "two models in one pad their labels"),
    ],
)
def test_a_type_has_a_small_form(name: str, what: str) -> None:
    model = tiny_hf(name, torch.device("cpu")).model
    assert sum(weight.numel() for weight in model.parameters()) < 3_000_000, what


def test_words_of_no_language_have_the_first() -> None:
    workload = tiny_hf("xmod", torch.device("cpu"))
    assert workload.model.config.default_language == workload.model.config.languages[0]


def test_a_type_that_takes_no_batch_is_one_line_with_one_remedy() -> None:
    with pytest.raises(WorkloadError) as error:
        tiny_hf("depth_anything", torch.device("cpu"))
    told = str(error.value)
    assert told.startswith("hf:depth_anything: DepthAnythingForDepthEstimation takes no batch")
    assert (told.count("write a file.py:function"), told.count("\n")) == (1, 0)


def test_experts_run_as_transformers_runs_them() -> None:
    """A loop over experts has shapes that depend on data, which breaks a compiled step apart."""
    config = tiny_hf("qwen3_moe", torch.device("cpu")).model.config
    assert config._experts_implementation == "grouped_mm"


@pytest.mark.parametrize("how", ["full", "selective", "blocks:2"])
def test_a_script_s_model_with_a_cache_recomputes_without_it(how: str) -> None:
    """transformers' models fill a cache by default; a block that recomputes would fill it twice."""
    import transformers

    config = transformers.GPT2Config(
        n_embd=32, n_layer=3, n_head=2, vocab_size=50, n_positions=32, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
    )  # fmt: skip
    model, tokens = transformers.GPT2LMHeadModel(config), torch.arange(32).view(2, 16)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(tokens).logits.square().mean().backward()
        return [one.grad.clone() for one in model.parameters()]

    written = gradients()
    apply_checkpointing(model, how)
    torch.testing.assert_close(gradients(), written)
