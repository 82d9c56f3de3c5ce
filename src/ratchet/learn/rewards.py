"""Rewards: nothing unless the kernel is right, then how much faster it is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratchet.judge.verdict import Screening
from ratchet.learn.config import LearnConfig

MILESTONES: Final = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
"""Speed-ups that each add the same to a milestone reward."""
SCATTER: Final = 0.07
"""Standard deviation of a ratio's logarithm over repeated screenings of one kernel, as measured on
two cores (docs/log/2026-11.md, 2026-11-25)."""
RIGHT_ALONE: Final = 0.1
"""Reward of a kernel that is right and not faster."""


def reward_of(outcome: Screening, config: LearnConfig) -> float | None:
    """Return an answer's reward; None if the judge could not measure it.

    0 unless the kernel is right, and `config.cheating` if it tried to fool the judge. A right
    kernel has RIGHT_ALONE, and more by its speed-up: up to 1 in milestones, up to 1 in the
    logarithm of the speed-up from the floor to the cap, or without a limit for `raw`.
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
    """Return rewards of which a share is split among equal kernels of one group.

    A right kernel that n answers gave earns each of them 1 - `repeats` + `repeats` / n of it. A
    kernel that most of a group gave can so fall behind a slightly slower one that is new.
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
    """Return what each answer of a row earns: its reward, and a share of what it led to.

    The k-th answer after it counts `discount` to the k. An answer that was not measured earns
    nothing and stays None.
    """
    found: list[float | None] = []
    later = 0.0
    for reward in reversed(rewards):
        later = (reward or 0.0) + discount * later
        found.append(None if reward is None else later)
    return found[::-1]


def noise_of(outcome: Screening, config: LearnConfig) -> float:
    """Return the standard deviation of an answer's reward if its kernel were screened again.

    The emulator gives the same answer each time, and what is not timed has no noise.
    """
    if config.target or not outcome.is_right or outcome.ratio is None:
        return 0.0
    high, low = (
        reward_of(replace(outcome, ratio=outcome.ratio * math.exp(sign * SCATTER)), config) or 0.0
        for sign in (1, -1)
    )
    return (high - low) / 2


def advantages(rewards: Sequence[float], noises: Sequence[float] = ()) -> list[float]:
    """Return each reward's distance from the mean in standard deviations; 0 where all are equal.

    `noises` are the rewards' own standard deviations. The part of the variance that they explain
    says nothing about the answers, so the distances shrink by it: in a group of equally fast
    kernels they would otherwise be noise alone, at full size.
    """
    mean = sum(rewards) / len(rewards)
    variance = sum((one - mean) ** 2 for one in rewards) / len(rewards)
    if is_dead(rewards):
        return [0.0] * len(rewards)
    noise = sum(one**2 for one in noises) / len(rewards)
    share = max(0.0, 1.0 - noise / variance)
    return [share * (one - mean) / (math.sqrt(variance) + 1e-4) for one in rewards]


def is_dead(rewards: Sequence[float]) -> bool:
    """Return whether all rewards are equal, so that a group has nothing to teach."""
    return len(rewards) < 2 or max(rewards) - min(rewards) < 1e-9


def is_jump(earlier: Sequence[float], now: float, *, least: int = 6) -> bool:
    """Return whether a step's mean reward is far above those before it.

    Far is 4 standard deviations, and at least 0.25.
    """
    if len(earlier) < least:
        return False
    last = list(earlier)[-16:]
    mean = sum(last) / len(last)
    spread = math.sqrt(sum((one - mean) ** 2 for one in last) / len(last))
    return now > mean + max(4 * spread, 0.25)
