"""Rewards: nothing unless the kernel is right, then how much faster it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratchet.judge.verdict import Screening
from ratchet.write.learn.config import LearnConfig

MILESTONES: Final = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
"""Speed-ups that each add the same to a milestone reward."""
SCATTER: Final = 0.07
"""Standard deviation of a ratio's logarithm over repeated screenings of one kernel, as measured on
two cores (docs/log/2026-11-25.md)."""
RIGHT_ALONE: Final = 0.1
"""Reward of a kernel that is right and not faster."""


def reward_of(outcome: Screening, config: LearnConfig) -> float | None:
    """Return an answer's reward; None if the judge could not measure it.

    A kernel that is not right earns 0, one that tried to fool the judge `config.cheating`. A right
    kernel earns RIGHT_ALONE, and more for its speed-up: up to 1 by milestones or by the logarithm
    from the floor to the cap, without a limit for `raw`.
    """
    if outcome.status == "unmeasured":
        return None
    if outcome.status == "cheating":
        return config.cheating
    if not outcome.is_right or outcome.ratio is None:
        return RIGHT_ALONE if outcome.is_right else 0.0
    ratio = max(outcome.ratio, 1e-6)
    if config.reward == "raw":
        return RIGHT_ALONE + max(0.0, ratio - 1.0)
    if config.reward == "milestones":
        passed = sum(ratio >= one for one in MILESTONES) / len(MILESTONES)
    else:
        share = math.log(ratio / config.floor) / math.log(config.cap / config.floor)
        passed = min(max(share, 0.0), 1.0)
    return RIGHT_ALONE + (1 - RIGHT_ALONE) * passed


def shared(
    rewards: Sequence[float | None], kernels: Sequence[str | None], repeats: float
) -> list[float | None]:
    """Return the rewards after equal kernels of one group split a share of theirs.

    If n answers hold one right kernel, each earns 1 - `repeats` + `repeats` / n of its reward. So a
    new kernel can beat a slightly faster one that most of the group wrote.
    """
    counts = Counter(one for one in kernels if one is not None)
    found: list[float | None] = []
    for reward, kernel in zip(rewards, kernels, strict=True):
        if reward is None or reward <= 0 or kernel is None:
            found.append(reward)
        else:
            found.append(reward * (1 - repeats + repeats / counts[kernel]))
    return found


def credits(rewards: Sequence[float | None], discount: float) -> list[float | None]:
    """Return what each answer of a row earns: its reward, and a share of the later ones.

    The k-th answer after it counts `discount` to the k. None stays None, and counts 0.
    """
    found: list[float | None] = []
    later = 0.0
    for reward in reversed(rewards):
        later = (reward or 0.0) + discount * later
        found.append(None if reward is None else later)
    return found[::-1]


def noise_of(outcome: Screening, config: LearnConfig) -> float:
    """Return the standard deviation of a kernel's reward over repeated screenings.

    It is 0 if nothing is timed, as with the emulator.
    """
    if config.target or not outcome.is_right or outcome.ratio is None:
        return 0.0
    high, low = (
        reward_of(replace(outcome, ratio=outcome.ratio * math.exp(sign * SCATTER)), config) or 0.0
        for sign in (1, -1)
    )
    return (high - low) / 2


def advantages(rewards: Sequence[float], noises: Sequence[float] = ()) -> list[float]:
    """Return each reward's distance from the mean in standard deviations; 0 if all are equal.

    `noises` are the rewards' own standard deviations. The distances shrink by the share of the
    variance that noise explains, since a group of equally fast kernels would teach noise alone.
    """
    mean = sum(rewards) / len(rewards)
    variance = sum((one - mean) ** 2 for one in rewards) / len(rewards)
    if is_dead(rewards):
        return [0.0] * len(rewards)
    noise = sum(one**2 for one in noises) / len(rewards)
    share = max(0.0, 1.0 - noise / variance)
    return [share * (one - mean) / (math.sqrt(variance) + 1e-4) for one in rewards]


def is_dead(rewards: Sequence[float]) -> bool:
    """Return whether all rewards are equal: such a group teaches nothing."""
    return len(rewards) < 2 or max(rewards) - min(rewards) < 1e-9


def is_jump(earlier: Sequence[float], now: float, *, least: int = 6) -> bool:
    """Return whether a mean reward is 4 standard deviations, and 0.25, above those before it."""
    if len(earlier) < least:
        return False
    last = list(earlier)[-16:]
    mean = sum(last) / len(last)
    spread = math.sqrt(sum((one - mean) ** 2 for one in last) / len(last))
    return now > mean + max(4 * spread, 0.25)
