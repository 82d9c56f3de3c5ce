"""What the tests of the report share."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_result import make_result


@pytest.fixture
def result() -> dict[str, Any]:
    """A whole result with made-up figures."""
    return make_result()
