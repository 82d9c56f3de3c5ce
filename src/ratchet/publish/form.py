"""The forms of an export. Imports no torch."""

from __future__ import annotations

from typing import Final, Literal, get_args

from ratchet.base.errors import PublishError

Form = Literal["kernels", "wheel", "patch", "export"]
FORMS: Final[tuple[Form, ...]] = get_args(Form)


def parse_form(text: str) -> Form:
    """Return the form of that name; a PublishError for anything else."""
    for one in FORMS:
        if one == text:
            return one
    raise PublishError(f"--to {text!r} is unknown: use {', '.join(FORMS)}")
