"""Triton for scatters, sorts and matrix products, which are stages of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ratchet.write.form import Matmul, Node, Order, Scatter, Shape, UnsupportedOp, own_axes
from ratchet.write.form.build import class_of
from ratchet.write.form.extent import ONE, ZERO, Extent, named, product_of, unflattened
from ratchet.write.generator.evaluate import LoopScope
from ratchet.write.generator.fusion import Index, LoopNest
from ratchet.write.generator.triton.nests import KernelText, WrittenStage, indented
from ratchet.write.generator.triton.values import TileEvaluator, rendered

ADDED: Final = ("float32", "float64", "int32", "int64")
"""Dtypes that an atomic addition takes on every GPU."""
HALVES: Final = ("bfloat16", "float16")


class TileStage:
    def __init__(self, tag: str, evaluator: TileEvaluator, names: Sequence[str]) -> None:
        self.tag, self.evaluator, self.names = tag, evaluator, names
        self.buffers = evaluator.buffers

    def write(self, node: Node, epilogue: LoopNest | None) -> WrittenStage:
        """Return the stage's kernels; `epilogue` is what a product's result goes through."""
        if isinstance(node, Scatter):
            return self._scatter(node)
        if isinstance(node, Order):
            return self._order(node)
        assert isinstance(node, Matmul)
        return self._matmul(node, epilogue)

    def _started(self) -> TileEvaluator:
        evaluator = self.evaluator
        evaluator.scopes, evaluator.guards, evaluator.local = [LoopScope()], (), set()
        return evaluator

    # --- scatter

    def _scatter(self, node: Scatter) -> WrittenStage:
        """Fill the result with its base, then add or set the source's elements."""
        stage = WrittenStage()
        buffer = self.buffers[node]
        if node.op != "set" and buffer.dtype not in ADDED:
            raise UnsupportedOp(f"scatter into {buffer.dtype}", "in Triton")

        def fill(index: Index) -> str:
            return self.evaluator.store(buffer, index, self.evaluator.value(node.base, index))

        def scatter(index: Index) -> str:
            evaluator, own = self.evaluator, own_axes(index)
            places, tests = [], []
            for dim, place in enumerate(node.places):
                if isinstance(place, Extent):
                    places.append(place.replace(own))
                    continue
                name = evaluator.value(place, index)
                if not name.isidentifier():
                    name = evaluator.define(f"tl.full((), {name}, tl.int64)", set())
                tests.append(f"({name} >= 0) & ({name} < {rendered(node.shape[dim])})")
                places.append(named(name))
            value = evaluator.value(node.source, index)
            where, mask = evaluator.place(buffer, buffer.address(tuple(places)), frozenset("c"))
            mask = " & ".join([mask, *tests])
            value = evaluator.rounded(buffer.dtype, value)
            if node.op == "set":
                return f"tl.store({where}, {value}, {mask})"
            return f"tl.atomic_add({where}, {value}, {mask}, sem='relaxed')"

        self._flat(stage, f"fill_{self.tag}", node.shape, fill)
        self._flat(stage, f"scatter_{self.tag}", node.source.shape, scatter)
        return stage

    def _flat(
        self, stage: WrittenStage, name: str, shape: Shape, body: Callable[[Index], str]
    ) -> None:
        """Add a kernel over all elements of a shape."""
        evaluator = self._started()
        size = product_of(shape)
        evaluator.axis("c", "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "width")
        last = body(unflattened(named("c", size), shape))
        lines = [*evaluator.scopes[0].lines, last]
        text = KernelText(lines=lines, names=[*self.names, "width"], constants=["BLOCK"])
        stage.host.append(f"width = {rendered(size, host=True)}")
        stage.launch(name, "triton.cdiv(width, 256)", text, "BLOCK=256")

    # --- sort

    def _order(self, node: Order) -> WrittenStage:
        """Count for each element those that come before it: its place in sorted order."""
        stage, evaluator = WrittenStage(), self._started()
        width, lead = node.shape[-1], node.shape[:-1]
        rows = product_of(lead)
        index = unflattened(named("b", rows), lead) if lead else ()
        kernel = evaluator.scopes[0]
        kernel.lines += [
            "over = tl.cdiv(width, ROWS)",
            "b = tl.program_id(0) // over",
        ]
        evaluator.axis(
            "r", "(tl.program_id(0) % over) * ROWS + tl.arange(0, ROWS)[:, None]", "width"
        )
        own = evaluator.value(node.arg, (*index, named("r", width)))
        kernel.lines.append("rank = tl.zeros((ROWS, 1), tl.int32)")
        loop = evaluator.push()
        evaluator.axis("c", "start + tl.arange(0, BLOCK)[None, :]", "width")
        other = evaluator.value(node.arg, (*index, named("c", width)))
        kind = class_of(node.arg.dtype)
        own, other = evaluator.operand(own, kind), evaluator.operand(other, kind)
        if kind == "bool":
            own, other = f"{own}.to(tl.int32)", f"{other}.to(tl.int32)"
        sign = ">" if node.descending else "<"
        first, lost = ("own", "other") if node.descending else ("other", "own")
        loop.lines += [
            f"own, other = {own}, {other}",
            f"before = (other {sign} own) | (({lost} != {lost}) & ({first} == {first}))",
            "same = (other == own) | ((other != other) & (own != own))",
            "counted = r_in & c_in & (before | (same & (c < r)))",
            "rank += tl.sum(counted.to(tl.int32), 1, keep_dims=True)",
        ]
        evaluator.pop()
        kernel.lines += ["for start in range(0, width, BLOCK):", *indented(loop.lines)]
        evaluator.declare("rank", frozenset("r"))
        kernel.lines.append(
            evaluator.store(self.buffers[node], (*index, named("rank", width)), "r")
        )
        stage.host.append(
            f"width, height = {rendered(width, host=True)}, {rendered(rows, host=True)}"
        )
        text = KernelText(
            lines=kernel.lines, names=[*self.names, "width"], constants=["ROWS", "BLOCK"]
        )
        grid = "height * triton.cdiv(width, 32)"
        stage.launch(f"order_{self.tag}", grid, text, "ROWS=32, BLOCK=64")
        return stage

    # --- matrix product

    def _matmul(self, node: Matmul, epilogue: LoopNest | None) -> WrittenStage:
        if class_of(node.dtype) != "float":
            raise UnsupportedOp("matmul", f"of {node.dtype}")
        evaluator, lead = self._started(), node.shape[:-2]
        sizes = (node.shape[-2], node.shape[-1], node.left.shape[-1])
        batch = product_of(lead)
        b = unflattened(named("b", batch), lead) if lead else ()
        r, c = (named(name, size) for name, size in zip("rc", sizes[:2], strict=True))
        kernel = evaluator.scopes[0]
        kernel.lines += [
            "down, across = tl.cdiv(height, TM), tl.cdiv(width, TN)",
            "b = tl.program_id(0) // (down * across)",
            "pid = tl.program_id(0) % (down * across)",
            "band = pid // (8 * across)",  # neighbouring programs share rows and columns in L2
            "high = tl.minimum(down - band * 8, 8)",
            "first = (band * 8 + (pid % (8 * across)) % high) * TM",
        ]
        evaluator.axis("r", "first + tl.arange(0, TM)[:, None]", "height")
        evaluator.axis(
            "c", "(pid % (8 * across)) // high * TN + tl.arange(0, TN)[None, :]", "width"
        )
        kernel.lines.append("acc = tl.zeros((TM, TN), tl.float32)")
        loop = evaluator.push()
        evaluator.axis("kl", "start + tl.arange(0, TK)[None, :]", "inner")
        evaluator.axis("kr", "start + tl.arange(0, TK)[:, None]", "inner")
        kl, kr = named("kl", sizes[2]), named("kr", sizes[2])
        left, right = (
            self._factor(one, (*b, *index), tags, kind)
            for one, index, tags, kind in (
                (node.left, (r, kl), frozenset(["r", "kl"]), _kind(node)),
                (node.right, (kr, c), frozenset(["kr", "c"]), _kind(node)),
            )
        )
        loop.lines.append(f"acc = tl.dot({left}, {right}, acc, input_precision='ieee')")
        evaluator.pop()
        kernel.lines += ["for start in range(0, inner, TK):", *indented(loop.lines)]
        places = (*b, r, c)
        own = tuple(
            ZERO if size == ONE else place for size, place in zip(node.shape, places, strict=True)
        )
        evaluator.declare("acc", frozenset("rc"), node, own)
        kernel.lines += self._results(node, own, epilogue)
        text = KernelText(
            lines=kernel.lines,
            names=[*self.names, "height", "width", "inner"],
            constants=["TM", "TN", "TK"],
        )
        stage = WrittenStage()
        numbers = ", ".join(rendered(size, host=True) for size in (*sizes, batch))
        stage.host += [
            f"height, width, inner, batch = {numbers}",
            "tm, tn, tk = _product_tile(height, width, inner)",
        ]
        grid = "batch * triton.cdiv(height, tm) * triton.cdiv(width, tn)"
        stage.launch(f"product_{self.tag}", grid, text, "TM=tm, TN=tn, TK=tk, **_matrix_options()")
        return stage

    def _factor(self, node: Node, index: Index, tags: frozenset[str], kind: str) -> str:
        """Return a tile of a factor, 0 outside of the matrix."""
        evaluator = self.evaluator
        index = tuple(
            ZERO if size == ONE else place for size, place in zip(node.shape, index, strict=True)
        )
        value = evaluator.operand(evaluator.value(node, index), class_of(node.dtype))
        return f"tl.where({evaluator.mask(tags)}, {value}, 0.0).to({kind})"

    def _results(self, node: Matmul, own: Index, epilogue: LoopNest | None) -> list[str]:
        """Return the stores of a product, or of what is computed from it."""
        evaluator, tags = self.evaluator, frozenset("rc")
        if epilogue is None:
            return [evaluator.store(self.buffers[node], own, "acc", tags)]
        dense = [place for place in own if place != ZERO]
        moved = {f"{epilogue.name}_{k}": place for k, place in enumerate(dense)}
        evaluator.local = set(epilogue.members)
        every = tuple(range(len(epilogue.sizes)))
        stores = []
        for one in epilogue.members:
            index = tuple(p.replace(moved) for p in epilogue.place_of(one.shape, every))
            stores.append(
                evaluator.store(self.buffers[one], index, evaluator.value(one, index), tags)
            )
        evaluator.local = set()
        return stores


def _kind(node: Matmul) -> str:
    """Return the type in which a product's factors are multiplied."""
    both = {node.left.dtype, node.right.dtype}
    return f"tl.{both.pop()}" if len(both) == 1 and both <= set(HALVES) else "tl.float32"
