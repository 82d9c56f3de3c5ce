"""FLOPs and bytes of ops by their shapes, and the roofline's account of all work."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest
import torch

from ratchet.base.devices.ceilings import Ceilings, Roofline
from ratchet.judge.kernels.library import register_ops
from ratchet.trace.analysis import analyse
from ratchet.trace.answers.ceilings import Rooflines, measured_ceilings
from ratchet.trace.answers.report import report
from ratchet.trace.answers.roofline import RooflineRow
from ratchet.trace.answers.work import _RATCHET, ATEN, PRODUCTS, category_of, rule_of, work
from ratchet.trace.answers.work.call import (
    EQUAL_LENGTHS,
    FULL_MASK,
    GRADIENTS,
    NOT_KNOWN,
    ONCE,
    PAGES,
    SHAPES,
    OpWork,
)
from ratchet.trace.answers.work.optimizer import CHUNK, gradients, launches_of

CEILINGS = Rooflines(
    of={"fp32": Roofline(flops_per_s=1e9, bytes_per_s=1e9)}, source="made"
)  # One FLOP and one byte a nanosecond


def done(name: str, *tensors: object, values: str = "", **more: Any) -> OpWork:
    """The work of a call; a tensor is its shape in fp32, or (shape, type); None is no tensor."""
    dims, types = [], []
    for one in tensors:
        shape, kind = one if isinstance(one, tuple) else (one, "float")
        dims.append([] if shape is None else shape)
        types.append("" if shape is None else kind)
    found = work(name, json.dumps(dims), json.dumps(types), values, **more)
    assert found is not None, name
    return found


def amounts(name: str, *tensors: object, values: str = "", **more: Any) -> tuple[int, int]:
    found = done(name, *tensors, values=values, **more)
    return found.flops, found.size_bytes


def test_products() -> None:
    half = "c10::BFloat16"
    assert amounts("aten::mm", ([4, 8], half), ([8, 2], half)) == (128, 2 * (32 + 16 + 8))
    assert amounts("aten::mm", [4, 8], [8, 2], [4, 2]) == (128, 4 * (32 + 16 + 8)), "out= counts"
    assert amounts("aten::bmm", [3, 4, 8], [3, 8, 2])[0] == 3 * 128
    assert amounts("aten::mv", [4, 8], [8]) == (64, 4 * (32 + 8 + 4))
    # The first convolution of ResNet-50 at 224 x 224: 118,013,952 multiply-adds.
    nothing = [None] * 6
    values = '["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", "False"]'
    first = done("aten::miopen_convolution", [1, 3, 224, 224], [64, 3, 7, 7], *nothing,
                 values=values)  # fmt: skip
    assert first.flops == 2 * 118_013_952
    unknown = done("aten::miopen_convolution", [1, 3, 224, 224], [64, 3, 7, 7])
    assert (unknown.flops, unknown.flops_from) == (0, NOT_KNOWN)
    for dims in ("", "[", "[[4, 8], [9, 2]]", "[[], []]", '[["x"], [1]]'):
        assert work("aten::mm", dims, '["float", "float"]') is None


def test_a_convolutions_backward_counts_the_gradients_that_are_asked_for() -> None:
    def backward(mask: str) -> int:
        values = f'["","","","[0]","[1]","[0]","[1]","False","[0]","1","{mask}"]'
        return amounts("aten::convolution_backward", [2, 5, 6], [2, 3, 8], [5, 3, 3],
                       values=values)[0]  # fmt: skip

    one = 2 * (2 * 5 * 6) * 9
    assert backward("[True, True, False]") == 2 * one
    assert backward("[False, True, True]") == one


def test_attention_counts_what_the_mask_leaves() -> None:
    flash = "aten::_flash_attention_forward"
    three = [([2, 128, 4, 64], "c10::Half")] * 3
    whole = 2 * 2 * 2 * 4 * 128 * 128 * 64
    unknown = done(flash, *three)
    assert (unknown.flops, unknown.flops_from) == (whole, FULL_MASK)

    def masked(is_causal: str) -> OpWork:
        return done(flash, *three, values=f'["","","","","","128","128","0.","{is_causal}"]')

    assert (masked("False").flops, masked("False").flops_from) == (whole, SHAPES)
    assert masked("True").flops == 2 * 2 * 2 * 4 * (128 * 129 // 2) * 64
    assert unknown.size_bytes == 4 * 2 * 128 * 4 * 64 * 2
    backward = done("aten::_flash_attention_backward", *three[:1], *three)
    assert backward.flops == whole * 5 // 2
    # Packed sequences: no split of 96 tokens into three has fewer pairs than 32, 32, 32.
    packed = [([96, 4, 64], "c10::Half")] * 3
    ends = ([4], "int")
    pages = ([4096, 1, 4, 64], "c10::Half")
    listed = ([7], "int")
    paged = done("aiter::mha_batch_prefill", packed[0], pages, pages, ends, ends, listed)
    assert paged.size_bytes == 2 * (2 * 96 * 4 * 64 + 2 * 7 * 4 * 64), "the pages in use"
    decode = done("aiter::paged_attention", packed[0], packed[0], pages, pages, ends)
    assert (decode.flops_from, decode.bytes_from) == (NOT_KNOWN, PAGES)
    least = done("flash_attn::_flash_attn_varlen_forward", *packed, ends, ends)
    assert (least.flops, least.flops_from) == (4 * 4 * 64 * 96 * 96 // 3 // 2, EQUAL_LENGTHS)


def test_ops_that_are_bound_by_their_bytes() -> None:
    add, half = "aten::add", "c10::BFloat16"
    assert amounts(add, [4, 8], [8]) == (32, 4 * (32 + 8 + 32)), "the broadcast is written"
    assert amounts(add, [4, 8], ([], "double")) == (32, 4 * 64 + 8), "numbers promote nothing"
    assert amounts(add, ([4], half), [4])[1] == 8 + 16 + 16
    assert amounts("aten::add_", [4, 8], [8])[1] == 4 * (32 + 8 + 32)
    assert amounts("aten::mul", [4], [], [4])[1] == 16 + 4 + 16, "out= is only written"
    assert amounts("aten::eq", [4], [4])[1] == 16 + 16 + 4
    assert amounts("aten::copy_", ([4], half), [4]) == (0, 8 + 16)
    assert amounts("aten::fill_", [4]) == (0, 16)
    dims = '["", "[-1]", "True", ""]'
    assert amounts("aten::mean", [4, 8], values=dims) == (32, 4 * (32 + 4))
    assert amounts("aten::sum", [4, 8])[1] == 4 * 33
    assert amounts("aten::_softmax", [4, 8]) == (5 * 32, 4 * 64)
    norm = '["", "[8]", "", "", "1e-05"]'
    assert amounts("aten::native_layer_norm", [4, 8], None, [8], [8], values=norm)[1] == 4 * 80
    table = ([1000, 8], [], ([3], "long int"))
    rows = '["", "0", ""]'
    assert amounts("aten::index_select", table[0], None, table[2], values=rows)[1] == 24 + 2 * 96
    pool = '["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"]'
    found = amounts("aten::max_pool2d_with_indices", [1, 2, 8, 8], *[None] * 5, values=pool)
    assert found[1] == 4 * 128 + 2 * 16 * 12
    joined = work("aten::cat", "[[[2, 3], [4, 3]], []]", '["TensorList", "Scalar"]',
                  kernel="CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned>")  # fmt: skip
    assert joined is not None and joined.size_bytes == 2 * 18 * 2


@pytest.mark.parametrize(
    "name", ["aten::mul", "aten::sum", "aten::_softmax", "aten::gelu", "aten::copy_", "aten::where"]
)
def test_twice_the_rows_are_twice_the_work(name: str) -> None:
    """No part of a row's work is lost or counted twice, whatever the op."""
    shapes = [[rows, 24] for rows in (64, 128)]
    values = '["", "[1]", "", ""]'
    small, large = (done(name, *[shape] * 3, values=values) for shape in shapes)
    assert large.flops == 2 * small.flops
    assert large.size_bytes == 2 * small.size_bytes
    every_input = 4 * 64 * 24
    assert small.size_bytes >= every_input, "at least what is read"


