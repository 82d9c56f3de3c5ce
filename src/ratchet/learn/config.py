"""The settings of a run: one dataclass, printed with the run and kept beside its model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from ratchet.base.errors import LearnError

Answers = Literal["schedule", "source"]
Reward = Literal["milestones", "log", "raw"]
OnForgetting = Literal["raise", "stop"]
Rival = Literal["eager", "compile"]
RolloutEngine = Literal["auto", "transformers", "vllm"]

SIZES: Final[dict[str, tuple[int, int]]] = {
    "tiny": (64, 2),
    "1m": (128, 4),
    "2m": (192, 4),
    "4m": (256, 4),
    "10m": (384, 5),
    "20m": (512, 6),
}
"""Width and layers of the small Llama; the name is about its number of parameters."""
WIDE: Final = (0.25, 16.0)
"""Speed-ups between which rewards in training tell answers apart."""
ENGINE: Final = ("rollouts", "rollout_memory")
"""Settings that a run may go on with others of: who draws answers, not which."""
OF_SMALL_LLAMA: Final = ("size", "vocabulary")
"""Settings of the model that is made here, if one is."""
LARGEST_SEED: Final = 2**32 - 1


class LearnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every choice of a run. A run is reproducible from it, its corpus and the ledger's answers."""

    seed: int = 0
    answers: Answers = "schedule"
    """What the model writes: the generator's schedule, or a whole kernel."""
    language: str = "cpp"
    """Of the kernels: cpp or triton."""
    model: str = ""
    """A causal language model's name or folder; empty for a small Llama that is trained here."""
    size: str = "1m"
    """Of the small Llama: one of SIZES."""
    vocabulary: int = 2048
    """Of the small Llama's tokenizer."""
    lora: int = 0
    """Rank of LoRA; 0 trains all weights."""
    device: str = "cpu"
    context: int = 128
    """Tokens in a window of pretraining text."""
    batch: int = 16
    steps: int = 200
    rate: float = 1e-3
    """Learning rate, after a warm-up of 20 updates."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    blur: float = 0.3
    """Share of a short prompt's sizes that training leaves out, and of those that it moves by
    one."""
    # SFT.
    soup: int = 1
    """Models that SFT trains in other orders, and whose weights it averages."""
    # GRPO.
    problems: int = 2
    """Problems in each step."""
    group: int = 8
    """Answers to each of them."""
    temperature: float = 1.0
    resamples: int = 2
    """Times that a group is drawn again if its rewards are all equal."""
    updates: int = 2
    """Updates on the answers of one step."""
    ratio_clip: float = 0.2
    kl: float = 0.1
    """Weight of the divergence from the policy that GRPO began with. Without LoRA it takes a second
    copy of the model."""
    reward: Reward = "log"
    cap: float = 4.0
    """Speed-up above which the reward grows no more."""
    floor: float = 1.0
    """Speed-up below which the logarithmic reward falls no more."""
    cheating: float = -1.0
    """Reward of a kernel that tried to fool the judge."""
    rival: Rival = "eager"
    """Whose time a speed-up is against: eager, or the faster of eager and torch.compile."""
    target: str = ""
    """A GPU that is not here: the emulator and its bound on the time give the reward, not a clock.
    A speed-up is then an estimate against the generator's first schedule."""
    turns: int = 1
    """Answers to a problem in a row: each later one sees what the judge said of the one before."""
    discount: float = 0.4
    """Share of an answer's reward that the answer before it earns too."""
    repeats: float = 0.25
    """Share of a right answer's reward that equal kernels of its group split among them."""
    rollouts: RolloutEngine = "auto"
    """What draws the answers that are judged: transformers, or vLLM; `auto` takes vLLM for sources
    on a GPU, where it is installed."""
    rollout_memory: float = 0.4
    """Share of the GPU's memory that vLLM takes beside the training."""
    # Forgetting.
    replay: float = 0.01
    """Share of tokens in the loss that are pretraining text."""
    replay_weight: float = 1.0
    """Weight of those tokens in the loss beside that of the others."""
    max_forgetting: float = 0.05
    """Rise of the loss on held-out pretraining text, in nats a token, that is allowed."""
    on_forgetting: OnForgetting = "raise"
    """Beyond it: raise the share of replay, or stop."""
    measure_every: int = 20
    save_every: int = 20
    alarm: bool = True
    """Judge the kernels behind a jump of the reward in full."""

    def __post_init__(self) -> None:
        for name, value in msgspec.to_builtins(self).items():
            if isinstance(value, float):
                _check(math.isfinite(value), name.replace("_", "-"), value, "a finite number")
        _check(self.rate > 0, "rate", self.rate, "more than 0")
        _check(self.kl >= 0, "kl", self.kl, "0 or more")
        _check(0 <= self.seed <= LARGEST_SEED, "seed", self.seed, f"0 to {LARGEST_SEED}")
        _check(self.size in SIZES, "size", self.size, ", ".join(SIZES))
        for name, known in (
            ("answers", get_args(Answers)),
            ("language", ("cpp", "triton")),
            ("reward", get_args(Reward)),
            ("on_forgetting", get_args(OnForgetting)),
            ("rollouts", get_args(RolloutEngine)),
        ):
            given = getattr(self, name)
            _check(given in known, name.replace("_", "-"), given, ", ".join(known))
        _check(0 <= self.replay < 0.9, "replay", self.replay, "0% to 90%")
        _check(self.max_forgetting > 0, "max-forgetting", self.max_forgetting, "more than 0 nats")
        _check(self.cap > 1, "cap", self.cap, "more than 1")
        _check(0 < self.floor <= 1, "floor", self.floor, "more than 0, at most 1")
        _check(1 <= self.turns <= 8, "turns", self.turns, "1 to 8")
        _check(0 <= self.discount <= 1, "discount", self.discount, "0 to 1")
        _check(0 <= self.repeats <= 1, "repeats", self.repeats, "0 to 1")
        if self.target and self.language != "triton":
            raise LearnError(
                f"target {self.target!r} needs kernels in Triton, and these are in "
                f"{self.language}: learn with --language triton"
            )
        if self.target and self.rival != "eager":
            raise LearnError(
                f"nothing is timed for target {self.target!r}: leave out --against-compile"
            )
        _check(0 <= self.blur < 1, "blur", self.blur, "0 to below 1")
        _check(1 <= self.soup <= 16, "soup", self.soup, "1 to 16 models")
        _check(
            0 < self.rollout_memory < 1, "rollout-memory", self.rollout_memory, "between 0 and 1"
        )
        _check(self.lora >= 0, "lora", self.lora, "0 or more")
        for name in ("steps", "batch", "problems", "updates", "measure_every", "save_every"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _check(self.group >= 2, "group", self.group, "2 or more answers")
        _check(self.context >= 16, "context", self.context, "16 or more tokens")
        _check(self.vocabulary >= 512, "vocabulary", self.vocabulary, "512 or more")

    @property
    def learns_against_eager(self) -> bool:
        """Return whether a loop's training may leave torch.compile out.

        A factor that all answers to a problem share adds the same to their logarithmic rewards, and
        cancels in a group. Timing torch.compile takes as long as some ten kernels.
        """
        return self.reward == "log" and not self.target

    def in_training(self) -> LearnConfig:
        """Return the config whose rewards tell answers apart however fast the rival is.

        Where all answers are slower than the rival, or over `cap` times as fast, rewards that end
        there are all equal and teach nothing.
        """
        return self.changed(cap=WIDE[1], floor=WIDE[0]) if self.learns_against_eager else self

    def is_same_run(self, other: LearnConfig) -> bool:
        """Return whether a run of this config may go on with another one."""
        engine = {name: getattr(self, name) for name in ENGINE}
        return other.changed(**engine) == self

    def rows(self, *, makes_model: bool = True) -> list[tuple[str, str]]:
        """Return every setting with its value, for people.

        Without those of the small Llama where none is made: a run that goes on from a policy, or
        takes a model by name, has another size.
        """
        left_out = () if makes_model and not self.model else OF_SMALL_LLAMA
        values = msgspec.to_builtins(self).items()
        return [(one, str(value)) for one, value in values if one not in left_out]

    def changed(self, **values: Any) -> LearnConfig:
        """Return a copy with other values."""
        return msgspec.structs.replace(self, **values)


def _check(fine: bool, name: str, value: object, rule: str) -> None:
    if not fine:
        raise LearnError(f"{name} {value!r} is out of range: give {rule}")


def check_rounds(rounds: int) -> None:
    """Raise for a number of rounds that no loop has."""
    _check(1 <= rounds <= 1000, "rounds", rounds, "1 to 1000")


def write_config(folder: Path, config: LearnConfig) -> None:
    """Keep a run's config in its folder."""
    from ratchet.base.files import write_whole

    text = json.dumps(msgspec.to_builtins(config), indent=2) + "\n"
    write_whole(folder / "config.learn.json", text.encode())


def same_config(folder: Path, config: LearnConfig) -> None:
    """Raise a LearnError if a folder's run has another config than this one."""
    path = folder / "config.learn.json"
    if not path.exists():
        return
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
