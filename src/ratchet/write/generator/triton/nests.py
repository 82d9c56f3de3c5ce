"""Triton for a loop nest: tiles of rows and columns, passes over each row, reductions in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.write.form import Fold, Node, Scan
from ratchet.write.form.extent import Extent, named, product_of, unflattened
from ratchet.write.generator.evaluate import LoopScope
from ratchet.write.generator.fusion import FusionPlan, Index, LoopNest, Role, passes_of
from ratchet.write.generator.triton.values import (
    TileEvaluator,
    TileFolding,
    finisher,
    rendered,
    tile_folding,
)

ROWWISE = frozenset(["row fold", "row", "scan"])
FOLDED = frozenset(["column fold", "whole fold"])


@dataclass(kw_only=True)
class WrittenStage:
    """A stage's kernels, and the lines of their caller that launch them."""

    kernels: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)

    def launch(self, name: str, grid: str, kernel: KernelText, more: str) -> None:
        """Add a kernel and its launch over a grid of programs."""
        self.kernels.append(kernel.text(name))
        self.host.append(f"{name}[({grid},)]({kernel.passed(more)}, **_options())")


@dataclass(frozen=True, kw_only=True)
class KernelText:
    """A kernel's lines, and what it can be passed by name."""

    lines: Sequence[str]
    names: Sequence[str]  # Memory and sizes that lines may speak of
    constants: Sequence[str]

    @property
    def given(self) -> list[str]:
        found = words(self.lines)
        return [name for name in self.names if name in found]

    def text(self, name: str) -> str:
        parameters = [*self.given, *(f"{one}: tl.constexpr" for one in self.constants)]
        head = f"@triton.jit\ndef {name}({', '.join(parameters)}):"
        return "\n".join([head, *(f"    {line}" for line in self.lines)])

    def passed(self, more: str) -> str:
        return ", ".join([*self.given, more])


def words(lines: Sequence[str]) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", "\n".join(lines)))


def indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