@pytest.mark.parametrize(("batch", "m", "k", "n"), [(3, 4, 8, 2), (5, 7, 1, 9), (1, 16, 3, 3)])
def test_formulas_agree_with_one_another(batch: int, m: int, k: int, n: int) -> None:
    one = amounts("aten::mm", [m, k], [k, n])
    assert amounts("aten::bmm", [batch, m, k], [batch, k, n]) == tuple(batch * x for x in one)
    assert amounts("aten::mm", [n, k], [k, m]) == one, "the transposed product"
    assert amounts("ratchet::linear", [m, k], [n, k]) == one
    pointwise = '["", "", "", "[0]", "[1]", "[1]", "1"]'
    convolved = done("aten::cudnn_convolution", [1, k, m], [n, k, 1], *[None] * 5, values=pointwise)
    assert (convolved.flops, convolved.size_bytes) == one, "a convolution of width 1"
    assert amounts("aten::addmm", [n], [m, k], [k, n]) == (one[0], one[1] + 4 * n)


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 7), (7, 3), (1, 5)])
def test_a_causal_mask_leaves_the_pairs_below_it(queries: int, keys: int) -> None:
    seen = sum(key <= query for query in range(queries) for key in range(keys))
    shapes = [2, 4, queries, 16], [2, 4, keys, 16], [2, 4, keys, 16]
    values = '["", "", "", "True", "0.25"]'
    assert amounts("ratchet::attention", *shapes, values=values)[0] == 4 * 2 * 4 * seen * 16


