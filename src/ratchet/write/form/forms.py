"""A problem's forms: one for each pattern of ranks, dtypes and scalars among its visible cases.

A problem's own file is traced in a process of its own, which hands its forms over as JSON; reading
them trusts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from ratchet.base import Json
from ratchet.base.errors import KernelError
from ratchet.base.process.channel import Message
from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.problems.case import Case
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import described
from ratchet.write.form import (
    Choice,
    Constant,
    Fold,
    InputNode,
    LoopForm,
    Map,
    Matmul,
    Node,
    Order,
    Position,
    Scan,
    Scatter,
    Shape,
    Tensor,
    UnsupportedOp,
    View,
)
from ratchet.write.form.extent import Atom, Extent, Name, larger, named, smaller, whole
from ratchet.write.form.lower import lower
from ratchet.write.form.op_table import FOLDS, MAPS, SCATTERS

NAME: Final = re.compile(r"#?[A-Za-z0-9_]{1,64}")


def form_as_json(form: LoopForm) -> dict[str, Json]:
    """Return a JSON object; `form_from_json` makes an equal form of it."""
    numbers: dict[Node, int] = {}
    nodes: list[Json] = []
    for node in form.nodes():
        shape = [_extent(size) for size in node.shape]
        fields = FIELDS[type(node)].items()
        more = [field.write(getattr(node, name), numbers) for name, field in fields]
        numbers[node] = len(nodes)
        nodes.append([type(node).__name__, shape, node.dtype, more])
    return {
        "inputs": [[one.dtype, [_extent(size) for size in one.shape]] for one in form.inputs],
        "nodes": nodes,
        "outputs": [numbers[one] for one in form.outputs],
        "slots": list(form.slots),
        "scalars": list(form.scalars),
    }


def form_from_json(document: dict[str, Json]) -> LoopForm:
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


def _extent(extent: Extent) -> list[Json]:
    return [[[_atom(atom) for atom in product], factor] for product, factor in extent.terms]


def _atom(atom: Atom) -> list[Json]:
    if isinstance(atom, Name):
        return ["", atom.name, None if atom.bound is None else _extent(atom.bound)]
    return [atom.relation, _extent(atom.left), _extent(atom.right)]


_RELATIONS: Final[dict[str, Callable[[Extent, Extent], Extent]]] = {
    "/": lambda left, right: left // right,
    "%": lambda left, right: left % right,
    "min": smaller,
    "max": larger,
}


def _read_extent(document: Json) -> Extent:
    total = whole(0)
    for product, factor in document:
        part = whole(int(factor))
        for kind, one, other in product:
            if kind:
                part = part * _RELATIONS[kind](_read_extent(one), _read_extent(other))
            elif not isinstance(one, str) or not NAME.fullmatch(one):
                raise ValueError(f"{one!r} is no name")
            else:
                part = part * named(one, None if other is None else _read_extent(other))
        total = total + part
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldForm:
    """A field's writer, given the numbers of nodes, and its reader, given the nodes."""

    write: Callable[[Any, dict[Node, int]], Json]
    read: Callable[[Json, list[Node]], object]


def _plain(read: Callable[[Json], object]) -> FieldForm:
    return FieldForm(write=lambda value, _: value, read=lambda given, _: read(given))


def _each(one: FieldForm) -> FieldForm:
    return FieldForm(
        write=lambda values, numbers: [one.write(value, numbers) for value in values],
        read=lambda given, nodes: tuple(one.read(value, nodes) for value in given),
    )


_NUMBERS: Final[dict[str, Callable[[str], float | int | bool]]] = {
    "float": float,
    "int": int,
    "bool": lambda text: text == "True",
}


def _one_of(names: Collection[str]) -> FieldForm:
    def read(given: Json) -> str:
        if given not in names:
            raise ValueError(f"unknown op {given!r}")
        return str(given)

    return _plain(read)


