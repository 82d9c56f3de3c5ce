"""How one event stands in a Chrome trace: only the fields that an answer needs are decoded."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct, field

NOTHING = Raw(b"")


class Arguments(Struct, frozen=True, gc=False):
    """`args` of an event. A writer may give a number, a string or null, so most are untyped."""

    correlation: Any = -1
    external: Any = field(default=-1, name="External id")
    external_old: Any = field(default=-1, name="external id")
    stream: Any = -1
    device: Any = -1
    sequence: Any = field(default=-1, name="Sequence number")
    forward_thread: Any = field(default=-1, name="Fwd thread id")
    python_id: Any = field(default=-1, name="Python id")
    python_parent: Any = field(default=-1, name="Python parent id")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    types: Raw = field(default=NOTHING, name="Input type")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    bytes: Any = -1
    size: Any = field(default=-1, name="Bytes")
    address: Any = field(default=-1, name="Addr")
    allocated: Any = field(default=-1, name="Total Allocated")
    reserved: Any = field(default=-1, name="Total Reserved")
    device_type: Any = field(default=-1, name="Device Type")
    device_id: Any = field(default=-1, name="Device Id")
    collective: Any = field(default="", name="Collective name")
    elements_in: Any = field(default=-1, name="In msg nelems")
    elements_out: Any = field(default=-1, name="Out msg nelems")
    group_size: Any = field(default=-1, name="Group size")
    group: Any = field(default="", name="Process Group Name")
    dtype: Any = ""
    name: Any = ""


NO_ARGUMENTS = Arguments()


class Event(Struct, frozen=True, gc=False):
    """One event; times are kept as the bytes of their digits."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    id: Any = -1
    args: Arguments | None = NO_ARGUMENTS
