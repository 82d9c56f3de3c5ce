"""A generator of C++ kernels with a schedule space. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.authors.author import Space
    from ratchet.kernels.problem import Problem


def space_for(problem: Problem, *, device: str = "cpu") -> Space:
    """Return the schedules that a problem's generated kernels can have.

    Raises:
        UnsupportedOp: the reference has an op that the generator does not know.
    """
    from ratchet.authors.generator.forms import forms_of
    from ratchet.authors.generator.space import GeneratedSpace, options_of

    forms = forms_of(problem)
    return GeneratedSpace(problem=problem, forms=forms, options=options_of(forms))
