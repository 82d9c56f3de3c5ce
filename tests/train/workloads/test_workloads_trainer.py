"""The workload of a transformers.Trainer trains what the Trainer trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.check import check
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Workload, count

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_transformers.py"
SCRIPT = """
import sys
sys.path.insert(0, EXAMPLES)
import torch
import torch.nn.functional as F
from train_transformers import make_trainer as example
from transformers import Trainer

ROWS = 12  # three micro-batches of four in an epoch
CONSTANT = dict(
    use_cpu=True, lr_scheduler_type="constant", warmup_steps=0, logging_steps=1, max_steps=4,
    per_device_train_batch_size=4, train_sampling_strategy="sequential",
)

class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1].flatten(0, 1)
        return 2 * F.cross_entropy(logits, labels[:, 1:].flatten())

def make(kind=Trainer, rows=ROWS, **changes):
    made = example("trainer-out", **{**CONSTANT, **changes})
    others = {"compute_loss_func": loss_func} if kind == "function" else {}
    return (Trainer if kind == "function" else kind)(
        model=made.model, args=made.args, train_dataset=made.train_dataset[:rows] if rows else None,
        **others,
    )

def loss_func(outputs, labels, num_items_in_batch=None):
    logits = outputs.logits[:, :-1].flatten(0, 1)
    total = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return total / num_items_in_batch

def plain(): return make(gradient_accumulation_steps=1)
def accumulated(): return make(gradient_accumulation_steps=3)
def weighted(): return make(Weighted, gradient_accumulation_steps=3)
def function(): return make("function", gradient_accumulation_steps=3)
def smoothed(): return make(gradient_accumulation_steps=3, label_smoothing_factor=0.1)
def bf16(): return make(gradient_accumulation_steps=1, bf16=True)
def unclipped(): return make(gradient_accumulation_steps=1, max_grad_norm=0)
def checkpointed(): return make(gradient_accumulation_steps=1, activation_checkpointing=True)
def shuffled(): return make(rows=64, train_sampling_strategy="random")
def sgd(): return make(gradient_accumulation_steps=1, optim="sgd")
def fp16():
    made = make()
    made.args.fp16 = True
    return made
def without_data(): return make(rows=None)
def given():
    made = plain()
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-2, weight_decay=0.3)
    return Trainer(
        model=made.model, args=made.args, train_dataset=made.train_dataset,
        optimizers=(optimizer, None),
    )
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("EXAMPLES", repr(str(EXAMPLE.parent))))
    return path


def loaded(script: Path, name: str, **options: Any) -> Workload:
    return load(f"{script}:{name}", **options)


def trained(workload: Workload, steps: int = 4) -> list[float]:
    step = TrainingStep(workload, workload.as_written())
    return [float(step(batch_of(workload, index))) for index in range(steps)]


MORE = ("plain", "function", "smoothed", "sgd")


@pytest.mark.parametrize(
    "name",
    [
        *("accumulated", "weighted", "given", "bf16"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE),
    ],
)
def test_its_steps_are_the_trainer_s(
    name: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and losses: the optimizer, its groups, clipping, accumulation, the loss's scale."""
    import importlib.util

    workload = loaded(script, name)
    losses = trained(workload)
    found = importlib.util.spec_from_file_location("written", script)
    assert found is not None and found.loader is not None
    written = importlib.util.module_from_spec(found)
    found.loader.exec_module(written)
    trainer = getattr(written, name)()
    trainer.train()
    expected = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    assert losses == pytest.approx(expected, abs=1e-5)
    ours, theirs = (
        nn.utils.parameters_to_vector(one.parameters()) for one in (workload.model, trainer.model)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_check_accepts_it_and_its_small_copy(script: Path) -> None:
    workload = loaded(script, "accumulated")
    assert check(workload) == ()
    assert (workload.name, workload.accumulate, workload.clip_norm) == ("LlamaForCausalLM", 3, 1.0)
    assert count(workload, workload.batch(0)) == (3 * 4 * 64, "tokens")
    assert workload.shrink is not None
    small, other = workload.shrink(1), workload.shrink(2)
    assert check(small) == ()
    assert small.model.config.vocab_size == workload.model.config.vocab_size
    assert not torch.equal(*(next(iter(one.model.parameters())) for one in (small, other)))
    losses = trained(small)
    assert losses[-1] < losses[0]


def test_batches_depend_on_the_index_and_the_seed_alone(script: Path) -> None:
    first, again = (loaded(script, "shuffled") for _ in range(2))
    forwards = [first.batch(index)["input_ids"] for index in range(6)]
    backwards = [again.batch(index)["input_ids"] for index in reversed(range(6))]
    assert all(map(torch.equal, forwards, reversed(backwards)))
    assert not torch.equal(forwards[0], forwards[1])
    other = loaded(script, "shuffled", seed=1).batch(0)["input_ids"]
    assert not torch.equal(forwards[0], other)


def test_its_settings_are_the_arguments(script: Path) -> None:
    assert loaded(script, "unclipped").clip_norm is None
    assert loaded(script, "bf16").precision == "bf16_autocast"
    assert loaded(script, "checkpointed").model.model.layers[0].gradient_checkpointing


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fp16", "fp16=True"), ("without_data", "no train_dataset; give it one")],
)
def test_a_trainer_that_no_step_can_repeat_is_one_line(
    name: str, expected: str, script: Path
) -> None:
    with pytest.raises(WorkloadError, match=expected) as error:
        loaded(script, name)
    assert "\n" not in str(error.value)
