"""C++ for scatters, sorts and matrix products, which are stages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ratchet.write.form import (
    Constant,
    Map,
    Matmul,
    Node,
    Order,
    Scatter,
    Shape,
    UnsupportedOp,
    View,
    axes_of,
    own_axes,
)
from ratchet.write.form.build import class_of
from ratchet.write.form.extent import (
    ONE,
    ZERO,
    Extent,
    bound_of,
    name_of,
    named,
    product_of,
    sum_of,
)
from ratchet.write.generator.chains import decoded, moved_to
from ratchet.write.generator.conditions import Band, left_band, needed_band
from ratchet.write.generator.evaluate import Buffer, Evaluator, LoopScope, Scratch
from ratchet.write.generator.fusion import FusionPlan, Index, LoopNest, stripped
from ratchet.write.generator.schedule import Choices

LEAST_WORK: Final = 1 << 18  # Multiplications below which a product runs on one thread
LONG_TABLE: Final = 1 << 14  # Places below which one thread fills a table
NO_BANDS: Final = ("-BAND_NONE", "BAND_NONE") * 2


class StageWriter:
    def __init__(
        self,
        number: int,
        buffers: dict[Node, Buffer],
        sums: dict[Node, Buffer],
        choices: Choices,
        evaluator: Evaluator,
        plan: FusionPlan,
        scratch: Scratch,
    ) -> None:
        self.buffers, self.sums = buffers, sums
        self.choices, self.evaluator = choices, evaluator
        self.plan, self.scratch = plan, scratch
        self.tables: list[str] = []  # Code that fills tables of places, before all stages
        self.tag = f"i{number}"

    def write(
        self, node: Node, *, in_place: bool, chained: bool, epilogue: Sequence[LoopNest] = ()
    ) -> list[str]:
        """Return the stage's lines.

        `in_place`: a scatter's base is its result's memory. `chained`: for one element of a batch.
        `epilogue`: nests that a product computes as its blocks are ready.
        """
        if isinstance(node, Scatter):
            filled = [] if in_place else self._filled(node)
            return ["{", *filled, *self._scattered(node), "}"]
        if isinstance(node, Order):
            return self._order(node)
        assert isinstance(node, Matmul)
        return self._matmul(node, chained, epilogue)

    # --- scatter

    def _filled(self, node: Scatter) -> list[str]:
        variables = self._variables(node.shape)
        evaluator = self._started()
        loop = evaluator.push([name_of(one) for one in variables])
        index = self._index(node.shape, variables)
        value = evaluator.value(node.base, index)
        loop.lines.append(evaluator.store(self.buffers[node], index, value))
        loops = _loops(variables)
        size = product_of(node.shape)
        if variables:
            loops.insert(0, f"#pragma omp parallel for if (({size.text}) >= {self.choices.grain})")
        return [*evaluator.scopes[0].lines, *loops, "{", *loop.lines, "}"]

    def _scattered(self, node: Scatter) -> list[str]:
        shape = node.source.shape
        variables = self._variables(shape)
        index = self._index(shape, variables)
        free = bool(variables) and index[-1] == variables[-1] and self._untouched(node)
        evaluator = self._started()
        last = [name_of(variables[-1])] if variables else []
        row = evaluator.push([name_of(one) for one in variables[:-1]])
        loop = evaluator.push(last)
        own = own_axes(index)
        places: list[Extent] = []
        for dim, place in enumerate(node.places):
            if isinstance(place, Extent):
                places.append(place.replace(own))
                continue
            name = evaluator.value(place, index)
            size = node.shape[dim].text
            scope = evaluator.scopes[evaluator.depth_of({name})]
            scope.lines.append(f"if ({name} < 0 || {name} >= {size}) continue;")
            places.append(named(name))
        value = evaluator.value(node.source, index)
        buffer = self.buffers[node]
        address = buffer.address(tuple(places))
        target = f"{buffer.name}[{address.text}]"
        if node.op == "set":
            loop.lines.append(f"{target} = {evaluator.rounded(buffer.dtype, value)};")
        elif buffer.dtype in ("float32", "float64", "int64", "int32"):
            loop.lines.append(f"{target} += {value};")
        else:
            raise UnsupportedOp(f"scatter into {buffer.dtype}")
        rows = _loops(variables[:-1])
        if not free:
            return [*evaluator.scopes[0].lines, *rows, "{", *row.lines, *_loops(variables[-1:]),
                    "{", *loop.lines, "}", "}"]  # fmt: skip
        width, name = shape[-1].text, name_of(variables[-1])
        size = product_of(shape).text
        return [
            *evaluator.scopes[0].lines,
            f"const int threads = ({size}) < {self.choices.grain} ? 1 : omp_get_max_threads();",
            "#pragma omp parallel num_threads(threads)",
            "{",
            "const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();",
            f"const int64_t chunk = (({width} + team - 1) / team + 15) / 16 * 16;",
            f"const int64_t low = whole_min(thread * chunk, (int64_t){width});",
            f"const int64_t high = whole_min(low + chunk, (int64_t){width});",
            *rows,
            "{",
            *row.lines,
            "#pragma omp simd",
            f"for (int64_t {name} = low; {name} < high; ++{name}) {{",
            *loop.lines,
            "} } }",
        ]

    @staticmethod
    def _untouched(node: Scatter) -> bool:
        """Return whether the last axis goes to itself, and no index depends on it."""
        own = axes_of(node.source.shape)[-1]
        last = node.places[-1]
        if not isinstance(last, Extent) or last != own:
            return False
        return all(_constant_along(place, own) for place in node.places[:-1])

    # --- sort

    def _order(self, node: Order) -> list[str]:
        variables = self._variables(node.shape[:-1])
        evaluator = self._started()
        row = evaluator.push([name_of(one) for one in variables])
        lead = self._index(node.shape[:-1], variables)
        width = node.shape[-1].text
        base, places = stripped(node.arg)
        base, places = (
            (node.arg, axes_of(node.shape)) if node.arg in self.buffers else (base, places)
        )
        source = self.buffers[base]
        kind = class_of(node.dtype)
        assert kind == "int64_t"

        def key(name: str) -> str:
            own = own_axes((*lead, named(name)))
            evaluator.push([name])
            found = evaluator.load(source, tuple(place.replace(own) for place in places))
            lines = evaluator.pop().lines
            return f"[&](int64_t {name}) {{ {' '.join(lines)} return {found}; }}"

        result = self.buffers[node]
        target = result.address((*lead, named("k")))
        compare = "r_after" if node.descending else "r_before"
        evaluator.used.add("order")
        row.lines += [
            f"auto key = {key('q')};",
            f"for (int64_t k = 0; k < {width}; ++k) places[k] = k;",
            f"std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) "
            f"{{ return {compare}(key(a), key(b)); }});",
            f"for (int64_t k = 0; k < {width}; ++k) {result.name}[{target.text}] = places[k];",
        ]
        return ["{", *evaluator.scopes[0].lines, f"std::vector<int64_t> places({width});",
                *_loops(variables), "{", *row.lines, "}", "}"]  # fmt: skip

    # --- matrix product

    def _matmul(self, node: Matmul, chained: bool, epilogue: Sequence[LoopNest]) -> list[str]:
        if class_of(node.dtype) != "float":
            raise UnsupportedOp("matmul", f"of {node.dtype}")
        evaluator = self._started()
        lead = node.shape[:-2]
        variables = self._variables(lead)
        index = self._index(lead, variables)
        rows, columns, inner = node.shape[-2], node.shape[-1], node.left.shape[-1]
        r, c, k = named("r_", rows), named("c_", columns), named("k_", inner)
        call = evaluator.call("gemm")
        result = self.sums.get(node, self.buffers[node])
        parts: list[str] = []
        loops = evaluator.push([name_of(one) for one in variables])
        for operand, across, places in ((node.left, r, (r, k)), (node.right, c, (k, c))):
            buffer, address = self._operand(operand, (*index, *places))
            kind = {"float32": "float", "bfloat16": "uint16_t"}.get(buffer.dtype)
            if kind is None:
                raise UnsupportedOp("matmul", f"of {buffer.dtype}")
            parts.append(self._factor(kind, buffer.name, address, (across, k)))
        found = _steps(result.address((*index, r, c)), (r, c))
        assert found is not None
        start, steps = found
        out = f"{result.name} + {start.text}, {steps[0].text}, {steps[1].text}"
        bands, following = self._bands(node), []
        if epilogue or node in self.sums:
            following = self._epilogue(node, epilogue, (*variables, r, c))
            bands = f"{bands or ', r_bands{' + ', '.join(NO_BANDS) + '}'}, r_epilogue(epilogue)"
        batch = product_of(lead)
        sizes = f"{rows.text}, {columns.text}, {inner.text}"
        body = [*decoded(variables, "batch"), *loops.lines, *following]
        if chained:
            own = f"{call}({sizes}, {', '.join(parts)}, {out}, 0, 1{bands});"
            return ["{", *evaluator.scopes[0].lines, *body, own, "}"]
        return [
            "{",
            *evaluator.scopes[0].lines,
            f"const int64_t batches = {batch.text};",
            f"const int64_t work = {batch.text} * {rows.text} * {columns.text} * {inner.text};",
            f"const int threads = work < {LEAST_WORK} ? 1 : omp_get_max_threads();",
            "if (batches >= threads) {",
            "#pragma omp parallel for num_threads(threads) schedule(static)",
            "for (int64_t batch = 0; batch < batches; ++batch) {",
            *body,
            f"{call}({sizes}, {', '.join(parts)}, {out}, 0, 1{bands});",
            "} } else {",
            "#pragma omp parallel num_threads(threads)",
            "for (int64_t batch = 0; batch < batches; ++batch) {",
            *body,
            f"{call}({sizes}, {', '.join(parts)}, {out}, "
            f"omp_get_thread_num(), omp_get_num_threads(){bands});",
            "} } }",
        ]

    def _epilogue(self, node: Matmul, nests: Sequence[LoopNest], places: Index) -> list[str]:
        """Define what runs where a block of the product is ready: nests, or rounding it."""
        evaluator, result = self.evaluator, self.buffers[node]
        r, c = name_of(places[-2]), name_of(places[-1])
        rank = len(node.shape)
        self.buffers[node] = replace(result, name="part", dtype="float32", strided=True, lead=0)
        evaluator.local = {member for nest in nests for member in nest.members}
        evaluator.splits = None
        evaluator.floor = len(evaluator.scopes) - 1
        row = evaluator.push([r, "row", *(f"part_s{place}" for place in range(rank))])
        loop = evaluator.push([c])
        if not nests:
            index = (*self._index(node.shape[:-2], places[:-2]), *places[-2:])
            loop.lines.append(evaluator.store(result, index, evaluator.value(node, index)))
        elsewhere = self.plan.read_outside(nests)
        for nest in nests:
            moved = moved_to(nest, places, node.shape)
            assert moved is not None
            for member, role in nest.members.items():
                index = tuple(one.replace(moved) for one in nest.place(member.shape, role))
                value = evaluator.value(member, index)
                if member in self.plan.outputs or member in elsewhere:
                    loop.lines.append(evaluator.store(self.buffers[member], index, value))
        evaluator.pop()
        evaluator.pop()
        evaluator.local = set()
        self.buffers[node] = result
        strides = [*("0" for _ in range(rank - 2)), "row", "1"]
        return [
            "const auto epilogue = [&](const float* part, int64_t row, int64_t r_low, "
            "int64_t r_high, int64_t c_low, int64_t c_high) {",
            *(f"const int64_t part_s{k} = {one};" for k, one in enumerate(strides)),
            *(f"(void)part_s{k};" for k in range(rank)),
            f"for (int64_t {r} = r_low; {r} < r_high; ++{r}) {{",
            *row.lines,
            "#pragma omp simd",
            f"for (int64_t {c} = c_low; {c} < c_high; ++{c}) {{",
            *loop.lines,
            "} } };",
        ]

    def _bands(self, node: Matmul) -> str:
        """Write where the left operand is 0 and the result unread, if anywhere."""
        found = left_band(node), Band()
        if node not in self.plan.outputs:
            nodes = [one for stage in self.plan.stages for one in stage.nodes]
            found = found[0], needed_band(node, nodes, self.plan.kept)
        if found == (Band(), Band()):
            return ""
        return f", r_bands{{{found[0].text}, {found[1].text}}}"

    def _operand(self, node: Node, index: Index) -> tuple[Buffer, Extent]:
        if node in self.buffers:
            buffer = self.buffers[node]
            return buffer, buffer.address(index)
        base, places = self.plan.factor(node)
        own = own_axes(index)
        buffer = self.buffers[base]
        return buffer, buffer.address(tuple(place.replace(own) for place in places))

    def _factor(self, kind: str, name: str, address: Extent, axes: tuple[Extent, Extent]) -> str:
        """Write how a product reads a factor: in even steps, or by tables of places."""
        even = _steps(address, axes)
        if even is not None:
            start, steps = even
            return f"r_even<{kind}>{{{name} + {start.text}, {steps[0].text}, {steps[1].text}}}"
        own = [[one for one in address.parts if name_of(axis) in one.names] for axis in axes]
        start = sum_of(one for one in address.parts if one not in own[0] and one not in own[1])
        texts: list[str] = []
        for axis, places in zip(axes, own, strict=True):
            if any(one in other for one in places for other in own if other is not places):
                raise UnsupportedOp("matmul", "of a view that mixes rows and columns")
            texts.append(self._table(axis, sum_of(places)))
        runs = [f"{text}_runs" for text in texts]
        return f"r_apart<{kind}>{{{name} + {start.text}, {', '.join([*texts, *runs])}}}"

    def _table(self, axis: Extent, place: Extent) -> str:
        """Fill a table with the place of each index of an axis; return its name."""
        name = f"places_{self.tag}_{len(self.tables)}"
        variable, size = name_of(axis), bound_of(axis).text
        for one in (name, f"{name}_runs"):
            self.scratch.append((one, "int64_t", size))
        self.tables += [
            f"#pragma omp parallel for if ({size} >= {LONG_TABLE})",
            f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable}) "
            f"{name}[{variable}] = {place.text};",
            f"r_runs({name}, {name}_runs, {size});",
        ]
        return name

    # --- shared

    def _started(self) -> Evaluator:
        self.evaluator.scopes = [LoopScope()]
        self.evaluator.floor = 0
        self.evaluator.local = set()
        return self.evaluator

    def _variables(self, shape: Shape) -> list[Extent]:
        return [
            named(f"{self.tag}_{place}", size) for place, size in enumerate(shape) if size != ONE
        ]

    @staticmethod
    def _index(shape: Shape, variables: Sequence[Extent]) -> Index:
        waiting = iter(variables)
        return tuple(ZERO if size == ONE else next(waiting) for size in shape)


def _steps(
    address: Extent, axes: tuple[Extent, Extent]
) -> tuple[Extent, tuple[Extent, Extent]] | None:
    """Return where an address starts and what a step along each axis adds, if it is even."""
    steps = [address.factor_of(name_of(one)) for one in axes]
    if steps[0] is None or steps[1] is None:
        return None
    return address.replace({name_of(one): ZERO for one in axes}), (steps[0], steps[1])


def _constant_along(place: Extent | Node, own: Extent) -> bool:
    """Return whether a place, or its tensor as a view, leaves an axis out."""
    match place:
        case Extent():
            return not own.names & place.names
        case Map():
            return all(_constant_along(one, own) for one in place.args)
        case View():
            return all(_constant_along(one, own) for one in place.places)
    return isinstance(place, Constant)


def _loops(variables: Sequence[Extent]) -> list[str]:
    return [
        f"for (int64_t {name_of(one)} = 0; {name_of(one)} < {bound_of(one).text}; ++{name_of(one)})"
        for one in variables
    ]
