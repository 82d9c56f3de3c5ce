"""`ratchet compare` on workloads, with real processes: the answer's times are made up."""

from __future__ import annotations

import json
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.base.devices.probe import probe, software
from ratchet.base.ledger import Ledger
from ratchet.base.measure import Sample, contest
from ratchet.base.measure.metrics import Readings
from ratchet.cli import main
from ratchet.guard.compare.workloads import WorkloadContest
from ratchet.train.recipe import Recipe
from ratchet.train.workloads.config import StepConfig

MODEL = """
import os

import torch

from ratchet.train.workloads.workload import Workload


class Extra(torch.nn.Module):
    def forward(self, x):
        return x + torch.cumsum(torch.ones(400, 20_000), dim=1).sum() * 0


def of(*more, batch=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), *more, torch.nn.Linear(8, 1))
    return Workload(
        name="own", model=model, loss=loss, batch=lambda index: torch.ones(batch, 8) * (index + 1)
    )


def loss(model, x):
    with open(f"seen-{os.getpid()}", "w") as file:
        file.write(str(model[0](x).dtype))
    return model(x).square().mean()


def plain():
    return of()


def with_more():
    return of(Extra())


def by_edition():
    import edition

    return of(batch=edition.BATCH)
"""
SECONDS = {"a": 1.0, "twin": 1.0, "b": 1.5}


class MadeUpTimes(WorkloadContest):
    """Real processes; what their clocks said is replaced, so that no test depends on it."""

    def read(self, readings: Readings, samples: Sequence[Sample]) -> None:
        super().read(readings, [replace(one, wall_time_s=SECONDS[one.arm]) for one in samples])


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(contest, "MOST_ROUNDS", 6)
    monkeypatch.setattr("ratchet.guard.compare.WorkloadContest", MadeUpTimes)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(MODEL)
    yield


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    code = main(["compare", "--budget", "30s", "--device", "cpu", "--json", *words])
    captured = capsys.readouterr()
    assert code in (0, 1, 3), captured.err
    found = json.loads(captured.out)
    assert found["exit_code"] == code
    return found


def test_a_slower_workload_shows_the_module_and_op(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["compare", "--budget", "30s", "--device", "cpu", "own.py:plain", "own.py:with_more"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "B is 50.0% worse than A" in out
    with Ledger.open() as book:
        (turn,) = book.turns_named("")
        result = book.result_of(turn.turn)
    assert result is not None and result["answer"] == "slower"
    rows = [one for one in result["traces"]["slower"] if "cumsum" in one["op"]]
    assert rows and rows[0]["baseline_s"] == 0 < rows[0]["new_s"]
    assert "Extra" in rows[0]["module"] and "Extra" in out
    assert rows[0]["op"] in out
    assert main(["repro", turn.turn[:12], "--out", str(tmp_path / "out")]) == 0
    assert rows[0]["op"] in (tmp_path / "out" / "issue.md").read_text()


def test_two_workloads_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--batch-size", "1", "--sequence", "16")
    found = said(capsys, "llama-tiny", "gpt2-tiny", "--fail-if-slower", "60%", *options)
    assert (found["baseline"], found["new"]) == ("llama-tiny", "gpt2-tiny")
    assert found["exit_code"] == 0  # 50 % slower lies within the budget
    names = {one["metric"]["name"] for one in found["metrics"]}
    assert names == {"time", "cpu_time", "peak_memory"}
    assert [one["per_batch"] for one in found["batches"]] == [16, 16]
    assert "traces" not in found
    with Ledger.open() as book:
        assert len(book.measurements(found["id"])) == 3 * found["metrics"][0]["pairs"]


def test_each_side_runs_its_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    here = probe("cpu")
    for name, precision in (("one", "fp32"), ("two", "bf16_autocast")):
        Recipe(
            workload="own.py:plain",
            device=here.fingerprint,
            device_name=here.model,
            software=software().fingerprint,
            versions={},
            config=StepConfig(precision=precision),
            kernels=(),
            speedup={},
            changes_arithmetic=precision != "fp32",
            created_at="2026-01-01T00:00:00+00:00",
        ).save(tmp_path / f"{name}.json")
    found = said(capsys, "own.py:plain", "--a", "one.json", "--b", "two.json")
    assert (found["baseline"], found["new"]) == ("own.py:plain one.json", "own.py:plain two.json")
    seen = [path.read_text() for path in tmp_path.glob("seen-*")]
    assert seen.count("torch.bfloat16") >= found["launches"]
    assert seen.count("torch.float32") >= 2 * found["launches"]
    assert len(set(seen)) == 2


def test_each_side_runs_in_its_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, batch in (("one", 2), ("two", 4)):
        venv.create(tmp_path / name, symlinks=True)
        (packages,) = (tmp_path / name).glob("lib/python3*/site-packages")
        (packages / "edition.py").write_text(f"BATCH = {batch}\n")
        (packages / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = said(capsys, "own.py:by_edition", "--python-a", "one", "--python-b", "two")
    assert [one["per_batch"] for one in found["batches"]] == [2, 4]
    assert (found["baseline"], found["new"]) == ("own.py:by_edition one", "own.py:by_edition two")


def test_a_revision_runs_in_another_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The checkout comes first on the import path, and Ratchet stays on it."""
    from test_compare_cli import git

    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "own.py").write_text(MODEL)
    git(repository, "init")
    for batch in (3, 5):
        (repository / "edition.py").write_text(f"BATCH = {batch}\n")
        git(repository, "add", "-A")
        git(repository, "commit", "-m", str(batch))
    venv.create(tmp_path / "one", symlinks=True)
    (packages,) = (tmp_path / "one").glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository)
        own = ("--python-a", str(tmp_path / "one"), "--rev-a", "HEAD~1", "--rev-b", "HEAD")
        found = said(capsys, "own.py:by_edition", *own)
    assert [one["per_batch"] for one in found["batches"]] == [3, 5]
