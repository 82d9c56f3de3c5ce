"""How well `ratchet plan` predicts published training runs, and how fast it searches.

    python benchmarks/scale/plan_search.py [--rows]
    python benchmarks/scale/plan_search.py --here llama-8m   # layouts that run on this machine

`published/runs.csv` and `published/throughput.csv` hold other people's measurements with their
sources. Every row whose model and device are known is predicted from its layout. What a row does
not say is assumed: checkpointing is the least that fits the memory, a global batch gives each
pipeline four micro-batches a stage. One device, the H100 of torchtitan's benchmarks (500 W, 96 GB),
is not in the catalogue: its rate is set by one row, which is then left out.

The baseline is the strongest constant: each row gets the median efficiency of all other rows.
With --here, a workload's layouts are measured on ranks of this machine and planned, as by
`ratchet plan WORKLOAD --measured`; two rows set the rates.

The last line is JSON: plans_per_s, error_published and error_constant (median over rows of step
time), error_held_out (of throughput.csv alone), memory_error, fronts_contain_published.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from plan_sweeps import fastest

from ratchet.base.devices.probe import probe
from ratchet.base.errors import PlanError
from ratchet.scale.parallel.bench import bench_parallel
from ratchet.scale.plan.calibrate import check
from ratchet.scale.plan.cluster import GIB, PlannedCluster, Rate, parse_cluster
from ratchet.scale.plan.layout import STACKS, Layout, Stack, columns
from ratchet.scale.plan.search import (
    Evaluated,
    PlanQuestion,
    evaluate,
    layouts_of,
    make_asked,
    room_bytes,
)
from ratchet.scale.plan.shape import Shape, find_shape
from ratchet.train.workloads.parallel import parse_parallel

PUBLISHED = Path(__file__).parent / "published"
NAMES = {
    r"megatron-22b": "megatron-22b", r"gpt3-175b": "gpt3-175b", r"megatron-1t": "megatron-1t",
    r"turing-530b|mt-nlg-530b": "turing-530b", r"mixtral[- ]8x22b": "mixtral-8x22b",
    r"llama ?-?3(\.\d)?[- ]8b": "llama3-8b", r"llama ?-?3(\.\d)?[- ]70b": "llama3-70b",
    r"llama ?-?3(\.\d)?[- ]405b": "llama3-405b", r"qwen3[- ]30b-a3b|qwen3 moe 30b": "qwen3-30b-a3b",
    r"qwen3[- ]235b-a22b": "qwen3-235b-a22b", r"deepseek[- ]?v2[- ]lite": "deepseek-v2-lite",
    r"deepseek[- ]?v2 236b": "deepseek-v2", r"deepseek[- ]?v3": "deepseek-v3",
    r"kimi[- ]k2": "kimi-k2", r"gpt[- ]oss[- ]20b": "gpt-oss-20b",
    r"gpt[- ]oss[- ]120b": "gpt-oss-120b",
}  # fmt: skip
DEVICES = {r"A100": "a100", r"H100.*(500W|96GB)": "h100-500w", r"H100": "h100", r"H200": "h200",
           r"B200": "b200", r"MI300X": "mi300x", r"MI325X": "mi325x",
           r"MI355X": "mi355x"}  # fmt: skip
CALIBRATES = "titan-8b-fsdp8-bf16-compile"
"""The row that sets the rate of the 500 W H100."""
HERE = ("dp=1", "dp=2", "fsdp=2", "tp=2", "pp=2", "fsdp=2,micro=2")
"""Layouts of two ranks at most, for --here."""
SET_BY = ("throughput-109",)
"""Rows by which a constant of the model was set: EXPERT_CASTS of `ratchet.scale.plan.time`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One published figure, with the layout that gave it."""

    id: str
    held_out: bool
    asked: PlanQuestion
    layout: Layout
    step_s: float | None
    memory_bytes: float | None
    part: str = "total"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--here", metavar="WORKLOAD", help="measure layouts on this machine")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured_here(options.here)))
        return
    rows = read_rows()
    timed = [row for row in rows if row.step_s and row.id not in (CALIBRATES, *SET_BY)]
    errors = {row.id: predicted(row).times.total[0] / row.step_s - 1 for row in timed}
    held = [abs(errors[row.id]) for row in timed if row.held_out]
    constant = constant_errors(timed)
    sized = [row for row in rows if row.memory_bytes]
    memory = {row.id: memory_of(row) / row.memory_bytes - 1 for row in sized}
    if options.rows:
        for row in timed:
            layout = f"{row.layout.words()} {row.layout.checkpointing}"
            print(f"{row.id:52} {row.step_s:9.3f} s {errors[row.id]:+7.1%} "
                  f"(constant {constant[row.id]:+.1%}) {layout}")  # fmt: skip
        for row in sized:
            print(f"{row.id:52} {row.memory_bytes / GIB:9.2f} GiB {memory[row.id]:+7.1%}")
    print(json.dumps({
        "rows_time": len(timed), "rows_memory": len(sized), "rows_held_out": len(held),
        "plans_per_s": round(plans_per_s()),
        "error_published": round(statistics.median(map(abs, errors.values())), 4),
        "error_constant": round(statistics.median(map(abs, constant.values())), 4),
        "error_held_out": round(statistics.median(held), 4) if held else None,
        "bias": round(statistics.median(errors.values()), 4),
        "memory_error": round(statistics.median(map(abs, memory.values())), 4),
        "fronts_contain_published": fronts(timed),
    }))  # fmt: skip


def measured_here(workload: str) -> dict[str, object]:
    """Measure a workload's layouts on this machine; return the errors of their plans."""
    rows = []
    options = {"device": "cpu", "batch_size": 8}
    for words in HERE:
        rows.append(bench_parallel(workload, parse_parallel(words), options=options, steps=6))
    found = check(find_shape(workload), rows, probe("cpu"))
    for one in found.rows:
        print(f"{one.layout:20} {one.step_s:7.3f} s {one.step_error:+7.1%}  exposed "
              f"{one.exposed_s:.3f} s, planned {one.predicted_exposed_s:.3f} s  "
              f"{one.memory_bytes / 1e6:6.0f} MB {one.memory_error:+7.1%}  {one.sets}")  # fmt: skip
    return {"workload": workload, "rows_here": len(rows), "error_here": round(found.step_error, 4),
            "memory_error_here": round(found.memory_error, 4)}  # fmt: skip


