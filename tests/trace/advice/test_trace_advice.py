"""Each finding: one trace that has it, and one that has not."""

from __future__ import annotations

import json
from pathlib import Path

import made_traces as mt
import pytest

from ratchet.base.devices.ceilings import Roofline
from ratchet.trace.advice import Advice, _levers_of, advise
from ratchet.trace.answers.ceilings import Rooflines
from ratchet.trace.answers.report import report
from ratchet.trace.show.words import headline

QUIET = [mt.launch(0, 1, 1), mt.kernel("triton_fused", 5, 900, 1)]
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
TRACES: dict[str, list[dict]] = {
    "exposed-communication": [*QUIET, mt.kernel("ncclDevKernel_AllReduce", 905, 100, 2, 9)],
    "data-loading": [
        *QUIET, mt.span("user_annotation", LOADER, 900, 150), mt.launch(1060, 1, 2),
        mt.kernel("triton_b", 1065, 50, 2),
    ],
    "host-bound": [*QUIET, mt.launch(1200, 1, 2), mt.kernel("triton_b", 1203, 50, 2)],
    "queued-gaps": [*QUIET, mt.launch(2, 1, 2), mt.kernel("triton_b", 1203, 50, 2)],
    "synchronisation": [
        *QUIET, mt.span("cuda_runtime", "cudaDeviceSynchronize", 900, 200, correlation=8),
        mt.launch(1101, 1, 2), mt.kernel("triton_b", 1103, 50, 2),
    ],
    "small-kernels": [
        *QUIET, *(mt.launch(1 + i, 0.5, 10 + i) for i in range(30)),
        *(mt.kernel("tiny", 905 + 6 * i, 5, 10 + i) for i in range(30)),
    ],
    "fp32-matmuls": [mt.launch(0, 1, 1), mt.kernel("volta_sgemm_128x32_nn", 5, 900, 1)],
    "recompute": [
        *QUIET,
        mt.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 10, 50),
        mt.module("Linear_0", 12, 40), mt.op("aten::relu", 14, 5), mt.launch(15, 1, 2),
        mt.kernel("triton_again", 905, 400, 2),
    ],
    "fusible-kernels": [
        *(mt.launch(1 + i, 0.5, 1 + i) for i in range(10)),
        *(mt.kernel(name, 10 + 31 * i, 30, 1 + i)
          for i, name in enumerate(["gemm", "mul", "add", "tanh", "gemm"] * 2)),
    ],
    "graph-breaks": [*QUIET, *(mt.op(f"Torch-Compiled Region: {i}/0", 0, 2) for i in range(3))],
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_with_the_finding(name: str, tmp_path: Path) -> None:
    found = report(mt.made(tmp_path, TRACES[name]))
    finding = next(finding for finding in advise(found) if finding.name == name)
    assert 0 <= finding.gain <= found.identity.window
    assert finding.evidence and finding.remedy
    assert "\n" not in finding.evidence + finding.remedy


def test_memory_of_the_first_calls_is_no_read_loss(tmp_path: Path) -> None:
    events = [*TRACES["synchronisation"]]
    events[2] = mt.span("cuda_runtime", "cudaFree", 900, 200, correlation=8)
    (finding,) = (one for one in advise(report(mt.made(tmp_path, events)))
                  if one.name == "synchronisation")  # fmt: skip
    assert "cudaFree" in finding.evidence and ".item()" not in finding.remedy


def test_a_run_on_a_device_without_its_work_has_no_finding(tmp_path: Path) -> None:
    ops = [mt.op(f"aten::{name}", 10 + 31 * i, 30)
           for i, name in enumerate(["mm", "mul", "add", "tanh", "mm"] * 2)]  # fmt: skip
    assert advise(report(mt.made(tmp_path, ops)))
    found = report(mt.made(tmp_path, [*ops, mt.launch(1, 1, 1)]))
    assert (found.platform, found.on_device) == ("cuda", False) and not advise(found)
    assert headline(found).startswith("No device work was recorded. Of ")


def test_a_trace_without_any(tmp_path: Path) -> None:
    assert advise(report(mt.made(tmp_path, QUIET))) == ()


def test_findings_are_ranked_by_what_they_give(tmp_path: Path) -> None:
    events = [*TRACES["host-bound"], mt.kernel("ncclDevKernel_AllReduce", 1260, 100, 3, 9)]
    gains = [finding.gain for finding in advise(report(mt.made(tmp_path, events)))]
    assert len(gains) >= 2
    assert gains == sorted(gains, reverse=True)


def test_reasons_that_a_recording_kept_are_named(tmp_path: Path) -> None:
    notes = json.dumps({"graph_break": {"call to print": 1}})
    found = report(mt.made(tmp_path, TRACES["graph-breaks"], ratchet_compile=notes))
    assert "call to print" in next(f for f in advise(found) if f.name == "graph-breaks").evidence


