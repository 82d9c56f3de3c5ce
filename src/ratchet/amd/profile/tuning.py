"""Order the configurations of a Triton kernel by the lower bound on its time, without the GPU.

A sandboxed process compiles each and emulates a sample of its workgroups. Those that do not
compile, need too much LDS, spill or take too long are dropped, each with its reason. The first of
the order are judged on small sizes. Nothing is timed.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, occupancy
from ratchet.amd.compile.process import ProfileProcess
from ratchet.amd.emulator.clock import PredictedTime, clock_words, prediction
from ratchet.amd.emulator.estimates import estimate, largest_device, matrix_cycles, read_told
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.program import pretended_device
from ratchet.amd.profile import find_action, find_case
from ratchet.base import Json
from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.files import write_whole
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message
from ratchet.base.process.child import ChildFailure
from ratchet.base.serialise import Count
from ratchet.base.show import model as m
from ratchet.base.show.words import counted, show_time
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge

TUNE_WORKER: Final = "ratchet.amd.emulator.tune_worker"
OPTIONS: Final = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Names of a configuration that are the compiler's, and no parameters of the kernel."""
SAMPLE: Final = 16  # about how many workgroups of a launch are emulated
LIMIT: Final = 300_000_000  # wave instructions of one launch's sample
SECONDS_EACH: Final = 1.0  # the least that a configuration takes here
EACH_LIMIT_S: Final = 60.0
WORDS: Final = "ordered by the lower bound on its time; nothing was timed"
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


class _Launched(msgspec.Struct, frozen=True, kw_only=True):
    told: dict[str, Json]
    ran: Count
    predicted_s: Annotated[float, msgspec.Meta(ge=0)] | None
    vgprs: Count
    workgroup_waves: Annotated[int, msgspec.Meta(ge=1, le=64)]
    lds_bytes: Count