class TileNest:
    """Writes one nest.

    The nest's outer axes are the tile's rows, counted by `r`, and its inner ones the columns,
    counted by `c`. Where nothing couples a row, programs share its columns.
    """

    def __init__(
        self,
        nest: LoopNest,
        plan: FusionPlan,
        evaluator: TileEvaluator,
        names: Sequence[str],
        read_elsewhere: frozenset[Node],
        *,
        turned: int | None,
        stays: bool,
    ) -> None:
        """`turned`: the axis that neighbours in memory follow, which shares squares with the last.

        `stays`: programs take several tiles, as they do for reductions over rows.
        """
        self.nest, self.plan, self.evaluator, self.names = nest, plan, evaluator, names
        self.buffers = dict(evaluator.buffers)
        self.read_elsewhere = read_elsewhere
        roles = set(nest.members.values())
        self.rowwise = bool(roles & ROWWISE)
        self.folds = [(n, role) for n, role in nest.members.items() if role in FOLDED]
        self.stays = stays or bool(self.folds)
        self.passes = passes_of(nest, plan.kept) if self.rowwise else dict.fromkeys(nest.members, 0)
        every = list(range(len(nest.sizes)))
        outer, inner = [], every
        self.turned = False
        if self.rowwise or "column fold" in roles:
            inner = [k for k in every if k in (nest.inner or ())]
            outer = [k for k in every if k not in inner]
        elif turned is not None:
            self.turned = True
            outer, inner = [*(k for k in every[:-1] if k != turned), turned], every[-1:]
        self.height = product_of(nest.sizes[k] for k in outer)
        self.width = product_of(nest.sizes[k] for k in inner)
        self.moved: dict[str, Extent] = {}
        for letter, bound, axes in (("r", self.height, outer), ("c", self.width, inner)):
            sizes = tuple(nest.sizes[k] for k in axes)
            for k, place in zip(axes, unflattened(named(letter, bound), sizes), strict=True):
                self.moved[f"{nest.name}_{k}"] = place
        self._totals: list[tuple[Fold, Role, str]] = []

    # --- indices

    def own_index(self, node: Node) -> Index:
        axes = self.nest.axes(self.nest.members[node])
        return self._moved(self.nest.place_of(node.shape, axes))

    def read_index(self, over: Sequence[Extent]) -> Index:
        return self._moved(self.nest.place_of(over, tuple(range(len(self.nest.sizes)))))

    def _moved(self, index: Index) -> Index:
        return tuple(one.replace(self.moved) for one in index)

    # --- kernels

    def write(self, tag: str) -> WrittenStage:
        """Return the nest's kernels, whose names end with `tag`, and their launches."""
        stage = WrittenStage()
        height, width = rendered(self.height, host=True), rendered(self.width, host=True)
        stage.host += [f"height, width = {height}, {width}"]
        if not self.rowwise:
            stage.host.append(f"rows, block = _tile(height, width, {self.turned})")
            self._launch(stage, f"nest_{tag}", looped=False, indent="")
            return stage
        stage.host += ["rows, block = _row_tile(height, width)", "if block >= width:"]
        self._launch(stage, f"nest_{tag}", looped=False, indent="    ")
        stage.host.append("else:")
        self._launch(stage, f"nest_{tag}_long", looped=True, indent="    ")
        return stage

    def _launch(self, stage: WrittenStage, name: str, *, looped: bool, indent: str) -> None:
        lines = self._lines(looped)
        own = WrittenStage()
        over = "1" if self.rowwise else "triton.cdiv(width, block)"
        own.host.append(f"over, tiles = {over}, triton.cdiv(height, rows)")
        each = "_share(tiles, over)" if self.stays else "1"
        own.host.append(f"each = {each}")
        own.host.append("groups = triton.cdiv(tiles, each)")
        finishes: list[str] = []
        for node, role, total in self._totals:
            way = self._way(node, node.op)
            out = self.buffers[node].name
            size = "groups * width" if role == "column fold" else "groups * over"
            form = f"{size}, dtype=torch.{way.type.removeprefix('tl.')}, device=device"
            own.host.append(f"{total}_left = torch.empty({form})")
            kernel = f"{name}_{node.op}_{len(finishes)}"
            value = self.evaluator.rounded(self.buffers[node].dtype, "found")
            own.kernels.append(finisher(way, kernel, value))
            wide = "groups, width" if role == "column fold" else "groups * over, 1"
            few = "64, 64" if role == "column fold" else "1024, 1"
            count = "triton.cdiv(width, 64)" if role == "column fold" else "1"
            finishes.append(f"{kernel}[({count},)]({total}_left, {out}, {wide}, {few})")
        names = [*self.names, *(f"{total}_left" for _, _, total in self._totals)]
        kernel_text = KernelText(
            lines=lines,
            names=[*names, "height", "width", "tiles", "each"],
            constants=["ROWS", "BLOCK"],
        )
        own.launch(name, "groups * over", kernel_text, "ROWS=rows, BLOCK=block")
        stage.kernels += own.kernels
        stage.host += [indent + line for line in [*own.host, *finishes]]

    def _way(self, node: Node, op: str) -> TileFolding:
        return tile_folding(node, op, self.evaluator.used)

    def _lines(self, looped: bool) -> list[str]:
        """Return the lines of a kernel; `looped`: a row's columns are taken block by block."""
        evaluator = self.evaluator
        evaluator.local = {
            node for node, role in self.nest.members.items() if role in ("element", "row")
        }
        evaluator.scopes, evaluator.guards = [LoopScope()], ()
        self._totals = []
        kernel = evaluator.scopes[0]
        columns = "tl.arange(0, BLOCK)[None, :]"
        kernel.lines.append("pid = tl.program_id(0)")
        if self.rowwise:
            kernel.lines.append("group = pid")
        else:
            kernel.lines += ["over = tl.cdiv(width, BLOCK)", "group = pid // over"]
            columns = f"(pid % over) * BLOCK + {columns}"
        if not looped:
            evaluator.axis("c", columns, "width")
        for node, role in self.folds:
            total = evaluator.fresh("t")
            assert isinstance(node, Fold)
            self._totals.append((node, role, total))
            way = self._way(node, node.op)
            if looped and role == "column fold":
                kernel.lines += self._cleared(total, way)
            else:
                kernel.lines.append(f"{total} = tl.full((ROWS, BLOCK), {way.start}, {way.type})")
        row = evaluator.push()
        evaluator.axis("r", "tile * ROWS + tl.arange(0, ROWS)[:, None]", "height")
        for level in range(max(self.passes.values(), default=0) + 1):
            members = [one for one in self.nest.members.items() if self.passes[one[0]] == level]
            self._pass([one for one in members if one[1] != "row"], row, looped)
        self._row_results(row)
        evaluator.pop()
        evaluator.local = set()
        if self.stays:
            last = "tl.minimum(group * each + each, tiles)"
            kernel.lines.append(f"for tile in range(group * each, {last}):")
        kernel.lines += indented(row.lines) if self.stays else ["tile = group", *row.lines]
        for node, role, total in self._totals:
            way = self._way(node, node.op)
            if role == "whole fold":
                found = way.along(way.along(total, 1), 0)
                kernel.lines.append(
                    f"tl.store({total}_left + pid + tl.zeros((1, 1), tl.int32), {found})"
                )
            elif not looped:
                kernel.lines.append(
                    f"tl.store({total}_left + group * width + c, {way.along(total, 0)}, c_in)"
                )
        return kernel.lines

    def _cleared(self, total: str, way: TileFolding) -> list[str]:
        """Write what clears a program's own part of a column's totals."""
        return [
            *self._blocks(
                [
                    "c = start + tl.arange(0, BLOCK)[None, :]",
                    f"none = tl.full((1, BLOCK), {way.start}, {way.type})",
                    f"tl.store({total}_left + group * width + c, none, c < width)",
                ]
            ),
            "tl.debug_barrier()",
        ]

    @staticmethod
    def _blocks(lines: Sequence[str]) -> list[str]:
        return ["for start in range(0, width, BLOCK):", *indented(lines)]

    def _pass(self, members: Sequence[tuple[Node, Role]], row: LoopScope, looped: bool) -> None:
        if not members:
            return
        evaluator = self.evaluator
        if looped:
            evaluator.push()
            evaluator.axis("c", "start + tl.arange(0, BLOCK)[None, :]", "width")
        results: list[tuple[Node, Fold, str]] = []
        for node, role in members:
            body = evaluator.scopes[-1]
            if isinstance(node, Fold):
                self._fold(node, role, row, looped, results)
            elif isinstance(node, Scan):
                self._scan(node, row, looped)
            else:
                index = self.own_index(node)
                value = evaluator.value(node, index)
                body.lines.append(evaluator.store(self.buffers[node], index, value))
        if looped:
            row.lines += [*self._blocks(evaluator.pop().lines), "tl.debug_barrier()"]
        for node, fold, total in results:
            way = self._way(fold, fold.op)
            found = evaluator.fresh("f")
            row.lines.append(f"{found} = {way.result(way.along(total, 1))}")
            evaluator.declare(found, frozenset("r"), node, self.own_index(node))

    def _fold(
        self,
        node: Fold,
        role: Role,
        row: LoopScope,
        looped: bool,
        results: list[tuple[Node, Fold, str]],
    ) -> None:
        evaluator = self.evaluator
        way = self._way(node, node.op)
        value = evaluator.value(node.arg, self.read_index(node.arg.shape))
        value = evaluator.operand(value, way.kind)
        ready = way.ready(value, "r_in & c_in")
        body = evaluator.scopes[-1]
        if role == "row fold":
            total = evaluator.fresh("t")
            if looped:
                row.lines.append(f"{total} = tl.full((ROWS, BLOCK), {way.start}, {way.type})")
                body.lines.append(f"{total} = {way.joined(total, ready)}")
            else:
                body.lines.append(f"{total} = {ready}")
            results.append((node, node, total))
            return
        total = next(name for one, _, name in self._totals if one is node)
        if looped and role == "column fold":
            place = f"{total}_left + group * width + c"
            before = f"tl.load({place}, c_in, other={way.start})"
            body.lines.append(f"tl.store({place}, {way.joined(before, way.along(ready, 0))}, c_in)")
        else:
            body.lines.append(f"{total} = {way.joined(total, ready)}")

    def _scan(self, node: Scan, row: LoopScope, looped: bool) -> None:
        evaluator = self.evaluator
        index = self.read_index(node.shape)
        value = evaluator.value(node.arg, index)
        body = evaluator.scopes[-1]
        found = evaluator.fresh("s")
        if node.op == "logsumexp":
            self._scan_logsumexp(node, value, found, row, looped)
        else:
            way = self._way(node, node.op)
            ready = evaluator.fresh("w")
            value = evaluator.operand(value, way.kind)
            body.lines.append(f"{ready} = {way.ready(value, 'r_in & c_in')}")
            scanned = way.scanned(ready)
            if looped:
                carry = evaluator.fresh("k")
                row.lines.append(f"{carry} = tl.full((ROWS, 1), {way.start}, {way.type})")
                body.lines.append(f"{found} = {way.joined(carry, scanned)}")
                body.lines.append(f"{carry} = {way.joined(carry, way.along(ready, 1))}")
            else:
                body.lines.append(f"{found} = {scanned}")
        tags = frozenset("rc")
        evaluator.declare(found, tags, node, index)
        body.lines.append(evaluator.store(self.buffers[node], index, found))

    def _scan_logsumexp(
        self, node: Scan, value: str, found: str, row: LoopScope, looped: bool
    ) -> None:
        evaluator = self.evaluator
        body, join = evaluator.scopes[-1], evaluator.call("join")
        most = self._way(node, "max")
        value = evaluator.operand(value, most.kind)
        a, b, ready = evaluator.fresh("a"), evaluator.fresh("b"), evaluator.fresh("w")
        ones = f"tl.full((ROWS, BLOCK), 1, {most.type})"
        body.lines.append(f"{ready} = {most.ready(value, 'r_in & c_in')}")
        body.lines.append(f"{a}, {b} = tl.associative_scan(({ready}, {ones}), 1, {join})")
        if looped:
            high, sums = evaluator.fresh("k"), evaluator.fresh("k")
            row.lines.append(f"{high} = tl.full((ROWS, 1), {most.start}, {most.type})")
            row.lines.append(f"{sums} = tl.full((ROWS, 1), 0, {most.type})")
            body.lines.append(f"{a}, {b} = {join}({high}, {sums}, {a}, {b})")
        body.lines.append(f"{found} = {a} + tl.log({b})")
        body.lines.append(f"{found} = tl.where(tl.abs({a}) == float('inf'), {a}, {found})")
        if looped:  # the last column holds the whole block
            last = "c == tl.minimum(start + BLOCK, width) - 1"
            body.lines.append(f"{high} = {most.along(most.ready(a, last), 1)}")
            body.lines.append(f"{sums} = tl.sum(tl.where({last}, {b}, 0), 1, keep_dims=True)")

    def _row_results(self, row: LoopScope) -> None:
        evaluator = self.evaluator
        stores = []
        for node in self.nest.row_results({*self.read_elsewhere, *self.plan.outputs}):
            index = self.own_index(node)
            value = evaluator.value(node, index)
            stores.append(evaluator.store(self.buffers[node], index, value))
        row.lines += stores
