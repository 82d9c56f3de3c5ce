"""Training: a killed run gives the same curve, replay and forgetting, what a user got wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_bench import SMALL, SimulatedBench, tasks

from ratchet.base.errors import LearnError
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.models import Policy, load_policy, with_lora
from ratchet.write.learn.stages import MOVED, LearnStage, StageResult, grpo, moved_back, sft
from ratchet.write.learn.training import STATE, TextWindows, read_curve

TIMES = ("spent_s",)


class Killed(BaseException):
    """Stands in for a kill: nothing catches it."""


def curve(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_curve(folder)]


def killing(at: int) -> Any:
    def follow(stage: str, row: dict[str, float | str]) -> None:
        if row["step"] == at:
            raise Killed

    return follow


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in policy.model.parameters()])


def run_sft(
    config: LearnConfig, folder: Path, material: Corpus, base: Path, follow: Any = None
) -> StageResult:
    start = load_policy(base, training=True)
    return sft(
        LearnStage(config, material, start, load_policy(base), tasks(), folder, follow=follow)
    )


def test_a_killed_sft_resumes_to_the_same_curve(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    whole = run_sft(SMALL, tmp_path / "whole", material, base_folder)
    with pytest.raises(Killed):
        run_sft(SMALL, tmp_path / "cut", material, base_folder, killing(12))
    resumed = run_sft(SMALL, tmp_path / "cut", material, base_folder)
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    assert torch.equal(weights(resumed.policy), weights(whole.policy))


def test_a_killed_grpo_resumes_to_the_same_curve(
    material: Corpus, base: Policy, taught_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(steps=6, save_every=2, measure_every=2, group=4, resamples=1, kl=0.01)

    def run(folder: Path, follow: Any = None) -> StageResult:
        start = load_policy(taught_folder, training=True)
        stage = LearnStage(config, material, start, base, tasks(), folder, follow=follow)
        return grpo(stage, SimulatedBench())

    whole = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "cut", killing(4))
    resumed = run(tmp_path / "cut")
    # What a resumed run judges anew the ledger would know: only that count differs here.
    cut, uncut = curve(tmp_path / "cut"), curve(tmp_path / "whole")
    for row in (*cut, *uncut):
        row.pop("judged", None)
    assert cut == uncut
    assert torch.equal(weights(resumed.policy), weights(whole.policy))


def test_the_share_of_replayed_tokens_is_the_one_that_was_asked_for(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(replay=0.2, steps=12)
    run_sft(config, tmp_path / "run", material, base_folder)
    rows = curve(tmp_path / "run")
    replayed = sum(row["replayed_tokens"] for row in rows)
    all_tokens = replayed + sum(row["tokens"] for row in rows)
    assert replayed / all_tokens == pytest.approx(0.2, abs=0.02)


def test_too_much_forgetting_raises_the_replay_or_stops(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(max_forgetting=1e-6, replay=0.01, rate=2e-2)
    raised = run_sft(config, tmp_path / "raised", material, base_folder)
    assert raised.trained.replay > 0.01
    stopped = run_sft(
        config.changed(on_forgetting="stop"), tmp_path / "stopped", material, base_folder
    )
    assert stopped.trained.stopped == "forgetting"
    assert stopped.trained.steps < config.steps


def test_a_folder_of_another_config_is_refused(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(steps=1)
    run_sft(config, tmp_path / "run", material, base_folder)
    with pytest.raises(LearnError, match="has batch 8, and this one 4"):
        run_sft(config.changed(batch=4), tmp_path / "run", material, base_folder)


def test_a_full_disk_keeps_the_last_checkpoint(
    material: Corpus, base_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SMALL.changed(steps=10)
    folder = tmp_path / "run"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def follow(stage: str, row: dict[str, float | str]) -> None:
        if row["step"] == 6:
            monkeypatch.setattr(torch, "save", full)

    with pytest.raises(LearnError, match=r"No space left on device.*make room"):
        run_sft(config, folder, material, base_folder, follow)
    assert torch.load(folder / STATE, weights_only=True)["step"] == 5
    monkeypatch.undo()
    assert run_sft(config, folder, material, base_folder).trained.steps == 10
    assert [row["step"] for row in curve(folder)] == list(range(10))


def test_a_damaged_checkpoint_is_one_line(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(steps=1)
    run_sft(config, tmp_path / "run", material, base_folder)
    (tmp_path / "run" / STATE).write_bytes(b"no checkpoint")
    with pytest.raises(LearnError, match="damaged or another model's"):
        run_sft(config, tmp_path / "run", material, base_folder)


def test_text_shorter_than_a_window_is_one_line(base: Policy) -> None:
    with pytest.raises(LearnError, match="give more text"):
        TextWindows(["few words"], base.tokenizer, 128)


def test_a_model_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match="holds no policy"):
        load_policy(tmp_path)


def test_a_tokenizer_of_another_model_is_one_line(base_folder: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "mixed"
    shutil.copytree(base_folder, folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    last = max(one["id"] for one in document["added_tokens"])
    extra = {**document["added_tokens"][-1], "content": "<other>"}
    document["added_tokens"] += [{**extra, "content": f"<{n}>", "id": last + n} for n in (1, 2)]
    path.write_text(json.dumps(document))
    with pytest.raises(LearnError, match="do not belong together"):
        load_policy(folder)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_lora_trains_adapters_alone_and_saves_whole_weights(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    config = SMALL.changed(steps=4, lora=4)
    done = run_sft(config, tmp_path / "run", material, base_folder)
    kept = torch.load(tmp_path / "run" / STATE, weights_only=True)["weights"]
    assert kept and all("lora" in name for name in kept)
    assert weights(done.policy).shape == weights(load_policy(base_folder)).shape
    assert not torch.equal(weights(done.policy), weights(load_policy(base_folder)))


def test_a_policy_that_forgot_too_much_takes_a_part_of_the_round(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    base = load_policy(base_folder)
    done = run_sft(
        SMALL.changed(max_forgetting=1e9, replay=0.0), tmp_path / "out", material, base_folder
    )
    whole = done.trained.forgetting
    assert whole > 0
    before, after = weights(base), weights(done.policy)
    found: list[tuple[float, float]] = []
    for most in (whole * 0.9, whole * 0.3, whole * 0.1):
        config = SMALL.changed(max_forgetting=most)
        nearer, share = moved_back(done, base, material, config)
        if share < 1.0:
            assert share in MOVED
            assert nearer.trained.forgetting <= most
            assert torch.allclose(weights(nearer.policy), torch.lerp(before, after, share))
        else:
            assert nearer.trained.forgetting > most
        found.append((most, share))
    assert found[0][1] < 1.0
    assert torch.equal(weights(done.policy), after)


def test_a_run_goes_on_with_another_engine_but_not_with_another_seed(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run_sft(SMALL, folder, material, base_folder, killing(6))
    done = run_sft(SMALL.changed(rollouts="transformers"), folder, material, base_folder)
    assert done.trained.steps == SMALL.steps
    assert SMALL.is_same_run(SMALL.changed(rollouts="vllm", rollout_memory=0.2))
    assert not SMALL.is_same_run(SMALL.changed(seed=1))
    with pytest.raises(LearnError, match="has seed 0, and this one 1"):
        run_sft(SMALL.changed(seed=1), folder, material, base_folder)


def test_a_device_that_is_not_there_is_one_line(base_folder: Path) -> None:
    for name in ("gpu", "cuda:77"):
        with pytest.raises(LearnError, match=f"device '{name}' cannot be used: give cpu"):
            load_policy(base_folder, device=name)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_the_seed_decides_the_adapters(base_folder: Path) -> None:
    pytest.importorskip("peft")

    def adapters(seed: int) -> list[torch.Tensor]:
        torch.rand(seed + 3)  # whatever else drew before
        model = with_lora(load_policy(base_folder).model, 2, seed=seed)
        return [one for name, one in model.named_parameters() if "lora_A" in name]

    first, again, other = adapters(1), adapters(1), adapters(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
