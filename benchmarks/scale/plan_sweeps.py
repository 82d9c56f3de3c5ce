"""Published sweeps of layouts, `published/sweeps.csv`, and how well `ratchet plan` predicts them.

    python benchmarks/scale/plan_sweeps.py [--rows] [--held-out]

354 rows: BLOOM's search for a layout (Megatron-DeepSpeed, 384 A100), MosaicML's table of GPT models
of 125 M to 70 B (FSDP, A100 and H100), rows of Megatron-LM's tables that `throughput.csv` lacks,
and MegaScale's runs of Megatron-LM. The 14 rows of MegaScale and of table 2 of arXiv:2104.04473
were typed without the papers at hand; their MFU and days agree with what the papers report. A row
says its network; what else it leaves open stands in its note. A third of the rows is held out by
the hash of their names: no term of the model was chosen by them, and without --held-out they are
not shown.

The last line is JSON: for each source the rows, the median and the 90th percentile of the error
without its sign and the bias, for the rows seen and the rows held out. Memory is that of BLOOM's
search, as nvidia-smi shows it: with what the driver takes.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from ratchet.scale.plan.cluster import GIB, RESERVED_BYTES, PlannedCluster, parse_cluster
from ratchet.scale.plan.layout import Layout, columns, find_stack
from ratchet.scale.plan.search import Evaluated, PlanQuestion, evaluate, layouts_of, room_bytes
from ratchet.scale.plan.shape import Shape

SWEEPS = Path(__file__).parent / "published" / "sweeps.csv"
SHARDINGS = {"gradients": "optimizer"}
"""Words of a row that a layout has not: ZeRO-2 sends what ZeRO-1 sends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    """One row: what was measured, and the layout that gave it."""

    id: str
    asked: PlanQuestion
    layout: Layout
    step_s: float
    memory_bytes: float | None

    @property
    def source(self) -> str:
        return self.id.partition("-")[0]

    @property
    def held_out(self) -> bool:
        return int(hashlib.sha256(self.id.encode()).hexdigest(), 16) % 3 == 0

    def predicted(self) -> Evaluated:
        return evaluate(self.asked, columns([self.layout]))

    def error(self) -> float:
        """Return the predicted time over the measured one, less 1."""
        return float(self.predicted().times.total[0]) / self.step_s - 1

    def memory_error(self) -> float:
        """Return the predicted memory, the driver's too, over the measured one, less 1."""
        assert self.memory_bytes
        return float(self.predicted().memory.total[0] + RESERVED_BYTES) / self.memory_bytes - 1


def read_sweeps() -> list[Swept]:
    with SWEEPS.open(newline="") as file:
        return [_of(row) for row in csv.DictReader(file)]


def _of(row: dict[str, str]) -> Swept:
    shape, count = _shape(row), int(row["gpus"])
    cluster = _cluster(row["gpu"], count, float(row["network_gb_per_s"]))
    tp, pp = int(row["tp"]), int(row["pp"])
    stack, dp = find_stack(row["stack"]), count // (tp * pp)
    if "overlaps tensor" in row["note"]:
        stack = replace(stack, overlap_tensor=0.5)
    asked = PlanQuestion(shape=shape, cluster=cluster, stack=stack, batch=int(row["batch"]))
    layout = Layout(
        dp=dp, tp=tp, pp=pp, vpp=int(row["vpp"] or 1), micro_batch=int(row["micro"] or 1),
        sharding=SHARDINGS.get(row["sharding"], row["sharding"]),  # type: ignore[arg-type]
        checkpointing=row["checkpointing"] or "none",  # type: ignore[arg-type]
        precision=row["precision"],  # type: ignore[arg-type]
    )  # fmt: skip
    if not row["micro"]:
        layout = fastest(asked, layout, ("micro_batch", "checkpointing"))
    memory = float(row["memory_gb"]) * GIB if row["memory_gb"] else None
    return Swept(
        id=row["id"], asked=asked, layout=layout, step_s=_step_s(row, asked), memory_bytes=memory
    )


