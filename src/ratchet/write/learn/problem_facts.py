"""Facts of a problem's loops, in few numbers: a policy's prompt.

Operations are left out on purpose: a policy that sees their names learns trained problems by
heart. Sizes of rows, results and intermediates tell what a choice costs, on unseen problems too.
"""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ratchet.judge.problems.problem import Case
from ratchet.write.form.extent import Extent, whole
from ratchet.write.form.form import LoopForm, Map, Matmul, Node, Scan, Scatter, View
from ratchet.write.form.op_table import MAPS
from ratchet.write.generator.fusion import FusionPlan, LoopNest, planned
from ratchet.write.learn.tasks import LearnTask

BYTES: Final = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element; 1 for dtypes that are not named."""
NARROW: Final = ("bfloat16", "float16")


@functools.lru_cache(maxsize=512)
def loop_summary(task: LearnTask) -> str:
    """Return the facts of a problem's loops, and the names of their choices.

    Sizes are exponents of the nearest power of two. Facts that are 0 are left out.
    """
    case = next((one for one in task.problem.cases if one.timed), task.problem.cases[0])
    facts = loop_facts(_form_of(task.space.forms, case), case)
    words = " ".join(f"{name} {value}" for name, value in facts.items() if value)
    language = "triton" if "num_warps" in task.space.options else "cpp"
    return f"{language}; {words}; {' '.join(task.space.options)}"


def blurred(summary: str, share: float, source: random.Random) -> str:
    """Return a summary without a share of its facts, and with as many others off by one.

    So no single number tells a policy which problem it has.
    """
    language, facts, choices = summary.split("; ")
    words, found = facts.split(), list[str]()
    for name, value in zip(words[::2], words[1::2], strict=True):
        if source.random() < share:
            continue
        moved = source.choice((-1, 1)) if source.random() < share else 0
        found += [name, str(max(1, int(value) + moved))]
    return f"{language}; {' '.join(found)}; {choices}"


def loop_facts(form: LoopForm, case: Case) -> dict[str, int]:
    """Return the facts of a form at a case's sizes."""
    return {
        **_tensors(form, case),
        **_stages(form, case),
        **_largest_nest(form, case),
        **_product(form, case),
        **_operations(form),
    }


def _form_of(forms: Sequence[LoopForm], case: Case) -> LoopForm:
    """Return the form that a case's ranks and dtypes belong to, or the first."""
    pattern = [(spec.dtype, len(spec.shape)) for spec in case.inputs]
    return next(
        (one for one in forms if [(t.dtype, len(t.shape)) for t in one.inputs] == pattern),
        forms[0],
    )


class _Sizes:
    """A form's sizes at a case."""

    def __init__(self, form: LoopForm, case: Case) -> None:
        self._names = {
            name: whole(case.inputs[place].shape[dim] // factor)
            for name, (place, dim, factor) in form.named_sizes().items()
            if place < len(case.inputs) and dim < len(case.inputs[place].shape)
        }

    def of(self, extent: Extent) -> int:
        """Return a size; 1 if the case does not determine it."""
        return extent.replace(self._names).constant or 1

    def elements(self, shape: Sequence[Extent]) -> int:
        return math.prod(map(self.of, shape))

    def memory(self, nodes: Sequence[Node]) -> int:
        """Return the exponent of the nodes' bytes."""
        return _power(sum(self.elements(one.shape) * BYTES.get(one.dtype, 1) for one in nodes))


def _tensors(form: LoopForm, case: Case) -> dict[str, int]:
    read = sum(math.prod(one.shape) * BYTES.get(one.dtype, 1) for one in case.inputs)
    return {
        "in": _power(read),
        "out": _Sizes(form, case).memory(form.outputs),
        "inputs": len(form.inputs),
        "outputs": len(form.outputs),
        "narrow_in": sum(one.dtype in NARROW for one in form.inputs),
        "narrow_out": sum(one.dtype in NARROW for one in form.outputs),
    }


def _stages(form: LoopForm, case: Case) -> dict[str, int]:
    """Return stages, memory between them, and results that a later stage reads again."""
    sizes, found = _Sizes(form, case), {}
    for name, plan in (("", planned(form)), ("_apart", planned(form, fuse=False))):
        found["stages" + name] = len(plan.stages)
        found["between" + name] = sizes.memory(
            [one for one in plan.kept if one not in plan.outputs]
        )
        found["reread" + name] = sizes.memory(_read_again(plan))
    return found


def _read_again(plan: FusionPlan) -> list[Node]:
    return [
        node
        for stage in plan.stages
        for node in stage.nodes
        if node in plan.outputs and node in plan.read_outside([stage])
    ]


def _largest_nest(form: LoopForm, case: Case) -> dict[str, int]:
    """Return the size of the largest loop nest, of its rows, and the roles of its members."""
    sizes = _Sizes(form, case)
    nests = [one for one in planned(form).stages if isinstance(one, LoopNest)]
    if not nests:
        return {}
    largest = max(nests, key=lambda one: sizes.elements(one.sizes))
    inner = largest.inner or {len(largest.sizes) - 1} & set(range(len(largest.sizes)))
    size = sizes.elements(largest.sizes)
    row = sizes.elements([largest.sizes[place] for place in sorted(inner)])
    roles = Counter(role.replace(" ", "_") for role in largest.members.values())
    facts = {"nest": _power(size), "row": _power(row), "rows": _power(size // row)}
    return facts | {f"{role}s": count for role, count in sorted(roles.items())}


def _product(form: LoopForm, case: Case) -> dict[str, int]:
    """Return the sizes of the largest matrix product, (batch, m, k) by (batch, k, n)."""
    sizes = _Sizes(form, case)
    products = [one for one in form.nodes() if isinstance(one, Matmul)]
    if not products:
        return {}

    def work(one: Matmul) -> int:
        return sizes.elements(one.shape) * sizes.of(one.left.shape[-1])

    largest = max(products, key=work)
    return {
        "products": len(products),
        "m": _power(sizes.of(largest.shape[-2])),
        "n": _power(sizes.of(largest.shape[-1])),
        "k": _power(sizes.of(largest.left.shape[-1])),
        "batch": _power(sizes.elements(largest.shape[:-2])),
        "narrow_products": sum(one.left.dtype in NARROW for one in products),
    }


def _operations(form: LoopForm) -> dict[str, int]:
    """Return how many operations of each kind there are; of frequent ones the exponent."""
    nodes = form.nodes()
    return {
        "costly": sum(isinstance(one, Map) and MAPS[one.op].costly for one in nodes),
        "maps": _power(1 + sum(isinstance(one, Map) for one in nodes)),
        "views": _power(1 + sum(isinstance(one, View) for one in nodes)),
        "scatters": sum(isinstance(one, Scatter) for one in nodes),
        "scans": sum(isinstance(one, Scan) for one in nodes),
    }


def _power(size: int) -> int:
    """Return the nearest power of two's exponent."""
    return round(math.log2(max(1, size)))
