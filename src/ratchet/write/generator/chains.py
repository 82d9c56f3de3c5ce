"""Code beyond one loop nest: stages for each element of a batch, and epilogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.write.form import LoopForm, Matmul, Node, Shape, axes_of
from ratchet.write.form.extent import ONE, ZERO, Extent, bound_of, name_of, product_of, unflattened
from ratchet.write.generator.fusion import (
    FusionPlan,
    Index,
    LoopNest,
    Stage,
    dense,
    dense_index,
    place_over,
    reads_of,
)

# Attention's products, its softmax and what follows share the batch and the heads. Run for one head
# at a time, the scores of a head stay in the cache, and need memory for one head a thread.


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages in a row; with `lead`, they run for each index of these leading sizes."""

    stages: tuple[Stage, ...]
    lead: Shape = ()

    def own(self, plan: FusionPlan) -> dict[Node, int]:
        """Return the nodes that nothing else reads, with the dimensions that the batch takes."""
        written = {node for stage in self.stages for node in stage.nodes}
        found: dict[Node, int] = {}
        for node in written - plan.read_outside(self.stages) - set(plan.outputs):
            places = [place for place, size in enumerate(node.shape) if size != ONE]
            found[node] = places[len(self.lead) - 1] + 1  # sizes of 1 among them count
        return found


def chained(plan: FusionPlan) -> list[Chain]:
    """Return all stages in order; those around batched products share chains."""
    found: list[Chain] = []
    at, stages = 0, plan.stages
    while at < len(stages):
        first = next((k for k in range(at, len(stages)) if _lead_of(stages[k])), None)
        if first is None:
            break
        lead, start, end = _lead_of(stages[first]), first, first + 1
        while start > at and _fit(stages[start - 1 : end], lead, plan):
            start -= 1
        while end < len(stages) and _fit(stages[start : end + 1], lead, plan):
            end += 1
        found += [Chain(stages=(one,)) for one in stages[at:start]]
        found.append(Chain(stages=stages[start:end], lead=lead if end - start > 1 else ()))
        at = end
    return [*found, *(Chain(stages=(one,)) for one in stages[at:])]


def reads(stage: Stage, node: Node, kept: frozenset[Node]) -> list[tuple[Node, Index]]:
    """Return what a stage's node reads from memory, with the index in the stage's variables."""
    if isinstance(stage, LoopNest):
        return reads_of(node, place_over(stage, node, stage.members[node]), kept)
    return reads_of(node, axes_of(node.shape), kept)


def decoded(variables: Sequence[Extent], item: str) -> list[str]:
    """Return definitions of loop variables from the number of an element, row by row."""
    lines: list[str] = []
    rest = ONE
    for place in range(len(variables) - 1, -1, -1):
        one = variables[place]
        text = f"{item} / ({rest.text})" if rest != ONE else item
        if place:
            text = f"({text}) % ({bound_of(one).text})"
        lines.append(f"const int64_t {name_of(one)} = {text};")
        rest = product_of((rest, bound_of(one)))
    return lines


def _lead_of(stage: Stage) -> Shape:
    node = stage.nodes[0]
    return dense(node.shape[:-2]) if isinstance(node, Matmul) else ()


def _fit(stages: Sequence[Stage], lead: Shape, plan: FusionPlan) -> bool:
    """Return whether each stage runs over the batch, and reads the others' results in order."""
    written = {node for stage in stages for node in stage.nodes}
    for stage in stages:
        if not _takes(stage, lead):
            return False
        if isinstance(stage, LoopNest):
            batch = tuple(stage.index(place) for place in range(len(lead)))
        else:
            shape = stage.node.shape[:-2]
            batch = dense_index(axes_of(shape), shape)
        for node in stage.nodes:
            for one, index in reads(stage, node, plan.kept):
                pairs = zip(dense_index(index, one.shape), batch, strict=False)
                if one in written and any(place != own for place, own in pairs):
                    return False
    return True


def _takes(stage: Stage, lead: Shape) -> bool:
    if not isinstance(stage, LoopNest):
        return _lead_of(stage) == lead
    inner = stage.inner or frozenset()
    folds = {"column fold", "whole fold"} & set(stage.members.values())
    longer = len(stage.sizes) > len(lead) and stage.sizes[: len(lead)] == lead
    return longer and not folds and not inner & set(range(len(lead)))


# An epilogue follows a product element by element, and is computed as its blocks are ready. A block
# is then still in the cache, and one that nothing else reads is never written to memory.


def epilogue_of(
    stage: Stage, following: Sequence[Stage], plan: FusionPlan, form: LoopForm
) -> tuple[LoopNest, ...]:
    """Return the nests, right after a product's stage, that its blocks' epilogue can compute."""
    node = stage.nodes[0]
    if not isinstance(node, Matmul) or node in plan.outputs:
        return ()
    own = axes_of(node.shape)
    sizes = zip(own, node.shape, strict=True)
    ready: dict[Node, Index] = {node: tuple(ZERO if size == ONE else one for one, size in sizes)}
    found: list[LoopNest] = []
    slots = zip(plan.outputs, form.slots, strict=True)
    written = {output for output, slot in slots if slot < len(form.inputs)}
    for nest in following:
        # A nest that overwrites an input must wait: the product may still read it.
        if not isinstance(nest, LoopNest) or written & set(nest.members):
            break
        moved = moved_to(nest, dense_index(own, node.shape), node.shape)
        if moved is None or not _reads_in_place(nest, moved, ready, plan):
            break
        found.append(nest)
        for member, role in nest.members.items():
            ready[member] = tuple(one.replace(moved) for one in nest.place(member.shape, role))
    return () if node in plan.read_outside(found) else tuple(found)


def _reads_in_place(
    nest: LoopNest, moved: dict[str, Extent], ready: dict[Node, Index], plan: FusionPlan
) -> bool:
    """Return whether a nest reads what is ready only at its own place, element by element."""
    return set(nest.members.values()) == {"element"} and all(
        tuple(place.replace(moved) for place in index) == ready[one]
        for member, role in nest.members.items()
        for one, index in reads_of(member, place_over(nest, member, role), plan.kept)
        if one in ready
    )


def moved_to(nest: LoopNest, places: Index, shape: Shape) -> dict[str, Extent] | None:
    """Return a nest's loop variables at a place of a product, given by its axes longer than 1."""
    rows, columns = shape[-2:]
    if ONE in (rows, columns):
        return None
    lead = dense(shape[:-2])
    sizes = nest.sizes[len(lead) :]
    if nest.sizes[: len(lead)] != lead:
        return None
    for cut in range(1, len(sizes)):
        if product_of(sizes[:cut]) == rows and product_of(sizes[cut:]) == columns:
            break
    else:
        return None
    index = [
        *places[:-2],
        *unflattened(places[-2], sizes[:cut]),
        *unflattened(places[-1], sizes[cut:]),
    ]
    return {name_of(nest.index(place)): one for place, one in enumerate(index)}
