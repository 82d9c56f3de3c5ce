"""Levers that apply only under ROCm: not here, and elsewhere only where they change something."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.train.levers import Situation, all_levers
from ratchet.train.workloads.config import StepConfig

NAMES = ("tunableop", "hipblaslt", "aotriton-attention")


def situation(
    target: str, *, vendor: str = "AMD", attention: bool = True, rocm: bool = True
) -> Situation:
    return Situation(
        device_kind="cpu" if target == "avx512" else "cuda",
        vendor=vendor,
        target=target,
        cores=304,
        written=StepConfig(),
        optimizer_is_adamw=True,
        has_attention=attention,
        trainable_bytes=1 << 20,
        peak_memory_bytes=1 << 28,
        memory_bytes=1 << 34,
        rocm=rocm,
    )


@pytest.mark.parametrize("name", NAMES)
def test_they_need_an_amd_gpu_and_a_torch_built_for_it(name: str) -> None:
    applies = all_levers()[name].applies
    for here in (situation("avx512"), situation("sm_90", vendor="NVIDIA")):
        assert applies(here) == "it applies only to AMD GPUs under ROCm"
    assert applies(situation("gfx1100", rocm=False)) == "this torch is not built for ROCm"


def test_they_apply_where_torch_does_not_do_it_by_itself() -> None:
    found = {
        (name, target): all_levers()[name].applies(situation(target))
        for name in NAMES
        for target in ("gfx942", "gfx1100")
    }
    assert found[("tunableop", "gfx942")] is None
    assert found[("tunableop", "gfx1100")] is None
    assert found[("hipblaslt", "gfx942")] == "torch already prefers hipBLASLt on gfx942"
    assert found[("hipblaslt", "gfx1100")] is None
    by_itself = "torch already uses AOTriton's attention on gfx942"
    assert found[("aotriton-attention", "gfx942")] == by_itself
    assert found[("aotriton-attention", "gfx1100")] is None
    without = situation("gfx1100", attention=False)
    assert "no scaled_dot_product_attention" in str(
        all_levers()["aotriton-attention"].applies(without)
    )


def test_they_become_variables_that_the_process_starts_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    here = situation("gfx1100")
    variables = {name: all_levers()[name].set(StepConfig(), here).variables() for name in NAMES}
    assert variables["hipblaslt"] == {"TORCH_BLAS_PREFER_HIPBLASLT": "1"}
    assert variables["aotriton-attention"] == {"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1"}
    tuned = variables["tunableop"]
    assert tuned["PYTORCH_TUNABLEOP_ENABLED"] == tuned["PYTORCH_TUNABLEOP_TUNING"] == "1"
    results = Path(tuned["PYTORCH_TUNABLEOP_FILENAME"])
    assert results.parent == tmp_path / "cache" / "tunableop" and results.parent.is_dir()
    assert StepConfig().variables() == {}
