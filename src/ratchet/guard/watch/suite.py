"""The suite of `ratchet watch`, a TOML file or the smoke workloads, and what became of it."""

from __future__ import annotations

import math
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from ratchet.base.errors import WatchError
from ratchet.base.files import why_not_file
from ratchet.base.ledger.books import Better
from ratchet.base.measure import ArmLeft, Ratio, Timing, noise_of
from ratchet.base.measure.contest import confidence_of
from ratchet.base.measure.estimate import finite_exp, interval, t_quantile
from ratchet.base.measure.metrics import more_pairs
from ratchet.base.measure.rounds import run_rounds
from ratchet.base.show.words import parse_share
from ratchet.guard.checkouts import Checkout, Checkouts
from ratchet.guard.checkouts.provenance import prove
from ratchet.guard.command import MeasuredCommand
from ratchet.guard.history import HistorySeries, analyse_one

SUITE_FILE = "ratchet-watch.toml"
_BENCH = (sys.executable, "-m", "ratchet.cli", "bench")
_STEP_TIME = r'"step_time_s": ([-+.\deE]+)'


class Benchmark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One benchmark: a command or a workload."""

    name: Annotated[str, Meta(min_length=1)]
    command: str | list[str] = ""
    """Run in the root of a checkout; text is split as a shell would, without a shell."""
    workload: str = ""  # A workload as `ratchet bench` takes it; its median step time counts
    arguments: list[str] = []  # More words for `ratchet bench`
    metric: str = ""  # As in `ratchet bisect`; without it the command is timed whole
    unit: str = "s"
    better: Better = "lower"
    pairs: Annotated[int, Meta(ge=3)] | None = None
    time_limit_s: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 600.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.workload):
            raise ValueError(f"benchmark {self.name!r} needs a command or a workload, one of them")

    def measured(self) -> MeasuredCommand:
        words, metric = self.command, self.metric
        if self.workload:
            # Its rows go to no ledger that anybody reads.
            words = [*_BENCH, self.workload, *self.arguments, "--json", "--ledger", "sqlite://"]
            metric = _STEP_TIME
        words = shlex.split(words) if isinstance(words, str) else words
        return MeasuredCommand(words=tuple(words), metric=metric, time_limit_s=self.time_limit_s)


class WatchSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: what to run, how often, and what is too slow."""

    build: str = ""  # Shell command that builds a checkout
    build_time_limit_s: Annotated[float, Meta(gt=0, le=sys.float_info.max)] = 3600.0
    pairs: Annotated[int, Meta(ge=3)] = 20
    """Pairs of the first look at a benchmark. Each of up to two more doubles them if it is still
    undecided."""
    fail_if_slower: str = "2%"
    benchmark: Annotated[list[Benchmark], Meta(min_length=1)]

    def __post_init__(self) -> None:
        names = [one.name for one in self.benchmark]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two benchmarks are called {min(twice)!r}: give each its own name")

    @property
    def margin(self) -> float:
        """Return the share by which the head may be slower."""
        return parse_share(self.fail_if_slower, "fail_if_slower")

    def confidence(self, looks: int) -> float:
        """Return the confidence of each interval that makes 95 % for all looks at all of them."""
        return confidence_of(0.05, looks=looks, among=len(self.benchmark))

    def pairs_of(self, one: Benchmark, instead: int | None) -> int:
        """Return how many pairs or runs a benchmark has, or the number that stands in for it."""
        return instead or one.pairs or self.pairs


SMOKE = WatchSuite(
    pairs=5,
    benchmark=[
        Benchmark(name="llama-tiny step", workload="llama-tiny", arguments=["--steps", "5"])
    ],
)
"""The suite that runs without a file."""


