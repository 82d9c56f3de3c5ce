"""The clock on small kernels: what waits, what overlaps, and what a cache holds."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
from small_assembly import aligned, text_of

from ratchet.amd import architectures
from ratchet.amd.emulator.clock import LaunchClock, Played, played
from ratchet.amd.emulator.estimates import SPAN, prediction, total_time
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.launch import Emulator, KernelLaunch, LaunchMemory
from ratchet.amd.emulator.linking import linked_kernel
from ratchet.base.devices import catalogue

DEVICES = {"gfx90a": "MI250X", "gfx942": "MI300X", "gfx1100": "RX 7900 XTX"}
FRAME = 12  # instructions of the kernel around the lines


def launched(
    body: str, *, target: str = "gfx942", grid: int = 1, threads: int = 64
) -> tuple[KernelLaunch, ctypes.Array[ctypes.c_uint32]]:
    """A launch of a kernel on words of zeros, and the words that it may change."""
    text = text_of(body, target=target, threads=threads, waits=False)
    kernel, _ = linked_kernel(text, "small")
    words = [aligned(4 * 1024), aligned(2 * 1024)]
    memories = [LaunchMemory(ctypes.addressof(one), ctypes.sizeof(one)) for one in words]
    return KernelLaunch(
        kernel=kernel,
        grid=(grid, 1, 1),
        threads=threads,
        shared_bytes=0,
        values=[("*i32", one.address) for one in memories],
        memories=memories,
    ), words[1]


def play(body: str, *, target: str = "gfx942", **given: int) -> Played:
    """Play launches of a kernel; each wave runs its lines once."""
    launch, words = launched(body, target=target, **given)
    device = catalogue.load()[DEVICES[target]]
    instructions = FRAME + len(body.splitlines())
    found = played(Emulator(compiled_machine(target)), launch, device, instructions)
    assert found is not None
    assert not any(words)  # nothing was stored
    return found


def cycles(body: str, *, target: str = "gfx942", **given: int) -> float:
    """Return the cycles that lines add to the kernel around them."""
    hertz = catalogue.load()[DEVICES[target]].number("max_engine_clock") or 0.0
    times = [play(one, target=target, **given).time_s for one in (body, "s_nop 0")]
    return (times[0] - times[1]) * hertz * 1e9


ADDS = "\n".join(["v_add_u32_e32 v4, v1, v2"] * 100)
PRODUCTS = "\n".join(["v_mfma_f32_32x32x8_f16 v[8:23], v[24:25], v[26:27], v[8:23]"] * 20)


def test_a_wave_issues_an_addition_every_four_cycles() -> None:
    assert cycles(ADDS) == pytest.approx(400, abs=40)


def test_waves_of_a_simd_share_it_and_others_do_not() -> None:
    one, four, eight = (cycles(ADDS, threads=64 * waves) for waves in (1, 4, 8))
    assert four == pytest.approx(one, rel=0.15)
    assert eight == pytest.approx(2 * one, rel=0.15)


def test_products_take_their_cycles_and_additions_hide_behind_them() -> None:
    products = cycles(PRODUCTS)
    assert products == pytest.approx(20 * 32, rel=0.15)
    mixed = PRODUCTS.splitlines()
    both = "\n".join(line for one in mixed for line in (one, "v_add_u32_e32 v4, v1, v2"))
    assert cycles(both) < products * 1.2


def test_what_reads_a_product_waits_for_it() -> None:
    product = PRODUCTS.splitlines()[0]
    own = cycles(f"{product}\nv_add_u32_e32 v4, v1, v2")
    needed = cycles(f"{product}\nv_add_u32_e32 v4, v8, v2")
    assert needed > own + 16


def test_loads_that_are_waited_for_together_overlap() -> None:
    load = "global_load_dword v6, v0, s[4:5]"
    apart = "\n".join([f"{load}\ns_waitcnt vmcnt(0)"] * 8)
    together = "\n".join([load] * 8 + ["s_waitcnt vmcnt(0)"])
    assert cycles(apart) > 4 * cycles(together)


def test_the_first_touch_of_a_line_comes_from_memory() -> None:
    rates = architectures.RATES["gfx942"]
    load = "global_load_dword v6, v0, s[4:5] offset:2048\ns_waitcnt vmcnt(0)"
    first = cycles(load)
    assert first > rates.memory_latency
    assert cycles(f"{load}\n{load}") - first == pytest.approx(rates.l1_latency, abs=30)


def test_a_line_that_is_stored_to_is_written_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(architectures.RATES["gfx942"], memory_share=0.001)
    monkeypatch.setitem(architectures.RATES, "gfx942", slow)
    load, store = "global_load_dword v6, v0, s[4:5]", "global_store_dword v0, v1, s[4:5]"
    none, one, three = (
        cycles("\n".join([load, *[store] * count, f"{load} offset:2048", "s_waitcnt vmcnt(0)"]))
        for count in (0, 1, 3)
    )
    assert one > 1.3 * none and three == pytest.approx(one, rel=0.05)


def test_a_kernel_that_only_stores_takes_the_memorys_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store, rates = "global_store_dword v0, v1, s[4:5]", architectures.RATES["gfx942"]
    quick = play(store).time_s
    monkeypatch.setitem(architectures.RATES, "gfx942", replace(rates, memory_share=1e-4))
    assert play(store).time_s > 3 * quick  # though nothing waits for it


def test_scattered_lanes_take_longer_than_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = replace(architectures.RATES["gfx942"], l1_latency=8, l2_latency=8, memory_latency=8)
    monkeypatch.setitem(architectures.RATES, "gfx942", fast)
    row = "\n".join(["global_load_dword v6, v0, s[4:5]"] * 32)
    scattered = f"v_lshlrev_b32_e32 v7, 5, v0\n{row.replace('v0,', 'v7,')}"
    assert cycles(scattered) > 4 * cycles(row)


def test_a_barrier_waits_for_the_last_wave() -> None:
    late = "v_readfirstlane_b32 s8, v0\ns_cmp_lg_u32 s8, 0\ns_cbranch_scc1 .LBB0_9"
    body = f"{late}\n{ADDS}\n.LBB0_9:\ns_barrier\n{ADDS}"
    assert cycles(body, threads=128) > 750


def test_more_workgroups_than_fit_take_rounds() -> None:
    short = "\n".join(ADDS.splitlines()[:40])
    some, more = (play(short, grid=304 * 8 * 4 * count).time_s for count in (1, 4))
    assert more > 2.3 * some


@pytest.mark.parametrize("target", ["gfx90a", "gfx1100"])
def test_other_targets_play_too(target: str) -> None:
    name = "v_add_nc_u32_e32" if target == "gfx1100" else "v_add_u32_e32"
    body = "\n".join([f"{name} v4, v1, v2"] * 100)
    assert play(body, target=target).time_s > 0


def test_a_prediction_never_stands_without_its_interval() -> None:
    said = prediction("MI300X", 1e-5).words
    assert said == "10.0 \u00b5s (4.00 to 50.0)"
    low, high = SPAN
    assert low < 1 < high


def test_launches_with_equal_counts_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = Emulator(compiled_machine("gfx942"))
    clock, plays = LaunchClock(emulator), []
    run, (one, _) = emulator.play, launched(ADDS)
    monkeypatch.setattr(emulator, "play", lambda *given: (plays.append(1), run(*given)))
    for grid, expected in ((1, 1), (1, 1), (2, 2)):
        launch = replace(one, grid=(grid, 1, 1))
        time_s = clock.predicted_s(launch, emulator.run(launch), grid)
        assert time_s is not None and time_s > 0 and len(plays) == expected


def test_a_sum_of_predictions_needs_all_of_them() -> None:
    one = prediction("MI300X", 1e-5)
    assert total_time([one, one]) == prediction("MI300X", 2e-5)
    assert total_time([one, None]) is None and total_time([]) is None
