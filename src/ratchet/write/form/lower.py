"""From a graph of core ATen ops to the form."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import Tensor, fx

from ratchet.judge.problems.case import Case
from ratchet.judge.problems.model_state import flatten
from ratchet.judge.problems.problem import Problem, Reference
from ratchet.write.form import (
    Constant,
    Fold,
    InputNode,
    LoopForm,
    Map,
    Node,
    Scatter,
    UnsupportedOp,
    ops_fold,
    ops_map,
    ops_matmul,
)
from ratchet.write.form import Tensor as FormTensor
from ratchet.write.form.build import cast, constant, mapped
from ratchet.write.form.extent import whole
from ratchet.write.form.op_table import MAP_OPS
from ratchet.write.form.tracing import (
    OPS,
    LoweredCall,
    SizeReader,
    Traced,
    Value,
    as_node,
    name_of,
    traced,
)


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


TABLES: Final = (ops_fold, ops_map, ops_matmul)  # importing them fills the table of ops
"""Modules that fill the table of ops."""
MOST_OPS: Final = 240
"""Longest graph that is lowered: a longer one is a loop over a size that tracing unrolled."""


def lower(problem: Problem, case: Case) -> LoopForm:
    """Return the form of a problem for tensors and scalars like a case's, at any size.

    Raises UnsupportedOp: the reference has an op outside the list.
    """
    static: frozenset[tuple[int, int]] = frozenset()
    while True:  # each round makes one more size a number: a window in 3-d needs three
        trace = traced(_function(problem), case, static)
        try:
            return lowered(trace, case)
        except ops_matmul.StaticNeeded as needed:
            # The dimensions of inputs that give these sizes their names.
            found = {
                (place, dim)
                for place, shape in enumerate(trace.shapes)
                for dim, size in enumerate(shape)
                if size.names & needed.names
            } - static
        if not found:
            raise UnsupportedOp("window whose sizes are not those of an input")
        static |= found


def _function(problem: Problem) -> Reference:
    """Return the reference; a model's as a function of its state, which tracing can see."""
    if problem.model is None:
        return problem.load_reference()
    if problem.model.attributes:
        raise UnsupportedOp("model with tensors that are plain attributes")
    from ratchet.judge.problems.model_file import model_of

    form = problem.model
    model = model_of(problem.text, form).call().model
    count = len(form.state)

    def run(*given: Any) -> tuple[torch.Tensor, ...]:
        *tensors, _ = given
        state = dict(zip(form.state, tensors[:count], strict=True))
        rest = iter(tensors[count:])
        values = [next(rest) if one is None else ast.literal_eval(one) for one in form.arguments]
        return flatten(torch.func.functional_call(model, state, tuple(values)))

    return run


def lowered(trace: Traced, case: Case) -> LoopForm:
    count = len(trace.graph.nodes)
    if count > MOST_OPS:
        raise UnsupportedOp(f"reference of {count} ops", "a loop of it was unrolled")
    environment: dict[fx.Node, Value] = {}
    sources = [
        InputNode(shape=shape, dtype=spec.dtype, place=place)
        for place, (shape, spec) in enumerate(zip(trace.shapes, case.inputs, strict=True))
    ]
    waiting = iter(sources)
    results: list[Node] = []
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            environment[node] = next(waiting)
        elif node.op == "get_attr":
            environment[node] = _attribute(node)
        elif node.op == "call_function":
            environment[node] = _called(node, environment, trace.sizes)
        elif node.op == "output":
            results = [_resolved(one, environment) for one in node.args[0]]
    inputs = tuple(FormTensor(dtype=one.dtype, shape=one.shape) for one in sources)
    places = [place for place, spec in enumerate(case.inputs) if spec.in_place]
    free = range(len(inputs), len(inputs) + len(results) - len(places))
    form = LoopForm(
        inputs=inputs,
        outputs=tuple(results),
        slots=(*places, *free),
        scalars=tuple(case.scalars),
    )
    return shared(form)


def _called(node: fx.Node, environment: dict[fx.Node, Value], sizes: SizeReader) -> Value:
    call = LoweredCall(node, sizes)
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return sizes.extent(value)
    args = [_resolved(one, environment) for one in node.args]
    kwargs = {key: _resolved(one, environment) for key, one in node.kwargs.items()}
    if node.target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(node.target, torch._ops.OpOverload):
        return _number(call, args)
    packet = node.target.overloadpacket
    full = f"{packet._qualified_op_name.split('::')[-1]}.{node.target._overloadname}"
    function = OPS.get(full) or OPS.get(full.partition(".")[0])
    if function is None:
        raise UnsupportedOp(call.name)
    try:
        return function(call, *args, **kwargs)
    except TypeError as error:
        raise call.unsupported(f"called with unexpected arguments: {error}") from error


def _resolved(argument: object, environment: dict[fx.Node, Value]) -> Value:
    if isinstance(argument, fx.Node):
        return environment[argument]
    if isinstance(argument, list | tuple):
        return [_resolved(one, environment) for one in argument]
    if isinstance(argument, torch.dtype):
        return name_of(argument)
    return argument


_NUMBERS: Final = {name: op.name for op in MAP_OPS for name in op.sizes}


def _number(call: LoweredCall, args: Sequence[Value]) -> Value:
    """Lower arithmetic on Python numbers that depend on sizes, in float64."""
    given = [cast(as_node(one, "float64"), "float64") for one in args]
    if call.name in ("sym_float", "to_node"):
        return given[0]
    op = _NUMBERS.get(call.name)
    if op is None:
        raise call.unsupported("arithmetic on sizes")
    return mapped(op, *given, dtype="float64")


def _attribute(node: fx.Node) -> Node:
    module = node.graph.owning_module
    tensor = getattr(module, str(node.target), None)
    if not isinstance(tensor, Tensor) or tensor.numel() != 1:
        raise UnsupportedOp("constant tensor", "of more than one element")
    shape = tuple(whole(size) for size in tensor.shape)
    return constant(tensor.item(), name_of(tensor.dtype), shape)
