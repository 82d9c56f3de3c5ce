"""Run a step as written if the recipe's first run of it raises and has changed nothing."""

from __future__ import annotations

import logging

from ratchet.base.errors import told
from ratchet.train.recipe.compiled_step import CompiledStep
from ratchet.train.recipe.marks import RAISED, Marks
from ratchet.train.recipe.script_state import numbers

log = logging.getLogger("ratchet")


class FallbackStep:
    """A compiled step that runs as written from its first run on, if torch cannot run it.

    Examples are code that torch.compile fails on, and an operation that has no bf16 form. What the
    step itself raises is raised as ever.
    """

    def __init__(self, step: CompiledStep) -> None:
        self._step = step
        self._has_run = False

    def __call__(self, *arguments: object, **named: object) -> object:
        """Run the step; raise what the recipe's run raised if it left something changed."""
        step = self._step
        if self._has_run or not step.is_ready():
            return step(*arguments, **named)
        marks = Marks(
            [step.script.model, *step.modules],
            step.stepped,
            lambda: numbers(step.script.step),
        )
        try:
            result = step(*arguments, **named)
        except RAISED as error:
            if not marks.undo():
                raise
            if step.leave_scalars():
                return self(*arguments, **named)
            result = step.written(*arguments, **named)
            log.warning(
                "ratchet: the step runs as written; by its recipe it raises %s", told(error)
            )
            step.stop()
            return result
        self._has_run = True
        return result
