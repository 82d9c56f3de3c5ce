"""The schedules of one problem's generated Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.write.author import Schedule
from ratchet.write.form.form import LoopForm, Matmul
from ratchet.write.generator.fusion import LoopNest, planned
from ratchet.write.generator.space import GeneratedSpace, turns
from ratchet.write.generator.triton.nests import FOLDED, ROWWISE
from ratchet.write.generator.triton.schedule import TILE_OPTIONS, read_tiles
from ratchet.write.generator.triton.source import source_of


@dataclass(frozen=True, kw_only=True)
class TritonSpace(GeneratedSpace):
    """A problem's forms, and the choices that matter for their kernels in Triton."""

    table: ClassVar[dict[str, tuple[str, ...]]] = TILE_OPTIONS

    def kernel(self, schedule: Schedule) -> Kernel:
        entry = self.problem.name if self.problem.name.isidentifier() else "generated"
        return Kernel(
            name=f"{self.problem.name}:generated:triton",
            language="triton",
            source=source_of(self.forms, read_tiles(schedule), entry),
            entry=entry,
        )


def triton_space(problem: Problem, forms: tuple[LoopForm, ...]) -> TritonSpace:
    """Return a problem's schedules.

    Raises:
        UnsupportedOp: a part of a form has no Triton.
    """
    space = TritonSpace(problem=problem, forms=forms, options=tile_options(forms))
    space.kernel(space.first()[0])
    return space


def tile_options(forms: tuple[LoopForm, ...]) -> dict[str, tuple[str, ...]]:
    """Return the choices that matter for these forms."""
    plans = [planned(form, factors=False, parts=False) for form in forms]
    nests = [stage for plan in plans for stage in plan.stages if isinstance(stage, LoopNest)]
    roles = {role for nest in nests for role in nest.members.values()}
    options = dict(TILE_OPTIONS)
    if sum(len(nest.members) for nest in nests) == len(nests):
        del options["fuse"]
    if not roles & ROWWISE:
        del options["row"]
    if not roles & FOLDED:
        options["programs"] = TILE_OPTIONS["programs"][:2]
    if not nests:
        del options["loop"]
    if not any(turns(form) for form in forms):
        del options["turn"]
    if not any(isinstance(node, Matmul) for form in forms for node in form.nodes()):
        for name in ("prologue", "product", "matrix_instr_nonkdim"):
            del options[name]
    return options
