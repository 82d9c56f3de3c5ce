"""Payloads as JSON text for every database; NaN and the infinities survive the round trip."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_KEY = "$float"


def dumps(payload: Any) -> str:
    """Return strict JSON; a float that JSON lacks becomes `{"$float": "nan"}` (also inf, -inf).

    PostgreSQL refuses the bare `NaN` that Python would write, and one infinite loss must not cost
    the whole turn.
    """
    return json.dumps(_encoded(payload), allow_nan=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """Return the value that `dumps` was given, with lists in place of tuples."""
    return json.loads(text, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_KEY: str(value)}
    if isinstance(value, Mapping):
        return {str(key): _encoded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_encoded(item) for item in value]
    return value


def _decoded(value: dict[str, Any]) -> Any:
    return float(value[_KEY]) if value.keys() == {_KEY} else value
