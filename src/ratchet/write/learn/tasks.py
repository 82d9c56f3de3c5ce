"""Problems that a policy is trained and tested on, with their schedules, split by family."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import LearnError, RatchetError
from ratchet.judge.abi import ITEM_BYTES
from ratchet.judge.api import as_problem
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.problems.suites import NAMES
from ratchet.write.form import LoopForm, Map, Matmul, Node, Scan, Scatter, View
from ratchet.write.form.extent import Extent, whole
from ratchet.write.form.op_table import MAPS
from ratchet.write.generator import space_for
from ratchet.write.generator.fusion import LoopNest, planned
from ratchet.write.generator.space import GeneratedSpace

LOG = logging.getLogger(__name__)
UNSEEN: Final = ("normalisation", "convolution", "movement")
"""Families that no policy is trained on, unless others are named."""
TRAINED: Final = ("activations", "attention", "losses", "products", "quantisation", "updates")
"""Families to train on, unless others are named. They cover each choice of the unseen families'
schedules several times: a policy can only guess at a choice that it never met."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnTask:
    """A problem, its family, and the schedules that its kernels can have."""

    problem: Problem
    family: str
    space: GeneratedSpace
    key: str

    @property
    def name(self) -> str:
        return self.problem.name


MOST_UNSEEN: Final = 6
"""Most problems of an unseen family: answers to them are judged for every policy."""
Names = dict[str, list[str]]  # Names of problems by family


def split_names(
    trained: Sequence[str], unseen: Sequence[str], per_family: int, seed: int
) -> tuple[Names, Names]:
    """Return the names of the problems to train on, and of the unseen ones, by family.

    Draws `per_family` of each family, and at most MOST_UNSEEN of an unseen one, by the seed. Raises
    LearnError: a family is unknown or on both sides, or a side has none.
    """
    for one in (*trained, *unseen):
        if one not in NAMES:
            raise LearnError(f"unknown family {one!r}: use some of {', '.join(NAMES)}")
    both = sorted({*trained} & {*unseen})
    if both:
        raise LearnError(f"family {both[0]!r} is both trained on and unseen: leave it out of one")
    if not trained or not unseen:
        raise LearnError("give at least one family to train on, and one with --unseen")
    return (
        {one: _drawn(one, per_family, seed) for one in trained},
        {one: _drawn(one, min(per_family, MOST_UNSEEN), seed) for one in unseen},
    )


def _drawn(family: str, count: int, seed: int) -> list[str]:
    order = list(NAMES[family])
    random.Random(f"{seed} {family}").shuffle(order)
    return order[:count]


def make_tasks(names: Names, *, language: str = "cpp") -> list[LearnTask]:
    """Return the problems that the generator can write, each with its schedules.

    A problem with an op that the generator lacks, or with one schedule alone, is left out.
    """
    return list(tasks_of(((family, one) for family, own in names.items() for one in own), language))


def first_tasks(names: Names, language: str, *, least: int, until: float) -> list[LearnTask]:
    """Return the problems that can be read before `until`, one of each family in turn.

    Reads at least `least` of them, however long that takes.
    """
    rounds = itertools.zip_longest(
        *([(family, one) for one in own] for family, own in names.items())
    )
    order = [pair for one in rounds for pair in one if pair is not None]
    found: list[LearnTask] = []
    for task in tasks_of(order, language):
        found.append(task)
        if len(found) >= least and time.monotonic() > until:
            break
    return found


def by_family(tasks: Sequence[LearnTask]) -> Names:
    found: Names = {}
    for one in tasks:
        found.setdefault(one.family, []).append(one.name)
    return found


def tasks_of(names: Iterable[tuple[str, str]], language: str) -> Iterable[LearnTask]:
    for family, name in names:
        try:
            yield task_of(as_problem(name), family, language=language)
        except RatchetError as error:
            LOG.info("left out %s: %s", name, error)


def task_of(problem: Problem, family: str = "", *, language: str = "cpp") -> LearnTask:
    """Return one problem's task.

    Raises RatchetError: the generator lacks one of its ops, or it has nothing to choose.
    """
    space = space_for(problem, device="cpu" if language == "cpp" else "cuda")
    assert isinstance(space, GeneratedSpace)
    if all(len(values) < 2 for values in space.options.values()):
        raise LearnError(f"problem {problem.name!r} has one schedule alone: nothing to choose")
    return LearnTask(problem=problem, family=family, space=space, key=problem.hash)


# A policy's prompt is a problem's loops in few numbers. Operations are left out on purpose: a
# policy that sees their names learns trained problems by heart. Sizes of rows, results and
# intermediates tell what a choice costs, on unseen problems too.

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
    sizes = _Sizes(form, case)
    return {
        **_tensors(form, case, sizes),
        **_stages(form, sizes),
        **_largest_nest(form, sizes),
        **_product(form, sizes),
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
        return _power(sum(self.elements(one.shape) * ITEM_BYTES[one.dtype] for one in nodes))


def _tensors(form: LoopForm, case: Case, sizes: _Sizes) -> dict[str, int]:
    read = sum(math.prod(one.shape) * ITEM_BYTES[one.dtype] for one in case.inputs)
    return {
        "in": _power(read),
        "out": sizes.memory(form.outputs),
        "inputs": len(form.inputs),
        "outputs": len(form.outputs),
        "narrow_in": sum(one.dtype in NARROW for one in form.inputs),
        "narrow_out": sum(one.dtype in NARROW for one in form.outputs),
    }


def _stages(form: LoopForm, sizes: _Sizes) -> dict[str, int]:
    """Return stages, memory between them, and results that a later stage reads again."""
    found = {}
    for name, plan in (("", planned(form)), ("_apart", planned(form, fuse=False))):
        found["stages" + name] = len(plan.stages)
        between = [one for one in plan.kept if one not in plan.outputs]
        found["between" + name] = sizes.memory(between)
        again = [
            node
            for stage in plan.stages
            for node in stage.nodes
            if node in plan.outputs and node in plan.read_outside([stage])
        ]
        found["reread" + name] = sizes.memory(again)
    return found


def _largest_nest(form: LoopForm, sizes: _Sizes) -> dict[str, int]:
    """Return the size of the largest loop nest, of its rows, and the roles of its members."""
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


def _product(form: LoopForm, sizes: _Sizes) -> dict[str, int]:
    """Return the sizes of the largest matrix product, (batch, m, k) by (batch, k, n)."""
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
