"""The settings of a run: each field with its help text, bounds and default, said once."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from ratchet.base.errors import LearnError
from ratchet.base.serialise import document_of, encoded

SIZES: Final[dict[str, tuple[int, int]]] = {
    "tiny": (64, 2),
    "1m": (128, 4),
    "2m": (192, 4),
    "4m": (256, 4),
    "10m": (384, 5),
    "20m": (512, 6),
}
"""Width and layers of the small Llama, by its approximate number of parameters."""
WIDE: Final = (0.25, 16.0)  # Speed-ups between which rewards in training tell answers apart
ENGINE: Final = ("rollouts", "rollout_memory")
"""Settings that a resumed run may change: they decide who draws answers, not which."""
OF_SMALL_LLAMA: Final = ("size", "vocabulary")
"""Settings that count only if the small Llama is made."""
LARGEST_SEED: Final = 2**32 - 1
COUNT: Final = Meta(ge=1)


def _about(text: str, metavar: str = "", **bounds: Any) -> Meta:
    """Return the description of a setting: its help text, its placeholder there, its bounds."""
    extra = {"metavar": metavar} if metavar else None
    return Meta(description=text, extra=extra, **bounds)


class LearnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every choice of a run. A run is reproducible from it, its corpus and the ledger's answers.

    The commands' options are made of these fields: the description is the help text.
    """

    seed: Annotated[int, _about("Seed.", ge=0, le=LARGEST_SEED)] = 0
    answers: Annotated[
        Literal["schedule", "source"],
        _about("What the model writes: the generator's schedule, or a whole kernel."),
    ] = "schedule"
    language: Annotated[Literal["cpp", "triton"], _about("Language of the kernels.")] = "cpp"
    model: Annotated[
        str, _about("Causal language model, by name or folder; default: a small Llama.", "NAME")
    ] = ""
    size: Annotated[
        Literal["tiny", "1m", "2m", "4m", "10m", "20m"], _about("Size of the small Llama.")
    ] = "1m"
    vocabulary: Annotated[int, _about("Tokens of the small Llama's tokenizer.", ge=512)] = 2048
    lora: Annotated[int, _about("Rank of LoRA; 0 trains all weights.", ge=0)] = 0
    device: Annotated[str, _about("Where to train.", "NAME")] = "cpu"
    context: Annotated[int, _about("Tokens in a window of text.", ge=16)] = 128
    batch: Annotated[int, _about("Windows or examples in a step.", ge=1)] = 16
    steps: Annotated[int, _about("Steps of training; of SFT at most, in the loop.", ge=1)] = 200
    rate: Annotated[
        float,
        _about("Learning rate; in the loop, SFT takes half of it and GRPO a twentieth.", gt=0),
    ] = 1e-3
    """After a warm-up of 20 updates."""
    clip: float = 1.0  # Largest norm of the gradient
    blur: Annotated[float, Meta(ge=0, lt=1)] = 0.3
    """Share of a short prompt's sizes that training leaves out, and of those that it moves by
    one."""
    # SFT.
    soup: Annotated[
        int,
        _about("Models that SFT trains in other orders, to average their weights.", ge=1, le=16),
    ] = 1
    # GRPO.
    problems: Annotated[int, _about("Problems in a step of GRPO.", ge=1)] = 2
    group: Annotated[int, _about("Answers to each problem of a step.", ge=2)] = 8
    temperature: float = 1.0
    resamples: int = 2  # Times that a group is drawn again if its rewards are all equal
    updates: Annotated[int, COUNT] = 2  # Updates on the answers of one step
    ratio_clip: float = 0.2
    kl: Annotated[
        float,
        _about("Weight of GRPO's divergence from its start; 0 spares a copy of the model.", ge=0),
    ] = 0.1
    cap: Annotated[float, Meta(gt=1)] = 4.0  # Speed-up above which the reward grows no more
    floor: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Speed-up below which the reward falls no more."""
    cheating: float = -1.0  # Reward of a kernel that tried to fool the judge
    rival: Annotated[
        Literal["eager", "compile"],
        _about(
            "Speed-up against the faster of eager and torch.compile, or against eager alone; "
            "default: the faster, but with --target nothing is timed."
        ),
    ] = "eager"
    target: Annotated[
        str,
        _about("Reward by emulating this AMD GPU, which is not here.", "gfx942|..."),
    ] = ""
    """A speed-up is then an estimate, against the generator's first schedule."""
    turns: Annotated[
        int, _about("Answers in a row: each later one sees the judge's words.", ge=1, le=8)
    ] = 1
    discount: Annotated[
        float,
        _about(
            "Share of a later answer's reward that the one before it earns.", "SHARE", ge=0, le=1
        ),
    ] = 0.4
    repeats: Annotated[
        float,
        _about("Share of the reward that equal kernels of a group split.", "SHARE", ge=0, le=1),
    ] = 0.25
    rollouts: Annotated[
        Literal["auto", "transformers", "vllm"],
        _about("What draws the answers to judge; auto: vLLM for sources on a GPU, if installed."),
    ] = "auto"
    rollout_memory: Annotated[
        float, _about("Share of the GPU's memory that vLLM takes.", "SHARE", gt=0, lt=1)
    ] = 0.4
    # Forgetting.
    replay: Annotated[
        float, _about("Share of tokens that are replayed text: 1%.", "SHARE", ge=0, lt=0.9)
    ] = 0.01
    replay_weight: float = 1.0  # Weight of those tokens in the loss beside that of the others
    max_forgetting: Annotated[
        float, _about("Nats a token that may be forgotten of held-out text.", gt=0)
    ] = 0.05
    on_forgetting: Annotated[
        Literal["raise", "stop"], _about("Beyond that: raise the share of replay, or stop.")
    ] = "raise"
    measure_every: Annotated[int, COUNT] = 20
    save_every: Annotated[int, COUNT] = 20
    alarm: bool = True  # Judge the kernels behind a jump of the reward in full

    def __post_init__(self) -> None:
        for one in settings().values():
            one.check(getattr(self, one.name))
        if not self.target:
            return
        from ratchet.judge.terms import parse_target

        parse_target(self.target)
        if self.language != "triton":
            raise LearnError(
                f"target {self.target!r} needs kernels in Triton, and these are in "
                f"{self.language}: learn with --language triton"
            )
        if self.rival != "eager":
            raise LearnError(
                f"nothing is timed for target {self.target!r}: leave out --against-compile"
            )

    def in_training(self) -> LearnConfig:
        """Return the config whose rewards tell answers apart however fast the rival is.

        If all answers are slower than the rival, or over `cap` times as fast, rewards that end
        there are all equal and teach nothing. Bounds of the emulator have no such rival.
        """
        return self if self.target else self.changed(cap=WIDE[1], floor=WIDE[0])

    def is_same_run(self, other: LearnConfig) -> bool:
        """Return whether a run of this config may go on with another one."""
        engine = {name: getattr(self, name) for name in ENGINE}
        return other.changed(**engine) == self

    def rows(self, *, makes_model: bool = True) -> list[tuple[str, str]]:
        """Return every setting with its value, for people.

        Leaves out the small Llama's settings if none is made: a run that goes on from a policy, or
        takes a model by name, has another size.
        """
        left_out = () if makes_model and not self.model else OF_SMALL_LLAMA
        values = document_of(self).items()
        return [(one, str(value)) for one, value in values if one not in left_out]

    def changed(self, **values: object) -> LearnConfig:
        return msgspec.structs.replace(self, **values)


