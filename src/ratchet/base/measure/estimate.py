"""The paired estimate, its interval, and the four answers.

The estimate is the median of log(baseline/new) over adjacent pairs. Its variance is that of a
hierarchical bootstrap (launches first, then pairs inside them); the interval is the estimate plus
and minus Student's t quantile times the standard error.

The bootstrap's own percentiles fail for few launches. A resample of three launches reaches no
further than the lowest and the highest of them, which enclose the truth three times in four, not 19
times in 20. In a simulation with three launches, percentiles gave 5-24 % false positives. So the
part of the variance that comes from launches is scaled by n / (n - 1) (Hesterberg, "What Teachers
Should Know About the Bootstrap", The American Statistician 69(4), 2015), and t's degrees of freedom
are Welch and Satterthwaite's from the two parts. docs/design/measure.md has the simulated rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import (
    FloatArray,
    Floor,
    Ratio,
    Sample,
    Values,
    answer_of,
    checked,
    why_undecided,
)

MIN_PAIRS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTime:
    """One arm's median time per iteration, with the median's interval."""

    arm: str
    median_s: float
    low_s: float
    high_s: float
    count: int


def of_arm(samples: Iterable[Sample], arm: str) -> list[Sample]:
    """Return one arm's samples by launch and round; MeasureError if there are none."""
    own = sorted(
        (checked(s) for s in samples if s.arm == arm), key=lambda s: (s.launch, s.round, s.position)
    )
    if not own:
        raise MeasureError(f"no samples of arm {arm!r}: time it in at least one round")
    return own


def log_ratios(
    samples: Iterable[Sample], *, baseline: str, new: str, twin: str | None = None
) -> list[FloatArray]:
    """Return log(baseline time / new time) of each adjacent pair, one array per launch.

    A pair is the arms' samples of the same launch and round; a round that lacks one is left out.
    `twin` is a second copy of the baseline (`paired_logs`). The order of `samples` does not matter.
    MeasureError if an arm appears twice in a round.
    """
    materialised, copies = list(samples), [baseline, *([] if twin is None else [twin])]
    first = [_by_round(of_arm(materialised, arm)) for arm in copies]
    return paired_logs(first, _by_round(of_arm(materialised, new)))


def paired_logs(copies: Sequence[Values], new: Values) -> list[FloatArray]:
    """Return log(baseline / new) of the pairs of each launch, of values above 0.

    Of several copies of the baseline, their geometric mean counts: with two, a ratio's variance is
    three quarters of that with one. A round without the first copy or the new side is left out.
    """
    launches: dict[int, list[float]] = {}
    for key in sorted(new.keys() & copies[0].keys()) if copies else ():
        logs = [math.log(one[key]) for one in copies if key in one]
        launches.setdefault(key[0], []).append(math.fsum(logs) / len(logs) - math.log(new[key]))
    return [np.asarray(values) for values in launches.values()]