_WHOLE = _plain(int)
_NUMBER = FieldForm(
    write=lambda value, _: [type(value).__name__, repr(value)],
    read=lambda given, _: _NUMBERS[given[0]](given[1]),
)
_EXTENT = FieldForm(write=lambda one, _: _extent(one), read=lambda given, _: _read_extent(given))
_NODE = FieldForm(
    write=lambda one, numbers: numbers[one], read=lambda given, nodes: nodes[int(given)]
)
_PLACE = FieldForm(
    write=lambda one, numbers: (
        ["at", numbers[one]] if isinstance(one, Node) else ["is", _extent(one)]
    ),
    read=lambda given, nodes: nodes[int(given[1])] if given[0] == "at" else _read_extent(given[1]),
)
FIELDS: Final[dict[type[Node], dict[str, FieldForm]]] = {
    InputNode: {"place": _WHOLE},
    Constant: {"value": _NUMBER},
    Position: {"value": _EXTENT},
    Map: {"op": _one_of(MAPS), "args": _each(_NODE)},
    View: {"arg": _NODE, "places": _each(_PLACE)},
    Choice: {"when": _each(_EXTENT), "arg": _NODE, "other": _NODE},
    Fold: {"op": _one_of(FOLDS), "arg": _NODE, "axes": _each(_WHOLE)},
    Scan: {"op": _one_of(FOLDS), "arg": _NODE, "axis": _WHOLE},
    Scatter: {"op": _one_of(SCATTERS), "base": _NODE, "source": _NODE, "places": _each(_PLACE)},
    Order: {"arg": _NODE, "descending": _plain(bool)},
    Matmul: {"left": _NODE, "right": _NODE},
}
"""The fields of each kind of node, beside its shape and dtype."""
_KINDS: Final = {kind.__name__: kind for kind in FIELDS}


def _read_node(document: Json, nodes: list[Node]) -> Node:
    name, shape, dtype, more = document
    kind: Any = _KINDS[name]
    pairs = zip(FIELDS[kind].items(), more, strict=True)
    given = {field: form.read(one, nodes) for (field, form), one in pairs}
    made: Node = kind(shape=_shape(shape), dtype=_dtype(dtype), **given)
    if isinstance(made, Map) and len(made.args) != MAPS[made.op].arity:
        raise ValueError(f"{made.op} of {len(made.args)} arguments")
    return made


def _shape(document: Json) -> Shape:
    return tuple(_read_extent(one) for one in document)


def _dtype(value: object) -> str:
    if value not in DTYPE_CODES:
        raise ValueError(f"unknown dtype {value!r}")
    return str(value)


MOST_FORMS: Final = 4
TRACING_LIMIT_S: Final = 120.0
WORKER: Final = "ratchet.write.form.forms"
MOST_KEPT: Final = 8
_LATEST: Final[dict[str, tuple[LoopForm, ...]]] = {}
"""By the problem's hash: who asks whether a problem is covered then asks for its space."""


def forms_of(problem: Problem) -> tuple[LoopForm, ...]:
    """Return a form for each pattern of the visible cases, timed ones first.

    The reference of a problem's file is traced in a process of its own. Raises UnsupportedOp (the
    reference has an op outside of the list); KernelError (the file does not run, or not in time).
    """
    if problem.hash not in _LATEST:
        if len(_LATEST) >= MOST_KEPT:
            del _LATEST[next(iter(_LATEST))]
        _LATEST[problem.hash] = _forms_of(problem)
    return _LATEST[problem.hash]


def _forms_of(problem: Problem) -> tuple[LoopForm, ...]:
    if not problem.text:
        return traced_forms(problem)
    request = {"by": WORKER, "problem": problem.as_json(), "threads": 1}
    found = described(request, TRACING_LIMIT_S)
    if "op" in found:
        raise UnsupportedOp(str(found["op"]), str(found.get("why", "")))
    if "forms" not in found:
        raise KernelError(f"problem {problem.name!r} cannot be traced: {found.get('fault')}")
    return tuple(form_from_json(one) for one in found["forms"])


def traced_forms(problem: Problem) -> tuple[LoopForm, ...]:
    """Return the same, traced in this process."""
    visible = sorted(
        (one for one in problem.cases if not one.hidden), key=lambda one: not one.timed
    )
    patterns: dict[object, Case] = {}
    for case in visible:
        patterns.setdefault(_pattern(case), case)
    return tuple(lower(problem, case) for case in list(patterns.values())[:MOST_FORMS])


def _pattern(case: Case) -> object:
    """Return what a form is made for: dtypes, ranks, sizes of 0 or 1, and scalars."""
    tensors = tuple(
        (spec.dtype, tuple(size if size < 2 else -1 for size in spec.shape), spec.in_place)
        for spec in case.inputs
    )
    return tensors, case.scalars


def answer(request: Message) -> dict[str, object]:
    """Return the `forms` of the request's problem, or the `op` that stops them and `why`."""
    problem = Problem.from_json(request["problem"])
    try:
        return {"forms": [form_as_json(form) for form in traced_forms(problem)]}
    except UnsupportedOp as error:
        return {"op": error.op, "why": error.why}