def test_a_long_gap_is_not_small_kernels(tmp_path: Path) -> None:
    """No number of kernels is behind a gap of 463 ms: only a turn-around of each gap counts."""
    tiny = [mt.kernel("tiny", 6 * i, 5, 10 + i) for i in range(373)]
    calls = [mt.launch(-500 + i, 0.5, 10 + i) for i in range(374)]
    late = mt.kernel("late", 465_000, 5, 10 + 373)
    found = report(mt.made(tmp_path, [*calls, *tiny, late]))
    assert found.idle.kernel_gap == 372 * 1000 + (465_000 - 372 * 6 - 5) * 1000
    assert found.idle.turn_around == 372 * 1000 + 10_000
    assert "small-kernels" not in {finding.name for finding in advise(found)}


def test_the_librarys_kernels_are_named_on_a_gpu(tmp_path: Path) -> None:
    norm = [
        mt.module("RMSNorm_0", 0, 400), mt.op("aten::pow", 1, 390),
        *(mt.launch(2 + i, 0.5, 1 + i) for i in range(4)),
        *(mt.kernel(name, 410 + 31 * i, 30, 1 + i)
          for i, name in enumerate(["pow", "mean", "rsqrt", "mul"])),
    ]  # fmt: skip
    found = report(mt.made(tmp_path, norm))
    assert found.platform == "cuda"
    levers = next(one.levers for one in advise(found) if one.name == "fusible-kernels")
    assert levers[0] == "kernel:rms_norm"


ADAMW = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")


def updated(chain: tuple[str, ...], mark: str, on_device: bool) -> list[dict]:
    """Two steps whose optimizer runs a chain of ops between two passes over the model."""
    events: list[dict] = []
    for number in range(2):
        start, launch = 4000 * number, 20 * number
        names = ["log_softmax", "nll_loss_forward", *chain, "embedding"]
        update = mt.span("user_annotation", f"Optimizer.step#{mark}.step", start + 200, 2000)
        events += [update, mt.op("aten::mm", start - 50, 40)]
        for place, name in enumerate(names):
            # The loss is short; the last op belongs to the next forward.
            at = start + (place * 90 if place < 2 else 20 + place * 180)
            at = start + 2300 if name == "embedding" else at
            length = 150 if 0 < place - 1 < 9 else 20
            events.append(mt.op(f"aten::{name}", at, length))
            if on_device:
                called = launch + place + 1
                events += [mt.launch(at + 1, 2, called),
                           mt.kernel(f"at::native::{name}", at + 10, length, called)]  # fmt: skip
    return events


@pytest.mark.parametrize("on_device", [False, True], ids=["cpu", "gpu"])
def test_the_optimizers_chain_names_what_takes_it_away(on_device: bool, tmp_path: Path) -> None:
    def fusible(chain: tuple[str, ...], mark: str) -> Advice:
        found = report(mt.made(tmp_path, updated(chain, mark, on_device)))
        return next(one for one in advise(found) if one.name == "fusible-kernels")

    adamw = fusible(ADAMW, "AdamW")
    assert adamw.levers[:2] == ("kernel:adamw", "fused-optimizer")
    assert "kernel:linear_cross_entropy" not in adamw.levers, "the loss is a tenth of a tenth"
    what = "kernels" if on_device else "ops"
    assert f"2 x 8 {what} in AdamW.step" in adamw.evidence
    sgd = fusible(("mul_", "add_", "add_") * 2, "SGD")
    assert "kernel:adamw" not in sgd.levers and sgd.levers[0] == "fused-optimizer"


def test_a_kernel_is_named_for_what_it_would_replace() -> None:
    def levers(*names: str) -> set[str]:
        return set(_levers_of(" ".join(names), True))

    assert levers("aten::silu", "aten::mul") == {"kernel:gated_activation"}
    assert levers("aten::gelu", "aten::native_layer_norm") == {"kernel:layer_norm"}
    assert levers("at::native::neg_kernel_cuda", "CatArrayBatchedCopy") == {"kernel:rope"}
    assert levers("Optimizer.step#AdamW.step", "aten::_fused_adamw_") == {"kernel:adamw"}


def test_attention_below_its_ceiling_names_the_librarys_kernel(tmp_path: Path) -> None:
    shape = [4, 1024, 16, 64]
    flash = mt.op("aten::_flash_attention_forward", 0, 50)
    flash["args"] = {
        "Input Dims": [shape, shape, shape],
        "Input type": ["c10::BFloat16"] * 3,
    }
    events = [flash, mt.launch(1, 1, 1), mt.kernel("flash_fwd_kernel", 60, 50_000, 1)]
    roof = Roofline(flops_per_s=3e14, bytes_per_s=2e12)
    ceilings = Rooflines(of={"bf16": roof}, source="made up")
    trace = mt.made(tmp_path, events)
    finding = next(one for one in advise(report(trace, ceilings)) if one.name == "attention")
    assert finding.levers == ("kernel:attention",)
    assert 0 < finding.gain < 50_000_000
    assert "attention" not in {
        one.name for one in advise(report(trace, Rooflines(of={}, source="")))
    }