NAMES = [f"{wing}::{name}" for wing, tables in (("aten", ATEN), ("ratchet", _RATCHET))
         for _, rules in tables for name in rules]  # fmt: skip
NAMES += ["aten::_foreach_add_", "vllm::fused_moe", "_C::rms_norm", "x::rotary_embedding",
          "x::fmha", "x::reshape_and_cache", "x::gemm", "triton_tem_fused_mm_1",
          "triton_poi_fused_x"]  # fmt: skip
ODD: tuple[Any, ...] = ("x", None, 3, [-1, 2], [1.5], {"a": 1}, [[[1]]], True, [10**12, 2**62])
VALUES = ("", "[1, 2]", "[0, 0]", "[-3, -3]", "[]", "True", "-1", "nan", "null", "[[1]]", "{}", 5,
          None, [0, 0, 0], "[True, False, True]")  # fmt: skip
KINDS = ("float", "c10::BFloat16", "long int", "bool", "TensorList", "Scalar", "", "odd", 5, None)


def test_damaged_arguments_give_no_work_or_a_whole_number() -> None:
    chance = random.Random(0)
    found = gradients([(3,), (4, 4)])
    for name in NAMES * 15:
        count = chance.randrange(9)
        shapes = [
            chance.choice(ODD)
            if chance.random() < 0.3
            else [chance.choice((0, 1, 2, 3, 8, 16, 64)) for _ in range(chance.randrange(6))]
            for _ in range(count)
        ]
        kinds = [chance.choice(KINDS) for _ in range(chance.choice((count, 2)))]
        values = [chance.choice(VALUES) for _ in range(chance.choice((count, 12, 0)))]
        given = [json.dumps(one) for one in (shapes, kinds, values)]
        done = work(name, *given, kernel="k<float>", found=found, launches=1)
        assert done is None or min(done.flops, done.size_bytes) >= 0, (name, *given)


def test_a_pool_without_a_size_has_no_work() -> None:
    kinds, values = '["float", "", "", ""]', '["", "[]", "[]", "[]"]'
    assert work("aten::avg_pool2d", "[[1, 2, 8, 8], [], [], []]", kinds, values) is None


