"""Questions as strangers ask them: names from hubs, odd counts of devices, layouts of nonsense."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from ratchet.base.errors import PlanError
from ratchet.scale.plan import PlanRequest, planned
from ratchet.scale.plan.cluster import parse_cluster
from ratchet.scale.plan.commands import torchrun
from ratchet.scale.plan.layout import STACKS, Layout, columns
from ratchet.scale.plan.search import chunk_layers, evaluate, make_asked
from ratchet.scale.plan.shape import find_shape


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Llama3-8B", "llama3-8b"), ("llama-3.1-8b", "llama3-8b"), ("llama3.3-70b", "llama3-70b"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "llama3-405b"), ("Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout"),
        ("qwen3-30b", "qwen3-30b-a3b"), ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"), ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"), ("Kimi-K2-Instruct-0905", "kimi-k2"),
    ],
)  # fmt: skip
def test_a_name_from_a_hub_means_the_published_model(said: str, meant: str) -> None:
    assert find_shape(said) is find_shape(meant)


@pytest.mark.parametrize("name", ["deepseek-v3.2-exp", "llama-3.2-3b", "qwen3", "llama4", "vit"])
def test_a_model_of_other_sizes_is_not_taken_for_one_that_is_known(name: str) -> None:
    with pytest.raises(PlanError, match="no shape is known") as raised:
        find_shape(name)
    assert f"did you mean {name} " not in str(raised.value)


@pytest.mark.parametrize(
    ("word", "device"),
    [("a100-80gb", "A100 SXM 80GB"), ("a100-40gb", "A100 SXM 40GB"), ("h100-sxm", "H100 SXM"),
     ("gb200-nvl72", "GB200 (NVL72)")],
)  # fmt: skip
def test_a_device_has_the_names_by_which_it_is_rented(word: str, device: str) -> None:
    assert parse_cluster(f"{word}:8").device == device


@pytest.mark.parametrize(
    ("count", "batch"), [("8x3", 768), ("7", 896), ("8x4", 512), ("8x125", 1000)]
)
def test_the_usual_batch_divides_among_odd_counts_of_devices(count: str, batch: int) -> None:
    cluster = parse_cluster(f"h100:{count}")
    asked = make_asked(find_shape("llama3-8b"), cluster, STACKS["torch"])
    assert asked.batch == batch and asked.batch % cluster.world == 0
    if cluster.world == 7:
        assert {
            one.layout.dp
            for one in planned(PlanRequest(model="llama3-8b", cluster="h100:7")).planned.front
        } != {1}


def test_what_does_not_divide_is_named() -> None:
    def asked(**given: object) -> PlanRequest:
        return PlanRequest(model="llama3-8b", cluster="h100:8", **given)  # type: ignore[arg-type]

    with pytest.raises(PlanError, match="sequence of 100 tokens into 16 equal parts"):
        planned(asked(parallel="cp=8", sequence=100))
    with pytest.raises(PlanError, match="llama3-8b has no experts to spread: leave ep out"):
        planned(asked(parallel="fsdp=8,ep=8"))
    with pytest.raises(PlanError, match="no nameless products: use bf16, fp8"):
        planned(asked(precisions=("",)))
    twice = planned(asked(precisions=("bf16", "bf16"), batch=8))
    assert twice.planned.counted == planned(asked(batch=8)).planned.counted
    assert planned(asked(sequence=3, batch=64)).best.layout.cp == 1  # an odd sequence has a plan


def test_a_plan_is_told_without_torch() -> None:
    code = (
        "import sys; from ratchet.scale import plan; from ratchet.scale.plan import show; "
        "show.plan_report(plan.planned(plan.PlanRequest(model='llama3-8b', cluster='h100:8'))); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "stages"),
    [(61, 4, 4, [16, 16, 16, 13]), (94, 4, 8, [23, 24, 24, 23]), (32, 4, 2, [8, 8, 8, 8]),
     (61, 8, 4, [8, 8, 8, 8, 8, 8, 8, 5]), (126, 16, 8, [7, *[8] * 14, 7])],
)  # fmt: skip
def test_chunks_of_uneven_stages_hold_every_layer(
    layers: int, pp: int, vpp: int, stages: list[int]
) -> None:
    chunks = chunk_layers(layers, pp, vpp)
    assert len(chunks) == pp * vpp and [sum(chunks[one::pp]) for one in range(pp)] == stages
    assert all(max(chunks[one::pp]) - min(chunks[one::pp]) <= 1 for one in range(pp))
    assert all(chunks[1:-1])  # the embedding or the output layer may be alone


def test_deepseek_v3_is_planned_in_the_layout_that_nvidia_publishes() -> None:
    asked = make_asked(
        find_shape("deepseek-v3"), parse_cluster("gb200:256"), STACKS["megatron-deepep"],
        batch=1024, precisions=("mxfp8",),
    )  # fmt: skip
    layout = Layout(dp=64, pp=4, vpp=4, ep=64, precision="mxfp8")
    words = shlex.split(torchrun(asked, evaluate(asked, columns([layout])).plan(asked, 0)))
    (said,) = (one for one in words if one.startswith("--pipeline-model-parallel-layout="))
    chunks = said.partition("=")[2].split("|")
    assert chunks[0] == "Etttt" and chunks[-1] == "tttL" and len(chunks) == 16
    assert sum(one.count("t") for one in chunks) == 61


@pytest.mark.parametrize(
    ("layout", "rule"), [("pp=16,vpp=3", "a layer or more"), ("vpp=2", "pp of 2")]
)
def test_chunks_without_a_layer_are_refused(layout: str, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        planned(PlanRequest(model="deepseek-v3", cluster="h100:8x32", parallel=layout))


def test_no_rank_gets_more_tokens_than_there_are() -> None:
    with pytest.raises(PlanError, match="imbalance 5 is above 4"):
        planned(PlanRequest(model="mixtral-8x7b", cluster="h100:8x8", imbalance=5.0))
