"""Faults of one rank injected into simulated jobs of 8 to 64 ranks, and what `ratchet debug` says.

    python benchmarks/scale/rank_faults.py [--said] [--seeds N]

Each job is data, tensor, pipeline and expert parallel, with groups nested in each other; its ranks
run until all wait, and leave the dumps that torch's flight recorder writes
(`tests/simulated_ranks`). A fault is found if the first finding names the faulty rank alone, its
operation and its line, and if no finding names a rank that is well. With --seeds, each fault is
drawn N times more, at other ranks and sizes of the job.

The last line is JSON: faults found of those injected, and findings that accuse a healthy rank.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from simulated_ranks import LINES, SCRIPT, Call, Job, Rank

from ratchet.base.errors import RanksError
from ratchet.scale.ranks.dumps import read_dumps
from ratchet.scale.ranks.untangle import untangle

TP, SEND, RECV, DISPATCH, COMBINE = 12, 13, 10, 14, 15
"""Lines of the script: the second tensor parallel product, sends, receives, and the exchanges."""
BUCKET, GATHER = 31, 32


@dataclass(kw_only=True)
class NestedJob(Job):
    """A job whose replicas also spread experts: groups of `experts` of them inside each other."""

    experts: int = 2

    def _made_groups(self, world: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        made = list(super()._made_groups(world))
        yield from made
        for family, members in made:
            if family == "DP" and self.experts > 1:
                for start in range(0, len(members), self.experts):
                    yield "EP", members[start : start + self.experts]

    def _program(self, rank: int) -> Iterator[Call]:
        for call in super()._program(rank):
            yield call
            if (call.family, call.line) == ("TP", TP) and self.experts > 1:
                for line in (DISPATCH, COMBINE):
                    yield Call(family="EP", operation="all_to_allv", line=line, function="experts")

    def document(self, rank: Rank) -> dict[str, Any]:
        """Return a dump in which each rank sends as many tokens as its router chose."""
        document = super().document(rank)
        for entry in document["entries"]:
            if entry["profiling_name"] == "nccl:all_to_allv":
                entry["input_sizes"] = [[64 + 3 * rank.number + entry["collective_seq_id"]]]
        return document


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A job with one faulty rank, and what must be said of it first."""

    job: Job
    rank: int
    operation: str
    line: int
    beside: Callable[[Path], None] = field(default=lambda folder: None)
    silent: tuple[
        int, ...
    ] = ()  # Other ranks without a readable dump: naming them is no accusation


Draw = random.Random


def nested(draw: Draw, **given: Any) -> NestedJob:
    """Return a job of 8 to 64 ranks."""
    data, tensor, pipeline = draw.choice([(4, 2, 1), (2, 2, 2), (4, 2, 2), (4, 2, 4), (4, 4, 4)])
    return NestedJob(data=data, tensor=tensor, pipeline=pipeline, **given)


def deep(draw: Draw, **given: Any) -> NestedJob:
    data, tensor, pipeline = draw.choice([(2, 2, 2), (4, 2, 4), (2, 2, 4), (4, 4, 4)])
    return NestedJob(data=data, tensor=tensor, pipeline=pipeline, **given)


def some(draw: Draw, job: Job, stage: int | None = None) -> int:
    ranks = [one.number for one in job.ranks if stage in (None, job.place(one.number)[0])]
    return draw.choice(ranks)


def stopped(job: Job, rank: int, family: str, line: int, **told: Any) -> Fault:
    """Let a rank stop before a call."""
    place = job.find(rank, family, line)
    job.ranks[rank].stops_at = place
    operation = job.ranks[rank].program[place].operation
    return Fault(job=job, rank=rank, operation=operation, line=line, **told)


def skipped(job: Job, rank: int, family: str, line: int) -> Fault:
    made = job.ranks[rank].program.pop(job.find(rank, family, line))
    return Fault(job=job, rank=rank, operation=made.operation, line=line)


def changed(job: Job, rank: int, of: str, line: int, **values: Any) -> Fault:
    was = job.change(rank, job.find(rank, of, line), **values)
    return Fault(job=job, rank=rank, operation=values.get("operation", was.operation), line=line)


def exits(draw: Draw) -> Fault:
    """A rank raises in the middle of a forward pass: no dump, and torchrun's log names it."""
    job = nested(draw)
    rank = some(draw, job)
    job.ranks[rank].dump = "none"

    def log(folder: Path) -> None:
        (folder / "torchrun.log").write_text(
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory.\n"
        )

    return stopped(job, rank, "TP", TP, beside=log)


