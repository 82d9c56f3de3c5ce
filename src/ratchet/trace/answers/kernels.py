"""Device work, CPU ops, modules and the marks of the user (`record_function`) by total time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.analysis.intervals import alike, groups, sums_by
from ratchet.trace.analysis.links import MODULE, Links, nest
from ratchet.trace.read.columns import DEVICE_KINDS, Bool, Int64, Kind, Trace

Sort = Literal["compute", "communication", "copy"]
SORTS: tuple[Sort, ...] = get_args(Sort)
SMALL_KERNEL_NS = 10_000  # Work shorter than this can cost less than its launch


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """All runs of one kernel, copy or fill in the window; times in ns."""

    name: str
    sort: Sort
    count: int
    total: int
    shortest: int
    longest: int
    share: float  # As a share of all device work's summed time
    op: str  # The CPU op that launched most of its time; empty if none did
    shapes: str  # That op's input shapes, as the profiler wrote them
    module: str
    unlinked: int  # Runs that no CPU op of this trace launched

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def tile(self) -> str:
        """Tile of a matrix kernel by its name, rows x columns x depth; empty if it names none."""
        return tile_of(self.name).tile

    @property
    def isa(self) -> str:
        """Instruction set that a matrix kernel names, such as gfx942."""
        return tile_of(self.name).isa

    @property
    def split(self) -> str:
        """Split of a matrix kernel's inner dimension: a number, `split-K` or `stream-K`."""
        return tile_of(self.name).split


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRow:
    """All calls of one CPU op with one set of input shapes; times in ns."""

    name: str
    shapes: str
    types: str
    count: int
    cpu: int  # Summed duration, callees included
    cpu_own: int  # Summed duration without the ops and runtime calls inside
    device: int  # Device time of the work that it launched itself, callees excluded
    launches: int
    backward: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRow:
    """One module of the model; device times in ns, callees included.

    On a CPU-only trace they are the ops' own CPU times.
    """

    path: str
    calls: int
    forward: int
    backward: int
    recompute: int

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.recompute


def device_rows(trace: Trace, links: Links) -> NDArray[np.intp]:
    """Return the rows of the device work inside the recording's window."""
    return np.flatnonzero(np.isin(trace.kind, DEVICE_KINDS) & ~links.carried_in)


def by_stream(trace: Trace, rows: NDArray[np.intp]) -> list[tuple[int, int, NDArray[np.intp]]]:
    """Group rows as (device, stream, rows), in the order of these numbers."""
    first, group = alike(trace.device[rows], trace.stream[rows])
    return [
        (int(trace.device[rows[at]]), int(trace.stream[rows[at]]), rows[own])
        for at, own in zip(first, groups(group), strict=True)
    ]


def by_lane(trace: Trace, rows: NDArray[np.intp]) -> list[tuple[str, NDArray[np.intp]]]:
    """Group rows as (name, rows) by stream; on a CPU-only trace, by thread."""
    if not trace.on_device:
        lanes = np.unique(trace.lane[rows]).tolist()
        return [(trace.thread(lane), rows[trace.lane[rows] == lane]) for lane in lanes]
    several = np.unique(trace.device[rows]).size > 1
    return [
        (f"device {device} stream {stream}" if several else f"stream {stream}", own)
        for device, stream, own in by_stream(trace, rows)
    ]


def kernels(trace: Trace, links: Links, communication: Bool) -> tuple[KernelRow, ...]:
    """Return kernels, copies and fills by total time, including work that no op launched."""
    rows = device_rows(trace, links)
    names, group = np.unique(trace.text[rows], return_inverse=True)
    duration = trace.duration[rows]
    total = sums_by(group, duration, names.size)
    everything = max(int(total.sum()), 1)
    op_text, op_shapes = _op_columns(trace, links.op[rows])
    module = module_paths(trace, links, links.op[rows])
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(names.size + 1))
    table = []
    for index in np.argsort(-total, kind="stable"):
        own = order[bounds[index] : bounds[index + 1]]
        first = own[np.argmax(duration[own])] if own.size else 0
        launchers, launched = np.unique(op_text[own], return_inverse=True)
        of_each = sums_by(launched, duration[own], launchers.size)
        of_each[launchers < 0] = -1
        main = int(launchers[np.argmax(of_each)]) if launchers.size else -1
        linked = own[op_text[own] == main] if main >= 0 else own[:0]
        chief = linked[np.argmax(duration[linked])] if linked.size else first
        row = int(rows[first])
        table.append(
            KernelRow(
                name=trace.strings[names[index]],
                sort=_sort(trace, row, communication),
                count=own.size,
                total=int(total[index]),
                shortest=int(duration[own].min()),
                longest=int(duration[own].max()),
                share=int(total[index]) / everything,
                op=trace.strings[main] if main >= 0 else "",
                shapes=trace.strings[op_shapes[chief]] if op_shapes[chief] >= 0 else "",
                module=module[chief],
                unlinked=int((links.op[rows[own]] < 0).sum()),
            )
        )
    return tuple(table)