def test_registered_ops_and_tritons_kernels() -> None:
    cache = ([10**6, 16, 1, 64], "unsigned char")
    tokens = ([8, 1, 64], "c10::BFloat16")
    slots = ([8], "long int")
    put = amounts("_C_cache_ops::reshape_and_cache_flash", tokens, tokens, cache, cache, slots)
    assert put[1] == 2 * 512 * 2 + 2 * 512, "a cache counts for what is put into it"
    inplace = amounts("_C::fused_add_rms_norm", [8, 16], [8, 16], [16])
    assert inplace[1] == 4 * (4 * 128 + 16)
    assert amounts("aiter::rmsnorm", [8, 16], [8, 16], [16])[1] == 4 * (2 * 128 + 16)
    assert amounts("vllm::some_gemm", [8, 16], [32, 16]) == (2 * 8 * 16 * 32, 4 * (128 + 512 + 256))
    moe = ([7, 32], [9, 40, 32], [9, 32, 20], [7, 2], ([7, 2], "int"))
    assert amounts("vllm::fused_moe", *moe)[0] == 2 * 7 * 2 * (40 * 32 + 32 * 20)
    fused = done("triton_poi_fused_add_gelu_3", [4, 8], [8], [4, 8])
    assert (fused.flops_from, fused.bytes_from, fused.size_bytes) == (NOT_KNOWN, ONCE, 4 * 72)
    looked = done("triton_poi_fused_embedding_0", [10**6, 8], [4, 8], values='["", "", "32"]')
    assert looked.size_bytes == 4 * 64
    assert done("triton_tem_fused_mm_1", [4, 8], [8, 2], [4, 2]).flops == 128
    assert work("somebody::unheard_of", "[[4, 8]]", '["float"]') is None


def test_ratchets_own_ops_have_work() -> None:
    """A new op of the library needs a rule, or it is time without a bound."""
    register_ops()
    ours = {
        name.partition("::")[2].partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("ratchet::")
    }
    ours -= {"region"}  # Its kernels are another's, and so is their work
    kept = {name for name in ours if not name.startswith("test_")}
    without = {name for name in kept if rule_of(f"ratchet::{name}") is None}
    assert {"attention", "linear", "rope"} <= kept and not without


def test_ratchets_own_ops() -> None:
    linear, backward = [8, 16], [8, 32]
    flops = 2 * 8 * 16 * 32
    size = 4 * (128 + 512 + 256)
    assert amounts("ratchet::linear", linear, [32, 16]) == (flops, size)
    assert amounts("ratchet::linear_dgrad", backward, [32, 16]) == (flops, size)
    assert amounts("ratchet::linear_wgrad", backward, linear) == (flops, size)
    heads = [[2, 4, 8, 16]] * 3
    values = '["", "", "", "True", "0.25"]'
    assert amounts("ratchet::attention", *heads, values=values)[0] == 4 * 2 * 4 * 36 * 16
    targets = ([8], "long int")
    loss = amounts("ratchet::linear_cross_entropy", [8, 16], [100, 16], None, targets)
    assert loss == (2 * 8 * 16 * 100, 4 * (128 + 1600) + 64)
    both = amounts("ratchet::linear_cross_entropy_gradients", [8, 16], [100, 16], None, targets)
    assert both == (3 * loss[0], loss[1] + 4 * (128 + 1600))
    assert amounts("ratchet::add_rms_norm", [8, 16], [8, 16], [16])[1] == 4 * (4 * 128 + 16)
    assert amounts("ratchet::gated_activation_backward", *[[8, 16]] * 3)[1] == 4 * 5 * 128


def lists(name: str, count: int, **more: Any) -> OpWork | None:
    shapes, types = json.dumps([[]] * count), json.dumps(["TensorList"] * count)
    kernel = "multi_tensor_apply_kernel<TensorListMetadata<2>, AddFunctor<float, 2, 1, 0>>"
    return work(name, shapes, types, kernel=kernel, **more)


def test_updates_of_lists_count_by_the_gradients() -> None:
    step = [(64,), (64, 64), (400 * CHUNK,)]  # As the backward accumulates them
    found = gradients(step * 3)
    assert found.shapes == tuple(reversed(step)), "one pass, in the order of the parameters"
    elements = 64 + 64 * 64 + 400 * CHUNK
    assert launches_of([400 * CHUNK, 64 * 64, 64], 2) == 2
    update = lists("aten::_foreach_add_", 2, found=found, launches=2)
    assert update is not None
    assert (update.size_bytes, update.bytes_from) == (3 * 4 * elements, GRADIENTS)
    adamw = lists("aten::_fused_adamw_", 4, found=found, launches=2)
    assert adamw is not None and adamw.size_bytes == 7 * 4 * elements
    matrices = lists("aten::_foreach_add_", 2, found=found, launches=1)
    assert matrices is not None and matrices.size_bytes == 3 * 4 * 64 * 64
    squares = lists("aten::_foreach_addcmul_", 3, found=found, launches=2)
    assert squares is not None and squares.size_bytes == 3 * 4 * elements, "of one list"
    assert lists("aten::_foreach_add_", 2, found=found, launches=9) is None
    assert lists("aten::_foreach_add_", 2, launches=1) is None


