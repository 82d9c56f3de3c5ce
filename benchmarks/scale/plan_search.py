"""How well `ratchet plan` predicts published training runs, and how fast it searches.

    python benchmarks/scale/plan_search.py [--rows]
    python benchmarks/scale/plan_search.py --here llama-8m   # layouts that run on this machine

Every row of `published/runs.csv` and `published/throughput.csv` is asked (`published_rows.py`).
runs.csv was seen while the model was written; throughput.csv is held out, but for what `SET_BY`
names. Rows that are floors, times to train or distrusted are planned and not counted; those whose
device, sequence, layout or power is a guess are a group of their own.

The baseline is the strongest constant: each row gets the median efficiency of all other rows.
With --here, a workload's layouts are measured on ranks of this machine and planned, as by
`ratchet plan WORKLOAD --measured`; two rows set the rates.

The ten worst held rows are printed with what limits them. The last line is JSON: for each group of
rows the count, the median and the 90th percentile of the error of the step time without its sign
and the bias, memory_error, plans_per_s, products (published rates of single products) and
fronts_contain_published.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from published_rows import ProductRow, Row, Table, read_table

from ratchet.base.devices.probe import probe
from ratchet.base.errors import PlanError
from ratchet.scale.parallel.bench import bench_parallel
from ratchet.scale.plan.calibrate import check
from ratchet.scale.plan.cluster import GIB, parse_cluster
from ratchet.scale.plan.layout import PRECISIONS, STACKS
from ratchet.scale.plan.search import evaluate, layouts_of, make_asked, room_bytes
from ratchet.scale.plan.shape import find_shape
from ratchet.scale.plan.time import product_s
from ratchet.train.workloads.parallel import parse_parallel

HERE = ("dp=1", "dp=2", "fsdp=2", "tp=2", "pp=2", "fsdp=2,micro=2")
"""Layouts of two ranks at most, for --here."""
SET_BY = {
    "titan-8b-fsdp8-bf16-compile": "the power's exponent on NVIDIA devices",
    "throughput-109": "EXPERT_CASTS of `ratchet.scale.plan.time`",
}
"""Rows by which a constant of the model was set: they are not counted."""
WORST = 10
LIMITS: dict[str, str] = {
    r"power limited": "the watts to which it was limited are not told",
    r"balancing=false": "the router was not balanced, by how much is not told",
    r"Llama 4 Scout": "nothing is recomputed, it says, for which it would need five times its "
    "memory",
    r"float8 rowwise": "a scale for each row makes it slower than bf16 in its own table, which "
    "does not say why",
    r"LoRA": "adapters add small products, which are not counted",
    r"implied|own inference": "device, sequence, batch or model is the reader's inference",
    r"GitHub ROCm|secondary": "sequence, layout or batch is not told",
    r"DeepSeek-V2": "each expert's product is launched alone (its script sets LEGACY_GG=True) and "
    "synchronised with the host, which Primus names as the bottleneck",
    r"Qwen3 30B.*FP8-CS": "casts of 16 small experts a device are kernels of their own, each "
    "launched by the host: 33 ms a layer",
    r"GPT.OSS": "attention with sinks and experts with biases: their kernels' rates are not known",
    r"B.00 .*MXFP8|B200.*FP8-MX": "each expert's casts and products are launched by the host, how "
    "fast is not known",
}
"""What limits the prediction of a row, by words of its id and its own text."""


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
    table = read_table()
    counted = [row for row in table.rows if row.step_s and not row.apart and row.id not in SET_BY]
    timed = [row for row in counted if not row.guessed]
    constant = constant_errors(timed)
    sized = [row for row in table.rows if row.memory_bytes]
    memory = {row.id: memory_of(row) / row.memory_bytes - 1 for row in sized if row.memory_bytes}
    if options.rows:
        show_rows(table, constant, memory)
    show_worst([row for row in counted if row.held_out])
    groups = {
        "seen": [row for row in timed if not row.held_out],
        "held_dense": [row for row in timed if row.held_out and not row.moe],
        "held_moe": [row for row in timed if row.held_out and row.moe],
        "new_dense": [row for row in timed if row.new and not row.moe],
        "new_moe": [row for row in timed if row.new and row.moe],
        "told": timed,
        "guessed": [row for row in counted if row.guessed],
    }
    print(json.dumps({
        "rows": {
            "planned": len(table.rows), "counted": len(counted), "memory": len(sized),
            "products": len(table.products), "told_twice": len(table.twice),
            "apart": sum(bool(row.apart) for row in table.rows), "refused": len(table.refused),
        },
        "error": {name: summary([row.error() for row in rows]) for name, rows in groups.items()},
        "constant": summary(list(constant.values())),
        "products": summary([product_error(row) for row in table.products]),
        "memory_error": round(statistics.median(map(abs, memory.values())), 4),
        "plans_per_s": round(plans_per_s()),
        "fronts_contain_published": fronts(timed),
    }))  # fmt: skip


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Return the rows, the median and the 90th percentile without the sign, and the bias."""
    sizes = np.abs(errors)
    return {
        "rows": len(errors), "median": round(float(np.median(sizes)), 4),
        "p90": round(float(np.quantile(sizes, 0.9)), 4),
        "bias": round(float(np.median(errors)), 4),
    }  # fmt: skip