def predicted(row: Row) -> Evaluated:
    return evaluate(row.asked, columns([row.layout]))


def memory_of(row: Row) -> float:
    found = predicted(row).memory
    if row.part == "activations":
        return float(found.activations[0])
    if row.part == "states":
        return float((found.weights + found.gradients + found.optimizer)[0])
    return float(found.total[0])


def constant_errors(rows: list[Row]) -> dict[str, float]:
    """Return each row's error if it gets the median efficiency of all others."""
    efficiency = {row.id: ideal_s(row) / row.step_s for row in rows if row.step_s}
    found = {}
    for row in rows:
        others = statistics.median(value for key, value in efficiency.items() if key != row.id)
        found[row.id] = efficiency[row.id] / others - 1
    return found


def ideal_s(row: Row) -> float:
    cluster = row.asked.cluster
    flops = row.asked.shape.flops_per_token * row.asked.batch * row.asked.shape.sequence
    return flops / (cluster.peak[row.layout.precision] * cluster.world)


def fronts(rows: list[Row]) -> str:
    """Return of how many published layouts the search finds one that is at least as good."""
    good = 0
    for row in rows:
        mine = predicted(row)
        asked = replace(row.asked, precisions=(row.layout.precision,))
        try:
            found = evaluate(asked, layouts_of(asked))
        except PlanError:
            continue
        room = max(room_bytes(asked.cluster), float(mine.memory.total[0]))
        fits = found.memory.total <= room
        good += bool(fits.any() and found.times.total[fits].min() <= mine.times.total[0] * 1.0001)
    return f"{good} of {len(rows)}"


def plans_per_s() -> float:
    """Return plans evaluated a second on one core, the layouts' enumeration with them."""
    asked = make_asked(
        find_shape("qwen3-235b-a22b"), parse_cluster("mi300x:8x128"), STACKS["torch"],
        precisions=("bf16", "fp8"),
    )  # fmt: skip
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        count = len(evaluate(asked, layouts_of(asked)).layouts)
        best = max(best, count / (time.perf_counter() - start))
    return best


def read_rows() -> list[Row]:
    found = [one for row in read("runs.csv") if (one := of_run(row))]
    rate = None
    for one in found:
        if one.id == CALIBRATES:
            rate = calibrated(one)
    assert rate is not None
    known = {key(one) for one in found}
    held = [one for row in read("throughput.csv") if (one := of_throughput(row))]
    found += [one for one in held if key(one) not in known]
    return [replace(one, asked=at_rate(one.asked, rate)) for one in found]


