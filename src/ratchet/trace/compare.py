"""Two runs compared: the rows add up to the difference of the windows.

A run is a path: a trace's file, or a folder with one file for each rank.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from ratchet.base import drawn_by, files
from ratchet.base.devices.ceilings import Ceilings, above, measure, unrefuted
from ratchet.base.devices.probe import probe
from ratchet.base.errors import TraceError
from ratchet.trace.analysis import PARTS, Analysis, analyse
from ratchet.trace.answers.ceilings import Rooflines, measured_ceilings
from ratchet.trace.answers.kernels import module_paths, work_of
from ratchet.trace.answers.owners import Owned, category_times
from ratchet.trace.answers.report import Report
from ratchet.trace.answers.work import Category
from ratchet.trace.answers.work.call import SHAPES
from ratchet.trace.ranks import Ranks, each_rank, read_ranks, report_file
from ratchet.trace.read import read
from ratchet.trace.read.columns import Trace

State = Literal["slower", "faster", "same", "new", "gone"]
_NUMBER = re.compile(r"_\d+(?= > |$)")  # The number that tells modules of one class apart
Key = tuple[str, str]
Work = dict[str, tuple[int, int]]  # (time in ns, count) by kernel name


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRow:
    """One module and op in both traces; device times in ns."""

    module: str
    op: str
    before: int
    after: int
    count_before: int
    count_after: int
    kernels_before: tuple[str, ...]  # Kernels of this op that only the first trace ran
    kernels_after: tuple[str, ...]  # Kernels of this op that only the second ran
    modules: int = 1  # Number of modules that this row stands for

    @property
    def change(self) -> int:
        return self.after - self.before

    @property
    def state(self) -> State:
        if not self.count_before:
            return "new"
        if not self.count_after:
            return "gone"
        return "slower" if self.change > 0 else "faster" if self.change < 0 else "same"


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison: a trace, or several ranks together; times in ns."""

    name: str
    device: str
    on_device: bool  # True if its work is device work, False if it is CPU ops
    ranks: tuple[int, ...]  # Their times are summed
    window: int
    parts: dict[str, int]  # The identity's parts, which sum to the window
    work: dict[Key, Work]
    categories: dict[Category, int]  # Summed device time; own CPU time without device work
    faults: tuple[str, ...] = ()
    steps: int = 0  # Steps that are marked in each rank's window; 0 if none are, or unlike many
    is_per_step: bool = False  # True if all times and counts are of one step, rounded down

    def per_step(self) -> Side:
        """Return the mean step; counts under one a step stay one."""
        parts = {part: time // self.steps for part, time in self.parts.items()}
        return replace(
            self,
            window=sum(parts.values()),
            parts=parts,
            work={
                key: {
                    name: (time // self.steps, max(count // self.steps, 1))
                    for name, (time, count) in own.items()
                }
                for key, own in self.work.items()
            },
            categories={one: time // self.steps for one, time in self.categories.items()},
            is_per_step=True,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoryChange:
    """One category in both traces; summed times in ns."""

    category: Category
    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """The change from one side to the other; times in ns.

    `window_change` = the rows' changes + `hidden_change` + `idle_change`, exactly.
    """

    before: Side
    after: Side
    rows: tuple[DiffRow, ...]  # The largest change first, in either direction

    _repr_html_ = drawn_by("ratchet.trace.show.diff:diff_report")

    @property
    def sides(self) -> dict[str, Side]:
        """Return both sides by their names here."""
        return {"before": self.before, "after": self.after}

    @property
    def categories(self) -> tuple[CategoryChange, ...]:
        """Return the categories, the largest change first; their changes sum to the rows'."""
        old, new = self.before.categories, self.after.categories
        found = [
            CategoryChange(category=one, before=old.get(one, 0), after=new.get(one, 0))
            for one in {**old, **new}
        ]
        return tuple(sorted(found, key=lambda row: -abs(row.change)))

    @property
    def faults(self) -> tuple[str, ...]:
        return self.before.faults + self.after.faults

    @property
    def window_change(self) -> int:
        return self.after.window - self.before.window

    @property
    def idle_change(self) -> int:
        return self.parts_change["idle"]

    @property
    def hidden_change(self) -> int:
        """Change of the time that overlapping work saves, negated."""
        return self.window_change - self.idle_change - sum(row.change for row in self.rows)

    @property
    def groups(self) -> tuple[DiffRow, ...]:
        """Return the rows with repeated modules (a model's layers) summed."""
        groups: dict[Key, list[DiffRow]] = defaultdict(list)
        for row in self.rows:
            groups[_NUMBER.sub("", row.module), row.op].append(row)
        found = []
        for (module, op), rows in groups.items():
            before = dict.fromkeys(kernel for row in rows for kernel in row.kernels_before)
            after = dict.fromkeys(kernel for row in rows for kernel in row.kernels_after)
            found.append(
                DiffRow(
                    module=module,
                    op=op,
                    before=sum(row.before for row in rows),
                    after=sum(row.after for row in rows),
                    count_before=sum(row.count_before for row in rows),
                    count_after=sum(row.count_after for row in rows),
                    # Only kernels that one side never ran.
                    kernels_before=tuple(kernel for kernel in before if kernel not in after),
                    kernels_after=tuple(kernel for kernel in after if kernel not in before),
                    modules=len(rows),
                )
            )
        return tuple(sorted(found, key=lambda row: -abs(row.change)))

    @property
    def parts_change(self) -> dict[str, int]:
        return {name: self.after.parts[name] - self.before.parts[name] for name in PARTS}


def diff(before: Analysis, after: Analysis) -> Diff:
    """Compare device work by module and op, then by kernel, also across vendors.

    TraceError if only one of the two recorded device work: they cannot be matched.
    """
    return compare(side(before), side(after))


def side(found: Analysis) -> Side:
    trace, whole = found.trace, found.activity.whole()
    steps = found.steps
    return Side(
        name=trace.name,
        device=trace.devices[0].name if trace.devices else "",
        on_device=trace.on_device,
        ranks=(trace.rank or 0,),
        window=whole.window,
        parts=whole.times,
        work=_work(found),
        categories=category_times(Owned(trace, found.links, found.communication)),
        faults=tuple(f"{trace.name}: {fault}" for fault in trace.faults),
        steps=len(steps.labels) if steps else 0,
    )


def together(name: str, sides: Sequence[Side]) -> Side:
    """Sum several ranks into one side."""
    work: dict[Key, Work] = {}
    for one in sides:
        for key, own in one.work.items():
            sums = work.setdefault(key, {})
            for kernel, (time, count) in own.items():
                total, runs = sums.get(kernel, (0, 0))
                sums[kernel] = (total + time, runs + count)
    return Side(
        name=name,
        device=sides[0].device,
        on_device=any(one.on_device for one in sides),
        ranks=tuple(sorted(rank for one in sides for rank in one.ranks)),
        window=sum(one.window for one in sides),
        parts={part: sum(one.parts[part] for one in sides) for part in PARTS},
        work=work,
        categories=dict(sum((Counter(one.categories) for one in sides), Counter())),
        faults=tuple(fault for one in sides for fault in one.faults),
        steps=sides[0].steps if len({one.steps for one in sides}) == 1 else 0,
    )


def compare(before: Side, after: Side) -> Diff:
    """Compare two sides; mean steps, if they hold unlike numbers of steps.

    TraceError if one side has device work or ranks that the other lacks.
    """
    if before.on_device != after.on_device:
        missing = after if before.on_device else before
        raise TraceError(
            f"{missing.name} has no device work and the other trace does: compare two traces that "
            "both have device work, or two that have none"
        )
    if len(before.ranks) != len(after.ranks):
        raise TraceError(
            f"{before.name} has {len(before.ranks)} ranks and {after.name} has "
            f"{len(after.ranks)}: choose one rank with --rank"
        )
    if before.steps and after.steps and before.steps != after.steps:
        before, after = before.per_step(), after.per_step()
    first, second = _paired(before.work, after.work)
    rows = []
    for key in {**first, **second}:
        old, new = first.get(key, {}), second.get(key, {})
        rows.append(
            DiffRow(
                module=key[0],
                op=key[1],
                before=sum(time for time, _ in old.values()),
                after=sum(time for time, _ in new.values()),
                count_before=sum(count for _, count in old.values()),
                count_after=sum(count for _, count in new.values()),
                kernels_before=tuple(sorted(set(old) - set(new))),
                kernels_after=tuple(sorted(set(new) - set(old))),
            )
        )
    rows.sort(key=lambda row: -abs(row.change))
    ratios = Counter(
        Fraction(row.count_after, row.count_before)
        for row in rows
        if row.count_before and row.count_after
    )
    (often, same), *_ = [*ratios.most_common(1), (Fraction(1), 0)]
    if often != 1 and same > max(len(rows) / 2, 2) and not before.is_per_step:
        said = (
            f"{after.name} ran most ops {float(often):.3g} times as often as {before.name}: if it "
            "holds unlike many steps, call the profiler's step() in both, and mean steps compare"
        )
        after = replace(after, faults=(*after.faults, said))
    return Diff(before=before, after=after, rows=tuple(rows))


# Ops that do the same with another library or kernel; those on the right are their names here.
_BACK_ENDS = (
    (re.compile(r"^aten::(cudnn|miopen|mkldnn)_convolution$|^aten::_slow_conv\dd_forward$|"
                r"^aten::(_conv_depthwise2d|convolution_overrideable)$"), "convolution"),
    (re.compile(r"^aten::(cudnn|miopen|native)_batch_norm(_backward)?$"), "batch_norm"),
    (re.compile(r"^aten::_?(scaled_dot_product_)?(flash|efficient|cudnn|fused)?_?attention"
                r"(_forward|_backward)?$"), "attention"),
    (re.compile(r"^aten::_?(cudnn|miopen)_rnn(_backward)?$"), "rnn"),
)  # fmt: skip


def _paired(first: dict[Key, Work], second: dict[Key, Work]) -> tuple[dict[Key, Work], ...]:
    """Give one name to back ends of one op of which each side ran another, in one module."""
    renamed: tuple[dict[Key, Key], dict[Key, Key]] = {}, {}
    waiting: dict[tuple[str, str], Key] = {
        of: key for key in first if key not in second and (of := _back_end(key)) is not None
    }
    for key in second:
        of = _back_end(key)
        if of is None or key in first or of not in waiting:
            continue
        old = waiting.pop(of)
        both = (key[0], f"{old[1]} / {key[1].removeprefix('aten::')}")
        renamed[0][old] = renamed[1][key] = both
    return tuple(
        {names.get(key, key): work for key, work in side.items()}
        for names, side in zip(renamed, (first, second), strict=True)
    )


def _back_end(key: Key) -> tuple[str, str] | None:
    module, op = key
    backward = "_backward" * op.endswith("_backward")
    return next(((module, kind + backward) for names, kind in _BACK_ENDS if names.search(op)), None)


def _work(side: Analysis) -> dict[Key, Work]:
    """Return kernels by (module, op); on a CPU-only trace, CPU ops."""
    trace, links = side.trace, side.links
    rows, op, time = work_of(trace, links)
    module = module_paths(trace, links, op)
    work: dict[Key, Work] = defaultdict(dict)
    for row, own, path, duration in zip(
        rows.tolist(), op.tolist(), module, time.tolist(), strict=True
    ):
        key = (path, trace.string(own) if own >= 0 else "")
        name = trace.string(row)
        if own < 0:
            key = ("", name)
        total, count = work[key].get(name, (0, 0))
        work[key][name] = (total + duration, count + 1)
    return work


def report_run(
    path: Path,
    ceilings: Rooflines | None = None,
    rank: int | None = None,
    capture: Path | None = None,
) -> Report | Ranks:
    """Report a file, a folder's ranks together, or the one that `rank` names.

    A folder with one trace counts as that trace. `capture` is the file of the trace that captured
    one trace's graphs, if it is another. TraceError if nothing can be read.
    """
    check(path, rank)
    if capture is not None:
        check(capture)
    if not path.is_dir():
        return report_file(path, read(path), ceilings, capture)
    if rank is not None:
        file, trace, faults = _one(path, rank)
        answers = report_file(file, trace, ceilings, capture)
        return replace(answers, rank=rank, faults=(*faults, *answers.faults))
    if capture is not None:
        raise TraceError(
            f"--capture {capture} is of one trace, and {path} is a folder: choose one with --rank"
        )
    ranks = read_ranks(path, ceilings)
    if len(ranks.reports) > 1:
        return ranks
    alone = ranks.reports[0]
    return replace(alone, faults=(*ranks.faults, *alone.faults))


def report_here(path: Path, rank: int | None = None, capture: Path | None = None) -> Report | Ranks:
    """Report a run as `report_run` does, with the ceilings that are measured on this machine.

    An operator that is faster refutes them. DeviceError if they cannot be measured.
    """
    device = probe("auto")
    known = measure(device)
    found = report_run(path, measured_ceilings(known, device.model), rank, capture)
    reports = found.reports if isinstance(found, Ranks) else (found,)
    rows = [row for one in reports for row in one.roofline if row.flops_from == SHAPES]

    def is_beaten(ceilings: Ceilings) -> bool:
        return any(above(ceilings, row.flops_per_s, row.dtype) for row in rows)

    better = unrefuted(device, known, is_beaten)
    if better == known:
        return found
    return report_run(path, measured_ceilings(better, device.model), rank, capture)


def diff_runs(before: Path, after: Path, rank: int | None = None) -> Diff:
    """Compare two files or two folders: the sums over their ranks, or the one that `rank` names."""
    check(before, rank)
    check(after, rank)
    names = [path.resolve().name for path in (before, after)]
    if names[0] == names[1]:
        names = [str(before), str(after)]
    first = _side(before, names[0], rank)
    return compare(first, _side(after, names[1], rank))


def _side(path: Path, name: str, rank: int | None) -> Side:
    """Return a file's side, the sum over a folder's ranks, or that of the one that `rank` names."""
    if not path.is_dir():
        return replace(side(analyse(read(path))), name=name)
    faults: list[str] = []
    if rank is not None:
        _, trace, faults = _one(path, rank)
        sides = [side(analyse(trace))]
    else:
        sides = [
            replace(side(analyse(trace)), ranks=(number,))
            for number, _, trace in each_rank(path, faults)
        ]
    whole = together(name, sides)
    return replace(whole, faults=(*faults, *whole.faults))


def check(path: Path, rank: int | None = None) -> None:
    """Raise TraceError if a path is no file or folder that can be opened, or a file with a `rank`.

    Pipes and devices are refused before they are opened: reading one could wait for ever.
    """
    why = files.why_not_folder(path) if path.is_dir() else files.why_not_file(path)
    if why:
        raise TraceError(f"{path} {why}: give a trace's file, or a folder of them")
    if rank is not None and not path.is_dir():
        raise TraceError(
            f"--rank {rank} chooses one of a folder's ranks, and {path} is a file: leave --rank out"
        )


def _one(folder: Path, rank: int) -> tuple[Path, Trace, list[str]]:
    """Return the file and trace of one rank in a folder, and the faults of files before it."""
    faults: list[str] = []
    seen = []
    for number, path, trace in each_rank(folder, faults):
        if number == rank:
            return path, trace, faults
        seen.append(str(number))
    raise TraceError(f"{folder} has no rank {rank}: it has {', '.join(seen)}")
