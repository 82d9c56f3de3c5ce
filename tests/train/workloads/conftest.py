"""These tests have a token cache of their own, and one thread: tiny models gain from no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
