"""The comparison of estimates with published times, on small data of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "amd"))

import amd_clock


def row(time_us: float, vector: int, **more: Any) -> dict[str, Any]:
    """A point of the dedispersion whose workgroup ran so many vector instructions."""
    mixed = {"v_add_f32_e32": vector, "s_endpgm": 1}
    return {
        "kind": "ded", "target": "gfx90a", "us": time_us, "threads": 64, "grid": 100_000,
        "mn": mixed, "lanes": {"v_add_f32_e32": 64 * vector}, "bytes": 0, "touched": 0, "l64": 0,
        "ldsb": 0, "ldsc": 0,
    } | more  # fmt: skip


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two spaces: in one, times follow the bound and the prediction is what was measured."""
    sizes = [10_000 * (1 + at) for at in range(40)]
    follows = [row(400_000 + size, size, predicted_s=(400_000 + size) * 1e-6) for size in sizes]
    against = [row(900_000 - size, size) for size in sizes]
    write(tmp_path, "ded_MI250X", follows)
    write(tmp_path, "conv_W7800", [one | {"target": "gfx1100"} for one in against])
    write(tmp_path, "ded_W7800", [{"kept": "for an exam, and never read"}])
    return tmp_path


def scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    amd_clock.main([str(folder), "--draws", "50"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_an_order_that_is_right_and_one_that_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scores(folder, capsys)
    assert set(found) == {"ded_MI250X", "conv_W7800"}
    right, wrong = found["ded_MI250X"], found["conv_W7800"]
    assert right["bound"]["tau"] == pytest.approx(1)
    assert right["bound"]["within10"] == right["bound"]["shortlist"] == 1
    assert wrong["bound"]["tau"] == pytest.approx(-1)
    assert wrong["bound"]["shortlist"] < wrong["random"]["shortlist"]
    assert right["predicted"]["error"] == pytest.approx(0)
    assert right["random"]["within10"] < 1
    assert right["roofline"]["tau"] == 0  # one value for a whole space


def test_a_scale_comes_from_the_other_spaces(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scores(folder, capsys)
    rows = [json.loads(line) for line in (folder / "conv_W7800.jsonl").read_text().splitlines()]
    write(folder, "conv_W7800", [one | {"us": 2 * one["us"]} for one in rows])
    after = scores(folder, capsys)
    assert after["ded_MI250X"]["bound"] == before["ded_MI250X"]["bound"]
    assert after["ded_MI250X"]["bound, scaled"] != before["ded_MI250X"]["bound, scaled"]
    assert after["conv_W7800"]["bound, scaled"]["error"] != before["conv_W7800"]["bound"]["error"]


def test_a_third_of_the_products_is_kept_back(tmp_path: Path) -> None:
    products = [
        row(10.0, 100, kind="gemm", target="gfx950", M=m, N=512, K=512) for m in range(1, 91)
    ]
    write(tmp_path, "gemm_gfx950", products)
    path = tmp_path / "gemm_gfx950.jsonl"
    seen = len(amd_clock.read_space(path, exam=False))
    assert 40 < seen < 80
    assert len(amd_clock.read_space(path, exam=True)) == 90


def test_a_folder_without_points_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        amd_clock.main([str(tmp_path)])
    assert "--help says what is in one" in capsys.readouterr().err