def _by_round(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    times: dict[tuple[int, int], float] = {}
    for sample in samples:
        key = (sample.launch, sample.round)
        if key in times:
            raise MeasureError(
                f"arm {sample.arm!r} appears twice in launch {key[0]}, round {key[1]}: "
                "give every arm of a run its own name"
            )
        times[key] = sample.wall_time_s
    return times


def compare(
    samples: Iterable[Sample],
    *,
    baseline: str,
    new: str,
    floor: Floor | None,
    twin: str | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """Compare two arms over the rounds that hold both; `twin` is a second copy of the baseline.

    `faster` and `slower` need an interval that excludes 1, and a ratio outside the floor if there
    is one. `equivalent` needs a floor that holds the whole interval, and an interval within WIDEST.
    All else is `undecided`, and `why` names the cause.
    MeasureError for fewer than two pairs.
    """
    launches = log_ratios(samples, baseline=baseline, new=new, twin=twin)
    pairs = sum(len(launch) for launch in launches)
    if pairs < MIN_PAIRS:
        raise MeasureError(
            f"{pairs} pairs of {baseline!r} and {new!r}: an interval needs at least {MIN_PAIRS}; "
            "run more rounds"
        )
    ratio, low, high = ratio_of(launches, confidence, resamples, seed)
    answer = answer_of(ratio, low, high, floor)
    return Ratio(
        ratio=ratio,
        low=low,
        high=high,
        answer=answer,
        pairs=pairs,
        launches=len(launches),
        confidence=confidence,
        floor=floor,
        why=why_undecided(ratio, low, high, floor) if answer == "undecided" else "",
    )


def aa_floor(
    samples: Iterable[Sample],
    arm: str,
    twin: str,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Floor:
    """Return the floor of an A/A run: the far end of its interval, applied to both sides of 1.

    `twin` is a second process of the same arm, timed in the same rounds.
    """
    result = compare(
        samples, baseline=arm, new=twin, floor=None, confidence=confidence, resamples=resamples
    )
    return Floor.of(result.low, result.high, result.pairs)


def summarise(samples: Iterable[Sample], arm: str, *, resamples: int = 2000) -> ArmTime:
    """Return one arm's median time with its 95 % interval, from all of its samples."""
    own = of_arm(samples, arm)
    if len(own) < MIN_PAIRS:
        raise MeasureError(f"1 sample of {arm!r}: an interval needs {MIN_PAIRS}; run more rounds")
    by_launch: dict[int, list[float]] = {}
    for sample in own:
        by_launch.setdefault(sample.launch, []).append(math.log(sample.wall_time_s))
    launches = [np.asarray(values) for values in by_launch.values()]
    median_s, low_s, high_s = ratio_of(launches, 0.95, resamples)
    return ArmTime(
        arm=arm,
        median_s=median_s,
        low_s=low_s,
        high_s=high_s,
        count=len(own),
    )


DISTURBED = 1.2
"""A launch's median over that of the fastest launch, from which its times are not shown."""


def launch_medians(samples: Iterable[Sample]) -> dict[int, float]:
    """Return the median time in s of each launch."""
    launches: dict[int, list[float]] = {}
    for one in samples:
        launches.setdefault(one.launch, []).append(one.wall_time_s)
    return {launch: median(times) for launch, times in launches.items()}


def ratio_of(
    launches: Sequence[FloatArray], confidence: float, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the median of values given by their logarithms, and its interval's ends."""
    centre, half_width = interval(launches, confidence, resamples, seed)
    return finite_exp(centre), finite_exp(centre - half_width), finite_exp(centre + half_width)


def t_quantile(freedom: float, probability: float) -> float:
    """Return the value below which Student's t with this freedom lies with this probability."""
    from scipy import special  # takes 0.4 s

    return float(special.stdtrit(freedom, probability))


def interval(
    launches: Sequence[FloatArray], confidence: float, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the median of all values and its interval's half width, in the values' unit.

    `launches` holds the values of each launch, such as log-ratios of pairs.
    """
    if not 0 < confidence < 1:
        raise MeasureError(f"confidence {confidence} is not between 0 and 1: use 0.95")
    if resamples < 100:
        raise MeasureError(f"{resamples} resamples are too few for an interval: use 100 or more")
    between, within = _variances(launches, resamples, seed)
    freedom = _degrees_of_freedom(between, within, [len(launch) for launch in launches])
    quantile = t_quantile(freedom, (1 + confidence) / 2)
    return float(np.median(np.concatenate(launches))), quantile * math.sqrt(between + within)


def _variances(launches: Sequence[FloatArray], resamples: int, seed: int) -> tuple[float, float]:
    """Return the median's variance in two parts: between launches, and between pairs in each."""
    medians = bootstrap_medians(launches, resamples, seed, resample_launches=False)
    within = float(np.var(medians, ddof=1))
    count = len(launches)
    if count == 1:
        return 0.0, within
    both = float(np.var(bootstrap_medians(launches, resamples, seed), ddof=1))
    # A bootstrap of n launches underestimates their variance by (n - 1) / n.
    return max(both - within, 0.0) * count / (count - 1), within


def _degrees_of_freedom(between: float, within: float, counts: Sequence[int]) -> float:
    """Return Welch-Satterthwaite's: near launches - 1 if launches differ, else near the pairs'.

    Two launches say too little about their own spread for this formula (12 % false positives in a
    simulation where that spread dominates). They get one degree of freedom, and so a very wide
    interval.
    """
    launches, pairs = len(counts), sum(counts)
    if launches == 2:
        return 1.0
    parts = [(between, launches - 1), (within, pairs - launches)]
    spread = sum(part**2 / freedom for part, freedom in parts if freedom > 0)
    return (between + within) ** 2 / spread if spread > 0 else float(max(pairs - 1, 1))


def finite_exp(value: float) -> float:
    """Return exp, kept finite and above 0: the interval of two launches can be absurdly wide."""
    return math.exp(min(max(value, -700.0), 700.0))


def bootstrap_medians(
    launches: Sequence[FloatArray], resamples: int, seed: int, *, resample_launches: bool = True
) -> FloatArray:
    """Return medians of resamples: of launches first (unless held fixed), then of pairs in each."""
    rng = np.random.default_rng(seed)
    counts = np.asarray([len(launch) for launch in launches])
    starts = np.cumsum(counts) - counts
    per_launch = max(1, round(float(np.mean(counts))))
    chosen = np.broadcast_to(np.arange(len(counts)), (resamples, len(counts)))
    if resample_launches:
        chosen = rng.integers(len(counts), size=chosen.shape)
    within = rng.random((resamples, len(counts), per_launch))
    offset = (within * counts[chosen][..., None]).astype(np.int64)
    drawn = np.concatenate(launches)[starts[chosen][..., None] + offset]
    return np.asarray(np.median(drawn.reshape(resamples, -1), axis=1), dtype=np.float64)
