"""Published figures of training runs, each as a question to `ratchet plan`.

`published/runs.csv` and `published/throughput.csv` hold other people's measurements with their
sources. What a row leaves open is what its authors' configurations say (`KEPT`, `ONCE`); else
checkpointing is the least that fits the memory, a global batch gives each pipeline four
micro-batches a stage, or has about four million tokens if no micro-batch is told either, a sequence
is the model's usual one, and what is named in `open_to` is the fastest that fits.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from plan_sweeps import fastest

from ratchet.scale.plan.cluster import GIB, PlannedCluster, Rate, parse_cluster
from ratchet.scale.plan.layout import STACKS, Layout, Stack, columns
from ratchet.scale.plan.search import (
    BATCH_TOKENS,
    Evaluated,
    PlanQuestion,
    evaluate,
    room_bytes,
)
from ratchet.scale.plan.shape import Shape, find_shape

PUBLISHED = Path(__file__).parent / "published"
NAMES = {
    r"megatron-22b": "megatron-22b", r"gpt3-175b": "gpt3-175b", r"megatron-1t": "megatron-1t",
    r"turing-530b|mt-nlg-530b": "turing-530b", r"mixtral[- ]8x22b": "mixtral-8x22b",
    r"70b 4-layer": "llama:layers=4,hidden=8192,heads=64,kv_heads=8,intermediate=28672,"
                    "vocabulary=128256,sequence=8192",
    r"llama2-7b": "llama:layers=16,hidden=4096,heads=32,vocabulary=32000,sequence=4096",
    r"llama ?-?2[- ]70b": "llama2-70b",
    r"llama ?-?3(\.\d)?[- ]8b": "llama3-8b", r"llama ?-?3(\.\d)?[- ]70b": "llama3-70b",
    r"llama ?-?3(\.\d)?[- ]405b": "llama3-405b", r"llama ?4 scout": "llama4-scout",
    r"qwen3[- ]30b-a3b|qwen3 moe 30b": "qwen3-30b-a3b", r"qwen3[- ]8b": "qwen3-8b",
    r"qwen3[- ]32b": "qwen3-32b", r"qwen3[- ]235b-a22b": "qwen3-235b-a22b",
    r"deepseek[- ]?v2[- ]lite": "deepseek-v2-lite", r"deepseek[- ]?v2 236b": "deepseek-v2",
    r"deepseek[- ]?v3": "deepseek-v3", r"kimi[- ]k2": "kimi-k2",
    r"gpt[- ]oss[- ]20b": "gpt-oss-20b", r"gpt[- ]oss[- ]120b": "gpt-oss-120b",
}  # fmt: skip
"""Shapes by words of a row's model; the Llama2-7B of one page has 16 layers by its FLOP count."""
DEVICES = {
    r"GB300": "gb300", r"GB200|184 GiB": "gb200", r"B300": "b300", r"B200|178 GiB": "b200",
    r"A100": "a100", r"H100": "h100", r"H200": "h200", r"MI300": "mi300x", r"MI325X": "mi325x",
    r"MI350X": "mi350x", r"MI355X": "mi355x",
}  # fmt: skip
HBM2E = r"H100.*(500W|96GB)"
"""The H100 of torchtitan's benchmarks: held to 500 W, with 96 GB at 2.4 TB/s."""
CASTS = {r"B.00.*FP8-CS": 5.0, r"FP8-CS": 6.0, r"MXFP8|FP8-MX": 4.0}
"""Bytes that Transformer Engine moves for an element that it casts, by the row's device and recipe:
current scaling reads it for its largest value and again, and writes it, on Hopper in both orders;
blocks need no such pass, but both orders."""
PRECISIONS = {r"nvfp4": "nvfp4", r"mxfp4": "mxfp4", r"mxfp8|fp8-mx": "mxfp8", r"fp8|float8": "fp8"}
APART = {
    r"floor": "a floor that a cluster must pass, no measurement",
    r"time-to-train": "time to train, which mixes speed and convergence",
    r"LOW TRUST": "low trust: three rows of the page repeat one number",
    r"known-bad": "software that its authors call broken",
}
"""Rows that are planned but not counted, by words of their kind and caveat."""
KEPT = {
    r"Megatron-Bridge": "none",  # parts of attention and norms at most
    r"GPT-OSS.*AutoModel": "none",
    r"AutoModel": "full",
    r"torchtitan": "selective",
}
"""Checkpointing by words of a row that does not tell it, as the configurations have it:
NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs/*/*_workload_base_configs.py @0426418,
NVIDIA-NeMo/Automodel examples/benchmark/configs @037e04a, torchtitan's default."""
ONCE = (
    r"DeepEP|(DeepSeek-V3|Qwen3 30B|GB.00.*Qwen3 235B).*Megatron-Bridge"
    r"|Primus.*\+(launch opt|MBS14|VPP3|sync-free1)"
)
"""Rows whose exchange of tokens sends each of them once to a node: so the row, or Megatron-Bridge's
configurations of 2026, which name DeepEP or HybridEP (those of 2025 were not found), or Primus's
steps behind DeepEP, which its README adds up."""
UNFUSED = r"primus.*(deepseek[- ]?v2|mixtral)|mi325x-llama3.1-8b"
"""Rows whose products do not add to fp32 gradients: `gradient_accumulation_fusion` is false in
AMD-AGI/Primus examples/megatron/configs/*/ and examples/moe_package/configs @fd1eeab. The sum reads
a bf16 gradient and the fp32 one and writes the latter."""
FUSED_LOSS = r"Megatron-Bridge|Primus.*\+(loss fusion|DeepEP|VPP3|sync-free1|launch opt|MBS14)"
"""Rows whose loss is one kernel: Megatron-Bridge's default (models/gpt_provider.py @067f987), and
Primus's steps behind `loss fusion`."""
TENSOR_OVERLAP = r"Llama3(\.1)? (70B|405B).*Megatron-Bridge"
"""Rows whose tensor parallel collectives run beside products, but those in NVFP4:
`tp_comm_overlap_cfg` in Megatron-Bridge's perf_recipes/llama/*/ @067f987. A quarter of a
collective stays exposed, as products run in four parts (its docs/performance-guide.md)."""
TOLD = {"primus-mi355x-mixtral-8x22b": {"global_batch": "256"}}
"""What a row's page tells and its columns leave out: 3,260 tokens/s in steps of 10.052 s on 64
devices are 256 sequences."""
SECOND_TOKEN = 255e9
"""Operations a token from which a row of DeepSeek-V3 counts the layer that predicts a second token,
by the row's own TFLOP/s and tokens/s: 249e9 without (its page says so), 260e9 with."""
REFUSED = {
    r"mamba|zebra": "layers of state-space or linear attention, which no plan knows",
    r"deepseek[- ]?v4": "attention over compressed keys, whose sizes the row does not tell",
}


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
    apart: str = ""  # Why it is not counted
    guessed: bool = False  # True if the row leaves its device, sequence, layout or power open
    new: bool = False  # True for the rows that no model of before 2026-11-29 could be asked
    told: str = ""  # The row's own words, by which it is explained

    @property
    def moe(self) -> bool:
        return self.asked.shape.experts > 0

    def predicted(self) -> Evaluated:
        return evaluate(self.asked, columns([self.layout]))

    def error(self) -> float:
        """Return the predicted time over the measured one, less 1."""
        assert self.step_s
        return float(self.predicted().times.total[0]) / self.step_s - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductRow:
    """A published rate of one product."""

    id: str
    cluster: PlannedCluster
    precision: str
    sizes: tuple[float, float, float]  # Rows, columns, inner
    flops_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """All rows: planned, products, told twice, and those that no plan can answer with the reason.

    Together they are every row of both files.
    """

    rows: tuple[Row, ...]
    products: tuple[ProductRow, ...]
    twice: tuple[str, ...]
    refused: dict[str, str]


