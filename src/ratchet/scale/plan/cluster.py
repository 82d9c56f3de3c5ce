"""A cluster: devices of one kind in nodes, with what they sustain and how they are connected.

Rates come from the catalogue's cited ceilings where it has them, else from its peaks times the
share that was measured on an H100 (`SUSTAINED`). Every rate says where it is from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ratchet.base.devices.catalogue import CatalogueDevice, load
from ratchet.base.errors import PlanError

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
NETWORK_BYTES_PER_S: Final[dict[str, tuple[float, str]]] = {
    "A100": (25e9, "200 Gb/s a GPU, arXiv:2104.04473, section 5"),
    "": (50e9, "400 Gb/s a GPU, as in torchtitan's H100 benchmarks of 2024-12"),
}
"""Network bandwidth of one device, one way, by a word of its name."""
HOP_S: Final = 6e-6  # Latency of one step of a collective inside a node; an assumption
NETWORK_HOP_S: Final = 15e-6  # The same between nodes; an assumption
RESERVED_BYTES: Final = 2.5 * GIB
"""Memory that the driver, the collectives' buffers and the allocator's gaps take; an assumption."""
OPTIONS: Final = {"memory": "GiB of a device", "network": "GB/s of a device between nodes"}


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
    by_inner: tuple[tuple[float, float], ...] = ()
    """Inner sizes of measured products and the share of `products` that these reach beside the
    model's own terms; between two sizes it follows the size's logarithm."""

    @property
    def world(self) -> int:
        return self.local * self.nodes


def parse_cluster(text: str, *, network_gb_per_s: float | None = None) -> PlannedCluster:
    """Return the cluster of `DEVICE:LOCALxNODES`, such as `mi300x:8x128`, or `DEVICE:COUNT`.

    Raises PlanError for a text of another form and for a device that the catalogue lacks.
    """
    found = FORM.fullmatch(text.strip().lower())
    if not found:
        raise PlanError(
            f"cluster {text!r} is not DEVICE:LOCALxNODES: write, for example, mi300x:8x128"
        )
    device = _device(found["device"])
    nodes, local = int(found["nodes"]), int(found["local"] or 0)
    if found["local"] is None:  # one number counts devices: whole nodes of eight, or a part of one
        local, nodes = (nodes, 1) if nodes <= 8 else (8, nodes // 8)
        if local * nodes != int(found["nodes"]):
            raise PlanError(
                f"cluster {text!r} has {found['nodes']} devices, which fill no whole nodes of 8: "
                "write DEVICE:LOCALxNODES"
            )
    if local * nodes > MOST_DEVICES:
        raise PlanError(
            f"cluster {text!r} has {local * nodes:,} devices: give at most {MOST_DEVICES:,}"
        )
    if not local or not nodes:
        raise PlanError(f"cluster {text!r} has no devices: give 1 or more of each")
    if local > 8 and _is_mesh(device):
        raise PlanError(
            f"cluster {text!r} has {local} devices in a node, but {device.name} connects 8: give "
            "at most 8"
        )
    return _cluster(text.strip().lower(), device, local, nodes, network_gb_per_s)


def _device(word: str) -> CatalogueDevice:
    devices = load().devices
    fitting = [name for name in devices if name.lower().split()[0] == word]
    fitting = fitting or [name for name in devices if name.lower().replace(" ", "-") == word]
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
    name: str, device: CatalogueDevice, local: int, nodes: int, network_gb_per_s: float | None
) -> PlannedCluster:
    memory = device.get("memory")
    bandwidth = device.memory_bytes_per_s()
    egress = device.number("fabric_egress")
    if memory is None or bandwidth is None or egress is None:
        raise PlanError(f"the catalogue lacks {device.name}'s memory or links: give another device")
    word = next(one for one in NETWORK_BYTES_PER_S if one in device.name)
    network_bytes_per_s, network_source = NETWORK_BYTES_PER_S[word]
    if network_gb_per_s is not None:
        network_bytes_per_s, network_source = network_gb_per_s * 1e9, "given"
    peak = {
        precision: found
        for precision in ("bf16", "fp8")
        if (found := device.peak_flops_per_s(f"matrix_{precision}"))
    }
    return PlannedCluster(
        name=name,
        device=device.name,
        local=local,
        nodes=nodes,
        products={precision: _products(device, precision, peak) for precision in peak},
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
        power_w=device.number("board_power") or 700.0,
    )


def _products(device: CatalogueDevice, precision: str, peak: dict[str, float]) -> Rate:
    """Return what large products sustain: a cited ceiling, else a share of the peak.

    If bf16 has a ceiling and fp8 has none, fp8 gets bf16's share.
    """
    if cited := device.get(f"max_achievable.matrix_{precision}"):
        return Rate(per_s=cited.number * 1e12, source=cited.source)
    share, source = SUSTAINED, f"{SUSTAINED:.1%} of the paper peak, as measured on an H100"
    if ceiling := device.get("max_achievable.matrix_bf16"):
        share = ceiling.number * 1e12 / peak["bf16"]
        source = f"bf16's share of its peak, {share:.1%}: {ceiling.source}"
    return Rate(per_s=peak[precision] * share, source=source)