def ops(trace: Trace, links: Links) -> tuple[OpRow, ...]:
    """Return CPU ops by name and input shapes, sorted by device time, then by own CPU time."""
    table = trace.ops
    if not table.row.size:
        return ()
    cpu_own = own_cpu_time(trace, links)
    device, launches = device_time_by_op(trace, links)
    backward = links.backward[table.row].astype(np.int64)
    first, group = alike(trace.text[table.row], table.dims, table.types, backward)
    count = np.bincount(group, minlength=first.size)
    cpu = sums_by(group, trace.duration[table.row], first.size)
    own = sums_by(group, cpu_own[table.row], first.size)
    on_device = sums_by(group, device[table.row], first.size)
    started = sums_by(group, launches[table.row], first.size)
    return tuple(
        OpRow(
            name=trace.string(table.row[first[i]]),
            shapes=trace.strings[table.dims[first[i]]],
            types=trace.strings[table.types[first[i]]],
            count=int(count[i]),
            cpu=int(cpu[i]),
            cpu_own=int(own[i]),
            device=int(on_device[i]),
            launches=int(started[i]),
            backward=bool(backward[first[i]]),
        )
        for i in np.lexsort((-own, -on_device))
    )


def own_cpu_time(trace: Trace, links: Links) -> Int64:
    """Return the time of each op and runtime call without those directly inside, in ns."""
    kinds = trace.kind[links.chosen]
    inner = np.isin(kinds, (Kind.OP, Kind.RUNTIME))
    above = links.tree.nearest(inner)
    duration = trace.duration[links.chosen]
    child = inner & (above >= 0)
    inside = sums_by(above[child], duration[child], duration.size)
    own = np.zeros(len(trace), dtype=np.int64)
    own[links.chosen] = np.where(inner, np.maximum(duration - inside, 0), 0)
    return own


def device_time_by_op(trace: Trace, links: Links) -> tuple[Int64, Int64]:
    """Return (device ns, launches) of the work that each row launched itself."""
    rows = device_rows(trace, links)
    rows = rows[links.op[rows] >= 0]
    time = sums_by(links.op[rows], trace.duration[rows], len(trace))
    return time, np.bincount(links.op[rows], minlength=len(trace)).astype(np.int64)


def modules(trace: Trace, links: Links, calls: Mapping[int, str]) -> tuple[ModuleRow, ...]:
    """Return the model's modules by device time; `calls` is what `module_calls` found."""
    _, op, worked = work_of(trace, links)
    linked = np.maximum(op, 0)
    part = np.where(links.recompute[linked], 2, np.where(links.backward[linked], 1, 0))
    count = Counter(calls.values())
    table = [
        ModuleRow(path=path, calls=count[path], forward=f, backward=b, recompute=r)
        for path, (f, b, r) in module_sums(links, calls, op, worked, part, 3).items()
    ]
    return tuple(sorted(table, key=lambda row: -row.total))


def module_calls(trace: Trace, links: Links) -> dict[int, str]:
    """Return the path of each call of a module, by row; empty if the trace has no stacks."""
    parents = _module_parents(trace, links)
    return _rooted({call: _path(trace, parents, call) for call in sorted(parents)})


