"""C++ for a loop nest: threads over rows, passes over each row, reductions between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ratchet.write.form import Fold, Map, Node, Scan
from ratchet.write.form.build import class_of
from ratchet.write.form.extent import (
    ONE,
    ZERO,
    Extent,
    bound_of,
    name_of,
    named,
    product_of,
)
from ratchet.write.form.op_table import FOLDS, MAPS
from ratchet.write.generator.chains import decoded
from ratchet.write.generator.conditions import LEAST, LoopSplits, Masks
from ratchet.write.generator.evaluate import (
    STORED,
    Buffer,
    Evaluator,
    Folding,
    LoopScope,
    Scratch,
    folding,
)
from ratchet.write.generator.fusion import FusionPlan, Index, LoopNest, Role, passes_of
from ratchet.write.generator.nest_axes import NestAxes
from ratchet.write.generator.schedule import Choices

FLUSH: Final = 512  # Rows that a column's float32 accumulator takes before it is added to the total


MASKED: Final = {"zero": "0.0f", "-inf": "-__builtin_inff()"}
MASKED_NUMBERS: Final = {"zero": 0.0, "-inf": -math.inf}


class NestWriter(NestAxes):
    def __init__(
        self,
        nest: LoopNest,
        plan: FusionPlan,
        buffers: dict[Node, Buffer],
        choices: Choices,
        evaluator: Evaluator,
        scratch: Scratch,
        read_elsewhere: frozenset[Node],
        lead: int = 0,
    ) -> None:
        """Start a nest's text; `lead`: a chain gives the first variables their values."""
        super().__init__(nest, choices, lead)
        self.plan, self.buffers = plan, buffers
        self.evaluator, self.scratch = evaluator, scratch
        self.read_elsewhere = read_elsewhere
        self.passes = passes_of(nest, plan.kept)
        self.lane_totals: dict[Node, str] = {}
        self.keeps: list[tuple[Node, Index]] = []
        self.kept_first: dict[tuple[Node, Index], int] = {}
        self.now = 0
        self.seen: dict[tuple[Node, Index], set[int]] = {}
        self.loaded: set[tuple[Node, Index]] = set()

    # --- indices

    def index_of(self, node: Node, role: Role, over: Sequence[Extent]) -> Index:
        """Return where a member is read or written, in the loop variables after merging."""
        if role in ("row", "part"):
            return self._moved(self.nest.place(over, role))
        return self._moved(self.nest.place_of(over, range(len(self.nest.sizes))))

    def own_index(self, node: Node) -> Index:
        role = self.nest.members[node]
        return self._moved(self.nest.place(node.shape, role))

    def _moved(self, index: Index) -> Index:
        return tuple(one.replace(self.merged) for one in index)

    # --- text

    def write(self) -> list[str]:
        evaluator = self.evaluator
        evaluator.local = {
            node for node, role in self.nest.members.items() if role in ("element", "part", "row")
        }
        stage = LoopScope(names={name_of(one) for one in self.lead})
        evaluator.scopes = [stage]
        outer = [one for one, inner in self.variables if not inner]
        tiled = self.lanes or (not self.rowwise and len(self.variables) > len(outer))
        rows = product_of(bound_of(one) for one in outer)
        names = [name_of(one) for one, _ in self.variables]
        row = evaluator.push(["item", *names[: len(outer)], *(["from", "upto"] if tiled else [])])
        evaluator.floor = len(evaluator.scopes) - 1
        evaluator.evaluated, evaluator.remembered = self._evaluated, self._remembered
        self._passes(row, tiled)
        self._row_results(row)
        evaluator.pop()
        evaluator.evaluated = evaluator.remembered = None
        evaluator.local = set()
        body = [*self._decoded(outer, tiled), *row.lines]
        return self._framed(stage.lines, body, rows, tiled)

    def _decoded(self, outer: Sequence[Extent], tiled: bool) -> list[str]:
        lines = []
        item = "item"
        if tiled:
            width = bound_of(self.variables[-1][0]).text
            lines += [
                f"const int64_t from = (item % blocks) * {self.block};",
                f"const int64_t upto = whole_min(from + {self.block}, (int64_t){width});",
            ]
            if not outer and self.partner is None:
                return lines
            lines.append("const int64_t line = item / blocks;")
            item = "line"
            if self.partner is not None:
                side, high = self.side, bound_of(self.partner).text
                lines += [
                    f"const int64_t from_2 = (line % squares) * {side};",
                    f"const int64_t upto_2 = whole_min(from_2 + {side}, (int64_t){high});",
                ]
                item = "(line / squares)"
        return [*lines, *decoded(outer, item)]

    def _passes(self, row: LoopScope, tiled: bool) -> None:
        evaluator, last = self.evaluator, max(self.passes.values(), default=0)
        for level in range(last + 1):
            self.now = level
            members = [
                (node, role)
                for node, role in self.nest.members.items()
                if self.passes[node] == level and role != "row"
            ]
            guards = {one: self._guard(one[0]) for one in members}
            for guard in sorted(dict.fromkeys(guards.values()), key=lambda one: one is not None):
                evaluator.known = () if guard is None else (guard,)
                self._pass([one for one in members if guards[one] == guard], tiled)
            evaluator.known = ()

    def _guard(self, node: Node) -> Extent | None:
        """Return what is at least 0 where a member has an element; None if it has all."""
        if self.nest.members[node] != "part":
            return None
        guard = self.nest.guard(node)
        if guard is None:
            return None
        (moved,) = self._moved((guard,))
        self.evaluator.indices.append(moved)
        return moved

    def _pass(self, members: Sequence[tuple[Node, Role]], tiled: bool) -> None:
        evaluator, row = self.evaluator, self.evaluator.scopes[-1]
        inner = [one for one, flag in self.variables if flag]
        folds: list[tuple[Fold, Role, str]] = []
        sequential = any(role == "scan" for _, role in members)
        loop = evaluator.push([name_of(one) for one in inner])
        splits = self._splits(inner) if not sequential else None
        evaluator.splits = splits
        streams: list[tuple[str, Buffer, Index]] = []
        stores: list[str] = []  # last, since an output may overwrite an input
        for node, role in members:
            if isinstance(node, Fold):
                value = evaluator.value(node.arg, self.index_of(node, role, node.arg.shape))
                way = folding(node)
                total = evaluator.fresh("f")
                self._use(way)
                if role == "column fold":
                    place = self._linear()
                    loop.lines.append(way.add(f"c{self._number(node)}[{place.text}]", value))
                else:
                    if self.lanes:
                        loop.lines.append(way.add(self._lane(total), value))
                    else:
                        loop.lines.append(way.add(total, value))
                    folds.append((node, role, total))
            elif isinstance(node, Scan):
                self._scan(node, row.lines, loop.lines)
            else:
                index = self.own_index(node)
                value = evaluator.value(node, index)
                buffer = self.buffers[node]
                if self._streamed(buffer, index, tiled):
                    name = f"o{self._number(node)}"
                    variable = name_of(inner[-1])
                    stores.append(
                        f"{name}[{variable} - from] = {evaluator.rounded(buffer.dtype, value)};"
                    )
                    streams.append((name, buffer, index))
                else:
                    stores.append(evaluator.store(buffer, index, value))
        loop.lines += stores
        evaluator.pop()
        evaluator.splits = None
        for node, _, total in folds:
            way = folding(node)
            if self.lanes:
                row.lines += [
                    f"{way.kind} {total}[{self.block}];",
                    f"for (int64_t k = 0; k < {self.block}; ++k) {total}[k] = {way.start};",
                ]
            else:
                row.lines.append(f"{way.kind} {total} = {way.start};")
        row.lines += [
            f"alignas(64) {STORED[buffer.dtype]} {name}[{self.choices.block}];"
            for name, buffer, _ in streams
        ]
        reductions = [(n, t) for n, _, t in folds]
        row.lines += self._looped(inner, loop.lines, reductions, splits, tiled, members)
        row.lines += self._stream_out(streams, inner)
        for node, role, total in folds:
            row.names.add(total)
            if self.lanes:
                self.lane_totals[node] = total
            elif role == "row fold":
                row.values[(node, self.own_index(node), ())] = total
            else:
                row.lines.append(folding(node).add(f"g{self._number(node)}", total))

    def _splits(self, inner: Sequence[Extent]) -> LoopSplits | None:
        """Return the cuts of the innermost loop, to be filled while its body is written."""
        if not inner:
            return None
        return LoopSplits(
            variable=name_of(inner[-1]),
            depth=len(self.evaluator.scopes) - 1,
            tag=self.evaluator.fresh("c"),
            steps=bound_of(inner[-1]).constant or LEAST,
        )

    def _looped(
        self,
        inner: Sequence[Extent],
        body: Sequence[str],
        folds: Sequence[tuple[Fold, str]],
        splits: LoopSplits | None,
        tiled: bool,
        members: Sequence[tuple[Node, Role]],
    ) -> list[str]:
        """Write the loops over a row; without `splits`, its elements in turn."""
        if not inner:
            return ["{", *body, "}"]
        lines = []
        for one in inner[:-1]:
            name = name_of(one)
            first, end = ("from_2", "upto_2") if one == self.partner else ("0", bound_of(one).text)
            lines.append(f"for (int64_t {name} = {first}; {name} < {end}; ++{name})")
        name = name_of(inner[-1])
        first, end = ("from", "upto") if tiled else ("0", bound_of(inner[-1]).text)
        for guard in self.evaluator.known:
            end = f"whole_min({(guard.replace({name: ZERO}) + 1).text}, (int64_t){end})"
        if splits is None:
            loop = f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"
            return [*lines, loop, "{", *body, "}"]
        clauses = "".join(
            f" reduction({folding(node).operator}:{total})"
            for node, total in folds
            if not self.lanes
        )
        before, pieces = splits.pieces(first, end)
        lines += ["{", *before] if before else []
        for piece in pieces:
            loop = f"for (int64_t {name} = {piece.first}; {name} < {piece.end}; ++{name})"
            tried = (self._masked(one, members) for one in piece.failed)
            masked = next((one for one in tried if one is not None), None)
            if masked is None:
                lines += [f"#pragma omp simd{clauses}", loop, "{", *piece.opening, *body, "}"]
            elif masked:
                lines += ["#pragma omp simd", loop, "{", *masked, "}"]
        return [*lines, "}"] if before else lines

    def _masked(self, failed: Extent, members: Sequence[tuple[Node, Role]]) -> list[str] | None:
        """Return what is left of a pass where a mask decides every value; None if one is open."""
        masks, lines = Masks(), []
        for node, role in members:
            value = node.arg if isinstance(node, Fold) else node
            index = self.index_of(node, role, value.shape)
            found = masks.of(value, index).get(failed)
            if isinstance(node, Fold):
                if found is None or MASKED_NUMBERS[found] != FOLDS[node.op].neutral:
                    return None
            elif found is None or role == "scan" or self.choices.stream:
                return None
            else:
                lines.append(self.evaluator.store(self.buffers[node], index, MASKED[found]))
        for key, level in self.kept_first.items():
            if level == self.now:
                found = masks.of(*key).get(failed)
                if found is None:
                    return None
                place = self._linear().text
                lines.append(f"k{self.keeps.index(key)}[{place}] = {MASKED[found]};")
        return lines

    def _scan(self, node: Scan, before: list[str], body: list[str]) -> None:
        evaluator = self.evaluator
        index = self.index_of(node, "scan", node.shape)
        value = evaluator.value(node.arg, index)
        kind = class_of(node.dtype)
        total = evaluator.fresh("s")
        if node.op == "logsumexp":
            most = evaluator.fresh("m")
            before.append(f"{kind} {most} = -__builtin_inff(), {total} = 0;")
            step = evaluator.call("scan_logsumexp")
            body.append(f"const {kind} {total}_ = {step}({most}, {total}, {value});")
        else:
            way = folding(node)
            before.append(f"{way.total_kind} {total} = {way.start};")
            self._use(way)
            body.append(way.add(total, value))
            body.append(f"const {kind} {total}_ = ({kind}){total};")
        loop = evaluator.scopes[-1]
        loop.names.add(f"{total}_")
        loop.values[(node, index, ())] = f"{total}_"
        body.append(evaluator.store(self.buffers[node], index, f"{total}_"))

    def _row_results(self, row: LoopScope) -> None:
        scope = self.evaluator.push([self._lane_name()]) if self.lanes else row
        stores: list[str] = []
        for node in self.nest.row_results({*self.read_elsewhere, *self.plan.outputs}):
            index = self.own_index(node)
            value = self.evaluator.value(node, index)
            stores.append(self.evaluator.store(self.buffers[node], index, value))
        scope.lines += stores
        if self.lanes:
            self.evaluator.pop()
            name = self._lane_name()
            head = f"for (int64_t {name} = from; {name} < upto; ++{name}) {{"
            row.lines += ["#pragma omp simd", head, *scope.lines, "}"]

    def _lane_name(self) -> str:
        return name_of(self.variables[-1][0])

    def _lane(self, total: str) -> str:
        return f"{total}[{self._lane_name()} - from]"

    # --- values kept from one pass to a later one

    def _evaluated(self, node: Node, index: Index, name: str) -> None:
        if not isinstance(node, Map) or not self._whole_row(index):
            return
        key = (node, index)
        self.seen.setdefault(key, set()).add(self.now)
        if key in self.keeps:
            self.kept_first[key] = self.now
            place = self._linear()
            self.evaluator.scopes[-1].lines.append(
                f"k{self.keeps.index(key)}[{place.text}] = {name};"
            )

    def _remembered(self, node: Node, index: Index) -> str | None:
        if node in self.lane_totals:
            kind = folding(node).kind
            return self.evaluator.define(
                kind, self._lane(self.lane_totals[node]), {self._lane_name()}
            )
        key = (node, index)
        if self.kept_first.get(key, self.now) >= self.now:
            return None
        self.loaded.add(key)
        place = self._linear()
        return self.evaluator.define(
            class_of(node.dtype), f"k{self.keeps.index(key)}[{place.text}]", place.names
        )

    def _whole_row(self, index: Index) -> bool:
        names = {name_of(one) for one, inner in self.variables if inner}
        found: set[str] = set()
        for one in index:
            found |= one.names
        return bool(names) and names <= found and not self.evaluator.scopes[-1].fixed

    def _linear(self) -> Extent:
        place = ZERO
        for one, inner in self.variables:
            if inner:
                place = place * bound_of(one) + one
        return place

    def candidates(self, which: str) -> list[tuple[Node, Index]]:
        """Return the values that two passes compute, as a first run saw them."""
        if self.lanes:
            return []
        again = [key for key, levels in self.seen.items() if len(levels) > 1]
        if which == "all":
            return again
        return [key for key in again if isinstance(key[0], Map) and MAPS[key[0].op].costly]

    # --- the frame

    def _number(self, node: Node) -> int:
        return list(self.nest.members).index(node)

    def _use(self, way: Folding) -> None:
        if not way.op.sign:
            self.evaluator.call(way.op.name)

    def _streamed(self, buffer: Buffer, index: Index, tiled: bool) -> bool:
        if not (self.choices.stream and tiled and not buffer.strided) or self.partner is not None:
            return False
        if not buffer.name.startswith("y"):
            return False
        last = name_of(self.variables[-1][0])
        return buffer.address(index).factor_of(last) == ONE

    def _stream_out(
        self, streams: Sequence[tuple[str, Buffer, Index]], inner: Sequence[Extent]
    ) -> list[str]:
        lines = []
        for name, buffer, index in streams:
            start = buffer.address(index).replace({name_of(inner[-1]): named("from")})
            call = self.evaluator.call("stream")
            lines.append(
                f"{call}({buffer.name} + {start.text}, {name}, (upto - from) * sizeof({name}[0]));"
            )
        return lines

    def _framed(
        self, before: Sequence[str], body: Sequence[str], rows: Extent, tiled: bool
    ) -> list[str]:
        size = product_of(bound_of(one) for one, _ in self.variables)
        lines = ["{", *decoded(self.lead, "batch"), *before]
        if tiled:
            block = self.block
            width = bound_of(self.variables[-1][0]).text
            lines.append(f"const int64_t blocks = ({width} + {block - 1}) / {block};")
            times = ""
            if self.partner is not None:
                high = bound_of(self.partner).text
                if self.is_group:
                    lines.append(
                        f"const int64_t side = whole_max(1, {block} / whole_max(1, {width}));"
                    )
                lines.append(f"const int64_t squares = ({high} + {self.side} - 1) / {self.side};")
                times = " * squares"
            lines.append(f"const int64_t items = ({rows.text}) * blocks{times};")
        else:
            lines.append(f"const int64_t items = {rows.text};")
        columns = [n for n, role in self.nest.members.items() if role == "column fold"]
        wholes = [n for n, role in self.nest.members.items() if role == "whole fold"]
        width_all = product_of(bound_of(one) for one, inner in self.variables if inner)
        span = f"((({width_all.text}) + 63) / 64 * 64)"
        tag = self.nest.name
        for node in columns:
            way = folding(node)
            name = f"p{self._number(node)}_{tag}"
            self.scratch.append((name, way.kind, f"2 * most_threads * {span}"))
        for node in wholes:
            way = folding(node)
            lines.append(f"{way.total_kind} h{self._number(node)}[1024];")
        for number, (node, _) in enumerate(self.keeps):
            kept = (f"k{number}_{tag}", class_of(node.dtype), f"most_threads * {span}")
            self.scratch.append(kept)
        share = "low = 0, high = items"
        if self.lead:
            lines.append("{")
        else:
            share = "low = items * thread / team, high = items * (thread + 1) / team"
            lines += [
                f"const int threads = ({size.text}) < {self.choices.grain} ? 1 "
                ": omp_get_max_threads();",
                "#pragma omp parallel num_threads(threads)",
                "{",
                "const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();",
            ]
        for node in columns:
            way, number = folding(node), self._number(node)
            lines += [
                f"{way.kind}* c{number} = p{number}_{tag} + 2 * thread * {span};",
                f"{way.kind}* d{number} = c{number} + {span};",
                f"for (int64_t k = 0; k < {width_all.text}; ++k) "
                f"c{number}[k] = d{number}[k] = {way.start};",
            ]
        for node in wholes:
            way = folding(node)
            lines.append(f"{way.total_kind} g{self._number(node)} = {way.start};")
        for number, (node, _) in enumerate(self.keeps):
            kind = class_of(node.dtype)
            lines.append(f"{kind}* __restrict k{number} = k{number}_{tag} + thread * {span};")
        lines += [
            f"const int64_t {share};",
            "for (int64_t item = low; item < high; ++item) {",
            *body,
        ]
        if columns:
            lines.append(f"if ((item - low) % {FLUSH} == {FLUSH - 1} || item == high - 1) {{")
            for node in columns:
                lines += self._flushed(node, width_all)
            lines.append("}")
        lines.append("}")
        for node in wholes:
            lines.append(f"h{self._number(node)}[thread] = g{self._number(node)};")
        if wholes or columns:
            lines.append("if (thread == 0) used_threads = team;")
        lines.append("}")
        for node in wholes:
            lines += self._whole_result(node)
        for node in columns:
            lines += self._column_result(node, width_all, span)
        lines.append("}")
        return lines

    def _flushed(self, node: Node, width: Extent) -> list[str]:
        way, number = folding(node), self._number(node)
        return [
            "#pragma omp simd",
            f"for (int64_t k = 0; k < {width.text}; ++k) {{",
            way.add(f"d{number}[k]", f"c{number}[k]"),
            f"c{number}[k] = {way.start}; }}",
        ]

    def _whole_result(self, node: Node) -> list[str]:
        way, number = folding(node), self._number(node)
        index = tuple(ZERO for _ in node.shape)
        return [
            f"{way.total_kind} t{number} = {way.start};",
            "for (int64_t k = 0; k < used_threads; ++k) " + way.add(f"t{number}", f"h{number}[k]"),
            self.evaluator.store(self.buffers[node], index, f"({class_of(node.dtype)})t{number}"),
        ]

    def _column_result(self, node: Node, width: Extent, span: str) -> list[str]:
        way, number = folding(node), self._number(node)
        partial = f"p{number}_{self.nest.name}"
        inner = [one for one, flag in self.variables if flag]
        store = self.evaluator.store(self.buffers[node], self.own_index(node), "sum")
        lines = []
        if len(inner) == 1:
            lines.append("#pragma omp simd")
        lines += [
            f"for (int64_t {name_of(o)} = 0; {name_of(o)} < {bound_of(o).text}; ++{name_of(o)})"
            for o in inner
        ]
        lines += [
            "{",
            f"const int64_t k = {self._linear().text};",
            f"{way.kind} sum = {partial}[{span} + k];",
            "for (int64_t n = 1; n < used_threads; ++n) "
            + way.add("sum", f"{partial}[(2 * n + 1) * {span} + k]"),
            store,
            "}",
        ]
        return lines
