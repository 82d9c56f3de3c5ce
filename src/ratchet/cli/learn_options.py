"""The options that several commands of `ratchet learn` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import finite

Out = Annotated[Path, typer.Option("--out", help="Folder of the run.")]
CorpusFolder = Annotated[
    Path | None,
    typer.Option("--corpus", help="The corpus. Default: the folder corpus beside --out."),
]
Families = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Families of problems to train on, or all."),
]
Unseen = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Families that are never trained on.")
]
PerFamily = Annotated[
    int,
    typer.Option(
        "--per-family", min=1, help="Problems of each family, at most 6 of an unseen one."
    ),
]
Text = Annotated[
    list[Path] | None,
    typer.Option("--text", metavar="PATH", help="Pretraining text to replay; may be repeated."),
]
ModelName = Annotated[
    str, typer.Option(metavar="NAME", help="Causal language model; default: a small Llama.")
]
Size = Annotated[str, typer.Option(help="Size of the small Llama: tiny, 1m, 2m, 4m, 10m or 20m.")]
AnswerName = Annotated[
    str, typer.Option("--answers", metavar="schedule|source", help="What the model writes.")
]
LanguageName = Annotated[
    str, typer.Option("--language", metavar="cpp|triton", help="Language of the kernels.")
]
Steps = Annotated[int, typer.Option(min=1, help="Steps of training.")]
Batch = Annotated[int, typer.Option(min=1, help="Windows or examples in a step.")]
Rate = Annotated[float, typer.Option(parser=finite(), metavar="NUMBER", help="Learning rate.")]
Minutes = Annotated[
    float | None, typer.Option(parser=finite(), metavar="NUMBER", help="Stop after this time.")
]
Context = Annotated[int, typer.Option(help="Tokens in a window of text.")]
Soup = Annotated[
    int, typer.Option(min=1, max=16, help="Models that SFT trains, to average their weights.")
]
Kl = Annotated[
    float,
    typer.Option(
        parser=finite(least=0), metavar="NUMBER",
        help="Weight of GRPO's divergence from its start; 0 spares a copy of the model.",
    ),
]  # fmt: skip
Lora = Annotated[int, typer.Option(min=0, help="Rank of LoRA; 0 trains all weights.")]
Replay = Annotated[
    str, typer.Option(metavar="SHARE", help="Share of tokens that are replayed text: 1%.")
]
MaxForgetting = Annotated[
    float,
    typer.Option(
        "--max-forgetting",
        parser=finite(),
        metavar="NUMBER",
        help="Nats a token that may be forgotten.",
    ),
]
OnForgetting = Annotated[
    str, typer.Option("--on-forgetting", metavar="raise|stop", help="Beyond that: raise or stop.")
]
RewardName = Annotated[
    str, typer.Option("--reward", metavar="log|milestones|raw", help="How speed is rewarded.")
]
AgainstCompile = Annotated[
    bool | None,
    typer.Option(
        "--against-compile/--against-eager",
        help="Speed-up against the faster of eager and torch.compile, or against eager alone; "
        "default: the faster, but with --target nothing is timed.",
    ),
]
Group = Annotated[int, typer.Option(min=2, help="Answers to each problem of a step.")]
Seed = Annotated[int, typer.Option(help="Seed.")]
DeviceOf = Annotated[str, typer.Option("--device", metavar="NAME", help="Where to train.")]
Target = Annotated[
    str | None,
    typer.Option(metavar="gfx942|...", help="Reward by emulating this AMD GPU, which is not here."),
]
Turns = Annotated[
    int, typer.Option(help="Answers in a row: each later one sees the judge's words.")
]
Discount = Annotated[
    float,
    typer.Option(
        parser=finite(),
        metavar="SHARE",
        help="Share of a later answer's reward that the one before it earns.",
    ),
]
Repeats = Annotated[
    float,
    typer.Option(
        parser=finite(),
        metavar="SHARE",
        help="Share of the reward that equal kernels of a group split.",
    ),
]
Dataset = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", metavar="NAME[:COLUMN]",
        help="Hugging Face dataset whose text to replay; may be repeated.",
    ),
]  # fmt: skip
Fleet = Annotated[str, typer.Option(metavar="local|ray|ray://HOST:PORT", help="Where to judge.")]
RolloutName = Annotated[
    str,
    typer.Option(
        "--rollouts", metavar="auto|transformers|vllm",
        help="What draws the answers to judge; auto: vLLM for sources on a GPU, if installed.",
    ),
]  # fmt: skip
RolloutMemory = Annotated[
    float,
    typer.Option(
        "--rollout-memory",
        parser=finite(),
        metavar="SHARE",
        help="Share of the GPU's memory that vLLM takes.",
    ),
]