def module_sums(
    links: Links,
    calls: Mapping[int, str],
    op: Int64,
    worked: Int64,
    part: Int64,
    parts: int,
) -> dict[str, list[int]]:
    """Sum work by module path and part, a number below `parts`; callees are included."""
    sums: dict[str, list[int]] = {path: [0] * parts for path in calls.values()}
    home = np.where(op >= 0, links.module[np.maximum(op, 0)], -1)
    known = home >= 0
    key, group = np.unique(home[known] * parts + part[known], return_inverse=True)
    for code, time in zip(
        key.tolist(), sums_by(group, worked[known], key.size).tolist(), strict=True
    ):
        path = calls[code // parts]
        # A module's time counts to its callers too.
        while path:
            if path in sums:
                sums[path][code % parts] += time
            path = path.rpartition(" > ")[0]
    return sums


def work_of(
    trace: Trace, links: Links
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Return (row, op, ns) of all device work; on a CPU-only trace, of the ops' own time."""
    if not trace.on_device:
        rows = trace.rows(Kind.OP)
        return rows, rows.astype(np.int64), own_cpu_time(trace, links)[rows]
    rows = device_rows(trace, links)
    return rows, links.op[rows], trace.duration[rows]


def _rooted(paths: dict[int, str]) -> dict[int, str]:
    """Give modules that a checkpoint runs again, without callers, their first run's path."""
    full: dict[str, str] = {}
    for path in paths.values():
        own = path.rpartition(" > ")[2]
        full[own] = max(full.get(own, ""), path, key=len)
    rooted = {}
    for call, path in paths.items():
        root, _, rest = path.partition(" > ")
        rooted[call] = f"{full[root]} > {rest}" if rest else full[root]
    return rooted


def module_paths(trace: Trace, links: Links, op: NDArray[np.int64]) -> list[str]:
    """Return the module path of each op row; empty if it has none."""
    home = np.where(op >= 0, links.module[np.maximum(op, 0)], -1)
    parents = _module_parents(trace, links)
    known = {int(row): _path(trace, parents, int(row)) for row in np.unique(home) if row >= 0}
    return [known.get(row, "") for row in home.tolist()]


def _module_parents(trace: Trace, links: Links) -> dict[int, int]:
    is_module = trace.named(MODULE)[trace.text[links.chosen]]
    is_module &= trace.kind[links.chosen] == Kind.PYTHON
    above = links.tree.nearest(is_module)
    own = np.flatnonzero(is_module)
    outer = np.where(above[own] >= 0, links.chosen[np.maximum(above[own], 0)], -1)
    return dict(zip(links.chosen[own].tolist(), outer.tolist(), strict=True))


def _path(trace: Trace, parents: dict[int, int], row: int) -> str:
    names = []
    while row >= 0:
        names.append(trace.string(row).removeprefix("nn.Module: "))
        row = parents.get(row, -1)
    return " > ".join(reversed(names))


def _op_columns(trace: Trace, op: NDArray[np.int64]) -> tuple[NDArray[np.int64], Int64]:
    text = np.where(op >= 0, trace.text[np.maximum(op, 0)], -1).astype(np.int64)
    of_row = np.full(len(trace), -1, dtype=np.int64)
    of_row[trace.ops.row] = trace.ops.dims
    return text, np.where(op >= 0, of_row[np.maximum(op, 0)], -1)


def _sort(trace: Trace, row: int, communication: Bool) -> Sort:
    if trace.kind[row] != Kind.KERNEL:
        return "copy"
    return "communication" if communication[row] else "compute"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotationRow:
    """All spans of one mark; times in ns, inner marks included."""

    name: str
    count: int
    cpu: int
    device: int  # Summed device time of the work launched inside, on the mark's own thread
    launches: int


def marks(trace: Trace, links: Links) -> tuple[AnnotationRow, ...]:
    """Return the marks by device time, then by CPU time. Steps are left out."""
    chosen = np.flatnonzero(np.isin(trace.kind, (Kind.ANNOTATION, Kind.RUNTIME)))
    tree = nest(trace.lane[chosen], trace.start[chosen], trace.duration[chosen])
    mark = trace.kind[chosen] == Kind.ANNOTATION
    above = tree.nearest(mark)
    place = np.full(len(trace), -1, dtype=np.int64)
    place[chosen] = np.arange(chosen.size)
    rows = device_rows(trace, links)
    rows = rows[links.launch[rows] >= 0]
    launch = place[links.launch[rows]]
    time = np.bincount(launch, weights=trace.duration[rows], minlength=chosen.size)
    started = np.bincount(launch, minlength=chosen.size).astype(np.int64)
    device = time.astype(np.int64)
    for level in reversed(tree.levels):
        inner = level[above[level] >= 0]
        np.add.at(device, above[inner], device[inner])
        np.add.at(started, above[inner], started[inner])
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for at in np.flatnonzero(mark).tolist():
        row = int(chosen[at])
        total = sums[trace.string(row)]
        for i, value in enumerate((1, trace.duration[row], device[at], started[at])):
            total[i] += int(value)
    table = [
        AnnotationRow(name=name, count=n, cpu=cpu, device=gpu, launches=calls)
        for name, (n, cpu, gpu, calls) in sums.items()
        if not name.startswith("ProfilerStep")
    ]
    return tuple(sorted(table, key=lambda row: (-row.device, -row.cpu)))


@dataclass(frozen=True, slots=True)
class Tiled:
    """The parts of a matrix kernel's name; each is empty if the name does not tell it."""

    tile: str = ""  # Rows x columns x depth of the output's tile, as far as they are named
    isa: str = ""  # gfx942, sm80
    split: str = ""  # Parts of the inner dimension: a number, `split-K` or `stream-K`


# Tensile and hipBLASLt: MT is the macro tile, GSU the GlobalSplitU, SK the stream-K mode
# (Tensile's `Tensile/Common.py` has the abbreviations; GSUAMB and GSUASB name an algorithm).
_TENSILE = re.compile(r"^Cijk_")
_MACRO_TILE = re.compile(r"_MT(\d+x\d+(?:x\d+)?)")
_AMD = re.compile(r"_ISA(\d[0-9a-f]{2,3})")
_GLOBAL_SPLIT = re.compile(r"_GSU(\d+)(?:_|$)")
_STREAM_K = re.compile(r"_SK([1-9])")
# cuBLAS, cuDNN and CUTLASS: the first sizes are the tile's; depth x stages may follow.
_NVIDIA = (
    re.compile(r"tilesize(\d+x\d+x\d+)"),
    re.compile(r"nvjet_\w*?_(\d+x\d+)_(\d+)x\d+"),
    re.compile(r"_(\d+x\d+)_(\d+)x\d+(?:_|$)"),
    re.compile(r"(?:gemm|gemmEx|cudnn|conv|_nn|_tn|_nt)\w*?_(\d+x\d+)(?:_|$)"),
)
_SM = re.compile(r"(?:^|_)sm_?(\d{2,3})(?:_|$)|cutlass_(\d{2,3})_|cutlass3x_sm(\d{2,3})")
_GENERATIONS = {"maxwell": "50", "volta": "70", "turing": "75", "ampere": "80", "hopper": "90"}
_SPLIT_K = re.compile(r"^(?!.*splitKreduce).*split_?k(?!v)", re.IGNORECASE)
# Triton's grouped products (triton_kernels): rows x columns x depth x split.
_OGS = re.compile(r"^_matmul_ogs\w*?_(\d+x\d+x\d+)x(\d+)(?:_|$)")


@lru_cache(maxsize=4096)
def tile_of(kernel: str) -> Tiled:
    """Read a kernel's name."""
    if _TENSILE.search(kernel):
        tile, isa = _MACRO_TILE.search(kernel), _AMD.search(kernel)
        split = _GLOBAL_SPLIT.search(kernel)
        return Tiled(
            tile=tile[1] if tile else "",
            isa=f"gfx{isa[1]}" if isa else "",
            split="stream-K" if _STREAM_K.search(kernel) else split[1] if split else "",
        )
    if ogs := _OGS.search(kernel):
        return Tiled(tile=ogs[1], split=ogs[2])
    named = kernel.partition("<")[0] if kernel.startswith("void ") else kernel
    sm = _SM.search(kernel)
    isa_of = next((one for one in sm.groups() if one), "") if sm else ""
    isa_of = isa_of or next((n for word, n in _GENERATIONS.items() if word in named), "")
    found = next((match for shape in _NVIDIA if (match := shape.search(kernel))), None)
    return Tiled(
        tile="x".join(filter(None, found.groups())) if found else "",
        isa=f"sm{isa_of}" if isa_of else "",
        split="split-K" if _SPLIT_K.search(kernel) else "",
    )