def read(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def key(row: Row) -> tuple[object, ...]:
    """Return what makes two rows the same measurement."""
    return (row.asked.shape.name, row.asked.shape.sequence, row.asked.cluster.world,
            row.asked.cluster.device, round(row.step_s or 0, 3), row.memory_bytes)  # fmt: skip


def calibrated(row: Row) -> float:
    """Return the factor on the H100's products with which a row's time is predicted."""
    low, high = 0.2, 1.0
    for _ in range(40):
        factor = (low + high) / 2
        slower = predicted(replace(row, asked=at_rate(row.asked, factor))).times.total[0]
        low, high = (factor, high) if slower > (row.step_s or 0) else (low, factor)
    return low


def at_rate(asked: PlanQuestion, factor: float) -> PlanQuestion:
    """Return the same with a 500 W H100's rate; other devices stay as they are."""
    if asked.cluster.name != "h100-500w":
        return asked
    products = {
        name: Rate(per_s=rate.per_s * factor, source="one row of torchtitan's table")
        for name, rate in asked.cluster.products.items()
    }
    return replace(asked, cluster=replace(asked.cluster, products=products))


def cluster_of(name: str, count: int) -> PlannedCluster:
    local = min(8, count)
    cluster = parse_cluster(f"{name.partition('-')[0]}:{local}x{max(1, count // local)}")
    if name == "h100-500w":
        memory = Rate(per_s=2400e9 * 0.898, source="2.4 TB/s, as the table says")
        return replace(cluster, name=name, memory=memory, memory_bytes=96e9)
    return cluster


def match(table: dict[str, str], text: str) -> str | None:
    return next((name for form, name in table.items() if re.search(form, text, re.I)), None)


def number(text: str) -> int:
    return int(float(text)) if text and text.replace(".", "").isdigit() else 0


def of_run(row: dict[str, str]) -> Row | None:
    name, device = match(NAMES, row["model"]), match(DEVICES, row["gpu"])
    if not name or not device or row["metric"] == "tflops_per_gpu":
        return None
    old = device == "a100"
    own = row["id"]
    stack = STACKS["torch" if own.startswith("titan") else "megatron"]
    if old:
        stack = replace(stack, flash=False, sequence_parallel=row["seq_parallel"] == "1")
    if own.startswith("mtnlg"):
        stack = STACKS["deepspeed"]
    if "asynctp" in own:
        stack = replace(stack, overlap_tensor=0.5)
    checkpointing = row["recompute"] or ("full" if own.startswith("mtnlg") else "")
    if "h200" in own:  # the page says so
        checkpointing = "selective"
    sharding = {"fsdp": "full", "1": "optimizer"}.get(row["optimizer_sharding"], "none")
    if own.startswith(("megatron-llama", "primus")) and sharding == "none":
        sharding = "optimizer"
    part = {"activation_memory": "activations", "param_grad_optimizer_memory": "states"}
    return made(
        own, False, find_shape(name, sequence=number(row["seq"]) or 8192), device, stack,
        count=number(row["num_gpus"]), tp=number(row["tp"]), pp=number(row["pp"]),
        vpp=number(row["vpp"]), cp=number(row["cp"]), ep=number(row["ep"]),
        batch=number(row["global_batch"]), micro=number(row["micro_batch"]), sharding=sharding,
        checkpointing=checkpointing, precision=row["precision"], metric=row["metric"],
        measured=float(row["measured"]), part=part.get(row["metric"], "total"),
    )  # fmt: skip


def of_throughput(row: dict[str, str]) -> Row | None:
    """Return a held-out row; those that are no measurement of pretraining are left out."""
    name, device = match(NAMES, row["model"]), match(DEVICES, row["gpu"])
    told = f"{row['kind']} {row['caveat']}"
    gpt = row["model"].startswith("GPT ") and row["layers"]
    skipped = re.search(r"floor|LOW TRUST|LoRA|MLPerf|proxy", f"{told} {row['model']}")
    if (not name and not gpt) or not device or "GB200" in row["gpu"] or skipped:
        return None
    if re.search(r"FP4|power limited|rowwi", f"{row['precision']} {row['gpu']}", re.I):
        return None
    shape = (
        gpt_shape(row) if gpt else find_shape(str(name), sequence=number(row["seq_len"]) or 8192)
    )
    tokens, tflops, seconds = row["tokens_per_s_per_gpu"], row["tflops_per_gpu"], row["iter_time_s"]
    measured, metric = (float(tokens), "tokens_per_s_per_gpu") if tokens else (0.0, "")
    if not tokens and tflops and gpt:
        # arXiv:2104.04473, equation 3 and the README: the table of 2021 counts recomputation.
        measured, metric = float(tflops) * 1e12 / gpt_flops(shape, row), "tokens_per_s_per_gpu"
    if seconds and not metric:
        measured, metric = float(seconds), "iteration_time"
    if not metric:
        return None
    framework = row["framework"]
    titan = framework.startswith(("torchtitan", "NeMo"))
    stack = STACKS["torch" if titan else "megatron"]
    if device == "a100":
        stack = STACKS["megatron-2021"]
    if "AsyncTP" in row["other"] or "tp-comm-overlap" in row["other"]:
        stack = replace(stack, overlap_tensor=0.5)
    text = row["act_ckpt"]
    checkpointing = next((one for one in ("full", "selective", "none") if one in text), "")
    fsdp = "FSDP" in row["dp_or_fsdp"]
    return made(
        f"throughput-{row['id']}", True, shape, device, stack, count=number(row["n_gpus"]),
        tp=number(row["tp"]), pp=number(row["pp"]), vpp=number(row["vpp"]), cp=number(row["cp"]),
        ep=number(row["ep"]), batch=number(row["gbs"]), micro=number(row["mbs"]),
        sharding="full" if fsdp else "optimizer", checkpointing=checkpointing,
        precision=row["precision"], metric=metric, measured=measured, part="total",
        open_to=("micro_batch", "checkpointing") if gpt and not number(row["mbs"]) else (),
    )  # fmt: skip


def gpt_shape(row: dict[str, str]) -> Shape:
    hidden, heads = number(row["hidden"]), number(row["heads"])
    return Shape(
        name=row["model"], layers=number(row["layers"]), hidden=hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, intermediate=4 * hidden, vocabulary=number(row["vocab"]),
        sequence=number(row["seq_len"]), gated=False, tied=True,
    )  # fmt: skip


def gpt_flops(shape: Shape, row: dict[str, str]) -> float:
    """Return the operations of a token by the formula of the table that tells TFLOP/s."""
    counted = 96 if "full" in row["act_ckpt"] else 72
    layers, hidden = shape.layers, shape.hidden
    inside = 1 + shape.sequence / (6 * hidden) + shape.vocabulary / (16 * layers * hidden)
    return counted * layers * hidden**2 * inside


def made(
    own: str, held_out: bool, shape: Shape, device: str, stack: Stack, *, count: int, tp: int,
    pp: int, vpp: int, cp: int, ep: int, batch: int, micro: int, sharding: str, checkpointing: str,
    precision: str, metric: str, measured: float, part: str, open_to: tuple[str, ...] = (),
) -> Row | None:  # fmt: skip
    """Return a row with what it leaves open filled in; None if its layout does not divide."""
    tp, pp, vpp, cp, ep = (max(1, one) for one in (tp, pp, vpp, cp, ep))
    dp = count // (tp * pp * cp)
    if not dp or dp * tp * pp * cp != count or dp % ep:
        return None
    if pp > 1 and stack.name == "torch" and micro > 1:  # a local batch runs in micro-batches of 1
        batch, micro = batch or micro * dp, 1
    micro = micro or 1
    batch = batch or micro * dp * (4 * pp if pp > 1 else 1)
    fast = re.search(r"fp8|float8", precision, re.I)
    cluster = cluster_of(device, count)
    if fast and "fp8" not in cluster.products:
        return None
    layout = Layout(
        dp=dp, tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, micro_batch=micro,
        sharding=sharding, precision="fp8" if fast else "bf16",  # type: ignore[arg-type]
    )  # fmt: skip
    asked = PlanQuestion(shape=shape, cluster=cluster, stack=stack, batch=batch)
    for one in [checkpointing] if checkpointing else ["none", "selective", "full"]:
        layout = replace(layout, checkpointing=one)
        if evaluate(asked, columns([layout])).memory.total[0] <= room_bytes(cluster):
            break
    if open_to:
        layout = fastest(asked, layout, open_to)
    tokens = batch * shape.sequence
    step_s = {"iteration_time": measured, "tokens_per_s_per_gpu": tokens / count / (measured or 1)}
    return Row(
        id=own, held_out=held_out, asked=asked, layout=layout, step_s=step_s.get(metric),
        memory_bytes=measured * GIB if "memory" in metric else None, part=part,
    )  # fmt: skip


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
