"""Commands that run a plan: torchrun, a Slurm script, a Kubernetes JobSet."""

from __future__ import annotations

import shlex
from typing import Final

from ratchet.scale.plan.search import LayoutPlan, PlanQuestion, chunk_layers

PORT: Final = 29500
TITAN: Final = {
    "fp8": "float8", "mxfp8": "mx", "mxfp4": "YOUR_FP4_CONVERTER", "nvfp4": "YOUR_FP4_CONVERTER"
}  # fmt: skip
"""torchtitan's converters by precision; it has none of four bits."""
MEGATRON: Final = {
    "bf16": [],
    "fp8": ["--fp8-format=hybrid"],
    "mxfp8": ["--fp8-format=e4m3", "--fp8-recipe=mxfp8"],
    "mxfp4": ["--fp4-format=e2m1", "--fp4-recipe=mxfp4"],
    "nvfp4": ["--fp4-format=e2m1", "--fp4-recipe=nvfp4"],
}


def _torchtitan(asked: PlanQuestion, plan: LayoutPlan) -> list[str]:
    """Return the training program and its arguments in the names of torchtitan's configuration."""
    layout = plan.layout
    full = layout.sharding == "full"
    named: dict[str, object] = {
        "parallelism.data_parallel_shard_degree": layout.dp if full else 1,
        "parallelism.data_parallel_replicate_degree": 1 if full else layout.dp,
        "parallelism.tensor_parallel_degree": layout.tp,
        "parallelism.pipeline_parallel_degree": layout.pp,
        "parallelism.context_parallel_degree": layout.cp,
        "parallelism.expert_parallel_degree": layout.ep,
        "training.local_batch_size": plan.micro_batches * layout.micro_batch
        if layout.pp > 1
        else layout.micro_batch,
        "training.global_batch_size": asked.batch,
        "training.seq_len": asked.shape.sequence,
        "activation_checkpoint.mode": layout.checkpointing,
    }
    if layout.pp > 1:
        schedule = "Interleaved1F1B" if layout.vpp > 1 else "1F1B"
        named["parallelism.pipeline_parallel_schedule"] = schedule
        named["parallelism.pipeline_parallel_microbatch_size"] = layout.micro_batch
    told = [f"--{name}={value}" for name, value in named.items()]
    if layout.precision != "bf16":
        told.append(f"--model.converters={TITAN[layout.precision]}")
    return ["-m", "torchtitan.train", *told]


