"""A cluster: devices of one kind in nodes, with what they sustain and how they are connected.

Rates come from the catalogue's cited ceilings where it has them, else from those of a device of the
same die, scaled by peaks and watts, else from the share of the peak that an H100 was measured to
sustain (`SUSTAINED`). Every rate says where it is from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ratchet.base.devices.catalogue import CatalogueDevice, load
from ratchet.base.errors import PlanError
from ratchet.scale.plan.layout import PRECISIONS

GIB: Final = 2**30
MOST_DEVICES: Final = 2**20
"""Larger than any cluster that stands. Beyond it the network's assumptions hold for nothing."""
FORM: Final = re.compile(r"(?P<device>[^:]+):(?:(?P<local>\d+)x)?(?P<nodes>\d+)")
SUSTAINED: Final = 0.777
"""Share of the paper peak that a large bf16 product sustains: 768 of 989 TFLOP/s, `ratchet device`
on an H100 SXM with torch 2.11."""
SUSTAINED_MEMORY: Final = 0.898
"""Share of the paper bandwidth that a copy sustains: 3,007 of 3,350 GB/s, on the same H100."""
COLLECTIVE: Final = 0.8
"""Share of a link's one-way bandwidth that large collectives reach. An assumption: calibrate it."""
EXCHANGE_MESH: Final = 0.335
"""The same of an all-to-all in a full mesh. Projected by others, not measured: two of 384 MiB among
eight MI355X in 3.913 ms, of which seven eighths leave a device with 537.6 GB/s
(AMD-AGI/Primus, projection.md @fd1eeab)."""
EXCHANGE, EXCHANGE_ONCE = 0.585, 0.685
"""The same over a switch, with a copy for each expert and with one for each rank: 930 us out and
827 us back, and HybridEP's 675 and 744, of DeepSeek-V3's tokens among 64 GB200 (arXiv:2603.07685,
as jianyuh.github.io/moe/2026/03/11 quotes it). Assumed: 4,096 tokens a device, in bf16."""
NETWORK_BYTES_PER_S: Final[dict[str, tuple[float, str]]] = {
    "A100": (25e9, "200 Gb/s a GPU, arXiv:2104.04473, section 5"),
    "B300": (100e9, "800 Gb/s a GPU: a ConnectX-8 each, glennklockwood.com/garden/processors/B300"),
    "": (50e9, "400 Gb/s a GPU, as in torchtitan's H100 benchmarks of 2024-12"),
}
"""Network bandwidth of one device, one way, by a word of its name."""
HOP_S: Final = 6e-6  # Latency of one step of a collective inside a node; an assumption
NETWORK_HOP_S: Final = 15e-6  # The same between nodes; an assumption
RESERVED_BYTES: Final = 2.5 * GIB
"""Memory that the driver, the collectives' buffers and the allocator's gaps take; an assumption."""
POWER: Final[dict[str, tuple[float, str]]] = {
    "MI": (0.63, "the clocks of an MI300X at 750 W and an MI325X at 1,000 W, the same die with "
           "bf16 products (ROCm/rocm-blogs, measuring-max-achievable-flops-part2)"),
    "": (1.0, "one row of torchtitan's table for H100 at 500 W (llama3_h100_202412)"),
}  # fmt: skip
"""Exponent with which the rate of products follows a device's power, and what it was fitted on, by
the beginning of the device's name."""
NARROW: Final = {"fp8": "fp8", "mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Bits of the products of each precision beside bf16, by which the catalogue lists peaks."""
GROUPED_AMD: Final[Mapping[str, float]] = {"bf16": 0.57, "fp8": 0.53, "fp4": 0.41}
"""Share of a large product's rate that experts' products in one launch sustain beside the terms of
tiles and inner size, by bits: medians over the fused layers of experts in ROCm/aiter's tuned
configurations @e404860 for gfx950 with 256 rows or more an expert (20, 46 and 170 products)."""
GROUPED: Final = 0.9
"""The same on other devices: 524 and 545 TFLOP/s of 16 experts with 512 rows on an H100
(pytorch/ao, pull request 2490)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A sustained rate per second, and where it is from."""

    per_s: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCluster:
    """Devices of one kind, `local` in each of `nodes` nodes."""

    name: str
    device: str
    local: int
    nodes: int
    products: dict[str, Rate]  # Sustained FLOP/s of large matrix products by precision: bf16, fp8
    peak: dict[str, float]  # Paper peaks in FLOP/s, by which MFU is told
    memory_bytes: float
    memory: Rate  # Sustained bytes/s of the device's own memory
    fabric: Rate  # Bytes/s that one device sends inside its node, with all its links busy
    mesh: bool  # True if the node is a full mesh: a group of g devices then uses g - 1 of the links
    network: Rate  # Bytes/s that one device sends to other nodes
    units: int  # Compute units or multiprocessors, among which a product's tiles are dealt out
    power_w: float
    collective: float = COLLECTIVE
    exchange: float = EXCHANGE  # The share of a node's links that an all-to-all reaches
    by_inner: tuple[tuple[float, float], ...] = ()
    """Inner sizes of measured products and the share of `products` that these reach beside the
    model's own terms; between two sizes it follows the size's logarithm."""
    grouped: tuple[float, ...] = (GROUPED,) * len(PRECISIONS)
    """Share of a large product's rate that experts' products in one launch sustain, in the order
    of `PRECISIONS`."""

    host: int = 0  # Devices of one machine where a node is a rack of several; 0: a node is one

    @property
    def world(self) -> int:
        return self.local * self.nodes

    @property
    def machine(self) -> int:
        return self.host if self.host and not self.local % self.host else self.local

    @property
    def machines(self) -> int:
        return self.world // self.machine


def parse_cluster(
    text: str, *, network_gb_per_s: float | None = None, power_w: float | None = None
) -> PlannedCluster:
    """Return the cluster of `DEVICE:LOCALxNODES`, such as `mi300x:8x128`, or `DEVICE:COUNT`.

    Devices that are held to `power_w` watts run products slower. Raises PlanError for a text of
    another form, for a device that the catalogue lacks, and for more watts than the board takes.
    """
    found = FORM.fullmatch(text.strip().lower())
    if not found:
        raise PlanError(
            f"cluster {text!r} is not DEVICE:LOCALxNODES: write, for example, mi300x:8x128"
        )
    device = _device(found["device"])
    nodes, local = int(found["nodes"]), int(found["local"] or 0)
    most = _most_of_a_node(device)
    if found["local"] is None:  # one number counts devices: whole nodes, or a part of one
        count, sizes = nodes, (most, 64, 36, 32) if most > 8 else (most,)  # racks of 72 are shared
        local = count if count <= most else next((n for n in sizes if not count % n), 0)
        if not local and count:
            raise PlanError(
                f"cluster {text!r} has {count} devices, which fill no whole nodes of {most}: "
                "write DEVICE:LOCALxNODES"
            )
        nodes = count // local if local else 0
    if local * nodes > MOST_DEVICES:
        raise PlanError(
            f"cluster {text!r} has {local * nodes:,} devices: give at most {MOST_DEVICES:,}"
        )
    if not local or not nodes:
        raise PlanError(f"cluster {text!r} has no devices: give 1 or more of each")
    if local > most and (_is_mesh(device) or most > 8):
        raise PlanError(
            f"cluster {text!r} has {local} devices in a node, but {device.name} connects {most}: "
            f"give at most {most}"
        )
    board_w = device.number("board_power") or 700.0
    if power_w is not None and not 0 < power_w <= board_w:
        raise PlanError(
            f"{device.name} takes {board_w:g} W at most: give a limit above 0 and up to that, not "
            f"{power_w:g}"
        )
    named = text.strip().lower()
    return _cluster(named, device, local, nodes, network_gb_per_s, power_w or board_w)


def node_devices(cluster: PlannedCluster) -> int:
    """Return how many of a cluster's devices a node connects at most."""
    return _most_of_a_node(load().devices[cluster.device])


def _most_of_a_node(device: CatalogueDevice) -> int:
    return int(device.number("node_devices") or 8)


def _device(word: str) -> CatalogueDevice:
    devices = load().devices
    words = {name: re.findall(r"\w+", name.lower()) for name in devices}
    fitting = [name for name, own in words.items() if own[0] == word]
    asked = word.split("-")  # a100-80gb, h100-sxm: its first word and some of the others
    fitting = fitting or [
        name for name, own in words.items() if own[0] == asked[0] and {*asked} <= {*own}
    ]
    linked = [name for name, one in devices.items() if one.get("fabric_egress")]
    if not fitting or fitting[0] not in linked:
        short = [name.lower().split()[0] for name in linked]
        known = [  # those that share their first word by their whole names
            one if short.count(one) == 1 else name.lower().replace(" ", "-")
            for one, name in zip(short, linked, strict=True)
        ]
        raise PlanError(
            f"no device {word!r} with known links is in the catalogue: use one of "
            f"{', '.join(known)}"
        )
    return devices[fitting[0]]


def _is_mesh(device: CatalogueDevice) -> bool:
    topology = device.get("node_topology")
    return topology is not None and "mesh" in topology.value


def _cluster(
    name: str, device: CatalogueDevice, local: int, nodes: int, network_gb_per_s: float | None,
    power_w: float,
) -> PlannedCluster:  # fmt: skip
    memory = device.get("memory")
    bandwidth = device.memory_bytes_per_s()
    egress = device.number("fabric_egress")
    if memory is None or bandwidth is None or egress is None:
        raise PlanError(f"the catalogue lacks {device.name}'s memory or links: give another device")
    word = next(one for one in NETWORK_BYTES_PER_S if one in device.name)
    network_bytes_per_s, network_source = NETWORK_BYTES_PER_S[word]
    if network_gb_per_s is not None:
        network_bytes_per_s, network_source = network_gb_per_s * 1e9, "given"
    peak: dict[str, float] = {one: found for one in PRECISIONS if (found := _peak(device, one))}
    amd = device.name.startswith("MI")
    return PlannedCluster(
        name=name,
        device=device.name,
        local=local,
        nodes=nodes,
        products={one: _products(device, one, peak[one], power_w) for one in peak},
        peak=peak,
        memory_bytes=memory.number * (GIB if memory.unit == "GiB" else 1e9),
        memory=Rate(
            per_s=bandwidth * SUSTAINED_MEMORY,
            source=f"{SUSTAINED_MEMORY:.1%} of the paper bandwidth, as measured on an H100",
        ),
        fabric=Rate(per_s=egress * 1e9, source=device.facts["fabric_egress"].source),
        mesh=_is_mesh(device),
        network=Rate(per_s=network_bytes_per_s, source=network_source),
        units=int(device.number("compute_units") or device.number("sms") or 108),
        power_w=power_w,
        host=int(device.number("host_devices") or 0),
        exchange=EXCHANGE_MESH if _is_mesh(device) else EXCHANGE,
        grouped=tuple(GROUPED_AMD[NARROW.get(one, one)] for one in PRECISIONS)
        if amd
        else (GROUPED,) * len(PRECISIONS),
    )


def _peak(device: CatalogueDevice, precision: str) -> float | None:
    """Return the paper peak of a precision; None if the device lacks it.

    Blocks with a scale of their own enter the products of devices that have 4-bit ones, NVFP4's on
    NVIDIA's alone.
    """
    narrow = device.peak_flops_per_s("matrix_fp4")
    if precision.startswith(("mx", "nv")) and not narrow:
        return None
    if precision == "nvfp4" and device.name.startswith("MI"):
        return None
    return device.peak_flops_per_s(f"matrix_{NARROW.get(precision, precision)}")


def _products(device: CatalogueDevice, precision: str, peak: float, power_w: float) -> Rate:
    """Return what large products sustain at some power."""
    rate = _at_board_power(device, NARROW.get(precision, precision), peak)
    board_w = device.number("board_power") or power_w
    if power_w == board_w:
        return rate
    exponent, fitted_on = _exponent(device)
    factor = (power_w / board_w) ** exponent
    source = f"{rate.source}; x {factor:.2f} at {power_w:g} W, fitted on {fitted_on}"
    return Rate(per_s=rate.per_s * factor, source=source)


def _exponent(device: CatalogueDevice) -> tuple[float, str]:
    return next(one for key, one in POWER.items() if device.name.startswith(key))


def _at_board_power(device: CatalogueDevice, bits: str, peak: float) -> Rate:
    """Return what large products sustain: a cited ceiling, else that of a device of the same die.

    It is the one of the nearest watts, scaled by units and by watts a unit, up to `SUSTAINED` of
    the peak. If no ceiling of these bits is cited, bf16's share of the peak holds.
    """
    if cited := device.get(f"max_achievable.matrix_{bits}"):
        return Rate(per_s=cited.number * 1e12, source=cited.source)
    own_w, own_units = device.number("board_power"), device.units
    alike = [one for one in load().devices.values() if _die(one) == _die(device)]
    alike.sort(key=lambda one: abs((one.number("board_power") or 0.0) - (own_w or 0.0)))
    for kind in (bits, "bf16"):
        for one in alike:
            ceiling, its_w = one.get(f"max_achievable.matrix_{kind}"), one.number("board_power")
            whole, its = (one.peak_flops_per_s(f"matrix_{each}") for each in (kind, bits))
            if not ceiling or not whole:
                continue
            share = ceiling.number * 1e12 / whole
            units = own_units / one.units if own_units and one.units else 1.0
            watts = own_w / its_w / units if own_w and its_w else 1.0
            factor = units * watts ** _exponent(device)[0]
            said = f" x {factor:.2f} by units and watts" if factor != 1 else ""
            return Rate(
                per_s=min(share * (its or peak) * factor, SUSTAINED * peak),
                source=f"{kind}'s share of its peak on {one.name}, {share:.1%}{said}: "
                f"{ceiling.source}",
            )
    source = f"{SUSTAINED:.1%} of the paper peak, as measured on an H100"
    return Rate(per_s=peak * SUSTAINED, source=source)


def _die(device: CatalogueDevice) -> str:
    known = device.get("target") or device.get("arch")
    return known.value if known else device.name