def read_table() -> Table:
    rows: list[Row] = []
    products: list[ProductRow] = []
    twice: list[str] = []
    refused: dict[str, str] = {}
    for name, read in (("runs.csv", of_run), ("throughput.csv", of_throughput)):
        with (PUBLISHED / name).open(newline="") as file:
            known = {key(one) for one in rows}
            for line in csv.DictReader(file):
                own = line["id"] if name == "runs.csv" else f"throughput-{line['id']}"
                if why := match(REFUSED, line["model"]):
                    refused[own] = why
                elif line["model"].startswith("GEMM"):
                    products.append(of_product(own, line))
                elif line.get("metric") == "tflops_per_gpu":  # beside a row in seconds or tokens
                    twice.append(own)
                else:
                    one = read(own, line)
                    (twice.append(own) if key(one) in known else rows.append(one))
    return Table(rows=tuple(rows), products=tuple(products), twice=tuple(twice), refused=refused)


def key(row: Row) -> tuple[object, ...]:
    """Return what makes two rows the same measurement."""
    return (row.asked.shape.name, row.asked.shape.sequence, row.asked.cluster.world,
            row.asked.cluster.device, round(row.step_s or 0, 3), row.memory_bytes,
            row.id if not row.step_s and not row.memory_bytes else "")  # fmt: skip


