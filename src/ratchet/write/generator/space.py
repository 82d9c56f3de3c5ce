"""The schedules of one problem's generated kernels, in C++ or in Triton."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ratchet.base.devices.probe import best_isa
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.write.author import Schedule
from ratchet.write.form import LoopForm, Map, Matmul, Node, View
from ratchet.write.form.extent import Extent
from ratchet.write.form.op_table import MAPS
from ratchet.write.generator.chains import chained, epilogue_of
from ratchet.write.generator.fusion import LoopNest, planned
from ratchet.write.generator.schedule import OPTIONS, TILE_OPTIONS, Choices, TileChoices
from ratchet.write.generator.source import source_of
from ratchet.write.generator.triton.nests import FOLDED, ROWWISE
from ratchet.write.generator.triton.source import source_of as tile_source_of


@dataclass(frozen=True, kw_only=True)
class GeneratedSpace:
    """A problem's forms, and the choices that matter for their kernels in a language."""

    problem: Problem
    forms: tuple[LoopForm, ...]
    options: dict[str, tuple[str, ...]]
    language: Literal["cpp", "triton"]

    def first(self) -> list[Schedule]:
        """Return the default schedule, and then each choice's other values alone."""
        default = {name: values[0] for name, values in self.options.items()}
        found = [_schedule(default)]
        for name, values in self.options.items():
            found += [_schedule(default | {name: value}) for value in values[1:]]
        return found

    def draw(self, source: random.Random) -> Schedule:
        return _schedule({name: source.choice(values) for name, values in self.options.items()})

    def change(self, schedule: Schedule, source: random.Random) -> Schedule:
        """Return a neighbour of `schedule`: one choice is another."""
        own = {name: values[0] for name, values in self.options.items()}
        own |= {name: value for name, value in schedule if name in self.options}
        name = source.choice([one for one, values in self.options.items() if len(values) > 1])
        others = [value for value in self.options[name] if value != own[name]]
        return _schedule(own | {name: source.choice(others)})

    def features(self, schedule: Schedule) -> tuple[float, ...]:
        """Return numbers of the problem, then of the schedule: logs of counts, places of values."""
        given = dict(schedule)
        own = []
        for name, values in (OPTIONS if self.language == "cpp" else TILE_OPTIONS).items():
            value = given.get(name, values[0])
            own.append(float(values.index(value)) if value in values else 0.0)
        return (*self._problem_features, *own)

    def kernel(self, schedule: Schedule) -> Kernel:
        entry = self.problem.name if self.problem.name.isidentifier() else "generated"
        if self.language == "cpp":
            more, source = "", source_of(self.forms, Choices.read(schedule), entry)
        else:
            more, source = ":triton", tile_source_of(self.forms, TileChoices.read(schedule), entry)
        name = f"{self.problem.name}:generated{more}"
        return Kernel(name=name, language=self.language, source=source, entry=entry)

    @cached_property
    def _problem_features(self) -> tuple[float, ...]:
        case = next((one for one in self.problem.cases if one.timed), self.problem.cases[0])
        numbers = [math.prod(spec.shape) for spec in case.inputs]
        nodes = self.forms[0].nodes()
        costly = sum(isinstance(one, Map) and MAPS[one.op].costly for one in nodes)
        stages = planned(self.forms[0]).stages
        return (
            math.log1p(sum(numbers)),
            math.log1p(max(numbers, default=0)),
            math.log1p(len(nodes)),
            math.log1p(costly),
            float(len(stages)),
            float(sum(isinstance(one, Matmul) for one in nodes)),
        )


def options_of(
    forms: tuple[LoopForm, ...], language: Literal["cpp", "triton"]
) -> dict[str, tuple[str, ...]]:
    """Return the choices that matter for these forms."""
    tiles = language == "triton"
    plans = [planned(form, factors=not tiles, parts=not tiles) for form in forms]
    nests = [stage for plan in plans for stage in plan.stages if isinstance(stage, LoopNest)]
    roles = {role for nest in nests for role in nest.members.values()}
    nodes = [node for form in forms for node in form.nodes()]
    options = dict(TILE_OPTIONS if tiles else OPTIONS)
    unused = set() if any(turns(form) for form in forms) else {"turn" if tiles else "tile"}
    if sum(len(nest.members) for nest in nests) == len(nests):
        unused.add("fuse")
    if tiles:
        if not roles & ROWWISE:
            unused.add("row")
        if not roles & FOLDED:
            options["programs"] = options["programs"][:2]
        if not nests:
            unused.add("loop")
        if not any(isinstance(node, Matmul) for node in nodes):
            unused |= {"prologue", "product", "matrix_instr_nonkdim"}
    else:
        if all(len(chain.stages) == 1 for plan in plans for chain in chained(plan)):
            unused.add("chain")
        if not any(set(nest.members.values()) <= {"element", "whole fold"} for nest in nests):
            unused |= {"block", "stream"}
        if "row fold" not in roles:
            unused.add("keep")
        if best_isa() == "portable":
            unused.add("width")  # vectors of 512 bits are not there
        if not any(isinstance(node, Map) and node.op == "div" for node in nodes):
            unused.add("division")
        unused |= _unused_by_products(forms, nodes)
    return {name: values for name, values in options.items() if name not in unused}


def _unused_by_products(forms: tuple[LoopForm, ...], nodes: Sequence[Node]) -> set[str]:
    """Return the choices of products that change nothing in C++."""
    if not any(isinstance(node, Matmul) for node in nodes):
        return {"factors", "epilogue", "depth", "rows", "columns", "direct", "denormals"}
    unused: set[str] = set()
    plans = [planned(form, apart=True) for form in forms]
    if all(plan.kept == planned(form).kept for plan, form in zip(plans, forms, strict=True)):
        unused.add("factors")
    if not any(
        epilogue_of(stage, plan.stages[place + 1 :], plan, form)
        for plan, form in zip(plans, forms, strict=True)
        for place, stage in enumerate(plan.stages)
    ):
        unused.add("epilogue")
    return unused


def turns(form: LoopForm) -> bool:
    """Return whether a view swaps dimensions, so that loops may run in squares."""
    for node in form.nodes():
        if isinstance(node, View):
            order = [
                int(name[1:])
                for place in node.places
                if isinstance(place, Extent)
                for name in sorted(place.names)
                if name.startswith("#")
            ]
            if order != sorted(order):
                return True
    return False


def _schedule(choices: dict[str, str]) -> Schedule:
    return tuple(sorted(choices.items()))
