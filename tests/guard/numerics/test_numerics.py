"""The first module and op that diverges is named, and nothing is where nothing is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import planted
import pytest

from ratchet.base.errors import GuardError
from ratchet.base.show.terminal import print_report
from ratchet.cli import main
from ratchet.guard.numerics.comparison import (
    compare_numerics,
    headline,
    numerics_report,
    write_script,
)
from ratchet.guard.numerics.find import Divergence, Finder, NumericsResult, first_wrong_loss

LAYER = {
    "llama-tiny": "layers.1.mlp",
    "gpt2-tiny": "blocks.1.mlp",
    "hf:qwen3": "model.layers.1.mlp",
}


def found_in(folder: Path, spec: str, wrong: str, **changes: str):
    planted_one = planted.write(folder, f"planted_{abs(hash((spec, wrong)))}", spec, LAYER[spec],
                                wrong)  # fmt: skip
    a = planted_one if changes else spec
    return planted.compared(
        planted.side(a), planted.side(planted_one, **changes), folder / "out", steps=2
    )


@pytest.mark.parametrize("spec", ["llama-tiny", "hf:qwen3"])
def test_one_percent_in_one_layer_is_named(spec: str, tmp_path: Path) -> None:
    found = found_in(tmp_path, spec, planted.FORWARD).divergence
    assert found is not None and (found.part, found.module) == ("forward", LAYER[spec])
    assert found.scale == pytest.approx(0.01, rel=0.01)
    assert found.op is not None and found.op.op == "aten.mul.Tensor"


def test_one_percent_in_a_gradient_is_named(tmp_path: Path) -> None:
    found = found_in(tmp_path, "llama-tiny", planted.BACKWARD).divergence
    assert found is not None and (found.part, found.module) == ("backward", "layers.1.mlp")
    assert found.op is not None and found.op.op == "aten.mul.Tensor"


@pytest.mark.parametrize(
    ("wrong", "part", "module", "between", "op"),
    [
        ({"factor": 1.98}, "backward", "blocks.1", ("blocks.1.down", "blocks.1.up"),
         "aten.mul.Tensor"),
        ({"after_block": " if block is self.blocks[1] else Scaled.apply(block(x))"}, "backward",
         "model", ("blocks.1", "blocks.0"), None),
        ({"after_loss": " * 1.01 - 0.01 * found.detach()"}, "loss", "the loss", (), None),
    ],
)  # fmt: skip
def test_a_gradient_that_goes_wrong_between_modules_is_placed_there(
    wrong: dict[str, object],
    part: str,
    module: str,
    between: tuple[str, ...],
    op: str | None,
    tmp_path: Path,
) -> None:
    right = planted.write_between(tmp_path, "right")
    changed = planted.write_between(tmp_path, "changed", **wrong)
    report = planted.compared(planted.side(right), planted.side(changed), tmp_path / "out", steps=2)
    found = report.divergence
    assert found is not None and (found.part, found.module) == (part, module)
    assert found.between == between
    assert (found.op and found.op.op) == op
    assert abs(found.scale) == pytest.approx(0.01, rel=0.01)


def test_what_only_compiled_code_does_wrong_is_named(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, "llama-tiny", planted.ONLY_COMPILED, compile_mode="default"
    ).divergence
    assert found is not None and (found.part, found.module) == ("forward", "layers.1.mlp")


def test_the_first_op_that_makes_a_nan_is_named(tmp_path: Path) -> None:
    found = found_in(tmp_path, "llama-tiny", planted.LOGARITHM).not_finite
    assert found is not None
    assert (found.op, found.module, found.kind) == ("aten.log.default", "layers.1.mlp", "NaN")
    assert "planted_" in found.place


@pytest.mark.parametrize(
    ("spec", "seed"), [("llama-tiny", 1), ("gpt2-tiny", 2), ("moe-tiny", 3), ("vit-tiny", 4)]
)
def test_equal_sides_agree(spec: str, seed: int, tmp_path: Path) -> None:
    both = planted.side(spec, seed)
    report = planted.compared(both, both, tmp_path, steps=2)
    assert report.exit_code == 0 and report.divergence is None


@pytest.mark.parametrize(("spec", "seed"), [("llama-tiny", 5), ("bert-tiny", 6)])
def test_bf16_alone_is_no_divergence(spec: str, seed: int, tmp_path: Path) -> None:
    a, b = planted.side(spec, seed), planted.side(spec, seed, precision="bf16_autocast")
    report = planted.compared(a, b, tmp_path, steps=2)
    assert report.divergence is None and report.largest[0][1] > 1e-4
    assert headline(report).startswith("nothing to compare"), "B is its own baseline"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16_autocast"])
def test_compiled_code_agrees(seed: int, precision: str, tmp_path: Path) -> None:
    a = planted.side("llama-tiny", seed, precision=precision)
    b = planted.side("llama-tiny", seed, precision=precision, compile_mode="default")
    assert planted.compared(a, b, tmp_path).divergence is None


def test_other_weights_are_told(tmp_path: Path) -> None:
    report = planted.compared(
        planted.side("llama-tiny", 0), planted.side("llama-tiny", 1), tmp_path, steps=1
    )
    assert report.divergence is not None and report.divergence.part == "weights"


def test_other_models_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(GuardError, match=r"share \d+ of \d+ parameters by name"):
        planted.compared(planted.side("llama-tiny"), planted.side("vit-tiny"), tmp_path, steps=1)


def test_a_script_reproduces_it_and_repro_makes_an_issue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = planted.write(tmp_path, "planted_script", "llama-tiny", "layers.0.mlp", planted.FORWARD)
    report = compare_numerics(
        planted.side("llama-tiny"),
        planted.side(b),
        tmp_path / "out",
        asked={},
        open_recorder=planted.in_this_process,
    )
    assert report.reproduces is True and report.exit_code == 1
    assert json.loads((tmp_path / "out" / "numerics.json").read_text())["exit_code"] == 1
    print_report(numerics_report(report))
    text = capsys.readouterr().out
    assert "layers.0.mlp (Planted)" in text and "too large by 1.00%" in text
    assert main(["repro", report.turn, "--out", str(tmp_path / "repro")]) == 0
    names = {path.name for path in (tmp_path / "repro").iterdir()}
    assert {"reproduce.py", "issue.md", "environment.json", "changed.pt"} <= names
    assert "layers.0.mlp" in (tmp_path / "repro" / "issue.md").read_text()


def test_losses_are_held_against_the_dtype() -> None:
    exact = [2.0, 1.9, 1.8]
    usual = [2.001, 1.902, 1.797]
    assert first_wrong_loss(exact, usual, [2.002, 1.898, 1.803]) is None
    assert first_wrong_loss(exact, usual, [2.001, 1.902, 1.9]) == 2


def test_the_report_on_disk_is_strict_json_where_there_is_no_error_to_give(tmp_path: Path) -> None:
    nan = math.nan
    moved = Divergence(side="B", part="weights", module="head.weight", kind="Linear", error=nan,
                       allowed_error=0.0, baseline_error=0.0, scale=nan, detail="")  # fmt: skip
    report = NumericsResult(titles=("a", "b"), divergence=moved, not_finite=None, oracle="fp64",
                            compared=0, losses=((), ()))  # fmt: skip
    side = planted.side("llama-tiny")
    write_script(Finder(side, side, tmp_path), report, side, tmp_path)
    text = (tmp_path / "numerics.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["divergence"]["error"] is None