def match(table: dict[str, str], text: str) -> str | None:
    return next((name for form, name in table.items() if re.search(form, text, re.I)), None)


def number(text: str) -> int:
    found = re.match(r"\d+(\.\d+)?", text)
    return int(float(found[0])) if found else 0


def cluster_of(told: str, count: int) -> PlannedCluster:
    name = match(DEVICES, told)
    assert name, told
    odd = re.search(HBM2E, told)
    words = f"{name}:{min(8, count)}x{max(1, count // 8)}"
    words = f"{name}:{count}" if name.startswith("gb") else words
    cluster = parse_cluster(words, power_w=500 if odd else None)
    if odd:
        memory = Rate(per_s=2400e9 * 0.898, source="2.4 TB/s, as the table says")
        return replace(cluster, name="h100-500w", memory=memory, memory_bytes=96e9)
    return cluster


def of_product(own: str, line: dict[str, str]) -> ProductRow:
    form = r"(\d+)x(\d+)x(\d+)" if line["precision"] == "BF16" else r"FP8: (\d+)x(\d+)x(\d+)"
    found = re.search(form, line["model"])
    assert found
    rows, columns_, inner = (float(one) for one in found.groups())
    return ProductRow(
        id=own, cluster=cluster_of(line["gpu"], 1), precision=line["precision"].lower(),
        sizes=(rows, columns_, inner), flops_per_s=float(line["tflops_per_gpu"]) * 1e12,
    )  # fmt: skip


def unfused(stack: Stack, text: str) -> Stack:
    """Return a stack in which a kernel of its own adds gradients, if the row's does so."""
    alone = re.search(UNFUSED, text, re.I)
    return replace(stack, gradient_traffic=2.0, accumulated_bytes=10.0) if alone else stack


def of_run(own: str, line: dict[str, str]) -> Row:
    line = line | TOLD.get(own, {})
    name = match(NAMES, line["model"])
    assert name, line["model"]
    stack = STACKS["torch" if own.startswith("titan") else "megatron"]
    if "A100" in line["gpu"]:
        stack = replace(stack, flash=False, sequence_parallel=line["seq_parallel"] == "1")
    if own.startswith("mtnlg"):
        stack = STACKS["deepspeed"]
    stack = unfused(stack, f"{own} {name}")
    if "asynctp" in own:
        stack = replace(stack, overlap_tensor=0.5)
    checkpointing = line["recompute"] or ("full" if own.startswith("mtnlg") else "")
    if "h200" in own:  # the page says so
        checkpointing = "selective"
    sharding = {"fsdp": "full", "1": "optimizer"}.get(line["optimizer_sharding"], "none")
    if own.startswith(("megatron-llama", "primus")) and sharding == "none":
        sharding = "optimizer"
    part = {"activation_memory": "activations", "param_grad_optimizer_memory": "states"}
    return made(
        own, find_shape(name, sequence=number(line["seq"]) or None), stack, line,
        count=number(line["num_gpus"]), batch=number(line["global_batch"]),
        micro=number(line["micro_batch"]), sharding=sharding, checkpointing=checkpointing,
        metric=line["metric"], measured=float(line["measured"]),
        part=part.get(line["metric"], "total"),
    )  # fmt: skip


