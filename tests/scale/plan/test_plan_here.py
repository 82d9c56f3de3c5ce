"""Plans beside layouts that were measured here: rates that two rows set, and errors of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.probe import probe
from ratchet.base.errors import PlanError
from ratchet.cli import main
from ratchet.scale.parallel.bench import ParallelBench, RankBench, record_parallel
from ratchet.scale.parallel.launch import Communication
from ratchet.scale.plan import calibrate
from ratchet.scale.plan.shape import find_shape
from ratchet.train.workloads.parallel import parse_parallel

SHAPE = find_shape("llama-60m")
LAYOUTS = ("dp=1", "dp=2", "fsdp=2", "tp=2", "pp=2")
BASE_BYTES = 300_000_000
"""Of a process beside the model."""


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> Ceilings:
    made = Ceilings(
        gemm_flops_per_s={"fp32": 200e9},
        copy_bytes_per_s={"dram": 40e9},
        triad_bytes_per_s={"dram": 40e9},
    )
    monkeypatch.setattr("ratchet.base.devices.ceilings.measure", lambda *_, **__: made)
    return made


def bench(layout: str, step_s: float = 1.0, exposed_s: float = 0.0) -> ParallelBench:
    """The figures of a layout of llama-60m with a batch of eight sequences."""
    world = parse_parallel(layout).world
    talk = Communication(total_s=exposed_s, exposed_s=exposed_s)
    rank = RankBench(
        rank=0, host="h", device="cpu", step_time_s=step_s, low_s=step_s, high_s=step_s,
        peak_memory_bytes=BASE_BYTES, communication=talk,
    )  # fmt: skip
    return ParallelBench(
        workload="llama-60m", layout=layout, world=world, step_time_s=step_s, low_s=step_s,
        high_s=step_s, slowest_rank=0, first_step_s=step_s, tokens_per_s=8 * 256 / step_s,
        unit="tokens", items_per_step=8 * 256, sequence=256, steps=3, parameters=1,
        peak_memory_bytes=BASE_BYTES, exposed_communication_s=exposed_s, threads=1, loss=1.0,
        ranks=(rank,) * world,
    )  # fmt: skip


def measured() -> dict[str, ParallelBench]:
    """Figures of a machine that keeps to the formulas, at other rates than its ceilings."""
    least, most = bench("dp=1", 3.0), bench("dp=2", 4.0, 1.5)
    cluster, _ = calibrate._cluster_of(SHAPE, probe("cpu"), least, most)
    found = {}
    for layout in LAYOUTS:
        told = calibrate._predicted(SHAPE, cluster, bench(layout))
        row = bench(layout, float(told.times.total[0]), calibrate._exposed_s(told))
        found[layout] = replace(row, peak_memory_bytes=BASE_BYTES + int(told.memory.total[0]))
    return found


def test_two_rows_set_the_rates_and_the_others_are_predicted() -> None:
    rows = measured()
    rows["fsdp=2"] = replace(rows["fsdp=2"], step_time_s=2 * rows["fsdp=2"].step_time_s)
    found = calibrate.check(SHAPE, list(rows.values()), probe("cpu"))
    errors = {one.layout: one.step_error for one in found.rows if not one.sets}
    assert len(errors) == 3 and found.left_out == {}
    assert next(one for one in found.rows if one.layout == "dp=1").sets == "products"
    assert errors.pop("fsdp=2") == pytest.approx(-0.5, abs=0.01)
    assert all(abs(error) < 0.01 for error in errors.values()), errors
    assert found.memory_error < 0.001
    for one in found.rows:
        assert one.predicted_exposed_s == pytest.approx(one.exposed_s, rel=0.02, abs=1e-5)


def test_the_ledger_s_layouts_are_compared_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = f"{tmp_path}/ledger.db"
    words = ["plan", "llama-60m", "--measured", "--ledger", ledger]
    rows = measured()
    extra = replace(rows["dp=2"], layout="dp=2,fsdp=2", world=4)
    for one in (rows["dp=1"], rows["dp=2"], extra):
        record_parallel(one, device="cpu", ledger=ledger)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds 2 layouts of llama-60m that a plan knows" in line
    record_parallel(rows["tp=2"], device="cpu", ledger=ledger)
    assert main(words) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "1 layout planned, with a median error of" in told
    assert "dp=2,fsdp=2: a plan has no copies of shards (HSDP)." in told
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert abs(document["step_error"]) < 0.01 and len(document["rows"]) == 3


@pytest.mark.parametrize(
    "words",
    [["plan", "--measured"], ["plan", "llama-60m", "--measured", "--cluster", "h100:8"]],
)
def test_a_call_without_a_workload_or_with_a_cluster_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--measured checks plans of a workload on this machine" in line


def test_a_model_without_a_shape_is_one_line() -> None:
    with pytest.raises(PlanError, match="no shape is known for the model 'bert-tiny'"):
        calibrate.checked_here("bert-tiny", device="cpu")


def test_a_pipeline_s_waits_set_no_link() -> None:
    rows = measured()
    rows["pp=2"] = bench("pp=2", step_s=100.0, exposed_s=90.0)
    told = {
        one.layout: one for one in calibrate.check(SHAPE, list(rows.values()), probe("cpu")).rows
    }
    assert told["pp=2"].sets == ""
    assert abs(told["fsdp=2"].step_error) < 0.01 or told["fsdp=2"].sets
    assert abs(told["dp=2"].step_error) < 0.01 or told["dp=2"].sets
