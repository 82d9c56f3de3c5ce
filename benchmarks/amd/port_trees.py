"""Count what `ratchet port` says of public CUDA trees: compiled, excused, failed.

    python benchmarks/amd/port_trees.py FOLDER [--target gfx942] [--only TREE] [--reasons]

FOLDER holds a tree a folder, such as clones of repositories. A kernel file is one that defines a
kernel. `by hand` are those in which the patch leaves an error, such as PTX. The others are compiled
with the patch: `compiled`; `excused` by a header or a library of ROCm that is not on this machine;
`torch` if the GPU's code needs more of torch's headers than torch's wheel for the CPU brings;
`alone` are headers that do not compile without what stands before them, and templates that nobody
instantiates; `failed` are the rest. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from ratchet.amd.port.compile import Compilation, is_clean
from ratchet.amd.port.porting import PortSettings, port

EXCUSES = {"excused": "is not on this machine", "torch": "more of torch's headers than are here"}
KINDS = ("compiled", *EXCUSES, "alone", "failed")


def kind_of(one: Compilation) -> str:
    """Return in which column a file counts."""
    if one.status != "not compiled":
        return one.status
    return next((kind for kind, words in EXCUSES.items() if words in one.why), "alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="gfx942")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--reasons", action="store_true", help="print why each file is not compiled"
    )
    asked = parser.parse_args()
    rows = {}
    print(f"{'tree':42} {'kernel files':>12} {'by hand':>8}", *(f"{one:>9}" for one in KINDS))
    for tree in sorted(one for one in asked.folder.iterdir() if one.is_dir()):
        if asked.only not in tree.name:
            continue
        result = port(tree, PortSettings(targets=(asked.target,)))
        kernels = [one for one in result.scanned if one.has_kernels]
        by_hand = Counter(
            found.rule
            for one in kernels
            if not is_clean(one)
            for found in one.findings
            if found.severity == "error" and not found.fixable and found.rule != "api-name"
        )
        kinds = Counter(map(kind_of, result.compiled))
        left = sum(not is_clean(one) for one in kernels)
        rows[tree.name] = {"kernel_files": len(kernels), "by_hand": left, **kinds}
        print(f"{tree.name:42} {len(kernels):12} {left:8}", *(f"{kinds[one]:9}" for one in KINDS))
        if asked.reasons:
            for one in result.compiled:
                if one.status != "compiled":
                    print(f"    {kind_of(one)}: {one.file}: {one.why}")
            print(f"    by hand: {dict(by_hand.most_common())}", flush=True)
    total: Counter[str] = Counter()
    for row in rows.values():
        total.update(row)
    tried = sum(total[one] for one in KINDS)
    answered = (total["compiled"] + total["excused"]) / max(1, tried)
    print(json.dumps({"trees": len(rows), **total, "compiled_or_excused": round(answered, 4)}))


if __name__ == "__main__":
    main()
