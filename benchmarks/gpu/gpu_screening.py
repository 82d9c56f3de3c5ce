"""Screen sixteen Triton kernels of the search on a GPU with cold caches, and say how long it took.

    python benchmarks/gpu/gpu_screening.py [--device cuda] [--kernels 16] [--problem silu]
        [--tier gpu]

One JSON object a line: the seconds, how many kernels were screened as right, and what became of the
others, with a reason of each kind. The exit code is 1 if none was right.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter

from ratchet.base.ledger import Ledger
from ratchet.judge.court.court import Court
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.terms import Terms
from ratchet.write.generator import space_for


def kernels_of(name: str, count: int) -> list[Kernel]:
    """Return different kernels that the generator writes in Triton for a problem."""
    space = space_for(find_problem(name), device="cuda")
    source = random.Random(0)
    found: dict[str, Kernel] = {}
    for _ in range(20 * count):
        kernel = space.kernel(space.draw(source))
        found.setdefault(kernel.hash, kernel)
        if len(found) == count:
            break
    return list(found.values())


def main() -> int:
    """Screen them as an author's proposals are: on a GPU by short verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tier", default="gpu")
    parser.add_argument("--kernels", type=int, default=16)
    parser.add_argument("--problem", default="silu")
    parser.add_argument("--time-limit", type=float, default=60.0)
    asked = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")  # on stderr: what takes the seconds
    logging.getLogger("ratchet.judge.trial").setLevel(logging.DEBUG)
    kernels = kernels_of(asked.problem, asked.kernels)
    problem = find_problem(asked.problem).at(asked.tier)
    terms = Terms(time_limit_s=asked.time_limit, device=asked.device)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        with Court(Ledger.open(f"sqlite:///{folder}/ledger.db")) as court:
            began = time.monotonic()
            answers = court.screen(kernels, problem, terms)
            took_s = time.monotonic() - began
    said = Counter(one.status for one in answers)
    row = {"screened": len(kernels), "right": said["screened"], "took_s": round(took_s, 1)}
    others = {one.status: one.reason[:300] for one in answers if one.status != "screened"}
    print(json.dumps({**row, "answers": said, "others": others}), flush=True)
    return int(not said["screened"])


if __name__ == "__main__":
    sys.exit(main())