def fastest(
    asked: PlanQuestion, layout: Layout, open_to: tuple[str, ...], told_bytes: float = 0.0
) -> Layout:
    """Return the fastest layout that fits, of those that agree with one but for some fields.

    If the memory of a device is told, it is the layout that comes nearest to it.
    """
    every = layouts_of(asked)
    alike = np.ones(len(every), dtype=bool)
    given = columns([layout])
    for one in fields(every):
        if one.name not in open_to:
            alike &= getattr(every, one.name) == getattr(given, one.name)[0]
    found = evaluate(asked, every.take(alike))
    if told_bytes and alike.any():
        apart = np.abs(found.memory.total + RESERVED_BYTES - told_bytes)
        return found.layouts.row(int(np.argmin(apart)))
    fits = np.flatnonzero(found.memory.total <= room_bytes(asked.cluster))
    if not len(fits):
        return layout
    return found.layouts.row(int(fits[np.argmin(found.times.total[fits])]))


def _shape(row: dict[str, str]) -> Shape:
    hidden, heads = int(row["hidden"]), int(row["heads"])
    return Shape(
        name=row["id"], layers=int(row["layers"]), hidden=hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, intermediate=4 * hidden, vocabulary=int(row["vocab"]),
        sequence=int(row["seq"]), gated=False, tied=True,
    )  # fmt: skip


def _cluster(name: str, count: int, network_gb_per_s: float) -> PlannedCluster:
    device = {"a100-40gb": "a100-sxm-40gb"}.get(name, name)
    local = min(8, count)
    return parse_cluster(f"{device}:{local}x{count // local}", network_gb_per_s=network_gb_per_s)


def _step_s(row: dict[str, str], asked: PlanQuestion) -> float:
    """Return the seconds of a step that a row's figure means."""
    measured, metric = float(row["measured"]), row["metric"]
    tokens = asked.batch * asked.shape.sequence / asked.cluster.world
    if metric == "step_s":
        return measured
    if metric == "tokens_per_s_per_gpu":
        return tokens / measured
    # arXiv:2104.04473, equation 3, counts recomputation: 96; the README's later table: 72.
    shape, counted = asked.shape, int(metric.removeprefix("tflops_"))
    inside = 1 + shape.sequence / (6 * shape.hidden)
    inside += shape.vocabulary / (16 * shape.layers * shape.hidden)
    return tokens * counted * shape.layers * shape.hidden**2 * inside / (measured * 1e12)


def summary(rows: list[Swept]) -> dict[str, object]:
    """Return rows, median and 90th percentile of the error, and bias, of each source."""
    found: dict[str, object] = {}
    for source in (*sorted({row.source for row in rows}), "all"):
        errors = np.array([row.error() for row in rows if source in (row.source, "all")])
        found[source] = {
            "rows": len(errors),
            "median": round(float(np.median(abs(errors))), 4),
            "p90": round(float(np.quantile(abs(errors), 0.9)), 4),
            "bias": round(float(np.median(errors)), 4),
        }
    sized = [row.memory_error() for row in rows if row.memory_bytes]
    found["memory"] = {
        "rows": len(sized),
        "median": round(float(np.median(np.abs(sized))), 4),
        "bias": round(float(np.median(sized)), 4),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--held-out", action="store_true", help="the rows held out too")
    options = parser.parse_args()
    rows = read_sweeps()
    groups = {"seen": [row for row in rows if not row.held_out]}
    if options.held_out:
        groups["held_out"] = [row for row in rows if row.held_out]
    for row in (one for group in groups.values() for one in group if options.rows):
        shape, layout = row.asked.shape, row.layout
        print(f"{row.id:24} {row.step_s:9.3f} s {row.error():+7.1%} {layout.words()} "
              f"m={layout.micro_batch} h={shape.hidden} a={shape.heads} s={shape.sequence} "
              f"{layout.checkpointing}")  # fmt: skip
    print(json.dumps({name: summary(group) for name, group in groups.items()}))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
