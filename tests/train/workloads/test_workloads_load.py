from __future__ import annotations

import resource
from typing import Any

import psutil
import pytest
import torch
from forked_ranks import in_fork

from ratchet.base.errors import DeviceError, WorkloadError
from ratchet.train.workloads.check import check
from ratchet.train.workloads.device import available_bytes, place
from ratchet.train.workloads.load import load
from ratchet.train.workloads.names import known


def one_line(error: pytest.ExceptionInfo[Any]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_an_unknown_workload_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(WorkloadError, match="did you mean 'llama-60m'") as error:
        load("lama-60m")
    text = one_line(error)
    assert all(name in text for name in known())
    assert "hf:NAME_OR_PATH" in text


def test_a_notebook_is_told_how_to_become_a_script() -> None:
    with pytest.raises(WorkloadError, match="is a notebook: write its function into a Python file"):
        load("train.ipynb:make")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch size 0 is not positive"),
        ({"sequence": -1}, "sequence -1 is not positive"),
        ({"precision": "fp8"}, "precision 'fp8' is unknown; use fp32, bf16_autocast"),
    ],
)
def test_an_impossible_option_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load("llama-tiny", **arguments)


def test_options_change_the_batch_and_the_precision() -> None:
    workload = load("llama-tiny", batch_size=3, sequence=17, precision="bf16_autocast")
    assert workload.batch(0)[0].shape == (3, 17)
    assert workload.tokens_per_batch == 51
    assert workload.precision == "bf16_autocast"


def test_images_have_no_sequence() -> None:
    with pytest.raises(WorkloadError, match="vit is trained on images"):
        load("vit-tiny", sequence=64)


@pytest.mark.parametrize("device", ["gpu", "cpu:zero", "meta"])
def test_a_device_that_means_nothing_is_one_line(device: str) -> None:
    with pytest.raises(DeviceError, match=f"device '{device}'"):
        load("llama-tiny", device=device)


def test_a_device_that_is_not_there_is_one_line() -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(DeviceError, match="is not available") as error:
        load("llama-tiny", device=missing)
    assert "use --device cpu" in one_line(error)


def test_auto_is_a_device_of_this_machine() -> None:
    assert place("auto").type in ("cpu", "cuda")


def test_a_model_that_does_not_fit_is_refused_before_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ratchet.train.workloads.device.free_bytes", lambda: 10**9)
    with pytest.raises(
        DeviceError, match=r"'llama-8b' needs at least 128.5 GB, but cpu has 1.0 GB"
    ):
        load("llama-8b")


def test_a_batch_that_does_not_fit_is_refused_before_it_is_made() -> None:
    workload = load("llama-tiny", batch_size=10**10)
    with pytest.raises(DeviceError, match="use a smaller batch") as error:
        check(workload)
    one_line(error)


def test_activations_that_do_not_fit_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = load("llama-tiny", batch_size=128)
    monkeypatch.setattr("ratchet.train.workloads.device.free_bytes", lambda: 50 * 10**6)
    with pytest.raises(DeviceError, match=r"a step of 'llama-tiny' needs at least 0\.\d GB"):
        check(workload)


def test_free_memory_is_within_the_limit_of_the_process() -> None:
    room = 1 << 30

    def limited() -> None:
        limit = psutil.Process().memory_info().vms + room
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(available_bytes(torch.device("cpu")))

    found = in_fork(limited)
    assert found.returncode == 0 and 0 < int(found.stdout) <= room, found.stderr


@pytest.mark.parametrize("name", ["llama-tiny", "moe-tiny", "bert-tiny", "vit-tiny", "gpt2-tiny"])
def test_the_built_in_workloads_pass_their_own_check(name: str) -> None:
    workload = load(name)
    check(workload)
    assert all(parameter.grad is None for parameter in workload.model.parameters())


@pytest.mark.gpu(twin="train/turn/test_simulated_gpu.py::test_a_process_meets_a_gpu")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_a_workload_lives_on_the_gpu() -> None:
    workload = load("llama-tiny", device="cuda")
    check(workload)
    assert workload.batch(0)[0].is_cuda
