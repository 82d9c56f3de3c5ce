"""Traces the reference of a problem's file, in the process that runs such files."""

from __future__ import annotations

from ratchet.base.process.channel import Message
from ratchet.judge.problems.problem import Problem
from ratchet.write.form.form import UnsupportedOp
from ratchet.write.form.form_json import form_as_json
from ratchet.write.form.forms import traced_forms


def answer(request: Message) -> dict[str, object]:
    """Return the `forms` of the request's problem, or the `op` that stops them and `why`."""
    problem = Problem.from_json(request["problem"])
    try:
        return {"forms": [form_as_json(form) for form in traced_forms(problem)]}
    except UnsupportedOp as error:
        return {"op": error.op, "why": error.why}
