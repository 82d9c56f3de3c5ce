"""Forms as JSON: how a process that ran foreign code hands a form to one that trusts nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ratchet.authors.generator.extent import (
    Atom,
    Extent,
    Name,
    larger,
    named,
    smaller,
    whole,
)
from ratchet.authors.generator.form import (
    Choice,
    Constant,
    Fold,
    LoopForm,
    Map,
    Matmul,
    Node,
    Order,
    Position,
    Scan,
    Scatter,
    Shape,
    Source,
    Tensor,
    View,
)
from ratchet.errors import KernelError
from ratchet.kernels.abi import DTYPE_CODES

NAME: Final = re.compile(r"#?[A-Za-z0-9_]{1,64}")
OP: Final = re.compile(r"[a-z0-9_]{1,32}")


def form_as_json(form: LoopForm) -> dict[str, Any]:
    """Return a JSON object; `form_from_json` makes an equal form of it."""
    numbers: dict[Node, int] = {}
    nodes: list[Any] = []
    for node in form.nodes():
        nodes.append(_node(node, numbers))
        numbers[node] = len(nodes) - 1
    return {
        "inputs": [[one.dtype, [_extent(size) for size in one.shape]] for one in form.inputs],
        "nodes": nodes,
        "outputs": [numbers[one] for one in form.outputs],
        "slots": list(form.slots),
        "scalars": list(form.scalars),
    }


def form_from_json(document: dict[str, Any]) -> LoopForm:
    """Return the form of a JSON object; a KernelError for anything else."""
    try:
        nodes: list[Node] = []
        for one in document["nodes"]:
            nodes.append(_read_node(one, nodes))
        return LoopForm(
            inputs=tuple(
                Tensor(dtype=_dtype(dtype), shape=_shape(shape))
                for dtype, shape in document["inputs"]
            ),
            outputs=tuple(nodes[int(one)] for one in document["outputs"]),
            slots=tuple(int(one) for one in document["slots"]),
            scalars=tuple(float(one) for one in document["scalars"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise KernelError(f"this is not a form's JSON ({error!r}): trace it again") from error


def _extent(extent: Extent) -> list[Any]:
    return [[[_atom(atom) for atom in product], factor] for product, factor in extent.terms]


def _atom(atom: Atom) -> list[Any]:
    if isinstance(atom, Name):
        return ["", atom.name, None if atom.bound is None else _extent(atom.bound)]
    return [atom.relation, _extent(atom.left), _extent(atom.right)]


_RELATIONS: Final[dict[str, Callable[[Extent, Extent], Extent]]] = {
    "/": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "min": smaller,
    "max": larger,
}


def _read_extent(document: Any) -> Extent:
    total = whole(0)
    for product, factor in document:
        part = whole(int(factor))
        for kind, one, other in product:
            if kind:
                part = part * _RELATIONS[kind](_read_extent(one), _read_extent(other))
            else:
                part = part * named(
                    _matched(NAME, one), None if other is None else _read_extent(other)
                )
        total = total + part
    return total


def _node(node: Node, numbers: dict[Node, int]) -> list[Any]:
    def place(one: Extent | Node) -> list[Any]:
        return ["at", numbers[one]] if isinstance(one, Node) else ["is", _extent(one)]

    more: list[Any]
    match node:
        case Source():
            more = [node.place]
        case Constant():
            value = node.value
            more = [type(value).__name__, repr(value)]
        case Position():
            more = [_extent(node.value)]
        case Map():
            more = [node.op, [numbers[one] for one in node.args]]
        case View():
            more = [numbers[node.arg], [place(one) for one in node.places]]
        case Choice():
            when = [_extent(one) for one in node.when]
            more = [when, numbers[node.arg], numbers[node.other]]
        case Fold():
            more = [node.op, numbers[node.arg], list(node.axes)]
        case Scan():
            more = [node.op, numbers[node.arg], node.axis]
        case Scatter():
            base, source = numbers[node.base], numbers[node.source]
            more = [node.op, base, source, [place(one) for one in node.places]]
        case Order():
            more = [numbers[node.arg], node.descending]
        case Matmul():
            more = [numbers[node.left], numbers[node.right]]
        case _:
            raise TypeError(type(node).__name__)
    return [type(node).__name__, [_extent(size) for size in node.shape], node.dtype, more]


_NUMBERS: Final[dict[str, Callable[[str], float | int | bool]]] = {
    "float": float,
    "int": int,
    "bool": lambda text: text == "True",
}


def _read_node(document: Any, nodes: list[Node]) -> Node:
    kind, shape, dtype, more = document
    common: dict[str, Any] = {"shape": _shape(shape), "dtype": _dtype(dtype)}

    def node(number: Any) -> Node:
        return nodes[int(number)]

    def places(given: Any) -> tuple[Extent | Node, ...]:
        return tuple(node(one) if how == "at" else _read_extent(one) for how, one in given)

    match kind:
        case "Source":
            return Source(place=int(more[0]), **common)
        case "Constant":
            return Constant(value=_NUMBERS[more[0]](more[1]), **common)
        case "Position":
            return Position(value=_read_extent(more[0]), **common)
        case "Map":
            args = tuple(node(one) for one in more[1])
            return Map(op=_matched(OP, more[0]), args=args, **common)
        case "View":
            return View(arg=node(more[0]), places=places(more[1]), **common)
        case "Choice":
            when = tuple(_read_extent(one) for one in more[0])
            return Choice(when=when, arg=node(more[1]), other=node(more[2]), **common)
        case "Fold":
            axes = tuple(int(one) for one in more[2])
            return Fold(op=_matched(OP, more[0]), arg=node(more[1]), axes=axes, **common)
        case "Scan":
            return Scan(op=_matched(OP, more[0]), arg=node(more[1]), axis=int(more[2]), **common)
        case "Scatter":
            base, source = node(more[1]), node(more[2])
            op = _matched(OP, more[0])
            return Scatter(op=op, base=base, source=source, places=places(more[3]), **common)
        case "Order":
            return Order(arg=node(more[0]), descending=bool(more[1]), **common)
        case "Matmul":
            return Matmul(left=node(more[0]), right=node(more[1]), **common)
    raise ValueError(f"unknown node {kind!r}")


def _shape(document: Any) -> Shape:
    return tuple(_read_extent(one) for one in document)


def _dtype(value: Any) -> str:
    if value not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {value!r}")
    return str(value)


def _matched(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is no name")
    return value
