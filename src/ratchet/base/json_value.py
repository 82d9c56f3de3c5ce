"""Name the values of JSON documents."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A value of a JSON document: null, a boolean, a number, a string, a list, or a dict by name.

mypy does not follow a document's shape. A reader that uses more than a few of its fields converts
it to a dataclass or Struct first, and what is not JSON is never annotated with it.
"""
