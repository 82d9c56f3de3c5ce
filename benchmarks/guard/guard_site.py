"""Time `ratchet site` on a ledger of many made-up results, and name its largest page.

python benchmarks/guard/guard_site.py                               # 100 series of 1,000
python benchmarks/guard/guard_site.py --series 5000 --results 20
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Observation, ObservationBook
from ratchet.guard.site import write_site

METRICS = ("step_time_s", "first_step_s", "peak", "tokens")


def made_up(series: int, results: int) -> Iterator[Observation]:
    """Yield results with 1 % of noise; every fifth series gets 10 % slower halfway."""
    rng, start = np.random.default_rng(1), datetime(2026, 1, 1, tzinfo=UTC)
    for one in range(series):
        values = 0.1 * (1 + 0.01 * rng.standard_normal(results))
        if one % 5 == 0:
            values[results // 2 :] *= 1.1
        for at, value in enumerate(values):
            yield Observation(
                benchmark=f"benchmark {one // len(METRICS)} of a usual name",
                metric=METRICS[one % len(METRICS)],
                unit="s",
                better="lower",
                revision=f"{at:040x}",
                committed_at=(start + timedelta(hours=at)).isoformat(timespec="seconds"),
                value=float(value),
                device=f"machine-{one // len(METRICS) % 3}",
                software="torch 2.13",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--results", type=int, default=1000, help="results of each series")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with Ledger.open(place / "ledger.db") as ledger:
            ObservationBook(ledger).record(made_up(asked.series, asked.results))
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            found = write_site(ledger, place / "public")
            took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(
        f"{found.results:,} results in {asked.series:,} series: {took_s:.1f} s ({cpu_s:.1f} s of "
        f"CPU time), {found.pages:,} pages, {found.size_bytes / 1e6:.1f} MB, the largest "
        f"{found.largest_bytes / 1e3:.0f} kB, left out {found.left_out or 'nothing'}"
    )


if __name__ == "__main__":
    main()
