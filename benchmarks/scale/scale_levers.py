"""How much communication do the levers hide, on gloo ranks behind a link of a set bandwidth?

    python benchmarks/scale/scale_levers.py [--ranks 2] [--rate 500mbit] [--rounds 12]
    python benchmarks/scale/scale_levers.py --lo   # all ranks in this namespace, without a limit

Each rank is a host of its own: a network namespace, joined to a bridge by a veth pair whose ends
send at most `--rate` (tc's token bucket). That takes root, `ip` and `tc`. torchrun starts one rank
in each namespace. DDP's defaults and the levers live in the same ranks, and are
timed next to each other; the step's time is the slowest rank's. Exposed communication comes from
profiler traces; the rank that exposes most counts. Losses are those of the same batches. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ratchet.base import scratch
from ratchet.base.measure.estimate import aa_floor, compare
from ratchet.base.process import families
from ratchet.scale.parallel.launch import communication_of
from ratchet.scale.parallel.rank import RankRequest, RankResult
from ratchet.train.recipe import Candidate
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.parallel import ParallelTuning, parse_parallel

DEFAULTS, TWIN = "ddp", "twin"
TUNINGS = {
    DEFAULTS: ParallelTuning(),
    TWIN: ParallelTuning(),
    "no-sync": ParallelTuning(no_sync=True),
    "bf16-reduction": ParallelTuning(reduction="bf16"),
    "powersgd": ParallelTuning(reduction="powersgd"),
    "no-sync+bf16": ParallelTuning(no_sync=True, reduction="bf16"),
}
LOSS_NOISE = 2e-3
"""Largest relative difference of losses that counts as the same."""
PORT, SUBNET = 29511, "10.213.77"


def ip(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def hosts(count: int, rate: str) -> Iterator[list[str]]:
    """Make `count` namespaces on a bridge, and yield their names; all are removed at the end."""
    mark = f"rt{os.getpid() % 100000}"
    names = [f"{mark}n{rank}" for rank in range(count)]
    bridge = f"{mark}b"
    try:
        ip("ip", "link", "add", bridge, "type", "bridge")
        ip("ip", "link", "set", bridge, "up")
        for rank, name in enumerate(names):
            outside, inside = f"{mark}o{rank}", f"{mark}i{rank}"
            ip("ip", "netns", "add", name)
            ip("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
            ip("ip", "link", "set", inside, "netns", name)
            ip("ip", "link", "set", outside, "master", bridge, "up")
            within = ("ip", "netns", "exec", name)
            ip(*within, "ip", "addr", "add", f"{SUBNET}.{rank + 1}/24", "dev", inside)
            ip(*within, "ip", "link", "set", "lo", "up")
            ip(*within, "ip", "link", "set", inside, "up")
            limit = ("rate", rate, "burst", "256kb", "latency", "50ms")
            ip(*within, "tc", "qdisc", "add", "dev", inside, "root", "tbf", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def run(asked: RankRequest, folder: Path, names: Sequence[str], ranks: int) -> list[RankResult]:
    """Run the request with one rank in each namespace, or all of them here without names."""
    request = folder / "request.json"
    request.write_bytes(msgspec.json.encode(asked))
    program = ("-m", "ratchet.scale.parallel.rank", str(request), str(folder))
    start = (sys.executable, "-m", "torch.distributed.run")
    where = f"--master-addr={SUBNET}.1", f"--master-port={PORT}"
    if names:
        mark = names[0].removesuffix("n0")
        commands = [
            ("ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={mark}i{rank}", *start,
             f"--nnodes={ranks}", f"--node-rank={rank}", "--nproc-per-node=1", *where, *program)
            for rank, name in enumerate(names)
        ]  # fmt: skip
    else:
        commands = [(*start, "--standalone", f"--nproc-per-node={ranks}", *program)]
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    log = (folder / "ranks.log").open("wb")
    children = [
        subprocess.Popen(one, env=environment, stdout=log, stderr=log, start_new_session=True)
        for one in commands
    ]
    try:
        codes = [child.wait(timeout=3600) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                families.end_session(child.pid)
                child.wait()
        log.close()
    if any(codes):
        said = [one.read_text() for one in folder.glob("error_*.txt")]
        sys.exit(said[0] if said else (folder / "ranks.log").read_text()[-3000:])
    files = (folder / f"rank_{rank}.json" for rank in range(ranks))
    return [msgspec.json.decode(one.read_bytes(), type=RankResult) for one in files]


def rows(found: Sequence[RankResult], folder: Path) -> list[Mapping[str, float | str | bool]]:
    """Return each arm's figures beside DDP's defaults."""
    samples = found[0].samples
    floor = aa_floor(samples, DEFAULTS, TWIN)
    losses = found[0].arms[DEFAULTS].losses
    told: list[Mapping[str, float | str | bool]] = []
    exposed: dict[str, float] = {}
    for name in TUNINGS:
        talk = [communication_of(folder / one.arms[name].trace) for one in found]
        exposed[name] = max(one.exposed_s for one in talk)
        own = found[0].arms[name].losses
        apart = max(abs(a / b - 1) for a, b in zip(own, losses, strict=True))
        row: dict[str, float | str | bool] = {
            "arm": name,
            "communication_s": max(one.total_s for one in talk),
            "exposed_s": exposed[name],
            "exposed_cut": 1 - exposed[name] / exposed[DEFAULTS],
            "losses_apart": apart,
            "same_losses": apart < LOSS_NOISE,
        }
        if name != DEFAULTS:
            one = compare(samples, baseline=DEFAULTS, new=name, floor=floor)
            row |= {"ratio": one.ratio, "low": one.low, "high": one.high, "answer": one.answer}
        told.append(row)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--rate", default="500mbit")
    parser.add_argument("--workload", default="llama-8m")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches in a step")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--lo", action="store_true", help="one namespace, no limit")
    given = parser.parse_args()
    if not given.lo and (os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc"))):
        sys.exit("namespaces need root, ip and tc: run it as root, or with --lo")
    layout = parse_parallel(f"dp={given.ranks},micro={given.micro}")
    asked = RankRequest(
        workload=given.workload,
        options={"device": "cpu", "batch_size": given.ranks * given.micro},
        layout=str(layout),
        arms={
            name: Candidate(title=name, config=StepConfig(), tuning=tuning)
            for name, tuning in TUNINGS.items()
        },
        rounds=given.rounds,
    )
    began_s = time.monotonic()
    link = contextlib.nullcontext([]) if given.lo else hosts(given.ranks, given.rate)
    with scratch.folder("scale") as folder, link as names:
        told = rows(run(asked, folder, names, given.ranks), folder)
    for row in told:
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value)
                        for key, value in row.items()))  # fmt: skip
    best = max((row for row in told if row["same_losses"]), key=lambda row: row["exposed_cut"])
    print(json.dumps({
        "workload": given.workload, "layout": str(layout), "link": "lo" if given.lo else given.rate,
        "rows": told, "best": best["arm"], "exposed_cut": best["exposed_cut"],
        "halved": float(best["exposed_cut"]) >= 0.5, "seconds": time.monotonic() - began_s,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