class _Ran(msgspec.Struct, frozen=True):
    launches: list[_Launched]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedConfig:
    """A configuration with its bound, or why it was dropped."""

    config: Config
    bound_s: float | None = None
    predicted: PredictedTime | None = None
    limit: str = ""  # the unit with most of the bound
    workgroups: int = 0  # of all launches
    emulated_workgroups: int = 0
    vgprs: int | None = None
    lds_bytes: int | None = None
    waves: int | None = None  # that a SIMD holds
    right: str = ""  # the judge's status on small sizes; empty if it was not asked
    dropped: str = ""

    def words(self, names: Sequence[str]) -> str:
        """Return the values of some of its names."""
        return " ".join(f"{name}={self.config[name]}" for name in names if name in self.config)

    def row(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return its cells under COLUMNS."""
        numbers = (self.vgprs, self.lds_bytes, self.waves)
        bound = show_time(self.bound_s or 0.0)
        cells = (
            bound,
            clock_words(self.predicted),
            self.limit,
            *(f"{one or 0:,}" for one in numbers),
            self.right,
        )
        return (self.words(names), *cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneResult:
    """The order, the shortlist and what was dropped."""

    kernel: str
    function: str  # the Triton kernel
    target: str
    device: str
    case: str
    order: tuple[RankedConfig, ...]
    shortlist: tuple[RankedConfig, ...]
    dropped: tuple[RankedConfig, ...]
    ordered_by: str = WORDS
    paths: dict[str, str] = field(default_factory=dict)

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


def tune(
    kernel: Kernel,
    problem: Problem,
    target: str,
    *,
    grid: dict[str, list[bool | int | str]] | None = None,
    function: str | None = None,
    case: str | None = None,
    top: int = 5,
    time_limit_s: float = 300.0,
    small: Problem | None = None,
) -> TuneResult:
    """Return a kernel's configurations in order of the bound, at the sizes of a problem's case.

    `grid` replaces the configurations of its autotuner. The first of the order are judged
    on the cases of `small`. Raises KernelError for a mistake.
    """
    check_target(target)
    if kernel.language != "triton":
        raise KernelError(
            f"kernels in {kernel.language} have no configurations: give one in Triton"
        )
    find_action(kernel.language)
    if problem.fault:
        raise KernelError(f"the problem cannot be judged: {problem.fault}")
    if problem.model is not None:
        raise KernelError(
            f"problem {problem.name!r} is in KernelBench's form, whose sizes tune cannot launch: "
            "write it in Ratchet's form"
        )
    chosen = find_case(problem, case)
    clock = Clock.of(time_limit_s)
    device = pretended_device(target)
    message: Message = {
        "do": "list",
        "source": kernel.source,
        "entry": kernel.entry,
        "target": target,
        "device": {"name": device.name, "units": device.units, "memory_bytes": device.memory_bytes},
        "matrix_cycles": matrix_cycles(target),
        "clock": largest_device(target).name,
        "machine": base64.b64encode(compiled_machine(target).read_bytes()).decode(),
        "case": asdict(chosen),
        "limit": LIMIT,
        "sample": SAMPLE,
    }
    found: list[RankedConfig] = []
    with contextlib.closing(ProfileProcess(clock, worker=TUNE_WORKER)) as process:
        tuned = _chosen(_listed(process, message), function, has_grid=bool(grid))
        configs = _configs(tuned, grid or {})
        most = int(time_limit_s / SECONDS_EACH)
        if len(configs) > most:
            raise KernelError(
                f"{len(configs)} configurations do not fit into {time_limit_s:.0f} s: give "
                f"--time-limit {math.ceil(len(configs) * SECONDS_EACH)}s, or a smaller --config"
            )
        for place, one in enumerate(configs):
            source = narrowed(kernel, tuned, one, None if grid else place).source
            asked = message | {"do": "run", "source": source}
            found.append(_ran(process, asked, one, target))
    order = sorted(
        (one for one in found if not one.dropped),
        key=lambda one: (one.bound_s or 0.0, -(one.waves or 0)),
    )
    dropped = [one for one in found if one.dropped]
    places = [None if grid else configs.index(one.config) for one in order]
    judged = _judged(
        kernel, tuned, small or problem, target, list(zip(order, places, strict=True)), top, clock
    )
    wrong = {id(order[at]) for at, one in judged.items() if one.dropped}
    return TuneResult(
        kernel=kernel.name,
        function=tuned.name,
        target=target,
        device=device.name,
        case=chosen.name,
        order=tuple(judged.get(at, one) for at, one in enumerate(order) if id(one) not in wrong),
        shortlist=tuple(one for one in judged.values() if not one.dropped),
        dropped=(*(one for one in judged.values() if one.dropped), *dropped),
    )


def _listed(process: ProfileProcess, message: Message) -> list[TunedKernel]:
    try:
        return msgspec.convert(process.ask(message), _Listed).kernels
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


def _ran(process: ProfileProcess, message: Message, config: Config, target: str) -> RankedConfig:
    """Return a configuration's bound, or why it has none."""
    try:
        reply = process.ask(message, EACH_LIMIT_S)
        launches = msgspec.convert(reply, _Ran).launches
        if not launches:
            return RankedConfig(config=config, dropped="the entry launches no kernel")
        cases = [estimate("", target, read_told(one.told, target, shown=False)) for one in launches]
    except ChildFailure as error:
        return RankedConfig(config=config, dropped=f"its process {error}")
    except KernelError as error:
        return RankedConfig(config=config, dropped=str(error).removeprefix("the entry raised "))
    except (JudgeError, ValueError, TypeError) as error:
        return RankedConfig(config=config, dropped=str(error))
    if any(not one.bounds for one in cases):
        why = next((one.no_estimate for one in cases if one.no_estimate), "no device is known")
        return RankedConfig(config=config, dropped=f"no bound: {why}")
    units = {
        unit: sum(getattr(one.bounds[0], f"{unit}_s") for one in cases)
        for unit in ("memory", "matrix", "vector", "lds")
    }
    heaviest = launches[max(range(len(cases)), key=lambda at: cases[at].bounds[0].time_s)]
    held = occupancy(
        ARCHITECTURES[target],
        vgprs=heaviest.vgprs,
        lds_bytes=heaviest.lds_bytes,
        workgroup_waves=heaviest.workgroup_waves,
    )
    return RankedConfig(
        config=config,
        bound_s=sum(one.bounds[0].time_s for one in cases),
        predicted=_predicted(cases[0].bounds[0].device, launches),
        limit=max(units, key=lambda unit: units[unit]),
        workgroups=sum(kernel.programs for one in cases for kernel in one.kernels),
        emulated_workgroups=sum(one.ran for one in launches),
        vgprs=heaviest.vgprs,
        lds_bytes=heaviest.lds_bytes,
        waves=held.waves_per_simd,
    )


def _predicted(device: str, launches: Sequence[_Launched]) -> PredictedTime | None:
    """Return the time of all launches; None if one has none."""
    times = [one.predicted_s for one in launches]
    known = [one for one in times if one is not None]
    return prediction(device, sum(known)) if len(known) == len(times) else None


LEAST_VERDICT_S: Final = 10.0


def _judged(
    kernel: Kernel,
    tuned: TunedKernel,
    problem: Problem,
    target: str,
    order: Sequence[tuple[RankedConfig, int | None]],
    top: int,
    clock: Clock,
) -> dict[int, RankedConfig]:
    """Return the first configurations of the order, until `top` are not wrong, by their place."""
    found: dict[int, RankedConfig] = {}
    with KernelJudge() as judge:
        for at, (one, place) in enumerate(order):
            if sum(not done.dropped for done in found.values()) >= top:
                break
            if clock.left_s < LEAST_VERDICT_S:
                found[at] = replace(one, right="not checked: no time was left")
                continue
            variant = narrowed(kernel, tuned, one.config, place)
            verdict = judge.judge(variant, problem, target=target, time_limit_s=clock.left_s)
            no_good = verdict.status in ("wrong", "crashed", "refused")
            told = f"{verdict.status} on small sizes: {verdict.reason}"
            found[at] = replace(
                one,
                right="correct"
                if verdict.status == "correct"
                else f"not checked: {verdict.reason}",
                dropped=told if no_good else "",
            )
    return found


def write_outputs(result: TuneResult, folder: Path) -> TuneResult:
    """Write the shortlist as Python and as JSON, if there is one; return it with the paths."""
    if not result.shortlist:
        return result
    best = result.shortlist[0].config
    texts = {
        "tuned.py": python_text(result),
        "tune.json": _json(result.as_json()),
        # Both libraries look a table up by the rows M of the product. This is one table for any M.
        "vllm.json": _json({"1": best}),
        "aiter.json": _json({"any": best}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    return replace(result, paths={name: str(folder / name) for name in texts})


def _json(document: object) -> str:
    return json.dumps(document, indent=4) + "\n"


PYTHON: Final = '''"""Written by ratchet tune: configurations of {function} for {target}.

The order is that of the lower bound on its time, in seconds, on case {case}; nothing was timed.
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
    """Return the shortlist as a Python module with `CONFIGS` and `perf_model`."""
    shortlist = ""
    for one in result.shortlist:
        own, options = _parts(one.config)
        named = "".join(f", {name}={value!r}" for name, value in options.items())
        shortlist += f"    triton.Config({own!r}{named}),\n"
    rows = (f"    {tuple(one.config.items())!r}: {one.bound_s!r},\n" for one in result.order)
    return PYTHON.format(
        function=result.function,
        target=result.target,
        case=result.case,
        top=len(result.shortlist),
        configs=shortlist,
        bounds="".join(rows),
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
    """Describe the result for people."""
    every_one = (*result.order, *result.dropped)
    names = list(dict.fromkeys(name for one in every_one for name in one.config))
    values = {name: {repr(one.config.get(name, ...)) for one in every_one} for name in names}
    varied = [name for name in names if len(values[name]) > 1] or names
    same = every_one[0].words([name for name in names if name not in varied])
    dropped = [(one.words(varied), one.dropped) for one in result.dropped]
    tried = counted(len(every_one), "configuration")
    ran = sum(one.emulated_workgroups for one in result.order)
    every = sum(one.workgroups for one in result.order)
    return m.ResultReport(
        title=f"{result.function} on {result.target}",
        heading="tune",
        headline=f"{tried} of {result.function} for {result.device} ({result.target}), case "
        f"{result.case}: {len(result.order)} {WORDS}",
        sections=m.blocks(
            m.section(
                "By the lower bound",
                m.grid(COLUMNS, [one.row(varied) for one in result.order[:MOST_SHOWN]], left=1),
                f"All have {same}." if same else None,
                f"{ran:,} of {every:,} workgroups were emulated, and their counts scaled to all. "
                "The bound leaves caches and waits out. The predicted time plays them, with the "
                "interval in brackets; it does not order schedules better than the bound, and is "
                "no measurement: time the shortlist on the GPU.",
            )
            if result.order
            else None,
            m.section("Dropped", m.grid(("config", "why"), dropped, left=2)) if dropped else None,
            m.written(result.paths) if result.paths else None,
        ),
    )
