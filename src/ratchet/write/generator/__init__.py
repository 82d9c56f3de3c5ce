"""A generator of kernels in C++ and Triton. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.judge.problems.problem import Problem
    from ratchet.write.author import Space


def space_for(problem: Problem, *, device: str = "cpu") -> Space:
    """Return the schedules that a problem's generated kernels can have.

    They are in C++ for the device `cpu`, and in Triton for `cuda`.

    Raises:
        UnsupportedOp: the reference has an op that the generator does not know.
    """
    from ratchet.write.form.forms import forms_of
    from ratchet.write.generator.space import GeneratedSpace, options_of, tile_options

    forms = forms_of(problem)
    if device == "cpu":
        options = options_of(forms)
        return GeneratedSpace(problem=problem, forms=forms, options=options, language="cpp")
    options = tile_options(forms)
    space = GeneratedSpace(problem=problem, forms=forms, options=options, language="triton")
    space.kernel(space.first()[0])  # a part of a form may have no Triton
    return space