def _megatron(asked: PlanQuestion, plan: LayoutPlan) -> list[str]:
    """Return the training program and its arguments in the names of Megatron-LM."""
    layout, shape = plan.layout, asked.shape
    flags = ["--bf16"]
    told = {
        "num-layers": shape.layers,
        "hidden-size": shape.hidden,
        "ffn-hidden-size": shape.intermediate or shape.expert_intermediate,
        "num-attention-heads": shape.heads,
        "kv-channels": shape.head_dim,
        "max-position-embeddings": shape.sequence,
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
        "expert-model-parallel-size": layout.ep,
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": asked.batch,
        "seq-length": shape.sequence,
    }
    if shape.kv_heads != shape.heads:
        told["num-query-groups"] = shape.kv_heads
        flags.append("--group-query-attention")
    if shape.experts:
        told |= {
            "num-experts": shape.experts,
            "moe-router-topk": shape.experts_per_token,
            "moe-ffn-hidden-size": shape.expert_intermediate,
        }
        if shape.shared_intermediate:
            told["moe-shared-expert-intermediate-size"] = shape.shared_intermediate
        if shape.dense_layers:
            flags.append(f"--moe-layer-freq=[0]*{shape.dense_layers}+[1]*{shape.moe_layers}")
    if shape.latent_rank:
        flags.append("--multi-latent-attention")
        told |= {
            "kv-lora-rank": shape.latent_rank,
            "qk-head-dim": shape.head_dim,
            "qk-pos-emb-head-dim": shape.turned_dim,
            "v-head-dim": shape.head_dim,
        }
        if shape.query_rank:
            told["q-lora-rank"] = shape.query_rank
    if shape.gated:
        flags += ["--swiglu", "--normalization=RMSNorm", "--position-embedding-type=rope"]
        flags.append("--disable-bias-linear")
    if not shape.tied:
        flags.append("--untie-embeddings-and-output-weights")
    if layout.vpp > 1 and shape.layers % (layout.pp * layout.vpp):
        chunks = ["t" * one for one in chunk_layers(shape.layers, layout.pp, layout.vpp)]
        flags.append(f"--pipeline-model-parallel-layout=E{'|'.join(chunks)}L")
    elif layout.vpp > 1:
        told["num-layers-per-virtual-pipeline-stage"] = shape.layers // (layout.pp * layout.vpp)
    elif -shape.layers % layout.pp == 2:
        flags += ["--account-for-embedding-in-pipeline-split"]
        flags += ["--account-for-loss-in-pipeline-split"]
    elif shape.layers % layout.pp:  # the last stage has fewer layers
        last = shape.layers - (layout.pp - 1) * -(-shape.layers // layout.pp)
        told["decoder-last-pipeline-num-layers"] = last
    if layout.tp > 1 and asked.stack.sequence_parallel:
        flags.append("--sequence-parallel")
    if layout.sharding == "optimizer":
        flags.append("--use-distributed-optimizer")
    if layout.sharding == "full":
        flags.append("--use-torch-fsdp2")
    if layout.checkpointing == "full":
        flags += ["--recompute-granularity=full", "--recompute-method=uniform"]
        flags.append("--recompute-num-layers=1")
    if layout.checkpointing == "selective":
        flags.append("--recompute-granularity=selective")
    flags += MEGATRON[layout.precision]
    named = [f"--{name}={value}" for name, value in told.items()]
    return ["pretrain_gpt.py", *named, *flags]


def torchrun(asked: PlanQuestion, plan: LayoutPlan, *, head: str = "$HEAD") -> str:
    """Return the command that each node runs; `head` is the first node's address."""
    return " ".join(_torchrun(asked, plan, head))


def torchrun_lines(asked: PlanQuestion, plan: LayoutPlan) -> list[str]:
    """Return the command with one option to a line, each but the last ending in a backslash.

    A word that is no option stands behind the option before it.
    """
    name, nodes, ranks, *words = _torchrun(asked, plan, "$HEAD")
    lines = [f"{name} {nodes} {ranks}"]
    for word in words:
        if word.startswith("-"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    return [*(f"{one} \\" for one in lines[:-1]), lines[-1]]


def _torchrun(asked: PlanQuestion, plan: LayoutPlan, head: str) -> list[str]:
    """Return the words of the command, quoted for a shell, in which `head` may be a variable."""
    cluster = asked.cluster
    rendezvous = (
        ["--standalone"]
        if cluster.machines == 1
        else ["--rdzv-backend=c10d", f"--rdzv-endpoint={head}:{PORT}"]
    )
    nodes = [f"--nnodes={cluster.machines}", f"--nproc-per-node={cluster.machine}"]
    program = _torchtitan if asked.stack.name.startswith("torch") else _megatron
    return ["torchrun", *nodes, *rendezvous, *map(shlex.quote, program(asked, plan))]


def slurm(asked: PlanQuestion, plan: LayoutPlan) -> str:
    cluster = asked.cluster
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name={_slug(asked.shape.name)}",
            f"#SBATCH --nodes={cluster.machines}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={cluster.machine}",
            "#SBATCH --exclusive",
            "set -euo pipefail",
            'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export HEAD",
            f"srun bash -c '{torchrun(asked, plan)}'",
            "",
        ]
    )


def jobset(asked: PlanQuestion, plan: LayoutPlan) -> str:
    """Return a Kubernetes JobSet; its image and volumes are yours to fill in."""
    cluster = asked.cluster
    name = _slug(asked.shape.name)
    resource = "amd.com/gpu" if cluster.device.startswith("MI") else "nvidia.com/gpu"
    head = f"{name}-train-0-0.{name}"
    return f"""apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  replicatedJobs:
  - name: train
    replicas: 1
    template:
      spec:
        parallelism: {cluster.machines}
        completions: {cluster.machines}
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            containers:
            - name: train
              image: YOUR_IMAGE
              command: ["bash", "-c"]
              args:
              - >-
                {torchrun(asked, plan, head=head)}
              resources:
                limits:
                  {resource}: {cluster.machine}
"""


def _slug(name: str) -> str:
    kept = "".join(one if one.isalnum() else "-" for one in name.lower())
    return kept.strip("-") or "train"
