"""Properties of the roofline, and MFU where nothing is known."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.base.devices.ceilings import Ceilings, Roofline, mfu, roofline
from ratchet.base.errors import DeviceError

RATES = st.floats(min_value=1e6, max_value=1e16)
AMOUNTS = st.floats(min_value=0, max_value=1e18)
FACTORS = st.floats(min_value=1, max_value=1e3)

CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 2e11, "bf16": 4e11},
    copy_bytes_per_s={"l2": 9e10, "l3": 1.8e11, "dram": 5e10},
    triad_bytes_per_s={"l2": 1e11, "l3": 1.7e11, "dram": 6e10},
    level_bytes={"l2": 2**21, "l3": 2**25},
)


@given(RATES, RATES, FACTORS, AMOUNTS, AMOUNTS)
def test_faster_hardware_never_takes_longer(
    flops_per_s: float, bytes_per_s: float, factor: float, flops: float, size_bytes: float
) -> None:
    roof = Roofline(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    wider = Roofline(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s * factor)
    quicker = Roofline(flops_per_s=flops_per_s * factor, bytes_per_s=bytes_per_s)
    for better in (wider, quicker):
        assert better.time_bound_s(flops, size_bytes) <= roof.time_bound_s(flops, size_bytes)


@given(RATES, RATES, FACTORS, AMOUNTS, AMOUNTS)
def test_more_work_never_takes_less(
    flops_per_s: float, bytes_per_s: float, factor: float, flops: float, size_bytes: float
) -> None:
    roof = Roofline(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    least = roof.time_bound_s(flops, size_bytes)
    assert roof.time_bound_s(flops * factor, size_bytes) >= least
    assert roof.time_bound_s(flops, size_bytes * factor) >= least
    assert least >= flops / flops_per_s
    assert least >= size_bytes / bytes_per_s


@given(RATES, RATES, st.floats(1, 1e18), st.floats(1, 1e18))
def test_bound_time_and_rate_agree(
    flops_per_s: float, bytes_per_s: float, flops: float, size_bytes: float
) -> None:
    roof = Roofline(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    time_s = roof.time_bound_s(flops, size_bytes)
    rate = min(flops_per_s, flops / size_bytes * bytes_per_s)
    assert flops / time_s == pytest.approx(rate, rel=1e-9)
    by_compute = roof.bound(flops, size_bytes) == "compute"
    expected_s = flops / flops_per_s if by_compute else size_bytes / bytes_per_s
    assert time_s == expected_s


@given(st.floats(0, 2**30), st.floats(0, 2**30))
def test_a_smaller_working_set_never_has_less_bandwidth(one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert CEILINGS.bandwidth_bytes_per_s(small) >= CEILINGS.bandwidth_bytes_per_s(large)
    assert CEILINGS.bandwidth_bytes_per_s(large) >= CEILINGS.bandwidth_bytes_per_s()


def test_the_level_is_the_one_that_the_working_set_fits() -> None:
    assert roofline(CEILINGS, dtype="bf16").bytes_per_s == 6e10
    assert roofline(CEILINGS, dtype="bf16", working_set_bytes=2**24).bytes_per_s == 1.8e11
    assert roofline(CEILINGS, dtype="fp32", working_set_bytes=2**26).bytes_per_s == 6e10
    # L2 was timed slower than L3 here (a call's own cost): it gets L3's rate.
    assert roofline(CEILINGS, dtype="fp32", working_set_bytes=2**10).bytes_per_s == 1.8e11
    assert roofline(CEILINGS, dtype="fp32").flops_per_s == 2e11


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(DeviceError, match="'fp64': use one of fp32, bf16"):
        roofline(CEILINGS, dtype="fp64")
    with pytest.raises(DeviceError, match="above 0"):
        Roofline(flops_per_s=0, bytes_per_s=1)


def test_mfu_is_against_the_ceiling_of_the_arithmetic_that_runs() -> None:
    assert mfu(2e11, 1.0, CEILINGS, dtype="bf16") == pytest.approx(0.5)
    assert mfu(2e11, 1.0, CEILINGS, dtype="fp32") == pytest.approx(1.0)
    assert mfu(2e11, 2.0, CEILINGS, dtype="bf16") == pytest.approx(0.25)


def test_mfu_of_the_unknown_is_zero_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert mfu(1e12, 1.0, None, dtype="fp32") == 0
        assert mfu(1e12, 1.0, CEILINGS, dtype="fp8") == 0
    assert caplog.text.count("MFU is reported as 0") == 2


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan")])
def test_mfu_needs_a_time(time_s: float) -> None:
    with pytest.raises(DeviceError, match="must be above 0"):
        mfu(1.0, time_s, CEILINGS, dtype="fp32")