@pytest.mark.parametrize(("count", "lists_", "launches"), [(110, 1, 1), (111, 1, 2), (96, 3, 2)])
def test_a_launch_holds_so_many_tensors(count: int, lists_: int, launches: int) -> None:
    assert launches_of([1] * count, lists_) == launches


def nested() -> list[dict]:
    """A product inside one of its own name, as a wrapper with `out=` makes."""
    pair = [[64, 64], [64, 128]]
    return [
        mt.op("aten::mm", 0, 60, Input_Dims=pair, Input_type=["float"] * 2),
        mt.op("aten::mm", 5, 50, Input_Dims=[*pair, [64, 128]], Input_type=["float"] * 3),
        mt.launch(20, 5, 7),
        mt.kernel("sgemm", 100, 9000, 7),
    ]


def roofline_of(folder: Path, events: list[dict]) -> tuple[RooflineRow, ...]:
    return report(mt.made(folder, events), CEILINGS).roofline


def test_nested_calls_count_once(tmp_path: Path) -> None:
    (row,) = roofline_of(tmp_path, nested())
    assert (row.count, row.time, row.flops) == (1, 9_000_000, 2 * 64 * 64 * 128)
    assert row.could_win == row.time - row.least


def test_wrappers_on_a_cpu_count_once(tmp_path: Path) -> None:
    """On a CPU, an op around another has time of its own, and no work of its own."""
    pair = {"Input_Dims": [[64, 64], [64, 64]], "Input_type": ["float"] * 2}
    table = {"Input_Dims": [[100, 64], [8]], "Input_type": ["float", "long int"]}
    chosen = {"Input_Dims": [[100, 64], [], [8]], "Input_type": ["float", "Scalar", "long int"]}
    events = [
        mt.op("ratchet::linear", 0, 60, **pair), mt.op("aten::mm", 5, 50, **pair),
        mt.op("aten::embedding", 100, 60, **table),
        mt.op("aten::index_select", 105, 50, **chosen, Concrete_Inputs=["", "0", ""]),
    ]  # fmt: skip
    rows = roofline_of(tmp_path, events)
    assert {row.name for row in rows if row.known} == {"aten::mm", "aten::index_select"}
    assert sum(row.time for row in rows) == 120_000, "and no time is lost"
    assert sum(row.flops for row in rows) == 2 * 64**3


def test_what_runs_inside_a_product_is_the_products(tmp_path: Path) -> None:
    shapes = [[2, 5, 6], [2, 3, 8], [5, 3, 3]]
    copy = {"Input_Dims": [[2, 3, 8], [2, 3, 8]], "Input_type": ["float", "float"]}
    events = [
        mt.op("aten::convolution_backward", 0, 60, Input_Dims=shapes, Input_type=["float"] * 3),
        mt.op("aten::copy_", 5, 10, **copy), mt.launch(6, 2, 1), mt.kernel("copied", 100, 10, 1),
        mt.launch(30, 5, 2), mt.kernel("wgrad", 120, 50, 2),
        mt.op("aten::copy_", 70, 10, **copy), mt.launch(71, 2, 3), mt.kernel("copied", 200, 10, 3),
        mt.kernel("nobodys", 300, 7, 9), mt.copy(310, 5, size=1000),
        mt.launch(80, 2, 4), mt.kernel("ncclDevKernel_AllReduce", 400, 9, 4),
    ]  # fmt: skip
    rows = {row.name: row for row in roofline_of(tmp_path, events)}
    assert rows["aten::convolution_backward"].time == 60_000
    assert rows["aten::copy_"].time == 10_000 and rows["aten::copy_"].category == "copy"
    lost = rows["nobodys"]
    assert (lost.known, lost.bytes_from, lost.least, lost.could_win) == (False, NOT_KNOWN, 0, 0)
    moved = rows["Memcpy HtoD (Pageable -> Device)"]
    assert (moved.size_bytes, moved.bound, moved.least) == (1000, "memory", 1000)
    # Every piece of work but communication is in exactly one row.
    assert sum(row.time for row in rows.values()) == 82_000