def of_throughput(own: str, line: dict[str, str]) -> Row:
    name, told = match(NAMES, line["model"]), f"{line['kind']} {line['caveat']} {line['other']}"
    gpt = line["model"].startswith("GPT ") and bool(line["layers"])
    shape = gpt_shape(line) if gpt else find_shape(
        str(name), sequence=number(line["seq_len"]) or None
    )  # fmt: skip
    shape = replace(shape, frozen="LoRA" in line["model"])
    tokens, tflops, seconds = (
        line["tokens_per_s_per_gpu"], line["tflops_per_gpu"], line["iter_time_s"]
    )  # fmt: skip
    measured, metric = (float(tokens), "tokens_per_s_per_gpu") if tokens else (0.0, "")
    if not tokens and seconds:
        measured, metric = float(seconds), "iteration_time"
    elif not tokens and tflops:
        # arXiv:2104.04473, equation 3 and the README: the table of 2021 counts recomputation.
        flops = gpt_flops(shape, line) if gpt else shape.flops_per_token
        measured, metric = float(tflops) * 1e12 / flops, "tokens_per_s_per_gpu"
    framework = line["framework"]
    fsdp = bool(re.search("FSDP|torchtitan", line["dp_or_fsdp"] or framework))
    titan = bool(re.search(r"torchtitan|NeMo|PyTorch", framework))
    stack = STACKS["torch" if titan else "megatron"]
    if "A100" in line["gpu"]:
        stack = STACKS["megatron-2021"]
    if "AsyncTP" in line["other"] or "tp-comm-overlap" in line["other"]:
        stack = replace(stack, overlap_tensor=0.5)
    whole = f"{line['gpu']} {line['model']} {framework} {line['other']}"
    stack = unfused(stack, f"{framework} {line['model']}")
    recipe = next((one for one in CASTS if re.search(one, whole + line["precision"])), "")
    if recipe and "Megatron" in framework:
        stack = replace(stack, cast_bytes=CASTS[recipe])
    if re.search(ONCE, whole):
        stack = replace(stack, sends_once=True)
    if re.search(FUSED_LOSS, whole):
        stack = replace(stack, logit_traffic=20.0)
    if re.search(TENSOR_OVERLAP, whole) and not re.search(r"NVFP4", line["precision"]):
        stack = replace(stack, overlap_tensor=0.75)
    told_flops = float(tflops) * 1e12 / float(tokens) if tokens and tflops else 0.0
    if name == "deepseek-v3" and told_flops > SECOND_TOKEN:
        shape = replace(shape, layers=shape.layers + 1, predicted=2)
    kept = next((one for one in ("full", "selective", "none") if one in line["act_ckpt"]), "")
    kept = kept or match(KEPT, whole) or ""
    open_to: tuple[str, ...] = ()
    if not number(line["mbs"]):
        open_to = ("micro_batch",) if kept else ("micro_batch", "checkpointing")
    if "GPT-OSS" in line["model"] and "AutoModel" in framework:
        line = {**line, "ep": "64"}  # its configuration says so
    if not any(line[one] for one in ("dp_or_fsdp", "tp", "pp", "ep")) and not line["mbs"]:
        open_to = ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "checkpointing")
    return made(
        own, shape, stack, line, count=number(line["n_gpus"]), batch=number(line["gbs"]),
        micro=number(line["mbs"]), sharding="full" if fsdp else "optimizer", checkpointing=kept,
        metric=metric, measured=measured, part="total", open_to=open_to,
        apart=match(APART, told) or "",
    )  # fmt: skip


def gpt_shape(line: dict[str, str]) -> Shape:
    hidden, heads = number(line["hidden"]), number(line["heads"])
    return Shape(
        name=line["model"], layers=number(line["layers"]), hidden=hidden, heads=heads,
        kv_heads=heads, head_dim=hidden // heads, intermediate=4 * hidden,
        vocabulary=number(line["vocab"]), sequence=number(line["seq_len"]), gated=False, tied=True,
    )  # fmt: skip


