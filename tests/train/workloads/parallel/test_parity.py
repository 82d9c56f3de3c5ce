"""Every layout trains as one rank does: the same losses and gradients, on gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_ranks import run_forked

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.parallel import (
    ParallelLayout,
    SplitSizes,
    check_layout,
    parse_parallel,
)

PROGRAM = Path(__file__).with_name("parity.py")
NOISE = 2e-6
"""Worst relative difference of a gradient or a loss in fp32, whose sums have another order."""
ALL = '{"no_sync":true,"prefetch":1,"reshard_after_forward":false}'
TWO_RANKS = (
    "tp=2@llama-tiny", "cp=2@llama-tiny", "ep=2@moe-tiny",
    "pp=2,schedule=interleaved@llama-tiny:4", f"fsdp=2,micro=2@llama-tiny@{ALL}",
)  # fmt: skip
ROUNDED = 'dp=2@llama-tiny@{"reduction":"bf16"}', 'fsdp=2@llama-tiny@{"reduction":"bf16"}'
REFUSED = {
    "ep=2@llama-tiny": "llama-tiny has 0 experts for ep=2: use moe, or drop ep",
    "tp=2@gpt2-tiny": "GPT2 has no attention that tensor parallelism can split",
    "cp=2@moe-tiny": "MoE cannot be split along its sequence",
    "pp=2@gpt2-tiny": "gpt2-tiny cannot be cut into stages",
    "dp=4@llama-tiny": "dp=4 takes 4 ranks, but torchrun started 2",
}
MORE_OF_TWO = (
    "pp=2,schedule=zero-bubble@moe-tiny:4",
    'dp=2,micro=2@llama-tiny@{"no_sync":true,"bucket_cap_mb":1}',
    "dp=2@llama-tiny", "fsdp=2@moe-tiny",
    "dp=2@gpt2-tiny", "fsdp=2@vit-tiny", "tp=2@bert-tiny", "pp=2@llama-tiny",
)  # fmt: skip
FOUR_RANKS = (
    "dp=2,fsdp=2@llama-tiny", "fsdp=2,tp=2@llama-tiny", "dp=2,tp=2,ep=2@moe-tiny",
    "fsdp=2,ep=2,pp=2@moe-tiny", "fsdp=2,cp=2@llama-tiny", "tp=2,cp=2@llama-tiny",
    "dp=2,pp=2,schedule=zero-bubble,micro=2@llama-tiny:4", "tp=2,pp=2@moe-tiny",
    "pp=4@llama-tiny:4", "fsdp=4,ep=2@moe-tiny",
)  # fmt: skip


def parity(ranks: int, cases: tuple[str, ...], folder: Path) -> dict[str, dict[str, object]]:
    """Run the cases one after the other on one set of ranks; return what they found."""
    modules = "torch._dynamo,ratchet.train.workloads.load,"  # an optimizer imports the first
    modules += "ratchet.train.workloads.step,ratchet.train.workloads.parallel.parallelize"
    ran = run_forked(ranks, modules, PROGRAM, str(folder), *cases)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    found: dict[str, dict[str, object]] = json.loads((folder / "parity.json").read_text())
    assert set(found) == set(cases)
    return found


def are_alike(found: dict[str, dict[str, object]]) -> None:
    for case, told in found.items():
        assert "error" not in told, (case, told)
        assert told["missing"] == [], (case, told)
        assert float(str(told["gradients"])) < NOISE, (case, told)
        assert float(str(told["losses"])) < NOISE, (case, told)


def test_two_ranks_train_as_one_and_say_what_they_cannot(tmp_path: Path) -> None:
    found = parity(2, (*TWO_RANKS, ROUNDED[0], *REFUSED), tmp_path)
    for case, said in REFUSED.items():
        assert said in str(found.pop(case)["error"]), case
    is_near(found.pop(ROUNDED[0]))
    are_alike(found)


def is_near(told: dict[str, object]) -> None:
    """Hold gradients that were rounded to bf16: they are near, and not the same."""
    assert 1e-4 < float(str(told.get("gradients", 1))) < 1e-2, told


@pytest.mark.thorough
def test_other_families_on_two_ranks_train_as_one(tmp_path: Path) -> None:
    found = parity(2, (*MORE_OF_TWO, ROUNDED[1]), tmp_path)
    is_near(found.pop(ROUNDED[1]))
    are_alike(found)


@pytest.mark.thorough
def test_products_of_layouts_train_as_one(tmp_path: Path) -> None:
    are_alike(parity(4, FOUR_RANKS, tmp_path))


@pytest.mark.parametrize(
    ("text", "layout", "world"),
    [
        ("dp=2", ParallelLayout(dp=2), 2),
        ("fsdp=2,tp=2", ParallelLayout(fsdp=2, tp=2), 4),
        ("ep=2", ParallelLayout(dp=2, ep=2), 2),
        ("fsdp=4,ep=2", ParallelLayout(fsdp=4, ep=2), 4),
        ("pp=2", ParallelLayout(pp=2, micro=4), 2),
        ("pp=2,vpp=3", ParallelLayout(pp=2, vpp=3, micro=4, schedule="interleaved"), 2),
        (
            "pp=2,schedule=zero-bubble",
            ParallelLayout(pp=2, vpp=2, micro=4, schedule="zero-bubble"),
            2,
        ),
    ],
)
def test_words_make_a_layout_and_it_prints_as_them(
    text: str, layout: ParallelLayout, world: int
) -> None:
    assert parse_parallel(text) == layout
    assert parse_parallel(str(layout)) == layout
    assert layout.world == world


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fsdp", "'fsdp' is no degree of parallelism: write, for example, fsdp=8,tp=2"),
        ("", "'' is no degree of parallelism"),
        ("tp=x", "'tp=x' is no degree"),
        ("tp=0", "tp=0 in 'tp=0': give 1 or more"),
        ("tp=2,tp=2", "gives tp twice"),
        ("schedule=1f1b", "a schedule but no pipeline"),
        ("pp=2,schedule=gpipe", "schedule 'gpipe' is unknown: use 1f1b, interleaved, zero-bubble"),
        ("pp=2,schedule=zero-bubble,vpp=3", "holds 2 stages a rank"),
        ("pp=2,vpp=2,schedule=1f1b", "1f1b holds 1 stage a rank"),
        ("fsdp=3,ep=2", "3 data-parallel ranks do not divide into groups of ep=2"),
    ],
)
def test_words_that_make_none_are_one_line(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_parallel(text)
    assert said in str(caught.value)


SIZES = SplitSizes(batch_size=8, sequence=64, layers=2, heads=6, kv_heads=2, experts=4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fsdp=3", "x has 8 sequences in a batch, which do not divide by fsdp=3"),
        ("dp=2,fsdp=8", "by dp=2 x fsdp=8 (16)"),
        ("cp=3", "64 tokens in a sequence, which do not divide by cp=3"),
        ("tp=4", "6 attention heads, which do not divide by tp=4"),
        ("tp=3", "2 key-value heads, which do not divide by tp=3"),
        ("ep=8", "4 experts, which do not divide by ep=8"),
        ("pp=4,micro=4", "2 layers for 4 stages of a pipeline"),
    ],
)
def test_degrees_that_do_not_divide_are_one_line(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        check_layout(parse_parallel(text), SIZES, "x")
    assert said in str(caught.value)