def test_the_larger_product_of_two_has_the_work(tmp_path: Path) -> None:
    """A loss whose gradients are computed inside it is not counted beside them."""
    inputs = {"Input_Dims": [[8, 16], [100, 16], [], [8]],
              "Input_type": ["float", "float", "", "long int"]}  # fmt: skip
    events = [
        mt.op("ratchet::linear_cross_entropy", 0, 60, **inputs),
        mt.op("ratchet::linear_cross_entropy_gradients", 5, 50, **inputs),
        mt.op("aten::mm", 10, 10, Input_Dims=[[4, 16], [16, 100]], Input_type=["float"] * 2),
        mt.launch(11, 2, 1), mt.kernel("sgemm", 100, 10, 1),
        mt.launch(30, 5, 2), mt.kernel("rows", 120, 50, 2),
    ]  # fmt: skip
    (row,) = roofline_of(tmp_path, events)
    assert row.name == "ratchet::linear_cross_entropy_gradients"
    assert (row.time, row.flops) == (60_000, 3 * 2 * 8 * 16 * 100)


def test_rows_know_their_extremes(tmp_path: Path) -> None:
    events: list[dict] = []
    for number, length in enumerate((10, 20, 30)):
        start = 100 * number
        events += [
            mt.op("aten::add", start, 20, Input_Dims=[[8], [8]], Input_type=["float"] * 2),
            mt.launch(start + 1, 2, number + 1),
            mt.kernel("vectorized_elementwise", start + 30, length, number + 1),
        ]
    (row,) = roofline_of(tmp_path, events)
    assert (row.count, row.shortest, row.longest, row.time) == (3, 10_000, 30_000, 60_000)
    assert row.spread == pytest.approx(10_000 * (2 / 3) ** 0.5)
    assert (row.kernel, row.bytes_per_s) == ("vectorized_elementwise", 3 * 96 / 60e-6)


@pytest.mark.parametrize("name", ["h100-qwen1.5-0.5b", "mi300x-resnet-ddp-rank0of8"])
def test_all_work_of_recorded_traces_is_in_one_row(name: str) -> None:
    trace = mt.recorded(name)
    found = analyse(trace)
    rows = report(trace).roofline
    work_there = ~found.links.carried_in & ~found.communication & (trace.stream >= 0)
    assert sum(row.time for row in rows) == int(trace.duration[work_there].sum())
    assert sum(row.time for row in rows if row.known) > 0.98 * sum(row.time for row in rows)


def test_a_small_call_is_held_against_the_cache() -> None:
    rates = Ceilings(
        gemm_flops_per_s={"fp32": 1e12}, copy_bytes_per_s={"dram": 1e10, "L2": 1e11},
        triad_bytes_per_s={"dram": 1e10}, level_bytes={"L2": 1_000_000},
    )  # fmt: skip
    found = measured_ceilings(rates, "this CPU")
    small, large = found.at("fp32", 1000), found.at("long int", 10**9)
    assert small is not None and small.bytes_per_s == 1e11
    assert large is not None and large.bytes_per_s == 1e10


def test_categories_are_of_the_op_or_of_its_kernel() -> None:
    assert category_of("aten::mm") == "GEMM" and category_of("aten::_softmax") == "reduction"
    assert category_of("aten::_foreach_add_") == "optimizer"
    assert category_of("", "Cijk_Ailk_Bljk_BBS_MT256") == "GEMM"
    assert category_of("CompiledFunction", "triton_red_fused_sum_1") == "reduction"
    assert category_of("", "ncclDevKernel_AllReduce") == "communication"
    assert category_of("", "k") == "other"
    assert {"GEMM", "attention", "convolution"} == PRODUCTS