def show_rows(table: Table, constant: dict[str, float], memory: dict[str, float]) -> None:
    for row in table.rows:
        layout = f"{row.layout.words()} {row.layout.checkpointing} {row.layout.precision}"
        if row.step_s:
            beside = f"constant {constant[row.id]:+.1%}" if row.id in constant else "not counted"
            marks = " ".join(one for one in ("new", "guessed") if getattr(row, one))
            why = row.apart or SET_BY.get(row.id, marks)
            print(f"{row.id:52} {row.step_s:9.3f} s {row.error():+7.1%} ({beside}) {layout} {why}")
        elif row.memory_bytes:
            print(f"{row.id:52} {row.memory_bytes / GIB:9.2f} GiB {memory[row.id]:+7.1%}")
        else:
            told = row.predicted().plan(row.asked, 0)
            print(f"{row.id:52} planned {told.step_s:.3f} s, {told.tokens_per_s:,.0f} tokens/s "
                  f"{layout} {row.apart}")  # fmt: skip
    for one in table.products:
        print(f"{one.id:52} {one.flops_per_s / 1e12:9.0f} TFLOP/s {product_error(one):+7.1%}")
    for own, why in table.refused.items():
        print(f"{own:52} no plan: {why}")
    print(f"told twice: {', '.join(table.twice)}")


def show_worst(rows: Sequence[Row]) -> None:
    for row in sorted(rows, key=lambda one: -abs(one.error()))[:WORST]:
        text = f"{row.id} {row.told}"
        limit = next((why for form, why in LIMITS.items() if re.search(form, text)), "not known")
        print(f"{row.error():+7.1%} {row.id} {row.asked.shape.name} on {row.asked.cluster.name}, "
              f"{row.layout.words()}: {limit}")  # fmt: skip


def product_error(row: ProductRow) -> float:
    """Return the predicted time of a product over the measured one, less 1."""
    sizes = [np.array([one]) for one in row.sizes]
    place = PRECISIONS.index(row.precision)  # type: ignore[arg-type]
    time_s = float(product_s(row.cluster, *sizes, np.array([place]))[0])
    return time_s * row.flops_per_s / (2.0 * float(np.prod(row.sizes))) - 1


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


def memory_of(row: Row) -> float:
    found = row.predicted().memory
    if row.part == "activations":
        return float(found.activations[0])
    if row.part == "states":
        return float((found.weights + found.gradients + found.optimizer)[0])
    return float(found.total[0])


def constant_errors(rows: Sequence[Row]) -> dict[str, float]:
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


def fronts(rows: Sequence[Row]) -> str:
    """Return of how many published layouts the search finds one that is at least as good."""
    good = 0
    for row in rows:
        mine = row.predicted()
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


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
