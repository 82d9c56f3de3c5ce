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
from typing import Literal

import numpy as np

from ratchet.base.errors import MeasureError
from ratchet.base.measure import FloatArray, Sample, log_ratios, of_arm

Answer = Literal["faster", "slower", "equivalent", "undecided"]

MIN_PAIRS = 2
WIDEST = 1.1
"""An interval that reaches further than this factor from its middle, or an A/A floor that reaches
further from 1, is too wide to tell anything. `equivalent` needs an interval between 1 / WIDEST and
WIDEST: most of what Ratchet keeps wins 3 to 50 %, and floors on shared machines that work as they
should reach 1.01 to 1.1, so a narrower width would refuse most answers there, and a wider one would
call a gain of a tenth no difference."""
_WIDE = 2 * math.log(WIDEST) * (1 + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """Range of ratios between two copies of one arm, symmetric about 1 in the logarithm."""

    low: float
    high: float
    pairs: int

    def contains(self, low: float, high: float) -> bool:
        return self.low <= low and high <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The speed-up of `new` over `baseline`; above 1 is faster."""

    baseline: str
    new: str
    ratio: float
    """baseline time / new time."""
    low: float
    high: float
    answer: Answer
    pairs: int
    launches: int
    """With 1, the interval ignores how much one start of the processes differs from the next: it
    holds for that launch alone."""
    confidence: float
    floor: Floor | None
    why: str = ""
    """The cause of an `undecided` answer; empty for every other."""

    @property
    def noise(self) -> str:
        """Return what shows that noise kept an answer from being found, or an empty text."""
        return noise_of(self.low, self.high, self.floor) if self.answer == "undecided" else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTime:
    """One arm's median time per iteration, with the median's interval."""

    arm: str
    median_s: float
    low_s: float
    high_s: float
    count: int


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
) -> Comparison:
    """Compare two arms over the rounds that hold both; `twin` is a second copy of the baseline.

    `faster` and `slower` need an interval that excludes 1, and a ratio outside the floor if there
    is one. `equivalent` needs a floor that holds the whole interval, and an interval within WIDEST.
    All else is `undecided`, and `Comparison.why` names the cause.
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
    return Comparison(
        baseline=baseline,
        new=new,
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


def answer_of(ratio: float, low: float, high: float, floor: Floor | None) -> Answer:
    """Return the answer that an interval gives against the A/A floor."""
    if floor is not None and floor.contains(low, high):
        return "equivalent" if max(high, 1 / low) <= WIDEST else "undecided"
    if floor is not None and floor.contains(ratio, ratio):
        return "undecided"
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    return "undecided"


def noise_of(low: float, high: float, floor: Floor | None) -> str:
    """Return what shows that a sitting was too noisy for an answer, or an empty text.

    An undecided answer says nothing about the arms then, and another sitting may decide.
    """
    shown = [f"interval {_span(low, high)}"] if _width(low, high) > _WIDE else []
    if floor is not None and (shown or floor.high > WIDEST):
        shown.append(f"A/A {_span(floor.low, floor.high)}")
    return f"the machine was too noisy ({', '.join(shown)})" if shown else ""


def why_undecided(ratio: float, low: float, high: float, floor: Floor | None) -> str:
    """Return the cause of an undecided answer, from the interval and the floor that gave it."""
    noise = noise_of(low, high, floor)
    if noise:
        return noise
    if floor is not None and floor.contains(ratio, ratio):
        return f"the difference is within the noise (A/A {_span(floor.low, floor.high)})"
    return f"the interval holds 1 ({_span(low, high)})"


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
    return floor_of(result.low, result.high, result.pairs)


def floor_of(low: float, high: float, pairs: int) -> Floor:
    """Return the floor that the interval of two copies' ratio gives."""
    reach = max(high, 1 / low)
    return Floor(low=1 / reach, high=reach, pairs=pairs)


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
    within = _variance(bootstrap_medians(launches, resamples, seed, resample_launches=False))
    count = len(launches)
    if count == 1:
        return 0.0, within
    both = _variance(bootstrap_medians(launches, resamples, seed))
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


def _width(low: float, high: float) -> float:
    return math.log(high) - math.log(max(low, 1e-300))


def _span(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}" if high < 1000 else f"{low:.2g} to {high:.2g}"


def finite_exp(value: float) -> float:
    """Return exp, kept finite and above 0: the interval of two launches can be absurdly wide."""
    return math.exp(min(max(value, -700.0), 700.0))


def _variance(values: FloatArray) -> float:
    return float(np.var(values, ddof=1))


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
