"""Events of a Chrome trace, with only the fields that an answer needs.

The decoder compares each key with the struct's fields, so a small struct for each phase is much
cheaper than one for all. `Known` has the phases that fill a trace; `Event` reads any.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from msgspec import Raw, Struct, field

from ratchet.base.json_value import Json

NOTHING = Raw(b"")


class WorkArguments(Struct, frozen=True, gc=False):
    """`args` of an event with a duration, in the order in which Kineto writes them.

    Most are untyped, because a writer may give a number, a string or null.
    """

    external: Json = field(default=-1, name="External id")
    sequence: Json = field(default=-1, name="Sequence number")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    types: Raw = field(default=NOTHING, name="Input type")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    device: Json = -1
    stream: Json = -1
    correlation: Json = -1
    bytes: Json = -1
    collective: Json = field(default="", name="Collective name")
    elements_in: Json = field(default=-1, name="In msg nelems")
    elements_out: Json = field(default=-1, name="Out msg nelems")
    group_size: Json = field(default=-1, name="Group size")
    dtype: Json = ""
    group: Json = field(default="", name="Process Group Name")


class MemoryArguments(Struct, frozen=True, gc=False):
    """`args` of an allocation or a free."""

    device_type: Json = field(default=-1, name="Device Type")
    device_id: Json = field(default=-1, name="Device Id")
    address: Json = field(default=-1, name="Addr")
    size: Json = field(default=-1, name="Bytes")
    allocated: Json = field(default=-1, name="Total Allocated")
    reserved: Json = field(default=-1, name="Total Reserved")


class Arguments(WorkArguments, frozen=True, gc=False):
    """`args` of any event."""

    device_type: Json = field(default=-1, name="Device Type")
    device_id: Json = field(default=-1, name="Device Id")
    address: Json = field(default=-1, name="Addr")
    size: Json = field(default=-1, name="Bytes")
    allocated: Json = field(default=-1, name="Total Allocated")
    reserved: Json = field(default=-1, name="Total Reserved")


NO_ARGUMENTS = Arguments()


class _Timed(Struct, frozen=True, gc=False):
    """The fields of an event with a duration; times are kept as the bytes of their digits."""

    cat: Json = ""
    name: Json = ""
    pid: Json = ""
    tid: Json = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING


class Event(_Timed, frozen=True, gc=False):
    ph: Json = ""
    args: Arguments | None = None


class WorkEvent(_Timed, frozen=True, gc=False, tag_field="ph", tag="X"):
    ph: ClassVar[str] = "X"
    args: WorkArguments | None = None


class Instant(Struct, frozen=True, gc=False, tag_field="ph", tag="i"):
    """A moment: an allocation or a free."""

    ph: ClassVar[str] = "i"
    name: Json = ""
    ts: Raw = NOTHING
    args: MemoryArguments | None = None


class Unused(Struct, frozen=True, gc=False):
    """An event that no answer needs."""


class ArrowStart(Unused, frozen=True, gc=False, tag_field="ph", tag="s"):
    """The start of an arrow between two events."""

    ph: ClassVar[str] = "s"


class ArrowEnd(Unused, frozen=True, gc=False, tag_field="ph", tag="f"):
    ph: ClassVar[str] = "f"


class Metadata(Unused, frozen=True, gc=False, tag_field="ph", tag="M"):
    """The name of a process or a thread."""

    ph: ClassVar[str] = "M"


Known: TypeAlias = WorkEvent | Instant | ArrowStart | ArrowEnd | Metadata
AnyEvent: TypeAlias = Event | Known
