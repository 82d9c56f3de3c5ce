"""Find what follows a product element by element, to be computed as its blocks are ready.

A block of the product is then still in the cache, and one that nothing else reads is never written
to memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form.extent import ONE, ZERO, Extent, name_of, product_of, unflattened
from ratchet.write.form.form import LoopForm, Matmul, Node, Shape, axes_of
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
    for nest in following:
        if not isinstance(nest, LoopNest) or _in_place(nest, plan, form):
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


def _in_place(nest: LoopNest, plan: FusionPlan, form: LoopForm) -> bool:
    """Return whether the nest overwrites an input, which the product may still read."""
    own = zip(plan.outputs, form.slots, strict=True)
    return any(output in nest.members and slot < len(form.inputs) for output, slot in own)