def skips_of_many(draw: Draw) -> Fault:
    job = nested(draw)
    return skipped(job, some(draw, job), *draw.choice([("TP", TP), ("DP", BUCKET)]))


def no_receive(draw: Draw) -> Fault:
    job = deep(draw)
    return skipped(job, some(draw, job, stage=1), "PP", RECV)


def sizes(draw: Draw) -> Fault:
    job = nested(draw)
    return changed(job, some(draw, job), "DP", BUCKET, size=96)


def dtypes(draw: Draw) -> Fault:
    job = nested(draw)
    return changed(job, some(draw, job), "DP", BUCKET, dtype="Float")


def dtype_of_exchange(draw: Draw) -> Fault:
    job = nested(draw)
    return changed(job, some(draw, job), "EP", DISPATCH, dtype="Float8_e4m3fn")


def order_of_groups(draw: Draw) -> Fault:
    """A rank gathers for data parallelism before it joins the world's reduction, or after."""
    job = nested(draw)
    rank = some(draw, job)
    own, place = job.ranks[rank].program, job.find(rank, "DP", GATHER)
    own[place], own[place + 1] = own[place + 1], own[place]
    return Fault(job=job, rank=rank, operation=own[place].operation, line=own[place].line)


def loader(draw: Draw) -> Fault:
    """A rank waits for its data: it has a dump, and py-spy says where it is."""
    job = nested(draw)
    rank = some(draw, job, stage=0)
    family, line = ("TP", TP - 1)

    def stack(folder: Path) -> None:
        (folder / f"stack_{rank}.txt").write_text(
            f"Process 4{rank}: python train.py\nThread 4{rank} (idle): \"MainThread\"\n"
            "    _try_get_data (torch/utils/data/dataloader.py:1251)\n"
            f"    batches ({SCRIPT}:5)\n    main ({SCRIPT}:90)\n"
        )  # fmt: skip

    return stopped(job, rank, family, line, beside=stack)


def late(draw: Draw) -> Fault:
    """A rank is a whole step behind; the others run ahead of their devices."""
    job = nested(draw, ahead=draw.choice([2, 4]))
    rank = some(draw, job)
    place = job.find(rank, "DP", BUCKET - 1, step=0)
    job.ranks[rank].stops_at = place
    return Fault(job=job, rank=rank, operation="_reduce_scatter_base", line=BUCKET - 1)


def no_dump(draw: Draw) -> Fault:
    job = nested(draw)
    rank = some(draw, job)
    job.ranks[rank].dump = "none"
    return stopped(job, rank, "DP", BUCKET)


def cut_dump(draw: Draw) -> Fault:
    job = nested(draw)
    rank = some(draw, job)
    job.ranks[rank].dump = "cut"
    return stopped(job, rank, "TP", TP)


def empty_dump(draw: Draw) -> Fault:
    """A rank is stuck, and the dump of one that is well is empty."""
    job = nested(draw)
    rank = some(draw, job)
    other = draw.choice([one.number for one in job.ranks if one.number != rank])
    job.ranks[other].dump = "none"

    def empty(folder: Path) -> None:
        (folder / f"nccl_trace_rank_{other}").write_bytes(b"")

    return stopped(job, rank, "TP", TP, beside=empty, silent=(other,))


def oldest(draw: Draw) -> Fault:
    job = nested(draw, version=draw.choice(["2.2", "2.3"]))
    return stopped(job, some(draw, job), "DP", BUCKET)


def newest(draw: Draw) -> Fault:
    job = nested(draw, version="2.10", has_timing=True, ahead=2)
    return stopped(job, some(draw, job), "DP", GATHER)


def local_ranks(draw: Draw) -> Fault:
    """A send of a pipeline whose ranks count from 0 in each of many groups."""
    job = deep(draw, is_batched=draw.random() < 0.5)
    return stopped(job, some(draw, job, stage=0), "PP", SEND)


def nested_groups(draw: Draw) -> Fault:
    job = NestedJob(data=4, tensor=4, pipeline=4, ahead=draw.choice([0, 3]))
    return skipped(job, some(draw, job), "TP", TP)


def exchange(draw: Draw) -> Fault:
    """A rank leaves out the exchange that brings its tokens back; sizes differ on every rank."""
    job = nested(draw)
    return skipped(job, some(draw, job), "EP", COMBINE)


