"""`ratchet plan`, `debug` and `preflight` as a user calls them."""

from __future__ import annotations

import csv
import html
import json
import pickle
import re
import stat
from pathlib import Path

import commands
import pytest

from ratchet.cli import main
from ratchet.train.recipe import Recipe
from ratchet.train.workloads.config import StepConfig

PLAN = ("plan", "llama3-8b", "--cluster", "mi300x:8x2", "--batch", "64")


def test_a_plan_is_printed_and_said_to_be_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--tokens", "1e12", "--price", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "on 16 MI300X" in text and "Estimated, not measured." in text
    assert "torchrun --nnodes=2 --nproc-per-node=8" in text
    assert re.search(r"device-hours [\d,]+ money [\d,]+ at 2 a device-hour", text)
    assert "708 TFLOP/s (ROCm/rocm-blogs" in text  # the rate, with where it is from


def test_its_json_has_the_front_and_what_it_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"] is False and document["cluster"]["world"] == 16
    front = document["front"]
    assert [one["step_s"] for one in front] == sorted(one["step_s"] for one in front)
    for one in front:
        assert sum(one["time_s"].values()) == pytest.approx(one["step_s"])
        assert sum(one["memory_by_part"].values()) == pytest.approx(one["memory_bytes"])


def test_out_holds_the_page_and_the_scripts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plans"
    assert main([*PLAN, "--tokens", "3e11", "--out", str(out)]) == 0
    names = ["job.sbatch", "jobset.yaml", "plan.html", "plan.json", "run.sh"]
    assert sorted(one.name for one in out.iterdir()) == names
    page = html.unescape((out / "plan.html").read_text())
    assert not re.search(r"(src|href)=.http", page)
    slider = re.search(r'id="x-tokens"[^>]*value="(\d+)"', page)
    assert slider is not None and slider[1] == "300"  # the run that was asked for
    script = re.search(r"script-src '(sha256-[^']+)'", page)
    assert script is not None  # the page's policy allows its own script alone
    assert stat.S_ISREG((out / "run.sh").stat().st_mode)


def test_one_layout_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--parallel", "fsdp=2,tp=8", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["front"]
    assert one["layout"]["tp"] == 8 and one["layout"]["sharding"] == "full"


