"""Measured products of AMD GPUs beside the formula of `ratchet plan`, and the shares they imply.

    python benchmarks/scale/plan_products.py [--rows]

`published/products.csv` holds 458 products: microseconds of the tuned configurations of ROCm/aiter
(aiter/configs @e404860) for gfx942 and gfx950, up to 60 of each kind, chosen by the hash of their
sizes among those of 512 rows and 10^11 operations or more. Rows with several experts are one of the
two products of a fused layer of experts, with 256 rows or more each.

For each kind the last line has, as JSON, the share of the formula's rate that half of the rows
imply (by the hash of their sizes), and the error of the formula on the other half: with the plan's
own constants, and with that share.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ratchet.scale.plan.cluster import parse_cluster
from ratchet.scale.plan.layout import PRECISIONS
from ratchet.scale.plan.time import grouped_s, product_s

FILE = Path(__file__).parent / "published" / "products.csv"
NAMES = {"fp4": "mxfp4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One measured product, and the seconds of the formula."""

    kind: str
    sizes: str
    seen: bool
    measured_s: float
    predicted_s: float


def read() -> list[Measured]:
    with FILE.open(newline="") as file:
        return [_of(row) for row in csv.DictReader(file)]


def _of(row: dict[str, str]) -> Measured:
    cluster = parse_cluster(f"{row['device']}:1x1")
    place = np.array([PRECISIONS.index(NAMES.get(row["precision"], row["precision"]))])  # type: ignore[arg-type]
    names = ("experts", "rows", "columns", "inner")
    experts, *sizes = (np.array([float(row[one])]) for one in names)
    grouped = experts[0] > 1
    time_s = (
        grouped_s(cluster, experts, *sizes, place) if grouped else product_s(cluster, *sizes, place)
    )
    told = " x ".join(row[one] for one in names)
    kind = f"{row['device']} {row['precision']} {'experts' if grouped else row['scales']}".strip()
    return Measured(
        kind=kind, sizes=told, measured_s=float(row["us"]) * 1e-6, predicted_s=float(time_s[0]),
        seen=int(hashlib.sha256(told.encode()).hexdigest(), 16) % 2 == 0,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    kinds: dict[str, list[Measured]] = defaultdict(list)
    for one in read():
        kinds[one.kind].append(one)
        if options.rows:
            error = one.predicted_s / one.measured_s - 1
            print(f"{one.kind:20} {one.sizes:28} {one.measured_s * 1e6:9.1f} us {error:+7.1%}")
    found = {}
    for kind, rows in sorted(kinds.items()):
        share = float(np.median([one.predicted_s / one.measured_s for one in rows if one.seen]))
        held = np.array([one.predicted_s / one.measured_s for one in rows if not one.seen])
        found[kind] = {
            "seen": sum(one.seen for one in rows), "held": len(held), "share": round(share, 3),
            "error": round(float(np.median(abs(held - 1))), 3),
            "bias": round(float(np.median(held - 1)), 3),
            "error_with_share": round(float(np.median(abs(held / share - 1))), 3),
            "p90_with_share": round(float(np.quantile(abs(held / share - 1), 0.9)), 3),
        }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