def exchange_stuck(draw: Draw) -> Fault:
    job = nested(draw)
    return stopped(job, some(draw, job), "EP", DISPATCH)


REPLICAS, RING, SAVE, EVALUATE = 51, 16, 95, 61
"""Lines of the reduction among replicas, of a ring's step, of a checkpoint and of an evaluation."""


@dataclass(kw_only=True)
class HybridJob(Job):
    """A job that shards among `shards` replicas and reduces among these groups (HSDP).

    Gathers are coalesced; with `ring`, replicas of a shard also pass keys and values around.
    """

    shards: int = 2
    ring: bool = False

    def _made_groups(self, world: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        made = list(super()._made_groups(world))
        yield from made
        for members in (members for family, members in made if family == "DP"):
            for start in range(0, len(members), self.shards):
                yield "SHARD", members[start : start + self.shards]
            for place in range(self.shards):
                yield "REPLICA", members[place :: self.shards]

    def _program(self, rank: int) -> Iterator[Call]:
        own = self.place(rank)[1] // self.shards
        for call in super()._program(rank):
            if call.family == "DP":
                if call.line == GATHER:
                    yield replace(call, family="SHARD", size=256,
                                  operation="all_gather_into_tensor_coalesced")  # fmt: skip
                else:
                    yield replace(call, family="SHARD")
                    yield replace(call, family="REPLICA", operation="all_reduce",
                                  line=call.line + 20)  # fmt: skip
                continue
            yield call
            if self.ring and (call.family, call.line) == ("TP", TP):
                first = rank - (self.place(rank)[1] - own * self.shards) * self.tensor
                members = [first + one * self.tensor for one in range(self.shards)]
                at = members.index(rank)
                ends = (("send", members[(at + 1) % self.shards]), ("recv", members[at - 1]))
                yield Call(family="SHARD", operation="ring", line=RING, function="ring", ends=ends)

    def document(self, rank: Rank) -> dict[str, Any]:
        """Return a dump in which a coalesced gather has a tensor for each 64 elements."""
        document = super().document(rank)
        for entry in document["entries"]:
            if entry["profiling_name"].endswith("tensor_coalesced"):
                entry["input_sizes"] = [[64]] * (entry["input_sizes"][0][0] // 64)
        return document


def hybrid(draw: Draw, **given: Any) -> HybridJob:
    """Return a job of 8 to 64 ranks with shards inside replicas."""
    data, tensor, pipeline = draw.choice([(4, 2, 1), (8, 2, 1), (4, 2, 2), (8, 2, 4), (4, 4, 4)])
    return HybridJob(data=data, tensor=tensor, pipeline=pipeline, **given)


def no_replicas(draw: Draw) -> Fault:
    job = hybrid(draw)
    return skipped(job, some(draw, job), "REPLICA", REPLICAS)


def no_shards(draw: Draw) -> Fault:
    job = hybrid(draw, ahead=draw.choice([0, 2]))
    return stopped(job, some(draw, job), "SHARD", GATHER)


def wrong_group(draw: Draw) -> Fault:
    """A rank reduces among its shards what belongs among the replicas."""
    job = hybrid(draw)
    return changed(job, some(draw, job), "REPLICA", REPLICAS, family="SHARD")


def fewer_tensors(draw: Draw) -> Fault:
    """A rank leaves a tensor out of a coalesced gather."""
    job = hybrid(draw)
    return changed(job, some(draw, job), "SHARD", GATHER, size=192)


def two_ahead(draw: Draw) -> Fault:
    """A rank leaves out a micro-batch of two collectives, so it is two ahead."""
    job = NestedJob(data=draw.choice([4, 8, 16]), pipeline=1, experts=1, micro_batches=3)
    rank = some(draw, job)
    place = job.find(rank, "TP", TP - 1)
    del job.ranks[rank].program[place : place + 2]
    return Fault(job=job, rank=rank, operation="all_reduce", line=TP - 1)


def data_ended(draw: Draw) -> Fault:
    """A rank's data ends a step before that of others, and it waits at the end of the script."""
    job = hybrid(draw)
    rank = some(draw, job, stage=0)
    place = job.find(rank, "TP", TP - 1, step=2)
    last = Call(family="WORLD", operation="barrier", line=SAVE, size=1)
    job.ranks[rank].program[place:] = [last]
    return Fault(job=job, rank=rank, operation="all_reduce", line=TP - 1)


def saves_alone(draw: Draw) -> Fault:
    """A rank waits in a barrier of its checkpoint, which the others do not write."""
    job = hybrid(draw)
    rank = some(draw, job, stage=0)
    place = job.find(rank, "TP", TP - 1, step=2)
    made = Call(family="WORLD", operation="barrier", line=SAVE, size=1, function="save")
    job.ranks[rank].program.insert(place, made)
    return Fault(job=job, rank=rank, operation="barrier", line=SAVE)


def wrong_stage(draw: Draw) -> Fault:
    """A rank sends to the stage after the next one."""
    job = NestedJob(data=2, tensor=2, pipeline=4, experts=1)
    rank = some(draw, job, stage=0)
    far = 2 * job.data * job.tensor
    return changed(job, rank, "PP", SEND, ends=(("send", rank + far),))


def receive_size(draw: Draw) -> Fault:
    job = deep(draw)
    return changed(job, some(draw, job, stage=1), "PP", RECV, size=32)


def one_more(draw: Draw) -> Fault:
    """A rank of the last stage waits for a micro-batch more than there are."""
    job = deep(draw, experts=1)
    rank = some(draw, job, stage=job.pipeline - 1)
    place = job.find(rank, "PP", LINES["backward"] + 3)
    own = job.ranks[rank].program
    receive = next(call for call in own if call.line == RECV)
    own.insert(place, replace(receive))
    return Fault(job=job, rank=rank, operation="recv", line=RECV)


def made_otherwise(draw: Draw) -> Fault:
    """A rank makes two of its groups in the other order, so their names are exchanged."""
    job = hybrid(draw)
    rank = some(draw, job)
    own = job.views[rank]
    (first, tensors), (second, shards) = own["TP"], own["SHARD"]
    own["TP"], own["SHARD"] = (second, tensors), (first, shards)
    return Fault(job=job, rank=rank, operation="all_reduce", line=TP - 1)


def killed(draw: Draw) -> Fault:
    """Linux kills a rank, Slurm names its task, and two ranks that are well leave no dump."""
    job = hybrid(draw)
    rank = draw.randrange(len(job.ranks))
    # Whoever shards with it must be left, as only these dumps show the call.
    shard = job.views[rank]["SHARD"][1]
    lost = draw.sample(sorted({*range(len(job.ranks))} - {*shard}), 2)
    for one in (rank, *lost):
        job.ranks[one].dump = "none"

    def log(folder: Path) -> None:
        (folder / "slurm-17.out").write_text(
            f"srun: error: node{rank // 8}: task {rank}: Killed\n"
            "srun: launch/slurm: _step_signal: Terminating StepId=17.0\n"
        )

    return stopped(job, rank, "SHARD", BUCKET, beside=log, silent=tuple(lost))


def half_a_ring(draw: Draw) -> Fault:
    """A rank sends its keys on and does not receive those of the rank before it."""
    job = HybridJob(data=draw.choice([4, 8]), tensor=2, pipeline=1, shards=4, ring=True,
                    is_batched=True)  # fmt: skip
    rank = some(draw, job)
    place = job.find(rank, "SHARD", RING)
    ends = job.ranks[rank].program[place].ends[:1]
    job.change(rank, place, ends=ends)
    return Fault(job=job, rank=rank, operation="send", line=RING)


def each_micro_batch(draw: Draw) -> Fault:
    """A rank reduces its gradients after each micro-batch, others once a step."""
    job = HybridJob(data=draw.choice([4, 8, 16]), tensor=2, pipeline=1)
    rank = some(draw, job)
    place = job.find(rank, "TP", TP - 1) + 2
    own = job.ranks[rank].program
    first = job.find(rank, "SHARD", BUCKET - 1)
    own[place:place] = [replace(one) for one in own[first : first + 4]]
    return Fault(job=job, rank=rank, operation="_reduce_scatter_base", line=BUCKET - 1)


def evaluates(draw: Draw) -> Fault:
    """A rank evaluates where the others train: forward passes alone, from other lines."""
    job = HybridJob(data=draw.choice([4, 8, 16]), tensor=4, pipeline=1)
    rank = some(draw, job)
    own, place = job.ranks[rank].program, job.find(rank, "TP", TP - 1)
    end = job.find(rank, "SHARD", BUCKET - 1)
    own[place:end] = [
        replace(call, line=EVALUATE + call.line - TP + 1, function="evaluate")
        for call in own[place:end]
        if call.line <= TP
    ]
    return Fault(job=job, rank=rank, operation="all_reduce", line=EVALUATE)


def device_stops(draw: Draw) -> Fault:
    """A rank's device does not begin an exchange that the others' began."""
    job = nested(draw, has_timing=True, ahead=2)
    rank = some(draw, job)
    place = job.find(rank, "EP", DISPATCH)
    job.ranks[rank].device_stops_at = place
    return Fault(job=job, rank=rank, operation="all_to_allv", line=DISPATCH)


FAULTS: dict[str, Callable[[Draw], Fault]] = {
    "exits in a forward pass": exits,
    "skips a collective of one of its groups": skips_of_many,
    "leaves out a receive": no_receive,
    "a size": sizes,
    "a dtype": dtypes,
    "a dtype of an exchange": dtype_of_exchange,
    "two groups in another order": order_of_groups,
    "waits for its data": loader,
    "a step late": late,
    "leaves no dump": no_dump,
    "leaves a dump that is cut": cut_dump,
    "stuck, and a healthy rank's dump is empty": empty_dump,
    "flight recorder 2.2 and 2.3": oldest,
    "flight recorder 2.10 with timing": newest,
    "ranks of a pipeline's group": local_ranks,
    "groups inside groups, 64 ranks": nested_groups,
    "skips an exchange of experts": exchange,
    "stuck before an exchange of experts": exchange_stuck,
    "skips a reduction among replicas": no_replicas,
    "stuck before a gather of shards": no_shards,
    "reduces in a wrong group": wrong_group,
    "a tensor less in a coalesced gather": fewer_tensors,
    "two collectives ahead": two_ahead,
    "its data ends a step early": data_ended,
    "saves alone": saves_alone,
    "sends to a wrong stage": wrong_stage,
    "receives another size": receive_size,
    "receives a micro-batch more": one_more,
    "makes its groups in another order": made_otherwise,
    "killed, and other dumps are lost": killed,
    "half a step of a ring": half_a_ring,
    "reduces after each micro-batch": each_micro_batch,
    "evaluates while others train": evaluates,
    "a device that stops at an exchange": device_stops,
}


def judged(fault: Fault, folder: Path) -> tuple[str, str]:
    """Return what is wrong with the answer, empty if nothing is, and the headline."""
    fault.job.run().write(folder)
    fault.beside(folder)
    found = untangle(read_dumps([folder]))
    if not found.found:
        return "nothing was found", ""
    first = found.found[0]
    said = f"{first.kind}: {first.said}"
    wrong = []
    if set(first.ranks) != {fault.rank}:
        wrong.append(f"names {first.ranks}, not {fault.rank}")
    if fault.operation not in first.said:
        wrong.append(f"does not say {fault.operation}")
    if f"{SCRIPT}:{fault.line} " not in first.said:
        wrong.append(f"does not say line {fault.line}")
    accused = {rank for one in found.found for rank in one.ranks} - {fault.rank}
    if accused - set(fault.silent):
        wrong.append(f"accuses {sorted(accused - set(fault.silent))}")
    return "; ".join(wrong), said


def two_jobs(folder: Path) -> str:
    """Return what is said of the dumps of two jobs in one folder."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        stopped(NestedJob(data=2, tensor=2, pipeline=2), 3, "TP", TP).job.run().write(folder / name)
    try:
        untangle(read_dumps([folder]))
    except RanksError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--said", action="store_true", help="print every headline")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="draws beside the first")
    options = parser.parse_args()
    good = drawn = accusing = 0
    for name, make in FAULTS.items():
        for seed in range(options.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                fault = make(random.Random(f"{name} {seed}"))
                wrong, said = judged(fault, Path(folder) / "dumps")
            drawn += 1
            good += not wrong
            accusing += "accuses" in wrong
            if wrong or options.said:
                size = len(fault.job.ranks)
                print(f"{name}, {size} ranks, seed {seed}: {wrong or 'found'}: {said}")
    with tempfile.TemporaryDirectory() as folder:
        refused = two_jobs(Path(folder))
    print(f"two jobs in one folder: {refused.replace(folder, 'FOLDER') or 'not told'}")
    print(json.dumps({"found": good, "injected": drawn, "accusing": accusing}))


if __name__ == "__main__":
    main()
