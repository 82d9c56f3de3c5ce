"""A generator of kernels in C++ and Triton. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ratchet.judge.problems.problem import Problem
    from ratchet.write.author import Space


def space_for(problem: Problem, *, device: str = "cpu") -> Space:
    """Return the schedules that a problem's generated kernels can have.

    They are in C++ for the device `cpu`, and in Triton for `cuda`. Raises UnsupportedOp: the
    reference has an op that the generator does not know.
    """
    from ratchet.write.form.forms import forms_of
    from ratchet.write.generator.space import GeneratedSpace, options_of

    forms = forms_of(problem)
    language: Literal["cpp", "triton"] = "cpp" if device == "cpu" else "triton"
    options = options_of(forms, language)
    space = GeneratedSpace(problem=problem, forms=forms, options=options, language=language)
    if language == "triton":
        space.kernel(space.first()[0])  # a part of a form may have no Triton
    return space