def test_categories_by_step_module_and_phase(tmp_path: Path) -> None:
    events: list[dict] = []
    for number in range(2):
        start, called = 200 * number, 10 * number
        events += [
            mt.step(number, start, 190), mt.module(f"Linear_{number}", start + 1, 40),
            mt.op("aten::mm", start + 2, 20), mt.launch(start + 3, 2, called + 1),
            mt.kernel("sgemm", start + 10, 30 + number, called + 1),
            mt.op("autograd::engine::evaluate_function: MmBackward0", start + 60, 40),
            mt.op("aten::mm", start + 65, 20), mt.launch(start + 66, 2, called + 2),
            mt.kernel("sgemm", start + 70, 20, called + 2),
            mt.kernel("ncclDevKernel_AllReduce", start + 100, 7, 0, 9),
        ]  # fmt: skip
    rows = report(mt.made(tmp_path, events)).categories
    whole = {row.category: row for row in rows if not (row.step or row.module)}
    gemm = whole["GEMM"]
    assert (gemm.time, gemm.forward, gemm.backward) == (101_000, 61_000, 40_000)
    assert (whole["communication"].time, whole["communication"].unlinked) == (14_000, 14_000)
    assert gemm.share == pytest.approx(101 / 115)
    of_steps = [row for row in rows if row.step]
    assert [row.time for row in of_steps if row.category == "GEMM"] == [50_000, 51_000]
    assert sum(row.time for row in of_steps) == sum(row.time for row in whole.values())
    modules = {row.module: row.time for row in rows if row.module}
    assert modules == {"Linear_0": 30_000, "Linear_1": 31_000}


OGS = "_matmul_ogs_NNT_bf16xbf16xmxfp4_"


@pytest.mark.parametrize(
    ("tokens", "tile", "grids", "each"),
    [(32, "16x128x256x1", (1748, 912), 4), (8192, "128x128x128x1", (287 * 46, 287 * 24), 4),
     (1, "16x128x256x1", (2 * 46, 2 * 24), 2)],
)  # fmt: skip
def test_the_grids_tell_the_sizes_of_experts_that_are_no_arguments(
    tokens: int, tile: str, grids: tuple[int, int], each: int
) -> None:
    dims, types = json.dumps([[tokens, 3072], [tokens, 32]]), '["c10::BFloat16", "c10::BFloat16"]'
    launched = tuple(
        (f"{OGS}{tile}{end}", f"[{blocks}, 1, 1]")
        for end, blocks in zip(("_swiglu", ""), grids, strict=True)
    )
    found = work("vllm::moe_forward", dims, types, launched=launched)
    assert found is not None and found.flops_from.startswith("at least")
    assert found.flops == 2 * tokens * each * 3 * 3072 * (45 * 128 // 2)
    assert found.size_bytes > min(32, tokens * each) * 3 * 3072 * 2880 // 2
    for wrong in (
        launched[:1],
        (launched[0], (launched[1][0], "[911, 1, 1]")),
        (launched[0], (launched[1][0], "")),
        ((launched[0][0], "[7, 1, 1]"), launched[1]),
        tuple((name.replace("matmul", "mm"), grid) for name, grid in launched),
    ):
        assert work("vllm::moe_forward", dims, types, launched=wrong) is None
    assert work("vllm::moe_forward", dims, types) is None
    nothing = json.dumps([[0, 3072], [0, 32]])
    assert work("vllm::moe_forward", nothing, types, launched=launched[:1] + wrong[1:]) is None


def test_a_users_triton_kernel_counts_its_arguments_once() -> None:
    dims, types = "[[4, 8], [4, 8]]", '["float", "float"]'
    found = work("my_kernel_3", dims, types, kernel="my_kernel")
    assert found is not None and (found.flops, found.size_bytes) == (0, 2 * 4 * 8 * 4)
    assert work("my_kernel_3", dims, types, kernel="another") is None
    sage = work("sage_fwd_1", "[[1, 4, 64, 8], [1, 4, 64, 8], [1, 4, 64, 8], [1, 4, 2]]",
                json.dumps(["signed char", "signed char", "c10::Half", "float"]))  # fmt: skip
    assert sage is not None and sage.flops == 2 * 4 * 64 * 64 * 16


def test_launches_keep_their_grid(tmp_path: Path) -> None:
    call = mt.launch(1, 1, 1)
    call["args"] |= {"kernel": "k", "grid": [38, 2, 1]}
    trace = mt.made(tmp_path, [mt.op("aten::mm", 0, 9), call, mt.kernel("k", 10, 5, 1)])
    assert [trace.strings[at] for at in trace.launches.grid] == ["[38, 2, 1]"]
