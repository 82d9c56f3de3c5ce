"""What waits for a process or a message takes any descriptor."""

from __future__ import annotations

import os
import resource

import pytest

from ratchet.base.process import families

HIGH = 1024  # select(2) takes none from here on


@pytest.fixture
def high_descriptor() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH:
        pytest.skip("this machine gives no process so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH + 1), hard))
    return HIGH


def test_a_descriptor_above_those_of_select_is_watched(high_descriptor: int) -> None:
    """A judge that serves many kernels has that many open."""
    readable, writable = os.pipe()
    os.dup2(readable, high_descriptor)
    try:
        assert not families.is_readable(high_descriptor)
        os.write(writable, b"x")
        assert families.is_readable(high_descriptor)
    finally:
        for one in (readable, writable, high_descriptor):
            os.close(one)
