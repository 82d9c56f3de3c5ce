"""Equal nodes of a form made one, so that nothing is computed twice."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace
from typing import Any

from ratchet.authors.form.form import Constant, Fold, LoopForm, Map, Node, Scatter


def shared(form: LoopForm) -> LoopForm:
    """Return the form with each computation once."""
    made: dict[Node, Node] = {}
    known: dict[tuple[object, ...], Node] = {}
    users = Counter(one for node in form.nodes() for one in node.inputs)
    users.update(form.outputs)
    for node in form.nodes():
        own = _known(_scattered_onto(_rebuilt(node, made), node, users), known)
        made[node] = _is_above_nothing(own, known) or own
    return replace(form, outputs=tuple(made[one] for one in form.outputs))


def _rebuilt(node: Node, made: dict[Node, Node]) -> Node:
    changes: dict[str, Any] = {}
    for one in fields(node):
        old = getattr(node, one.name)
        new: object = old
        if isinstance(old, Node):
            new = made[old]
        elif isinstance(old, tuple):
            new = tuple(made[part] if isinstance(part, Node) else part for part in old)
        if new != old:
            changes[one.name] = new
    return replace(node, **changes) if changes else node


def _known(node: Node, known: dict[tuple[object, ...], Node]) -> Node:
    """Return the first node that is equal to this one."""
    values = (getattr(node, one.name) for one in fields(node))
    texts = (repr(value) if isinstance(value, float) else value for value in values)  # -0.0, nan
    return known.setdefault((type(node), *texts), node)


def _scattered_onto(node: Node, old: Node, users: Counter[Node]) -> Node:
    """Return x + (0 with elements added at places) as x with them added: one pass less."""
    if not (isinstance(node, Map) and isinstance(old, Map) and node.op == "add"):
        return node
    for one, before, other in zip(node.args, old.args, node.args[::-1], strict=True):
        if (
            isinstance(one, Scatter)
            and one.op == "add"
            and one.dtype == node.dtype == other.dtype
            and users[before] == 1
            and isinstance(one.base, Constant)
            and one.base.value == 0
        ):
            return replace(one, base=other)
    return node


def _is_above_nothing(node: Node, known: dict[tuple[object, ...], Node]) -> Node | None:
    """Return whether any value is not minus infinity by the maximum, which softmax needs anyway."""
    if not (isinstance(node, Fold) and node.op == "any" and isinstance(node.arg, Map)):
        return None
    same = node.arg.args[0] if node.arg.op == "not" else None
    if not (isinstance(same, Map) and same.op == "eq"):
        return None
    value, least = same.args
    if not (isinstance(least, Constant) and least.value == -math.inf):
        return None
    made: Node = Fold(shape=node.shape, dtype=value.dtype, op="max", arg=value, axes=node.axes)
    bound = Constant(shape=node.shape, dtype=value.dtype, value=-math.inf)
    for op, args in (("eq", (_known(made, known), _known(bound, known))), ("not", ())):
        made = Map(shape=node.shape, dtype="bool", op=op, args=args or (made,))
        made = _known(made, known)
    return made