RULES: Final = {
    ("ge",): "{ge} or more",
    ("gt",): "more than {gt}",
    ("ge", "le"): "{ge} to {le}",
    ("ge", "lt"): "{ge} to below {lt}",
    ("gt", "le"): "more than {gt}, at most {le}",
    ("gt", "lt"): "between {gt} and {lt}",
}
"""Bounds of a setting in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnSetting:
    """One field of LearnConfig, with what its annotation says of it."""

    name: str
    annotation: object
    default: object
    choices: tuple[str, ...]
    """Choices of a text that names one of a few; empty for every other setting."""
    meta: Meta

    @property
    def rule(self) -> str:
        """Return which values are allowed, in words; empty if all are."""
        if self.choices:
            return ", ".join(self.choices)
        bounds = {one: getattr(self.meta, one) for one in ("ge", "gt", "le", "lt")}
        given = {name: one for name, one in bounds.items() if one is not None}
        return RULES[tuple(given)].format(**given) if given else ""

    def check(self, value: object) -> None:
        """Raise a LearnError for a value that is not allowed."""
        named = self.name.replace("_", "-")
        if isinstance(value, float):
            check_range(math.isfinite(value), named, value, "a finite number")
        try:
            msgspec.convert(value, self.annotation)
        except msgspec.ValidationError:
            check_range(False, named, value, self.rule or f"a value such as {self.default!r}")


@functools.cache
def settings() -> Mapping[str, LearnSetting]:
    hints = get_type_hints(LearnConfig, include_extras=True)
    defaults = zip(LearnConfig.__struct_fields__, LearnConfig.__struct_defaults__, strict=True)
    return {name: _setting(name, hints[name], default) for name, default in defaults}


def _setting(name: str, annotation: object, default: object) -> LearnSetting:
    plain, *metas = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
    return LearnSetting(
        name=name,
        annotation=annotation,
        default=default,
        choices=get_args(plain),
        meta=metas[0] if metas else Meta(),
    )


def check_range(fine: bool, name: str, value: object, rule: str) -> None:
    if not fine:
        raise LearnError(f"{name} {value!r} is out of range: give {rule}")


def keep_config(folder: Path, config: LearnConfig) -> None:
    """Write a run's config to its folder, or raise a LearnError if it holds another run's."""
    from ratchet.base.files import write_whole

    path = folder / "config.learn.json"
    if not path.exists():
        return write_whole(path, encoded(config, indent=2))
    try:
        kept = msgspec.convert(json.loads(path.read_text()), LearnConfig)
    except (ValueError, RecursionError, msgspec.ValidationError, OSError) as error:
        raise LearnError(f"{str(path)!r} is no config of a run: give another --out") from error
    names = [field for field in kept.__struct_fields__ if field not in ("steps", *ENGINE)]
    other = [one for one in names if getattr(kept, one) != getattr(config, one)]
    if other:
        name = other[0]
        raise LearnError(
            f"the run in {str(folder)!r} has {name} {getattr(kept, name)!r}, and this one "
            f"{getattr(config, name)!r}: give the same options, or another --out"
        )
    write_whole(path, encoded(config, indent=2))
