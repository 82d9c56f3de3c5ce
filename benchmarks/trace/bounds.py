"""The share of a trace's device time that has a bound, and of that which beats its ceiling.

    python benchmarks/trace/bounds.py TRACE... [--capture TRACE]

Communication does not count. A row is beaten if its calls took less than the ceiling allows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ratchet.trace.answers.report import report
from ratchet.trace.read import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--capture", type=Path)
    given = parser.parse_args()
    capture = read(given.capture) if given.capture else None
    for path in given.traces:
        found = report(read(path), capture=capture)
        total = max(sum(row.time for row in found.roofline), 1)
        known = sum(row.time for row in found.roofline if row.known)
        beaten = sum(row.time for row in found.roofline if row.least > row.time)
        unlinked = sum(row.unlinked for row in found.kernels)
        print(
            f"{path.name}: {known / total:.1%} with a bound, {beaten / total:.1%} beat their "
            f"ceiling; {unlinked:,} of {sum(row.count for row in found.kernels):,} runs unlinked"
        )


if __name__ == "__main__":
    main()