def test_a_layout_that_does_not_fit_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt3-175b", "--cluster", "a100:8x1", "--parallel", "tp=8"]
    assert main(words) == 0
    assert "it does not fit into the 72.0 GiB" in " ".join(capsys.readouterr().out.split())
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_a_sharding_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--parallel", "dp=2,tp=8")):
        assert main([*PLAN, *words, "--sharding", "none", "--json"]) == 0
        front = json.loads(capsys.readouterr().out)["front"]
        assert {one["layout"]["sharding"] for one in front} == {"none"}


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_every_layout_goes_into_a_file(
    ending: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / f"layouts.{ending}"
    given = ["--micro-batch", "2", "--tokens", "1e12", "--price", "2", "--layouts", str(path)]
    assert main([*PLAN, *given, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if ending == "json":
        rows = json.loads(path.read_text())
    else:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    assert len(rows) == document["layouts"]
    assert sum(str(row["fits"]) == "True" for row in rows) == document["fitting"]
    first = next(row for row in rows if str(row["fits"]) == "True")
    best = document["front"][0]
    assert float(first["step_s"]) == pytest.approx(best["step_s"], abs=1e-6)
    assert float(first["money"]) == pytest.approx(document["cost"]["money"], rel=1e-4)
    assert {int(row["micro_batch"]) for row in rows} == {2}
    parts = sum(float(value) for key, value in first.items()
                if key.endswith("_s") and key not in ("step_s", "tokens_per_s"))  # fmt: skip
    assert parts == pytest.approx(float(first["step_s"]), abs=1e-4)


def test_the_largest_model_in_some_days(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--days", "3", "--cluster", "a100:8x1", "--batch", "512", "--price", "2"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "In 3 days, 8 A100 SXM 80GB train a model of" in text
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["largest"]["days"] <= 3 and document["largest"] in document["tried"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--days", "3"), "--days needs a cluster"),
        ((*PLAN, "--days", "3"), "leave MODEL, --tokens and --parallel out"),
        ((*PLAN, "--layouts", "layouts.txt"), "ends in none of .csv, .json"),
        ((*PLAN, "--checkpointing", "some"), "none, selective, full"),
        ((*PLAN, "--sharding", "zero9"), "sharding 'zero9' is unknown: use one of none, optimizer"),
        ((*PLAN, "--parallel", "fsdp=16", "--sharding", "none"), "write dp instead of fsdp"),
        ((*PLAN, "--parallel", "dp=16,vpp=2"), "with a pp of 2 or more"),
        ((*PLAN, "--parallel", "tp=4,pp=4,vpp=9"), "does not split 32 layers"),
        ((*PLAN, "--parallel", "tp=4,pp=4,vpp=2", "--micro-batch", "32"), "a multiple of 4"),
        ((*PLAN, "--micro-batch", "3"), "in micro-batches of 3"),
        (("plan",), "give a model and a cluster"),
        (("plan", "llama3-8b", "--cluster", "mi300x:8x0"), "no devices"),
        (("plan", "llama3-8b", "--cluster", "mi300x:8x999999999"), "give at most 1,048,576"),
        (("plan", "llama3-8b", "--cluster", "h100:8000000000"), "give at most 1,048,576"),
        ((*PLAN, "--price", "nan"), "no finite number"),
        ((*PLAN, "--price", "-1"), "below 0"),
        ((*PLAN, "--parallel", "tp=3"), "do not make the 16"),
        ((*PLAN, "--parallel", "fsdp=16", "--batch", "15"), "does not divide among 16 replicas"),
        ((*PLAN, "--stack", "jax"), "use one of torch, torch-eager, megatron"),
        ((*PLAN, "--precision", "fp4"), "no fp4 products"),
        (("plan", "llama3-405b", "--cluster", "h100:8x1"), "it fits h100:8x"),
        (("plan", "hf:nonesuch", "--cluster", "h100:8x1"), "neither a model type nor a folder"),
        ((*PLAN, "--calibrate", "/nowhere.json"), "/nowhere.json"),
        (("plan", "--savings", "/nowhere.json", "--fleet", "mi300x:9", "--price", "2"), "recipe"),
        (("plan", "--savings", "/nowhere.json"), "--savings needs --fleet"),
        (("debug", "/nowhere"), "holds no flight-recorder dump"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in commands.mistake(capsys, *words)


def recipe(path: Path, speedup: dict[str, dict[str, float]]) -> Path:
    Recipe(
        workload="llama-60m", device="d", device_name="a CPU", software="s", versions={},
        config=StepConfig(), kernels=(), speedup=speedup, changes_arithmetic=False,
        created_at="2026-01-01T00:00:00+00:00",
    ).save(path)  # fmt: skip
    return path


def test_savings_of_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    proven = {"vs_compile": {"ratio": 1.25, "low": 1.2, "high": 1.3}}
    path = recipe(tmp_path / "recipe.json", proven)
    words = ["plan", "--savings", str(path), "--fleet", "mi300x:10000", "--price", "2.0"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["a_year"]["device_hours"][1] == pytest.approx(0.2 * 10000 * 8760)
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1.25x (1.20 to 1.30)" in text and "17,520,000" in text


def test_a_recipe_that_proved_nothing_saves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = recipe(tmp_path / "recipe.json", {})
    words = ("plan", "--savings", str(path), "--fleet", "mi300x:8", "--price", "2")
    assert "no proven ratio" in commands.mistake(capsys, *words)


def test_dumps_that_disagree_end_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank, operation in enumerate(("all_reduce", "broadcast")):
        entry = {
            "frames": [{"name": "step", "filename": "train.py", "line": 7}],
            "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
            "profiling_name": f"nccl:{operation}", "input_sizes": [[2]], "output_sizes": [[2]],
            "input_dtypes": ["Float"], "state": "started", "retired": False, "is_p2p": False,
        }  # fmt: skip
        document = {"version": "2.10", "entries": [entry]}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(document))
    assert main(["debug", str(tmp_path)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "rank 0 called all_reduce at train.py:7 in step; rank 1 called broadcast" in text
    assert main(["debug", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["found"][0]["kind"] == "operation"


def test_preflight_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--device", "cpu", "--json"]) == 0
    (own,) = json.loads(capsys.readouterr().out)["ranks"]
    assert own["gemm_flops_per_s"] > 0
