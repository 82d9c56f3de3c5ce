"""Order the configurations of a Triton kernel by the lower bound on its time, without the GPU.

Each is compiled, and a sample of its workgroups is emulated. Those that do not compile, need too
much LDS, spill or take too long are dropped, each with its reason. The first of the order are
judged on small sizes. Nothing is timed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ratchet.amd.profile import find_action, find_case
from ratchet.amd.profile.sampled import SampledCall, Sampler
from ratchet.base.errors import KernelError, RatchetError
from ratchet.base.files import write_whole
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure
from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, counted, show_time
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.references import least_work
from ratchet.judge.trial.kernel_trial import KernelJudge

OPTIONS: Final = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Names of a configuration that are the compiler's, and no parameters of the kernel."""
SECONDS_EACH: Final = 1.0  # the least that a configuration takes here
WORDS: Final = "ordered by the lower bound on its time; nothing was timed"
MOST_ROWS: Final = 1 << 24
NOT_OF_THIS_SIZE: Final = (RuntimeError, TypeError, ValueError, RatchetError)
"""Errors of a reference on tensors that do not fit together."""
Config = dict[str, bool | int | float | str | None]


class TunedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel of the file, as the sandboxed process describes it."""

    name: str
    tuner: str | None
    """The attributes that lead from the name to its autotuner; None without one."""
    arguments: list[str]
    constants: list[str]
    configs: Annotated[list[Config], msgspec.Meta(max_length=10_000)]


class _Listed(msgspec.Struct, frozen=True):
    kernels: list[TunedKernel]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedConfig(SampledCall):
    """A configuration with its bound, or why it was dropped."""

    config: Config
    right: str = ""  # the judge's status on small sizes; empty if it was not asked

    def words(self, names: Sequence[str]) -> str:
        """Return the values of some of its names."""
        return " ".join(f"{name}={self.config[name]}" for name in names if name in self.config)

    def row(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return its cells under COLUMNS."""
        numbers = (self.vgprs, self.lds_bytes, self.waves)
        bound = show_time(self.bound_s or 0.0)
        cells = (
            bound,
            self.predicted.words if self.predicted else ABSENT,
            self.limit,
            *(f"{one or 0:,}" for one in numbers),
            self.right,
        )
        return (self.words(names), *cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedSize:
    """The order at one size, the shortlist and what was dropped."""

    rows: int | None  # M, the first dimension of the first tensor; None for the case's own
    order: tuple[RankedConfig, ...]
    shortlist: tuple[RankedConfig, ...]
    dropped: tuple[RankedConfig, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneResult:
    """The orders of a kernel's configurations at one size or several, the smallest first."""

    kernel: str
    function: str  # the Triton kernel
    target: str
    device: str
    case: str
    sizes: tuple[TunedSize, ...]
    ordered_by: str = WORDS
    paths: dict[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return all(one.shortlist for one in self.sizes)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def read_grid(words: Sequence[str]) -> dict[str, list[bool | int | str]]:
    """Return the values of each name of `NAME=VALUE,VALUE`; raises KernelError for a mistake."""
    found: dict[str, list[bool | int | str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        texts = [one.strip() for one in values.split(",")]
        if not (name.isidentifier() and equals and all(texts)):
            raise KernelError(f"--config {word!r} is not NAME=VALUE,VALUE: write BLOCK_M=64,128")
        if name in found:
            raise KernelError(f"--config {name} is given twice: write {name}=A,B once")
        found[name] = [_value(one) for one in texts]
    return found


def _value(text: str) -> bool | int | str:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return text


def check_target(target: str) -> None:
    if target not in TARGETS:
        raise KernelError(f"target {target!r} is not emulated: use one of {', '.join(TARGETS)}")


def read_rows(text: str) -> tuple[int, ...]:
    """Return the row counts of `1,16,4096` in order; raises KernelError for a mistake."""
    words = [one.strip() for one in text.split(",") if one.strip()]
    if not all(one.isdecimal() and 0 < int(one) <= MOST_ROWS for one in words):
        raise KernelError(f"--rows {text!r} is not a list of 1 to {MOST_ROWS}: write 1,16,4096")
    return tuple(sorted({int(one) for one in words}))


def at_rows(problem: Problem, case: Case, rows: int) -> Case:
    """Return a case with `rows` in place of M, the first dimension of the first tensor of a call.

    Other tensors whose first dimension is M follow as far as the reference needs it, as it tells
    on tensors without values. Raises KernelError if it runs with none.
    """
    first = 0 if problem.model is None else len(problem.model.state)
    m = case.inputs[first].shape[0] if len(case.inputs) > first and case.inputs[first].shape else 0
    if problem.model is not None and rows > m:
        raise KernelError(f"--rows {rows}: get_inputs draws {m} rows, and a case has no more")
    others = [
        at for at, one in enumerate(case.inputs) if at > first and one.shape and one.shape[0] == m
    ]

    def sized(places: tuple[int, ...], count: int) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(one, shape=(count, *one.shape[1:])) if at in (first, *places) else one
            for at, one in enumerate(case.inputs)
        )

    for size in range(len(others) + 1 if m else 0):
        for places in itertools.combinations(others, size):
            # A count that no other size has: of one row, tensors would be broadcast.
            with contextlib.suppress(*NOT_OF_THIS_SIZE):
                least_work(problem, sized(places, m + 1), case.scalars)
                return replace(case, name=f"{case.name}, M {rows}", inputs=sized(places, rows))
    raise KernelError(
        f"--rows {rows}: the reference of {problem.name!r} takes no other number of rows than {m}: "
        "leave --rows out, and choose among its cases with --case"
    )


def tune(
    kernel: Kernel,
    problem: Problem,
    target: str,
    *,
    grid: dict[str, list[bool | int | str]] | None = None,
    function: str | None = None,
    case: str | None = None,
    rows: Sequence[int] = (),
    top: int = 5,
    time_limit_s: float = 300.0,
    small: Problem | None = None,
) -> TuneResult:
    """Return a kernel's configurations in order of the bound, at the sizes of a problem's case.

    With `rows`, there is an order for each of these numbers of rows. `grid` replaces the
    configurations of its autotuner. The first of the order are judged on the cases of `small`.
    Raises KernelError for a mistake.
    """
    check_target(target)
    if kernel.language != "triton":
        raise KernelError(
            f"kernels in {kernel.language} have no configurations: give one in Triton"
        )
    find_action(kernel.language)
    if problem.fault:
        raise KernelError(f"the problem cannot be judged: {problem.fault}")
    chosen = find_case(problem, case)
    cases: list[tuple[int | None, Case]] = [(one, at_rows(problem, chosen, one)) for one in rows]
    clock = Clock.of(time_limit_s)
    found: list[tuple[int | None, list[RankedConfig]]] = []
    with contextlib.closing(Sampler(target, clock)) as sampler:
        tuned = _chosen(_listed(sampler, kernel), function, has_grid=bool(grid))
        configs = _configs(tuned, grid or {})
        cases = cases or [(None, chosen)]
        needed_s = len(configs) * len(cases) * SECONDS_EACH
        if needed_s > time_limit_s:
            raise KernelError(
                f"{counted(len(configs), 'configuration')} at {counted(len(cases), 'size')} do not "
                f"fit into {time_limit_s:.0f} s: give --time-limit {math.ceil(needed_s)}s, or a "
                "smaller --config"
            )
        variants = [
            narrowed(kernel, tuned, one, None if grid else at) for at, one in enumerate(configs)
        ]
        for count, sized in cases:
            calls = [sampler.call(variant, problem, sized) for variant in variants]
            found.append((count, [_ranked(*pair) for pair in zip(configs, calls, strict=True)]))
    with KernelJudge() as judge:
        check = _Check(judge, small or problem, target, clock)
        sizes = [_size(count, each, variants, check, top) for count, each in found]
    return TuneResult(
        kernel=kernel.name,
        function=tuned.name,
        target=target,
        device=sampler.device,
        case=chosen.name,
        sizes=tuple(sizes),
    )


def _ranked(config: Config, call: SampledCall) -> RankedConfig:
    known = {one.name: getattr(call, one.name) for one in fields(call)}
    return RankedConfig(config=config, **known)


def _size(
    rows: int | None,
    found: Sequence[RankedConfig],
    variants: Sequence[Kernel],
    check: _Check,
    top: int,
) -> TunedSize:
    """Return the order at one size; its first are judged, until `top` are not wrong."""
    kept = sorted(
        (at for at, one in enumerate(found) if not one.dropped),
        key=lambda at: (found[at].bound_s or 0.0, -(found[at].waves or 0)),
    )
    order: list[RankedConfig] = []
    wrong: list[RankedConfig] = []
    for at in kept:
        one = check.judged(variants[at], found[at]) if len(order) < top else found[at]
        (wrong if one.dropped else order).append(one)
    return TunedSize(
        rows=rows,
        order=tuple(order),
        shortlist=tuple(order[:top]),
        dropped=(*wrong, *(one for one in found if one.dropped)),
    )


def _listed(sampler: Sampler, kernel: Kernel) -> list[TunedKernel]:
    try:
        return msgspec.convert(sampler.kernels(kernel), _Listed).kernels
    except (ChildFailure, msgspec.ValidationError) as error:
        raise KernelError(
            f"the kernel's file cannot be loaded: its process {error}; --time-limit "
            "gives it more time"
        ) from error


def _chosen(kernels: Sequence[TunedKernel], function: str | None, *, has_grid: bool) -> TunedKernel:
    """Return the kernel to tune; raises KernelError if it is unclear."""
    names = ", ".join(one.name for one in kernels)
    if function is not None:
        kernels = [one for one in kernels if one.name == function]
        if not kernels:
            raise KernelError(
                f"--kernel {function!r} is no Triton kernel of the file: it has {names}"
            )
    fitting = [one for one in kernels if one.tuner is not None] or (
        list(kernels) if has_grid else []
    )
    if not fitting:
        raise KernelError(
            f"no kernel of the file has @triton.autotune ({names or 'it has none'}): give the "
            "configurations, as in --config BLOCK_M=64,128 --config num_warps=4,8"
        )
    if len(fitting) > 1:
        names = ", ".join(one.name for one in fitting)
        raise KernelError(
            f"the file has several kernels to tune: name one of {names} with --kernel"
        )
    if fitting[0].tuner is not None and not fitting[0].configs and not has_grid:
        raise KernelError(f"the autotuner of {fitting[0].name} has no configuration: give --config")
    return fitting[0]


def _configs(tuned: TunedKernel, grid: dict[str, list[bool | int | str]]) -> list[Config]:
    """Return the autotuner's configurations, or those of a grid, over the autotuner's first."""
    if not grid:
        return tuned.configs
    known = (*(tuned.constants or tuned.arguments), *OPTIONS)
    if unknown := next((name for name in grid if name not in known), None):
        raise KernelError(
            f"--config {unknown}: the kernel {tuned.name} has no such parameter: use one of "
            f"{', '.join(known)}"
        )
    first = tuned.configs[0] if tuned.configs else {}
    every = itertools.product(*grid.values())
    return [first | dict(zip(grid, values, strict=True)) for values in every]


NARROWED: Final = "\n\n{name}{tuner}.configs = {name}{tuner}.configs[{place}:{place} + 1]\n"
REPLACED: Final = (
    "\n\nimport triton as _ratchet_triton\n"
    "{name}{tuner}.configs = [_ratchet_triton.Config({own!r}, **{options!r})]\n"
)
CHOSEN: Final = '''

class _RatchetChosen:
    """Launches a kernel with chosen parameters."""

    def __init__(self, kernel, chosen):
        self._kernel, self._chosen = kernel, chosen

    def __getitem__(self, grid):
        return lambda *given, **named: self._kernel[grid](*given, **{{**named, **self._chosen}})

    def __getattr__(self, name):
        return getattr(self._kernel, name)


{name} = _RatchetChosen({name}, {config!r})
'''


def narrowed(kernel: Kernel, tuned: TunedKernel, config: Config, place: int | None) -> Kernel:
    """Return the kernel with one configuration: its autotuner's at `place`, or that of a grid."""
    if tuned.tuner is None:
        text = CHOSEN.format(name=tuned.name, config=config)
    elif place is not None:
        text = NARROWED.format(name=tuned.name, tuner=tuned.tuner, place=place)
    else:
        own, options = _parts(config)
        text = REPLACED.format(name=tuned.name, tuner=tuned.tuner, own=own, options=options)
    return replace(kernel, source=kernel.source + text)


def _parts(config: Config) -> tuple[Config, Config]:
    """Return the first argument of `triton.Config`, and those that it takes by name."""
    named = ("num_warps", "num_stages")
    own = {name: value for name, value in config.items() if name not in named}
    return own, {name: config[name] for name in named if name in config}


LEAST_VERDICT_S: Final = 10.0


class _Check:
    """Judges configurations on small sizes, each once."""

    def __init__(self, judge: KernelJudge, problem: Problem, target: str, clock: Clock) -> None:
        self._judge, self._problem, self._target = judge, problem, target
        self._clock = clock
        self._known: dict[str, tuple[str, str]] = {}

    def judged(self, variant: Kernel, one: RankedConfig) -> RankedConfig:
        """Return a configuration with the judge's status, or dropped if it is wrong."""
        if variant.source not in self._known:
            if self._clock.left_s < LEAST_VERDICT_S:
                return replace(one, right="not checked: no time was left")
            verdict = self._judge.judge(
                variant, self._problem, target=self._target, time_limit_s=self._clock.left_s
            )
            status, why = verdict.status, verdict.reason
            told = f"{status} on small sizes: {why}"
            self._known[variant.source] = (
                "correct" if status == "correct" else f"not checked: {why}",
                told if status in ("wrong", "crashed", "refused") else "",
            )
        right, dropped = self._known[variant.source]
        return replace(one, right=right, dropped=dropped)


STANDARD_ROWS: Final = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""The row counts up to which aiter's tables have a key (aiter/ops/triton/utils/gemm_config_utils.py
at 063c071)."""


def vllm_table(result: TuneResult) -> dict[str, Config]:
    """Return the first of each shortlist as vLLM's tables have it, which takes the nearest key."""
    return {str(one.rows or 1): one.shortlist[0].config for one in result.sizes if one.shortlist}


def aiter_table(result: TuneResult) -> dict[str, Config]:
    """Return the first of each shortlist as aiter's tables have it: up to a standard row count.

    The last stands for any larger one too.
    """
    found: dict[str, Config] = {}
    for one in result.sizes:
        if one.shortlist:
            bound = next((most for most in STANDARD_ROWS if (one.rows or math.inf) <= most), None)
            found |= {f"M_LEQ_{bound}" if bound else "any": one.shortlist[0].config}
    return found | {"any": found[list(found)[-1]]}


def write_outputs(result: TuneResult, folder: Path) -> TuneResult:
    """Write the shortlists as Python and as JSON, if there is one; return it with the paths."""
    if not any(one.shortlist for one in result.sizes):
        return result
    texts = {
        "tuned.py": python_text(result),
        "tune.json": _json(result.as_json()),
        "vllm.json": _json(vllm_table(result)),
        "aiter.json": _json(aiter_table(result)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    return replace(result, paths={name: str(folder / name) for name in texts})


def _json(document: object) -> str:
    return json.dumps(document, indent=4) + "\n"


PYTHON: Final = '''"""Written by ratchet tune: configurations of {function} for {target}.

The order is that of the lower bound on its time, in seconds, on case {case}{rows}; nothing was
timed.
Time them on the GPU:

    @triton.autotune(configs=CONFIGS, key=[...])

or keep all configurations, and let the bound choose those that are timed:

    prune_configs_by={{"perf_model": perf_model, "top_k": {top}}}
"""

import triton

CONFIGS = [
{configs}]
"""The shortlist, the lowest bound first."""

BOUNDS_S = {{
{bounds}}}
"""The lower bound of each configuration that compiled and did not spill."""


def perf_model(num_warps=4, num_stages=2, **named):
    """Return the lower bound of a configuration, in seconds; infinity if it has none here."""
    named |= {{"num_warps": num_warps, "num_stages": num_stages}}
    for config, bound_s in BOUNDS_S.items():
        if all(named.get(name) == value for name, value in config):
            return bound_s
    return float("inf")
'''


def python_text(result: TuneResult) -> str:
    """Return the shortlists as a Python module with `CONFIGS` and `perf_model`."""
    shortlists = {repr(one.config): one for size in result.sizes for one in size.shortlist}
    shortlist = ""
    for one in shortlists.values():
        own, options = _parts(one.config)
        named = "".join(f", {name}={value!r}" for name, value in options.items())
        shortlist += f"    triton.Config({own!r}{named}),\n"
    last = [one for one in result.sizes if one.shortlist][-1]
    bounds = (f"    {tuple(one.config.items())!r}: {one.bound_s!r},\n" for one in last.order)
    return PYTHON.format(
        function=result.function,
        target=result.target,
        case=result.case,
        rows="" if last.rows is None else f" with {last.rows} rows",
        top=len(shortlists),
        configs=shortlist,
        bounds="".join(bounds),
    )


COLUMNS: Final = (
    "config",
    "at least",
    "predicted",
    "limit",
    "VGPR",
    "LDS bytes",
    "waves",
    "judged",
)
MOST_SHOWN: Final = 20


def tune_report(result: TuneResult) -> m.ResultReport:
    every_one = [one for size in result.sizes for one in (*size.order, *size.dropped)]
    names = list(dict.fromkeys(name for one in every_one for name in one.config))
    values = {name: {repr(one.config.get(name, ...)) for one in every_one} for name in names}
    varied = [name for name in names if len(values[name]) > 1] or names
    same = every_one[0].words([name for name in names if name not in varied])
    count = len(result.sizes)
    done = f"{counted(count, 'size')}, each" if count > 1 else str(len(result.sizes[0].order))
    tried = counted(len(every_one) // count, "configuration")
    ordered = [one for size in result.sizes for one in size.order]
    ran = sum(one.emulated_workgroups for one in ordered)
    every = sum(one.workgroups for one in ordered)
    parts: list[m.ReportSection | None] = []
    for size in result.sizes:
        at = "" if size.rows is None else f", {size.rows} rows"
        rows = [one.row(varied) for one in size.order[:MOST_SHOWN]]
        dropped = [(one.words(varied), one.dropped) for one in size.dropped]
        parts += [
            m.section(f"By the lower bound{at}", m.grid(COLUMNS, rows, left=1)) if rows else None,
            m.section(f"Dropped{at}", m.grid(("config", "why"), dropped, left=2))
            if dropped
            else None,
        ]
    said = (
        f"{ran:,} of {every:,} workgroups were emulated, and their counts scaled to all. The bound "
        "leaves caches and waits out. The predicted time plays them, with the interval in "
        "brackets; it does not order schedules better than the bound, and is no measurement: time "
        "the shortlist on the GPU."
    )
    return m.ResultReport(
        title=f"{result.function} on {result.target}",
        heading="tune",
        headline=f"{tried} of {result.function} for {result.device} ({result.target}), case "
        f"{result.case}: {done} {WORDS}",
        header=m.blocks(f"All have {same}." if same else None, said if ordered else None),
        sections=m.blocks(*parts, m.written(result.paths) if result.paths else None),
    )