def read_suite(path: Path | None, folder: Path) -> WatchSuite:
    """Return the suite of a file, of `ratchet-watch.toml` in the folder, or the smoke workloads.

    Raises WatchError: the file cannot be read, or a setting is not as it must be.
    """
    if path is None:
        path = folder / SUITE_FILE
        if not path.exists():
            return SMOKE
    if why := why_not_file(path):
        raise WatchError(f"the suite {path} {why}: give a TOML file")
    try:
        suite = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), WatchSuite)
    except UnicodeDecodeError as error:
        raise WatchError(f"the suite {path} is not UTF-8: give a TOML file") from error
    except (OSError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise WatchError(f"the suite {path} cannot be read: {error}") from error
    except msgspec.ValidationError as error:
        raise WatchError(f"the suite {path}: {error}") from error
    suite.margin  # noqa: B018 - a share that is none is told now
    for one in suite.benchmark:
        one.measured().check()
    return suite


WatchAnswer = Literal["slower", "faster", "not slower", "undecided", "no baseline", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkResult:
    name: str
    unit: str
    better: Better
    answer: WatchAnswer
    why: str
    base: float | None = None  # Median of the base
    head: float | None = None
    ratio: Ratio | None = None
    runs: int = 0  # Pairs, or runs of the head against a history
    notes: tuple[str, ...] = ()  # What was not looked at
    time_s: float = 0.0
    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The value of each run of the base and the head, in the order of the pairs."""

    @property
    def worse(self) -> tuple[float, float, float] | tuple[None, None, None]:
        """Return the loss of the head with its interval: 0.02 is 2 % slower.

        Where higher is better, it is about 2 % less.
        """
        if self.ratio is None:
            return None, None, None
        return 1 / self.ratio.ratio - 1, 1 / self.ratio.high - 1, 1 / self.ratio.low - 1

    def as_json(self) -> dict[str, object]:
        worse, low, high = self.worse
        own = asdict(self)
        del own["ratio"]
        return {**own, "worse": worse, "low": low, "high": high}


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchResult:
    """The answers of a suite."""

    base: str  # A revision, or the file of a history
    head: str
    margin: float
    confidence: float
    results: tuple[BenchmarkResult, ...]
    notes: tuple[str, ...]
    advisory: bool

    @property
    def red(self) -> bool:
        """Return whether the gate is closed."""
        bad = any(one.answer in ("slower", "failed") for one in self.results)
        return bad and not self.advisory

    def as_json(self) -> dict[str, object]:
        results = [one.as_json() for one in self.results]
        return {**asdict(self), "results": results, "red": self.red}


LOOKS = 3
"""Looks at a benchmark's pairs. Each further one doubles them, if the answer is undecided."""
MOST_ADVISED = 2000  # More pairs than this nobody is told to run
LEAST_HISTORY = 5  # Results of the newest level that a history needs to be a baseline
_LEAST_RUNS = 3
Values = Mapping[str, Sequence[float]]  # Measured values by side
OnRun = Callable[[str, int], None]
"""Called with a benchmark's name and how many of its pairs or runs are done; with 0 as it begins.
Also with what is built, and 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateLimits:
    pairs: int | None = None  # Instead of the suite's
    time_s: float = math.inf
    """After this no benchmark starts another pair. The pairs of all first looks come before those
    of later ones."""
    seed: int = 0


def watch_pairs(
    suite: WatchSuite,
    checkouts: Checkouts,
    base: str,
    head: str,
    limits: GateLimits,
    on_run: OnRun,
) -> list[BenchmarkResult]:
    """Time each benchmark at both commits, in pairs (`run_rounds`).

    Each benchmark first runs once at each commit, untimed, to prove which files it imports. Raises
    GuardError: a side imports the repository's code from elsewhere than its checkout.
    """
    places: dict[str, Checkout] = {}
    for name, commit in (("base", base), ("head", head)):
        on_run(f"building the {name}", 0)
        places[name] = checkouts.get(commit)

    def arms_of(one: Benchmark) -> list[_SideArm]:
        arms = []
        for name, place in places.items():
            arm = _SideArm(name, one.measured(), place.folder, place.why, place.environment)
            arm.prove(place, f"benchmark {one.name!r}: the {name}")
            arms.append(arm)
        return arms

    def answer(one: Benchmark, values: Values, why: Mapping[str, str]) -> BenchmarkResult:
        base, head = values["base"], values["head"]
        if "base" in why:
            said = f"the base cannot run it: {why['base']}"
            return _result(one, "no baseline", said, head=float(np.median(head)))
        # Each run is a process of its own, so pairs are what varies: they count as one launch.
        logs = np.log(np.asarray(head)) - np.log(np.asarray(base))
        change = interval([logs], suite.confidence(LOOKS))
        return _answered(one, suite, float(np.median(base)), head, change, looks=LOOKS)

    return _watched(suite, arms_of, limits, on_run, answer, looks=LOOKS)


def watch_history(
    suite: WatchSuite,
    folder: Path,
    history: Sequence[HistorySeries],
    device: str,
    limits: GateLimits,
    on_run: OnRun,
) -> list[BenchmarkResult]:
    """Run each benchmark in a folder, and compare with the newest level of its history.

    Only results of the same machine are a baseline.
    """

    def answer(one: Benchmark, values: Values, why: Mapping[str, str]) -> BenchmarkResult:
        own = [series for series in history if series.benchmark == one.name]
        return _predicted(one, suite, own, device, values["head"])

    def arms_of(one: Benchmark) -> list[_SideArm]:
        return [_SideArm("head", one.measured(), folder)]

    return _watched(suite, arms_of, limits, on_run, answer, looks=1)


def _watched(
    suite: WatchSuite,
    arms_of: Callable[[Benchmark], list[_SideArm]],
    limits: GateLimits,
    on_run: OnRun,
    answer: Callable[[Benchmark, Values, Mapping[str, str]], BenchmarkResult],
    *,
    looks: int,
) -> list[BenchmarkResult]:
    """Run each benchmark's arms in pairs; look at what is undecided again, with more of them."""
    deadline = time.monotonic() + limits.time_s
    opened, found = [], []
    for one in suite.benchmark:
        on_run(one.name, 0)
        opened.append(_OpenBenchmark(one, arms_of(one), limits.seed, answer))
        found.append(opened[-1].look(suite.pairs_of(one, limits.pairs), deadline, on_run))
    for _ in range(looks - 1):
        for at, each in enumerate(opened):
            if found[at].answer == "undecided" and time.monotonic() < deadline:
                found[at] = each.look(each.done, deadline, on_run)
    return found


class _OpenBenchmark:
    """A benchmark whose pairs go on from look to look."""

    def __init__(
        self,
        one: Benchmark,
        arms: Sequence[_SideArm],
        seed: int,
        answer: Callable[[Benchmark, Values, Mapping[str, str]], BenchmarkResult],
    ) -> None:
        self._one, self._answer = one, answer
        self._arms = {arm.name: arm for arm in arms}
        self._rng = np.random.default_rng([seed, *one.name.encode()])
        self._time_s = 0.0
        self.done = 0  # Pairs

    def look(self, pairs: int, deadline: float, on_run: OnRun) -> BenchmarkResult:
        """Run as many more pairs, and answer from all; the first few run whatever the time."""
        began_s, before, arms = time.monotonic(), self.done, self._arms

        def on_round(index: int, _: object) -> None:
            self.done = before + index + 1
            on_run(self._one.name, self.done)

        def leave(index: int, _: object) -> list[str]:
            late = before + index >= _LEAST_RUNS and time.monotonic() > deadline
            return [name for name, arm in arms.items() if arm.why or arms["head"].why or late]

        run_rounds(
            list(arms.values()),
            rounds=pairs,
            launch=0,
            rng=self._rng,
            on_round=on_round,
            leave=leave,
            fewest_arms=1,
        )
        self._time_s += time.monotonic() - began_s
        values = {name: tuple(arm.values) for name, arm in arms.items()}
        if arms["head"].why:
            found = _result(self._one, "failed", arms["head"].why)
        else:
            why = {name: arm.why for name, arm in arms.items() if arm.why}
            found = self._answer(self._one, values, why)
        notes = tuple(f"the {name}: {arm.note}" for name, arm in arms.items() if arm.note)
        return replace(found, notes=notes, time_s=self._time_s, values=values)


class _SideArm:
    """A benchmark's command in one folder; it leaves the pairs once it fails."""

    def __init__(
        self,
        name: str,
        command: MeasuredCommand,
        folder: Path,
        why: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.why = name, why  # `why` it cannot be run; empty if it can
        self.note = ""  # What was not looked at
        self._command, self._folder, self._environment = command, folder, environment or {}
        self.values: list[float] = []

    def prove(self, checkout: Checkout, side: str) -> None:
        """Run it once if it can be run; GuardError if it runs other code than its checkout's."""
        if self.why:
            return

        def run(environment: Mapping[str, str]) -> float | str:
            return self._command.run(self._folder, environment)

        figure, self.note = prove(run, self._command.words, checkout, side)
        self.why = figure if isinstance(figure, str) else ""

    def run(self, iterations: int) -> Timing:
        began_s = time.perf_counter()
        figure = self._command.run(self._folder, self._environment)
        if isinstance(figure, str):
            self.why = figure
            raise ArmLeft
        self.values.append(figure)
        return Timing(wall_time_s=time.perf_counter() - began_s, cpu_time_s=0.0)


def _predicted(
    one: Benchmark,
    suite: WatchSuite,
    history: Sequence[HistorySeries],
    device: str,
    head: Sequence[float],
) -> BenchmarkResult:
    """Compare with what a history of one level says of its next result."""
    here = [series for series in history if series.device == device]
    level = []
    if here:  # the positive values since the last shift or new environment
        analysed = analyse_one(here[0])
        starts = [shift.index for shift in analysed.shifts] + list(analysed.new_environments)
        values = here[0].values[max(starts, default=0) :]
        level = [float(value) for value in values if value > 0]
    value = float(np.median(head))
    if len(level) < LEAST_HISTORY:
        said = (
            "no results in the history"
            if not history
            else "its results are from another machine"
            if not here
            else f"{len(level)} results at its newest level; it needs {LEAST_HISTORY}"
        )
        return _result(one, "no baseline", said, head=value)
    logs = np.log(np.asarray(level))
    centre, count = float(np.median(logs)), len(logs)
    # The median absolute deviation, scaled to a normal distribution's standard deviation.
    spread = max(1.4826 * float(np.median(np.abs(logs - centre))), 1e-9)
    reach = t_quantile(count - 1, (1 + suite.confidence(looks=1)) / 2)
    reach *= spread * math.sqrt(1 + math.pi / 2 / count)
    change = math.log(value) - centre, reach
    return _answered(one, suite, math.exp(centre), head, change, looks=1)


def _answered(
    one: Benchmark,
    suite: WatchSuite,
    base: float,
    head: Sequence[float],
    change: tuple[float, float],
    *,
    looks: int,
) -> BenchmarkResult:
    """Answer from the change's logarithm, and how far its interval reaches on each side.

    An undecided answer says what would tell: with one look, only a base to run beside the head.
    """
    better, reach = -change[0] if one.better == "lower" else change[0], change[1]
    middle, low, high = (finite_exp(better + step) for step in (0.0, -reach, reach))
    answer: WatchAnswer
    limit, why = 1 / (1 + suite.margin), ""
    if high < limit:
        answer = "slower"
    elif low > 1:
        answer = "faster"
    elif low >= limit:
        answer = "not slower"
    else:
        answer = "undecided"
        cause = noise_of(low, high, None)
        cause = cause or f"the interval holds what is allowed ({100 * suite.margin:.3g}%)"
        more = more_pairs(len(head), reach, abs(better + math.log1p(suite.margin)))
        tells = f"about {more} more pairs would tell"
        if more is None or more > MOST_ADVISED:
            tells = "it is too close to what is allowed to tell: allow more in fail_if_slower"
        why = f"{cause}: {tells if looks > 1 else 'run the base too, with --base'}"
    return _result(
        one,
        answer,
        why,
        base=base,
        head=float(np.median(head)),
        ratio=Ratio(ratio=middle, low=low, high=high, confidence=suite.confidence(looks)),
        runs=len(head),
    )


def _result(one: Benchmark, answer: WatchAnswer, why: str, **more: Any) -> BenchmarkResult:
    return BenchmarkResult(
        name=one.name, unit=one.unit, better=one.better, answer=answer, why=why, **more
    )
