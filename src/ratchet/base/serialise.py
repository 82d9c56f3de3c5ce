"""Structs and dataclasses as JSON: what has no document of its own shape is turned into one here.

A method `as_json` stands beside a type whose document differs from its fields: a derived figure, a
key of another name, a part that is left out. It calls this for the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated

import msgspec

from ratchet.base import Json

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)]
"""A plausible count that a process reports: at most a day of instructions, or a petabyte."""


def document_of(value: object) -> Json:
    """Return a Struct or dataclass as dicts, lists and scalars, those of NumPy as Python's own."""
    return msgspec.to_builtins(value, enc_hook=_own)


def encoded(value: object, *, indent: int = 0) -> bytes:
    """Return the JSON text of a Struct or dataclass; a number that is not finite becomes null."""
    text = msgspec.json.encode(value, enc_hook=_own)
    return msgspec.json.format(text, indent=indent) + b"\n" if indent else text


def json_text(value: object, *, indent: int = 2) -> str:
    """Return a document as strict JSON in ASCII; a number that is not finite becomes null.

    Python would write `NaN` and `Infinity`, which no other reader of JSON takes.
    """
    return json.dumps(_finite(document_of(value)), indent=indent, allow_nan=False)


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _own(value: object) -> Json:
    """Return a scalar of a class that extends Python's, or of NumPy, or a mapping as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")