def gpt_flops(shape: Shape, line: dict[str, str]) -> float:
    """Return the operations of a token by the formula of the table that tells TFLOP/s."""
    counted = 96 if "full" in line["act_ckpt"] else 72
    layers, hidden = shape.layers, shape.hidden
    inside = 1 + shape.sequence / (6 * hidden) + shape.vocabulary / (16 * layers * hidden)
    return counted * layers * hidden**2 * inside


def made(
    own: str, shape: Shape, stack: Stack, line: dict[str, str], *, count: int, batch: int,
    micro: int, sharding: str, checkpointing: str, metric: str, measured: float, part: str,
    open_to: Sequence[str] = (), apart: str = "",
) -> Row:  # fmt: skip
    """Return a row with what it leaves open filled in."""
    told = " ".join(str(one) for one in line.values())
    tp, pp, vpp, cp, ep = (max(1, number(line[one])) for one in ("tp", "pp", "vpp", "cp", "ep"))
    dp = count // (tp * pp * cp)
    assert dp * tp * pp * cp == count and dp % ep == 0, own
    if pp > 1 and stack.name == "torch" and micro > 1:  # a local batch runs in micro-batches of 1
        batch, micro = batch or micro * dp, 1
    if not batch and "micro_batch" in open_to:
        batch = dp * max(1, BATCH_TOKENS // shape.sequence // dp)
    micro = micro or 1
    batch = batch or micro * dp * (4 * pp if pp > 1 else 1)
    cluster = cluster_of(line["gpu"], count)
    precision = match(PRECISIONS, line["precision"] or line.get("other", "")) or "bf16"
    layout = Layout(
        dp=dp, tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, micro_batch=micro,
        sharding=sharding, precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    asked = PlanQuestion(
        shape=shape, cluster=cluster, stack=stack, batch=batch, precisions=(precision,)
    )
    for one in [checkpointing] if checkpointing else ["none", "selective", "full"]:
        layout = replace(layout, checkpointing=one)  # type: ignore[arg-type]
        if evaluate(asked, columns([layout])).memory.total[0] <= room_bytes(cluster):
            break
    if open_to:
        used = re.match(r"([\d.]+) G(i?)B", line.get("mem_per_gpu") or "")
        told_bytes = float(used[1]) * (GIB if used[2] else 1e9) if used else 0.0
        layout = fastest(asked, layout, tuple(open_to), told_bytes)
    tokens = batch * shape.sequence
    step_s = {"iteration_time": measured, "tokens_per_s_per_gpu": tokens / count / (measured or 1)}
    held = own.startswith("throughput")
    return Row(
        id=own, held_out=held, asked=asked, layout=layout, step_s=step_s.get(metric),
        memory_bytes=measured * GIB if "memory" in metric else None, part=part, apart=apart,
        guessed=held and guessed(line), told=told, new=held and own not in ASKED_BEFORE,
    )  # fmt: skip


def guessed(line: dict[str, str]) -> bool:
    """Return True for a row that leaves open what decides its time most."""
    degrees = any(line[one] for one in ("dp_or_fsdp", "tp", "pp", "ep"))
    vague = re.search(r"implied|power limited|own inference", line["gpu"] + line["caveat"])
    return not line["seq_len"] or not degrees or bool(vague)


ASKED_BEFORE = frozenset(
    f"throughput-{one}"
    for one in (
        1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35,
        37, 38, 40, 41, 44, 46, 47, 50, 70, 77, 85, 86, 91, 95, 97, 98, 100, 101, 103, 104, 106,
        107, 109, 110, 115, 116, 118, 119, 121, 122, 124, 127, 128, 136, 137, 139, 140, 142, 143,
        145, 146, 148, 149, 151, 152, 154, 155, 157, 158, 214,
    )
)  # fmt: skip
"""Held rows whose errors were seen before grouped products, exchanges across nodes and launches
entered the model. The others were planned for the first time with these terms."""
