"""Answers of torch.cuda, and of torch.version, about a GPU that is not here.

Nothing runs on it: streams and events accept every call, and an event times nothing. Generators and
tensors that say they are the GPU's are here too.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ratchet.amd.architectures import Architecture, PretendedDevice, clocks_of
from ratchet.amd.compile.fake_driver import capability
from ratchet.base.errors import KernelError

# Generators of random numbers that say they are a GPU's.
#
# A GPU's generator counts: its state is a seed and an offset, and kernels draw from both. What is
# drawn here comes from a generator of the CPU, whose state is much larger. So each of its states
# that a program asks for is kept under an offset.

STEP: Final = 4  # offsets are multiples of it, as on a GPU
MIX: Final = 0x9E3779B97F4A7C15
MOST_KEPT: Final = 4096  # the last states that are remembered
_Generator: Final = torch.Generator


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Lets `isinstance` be true for torch's own generators too."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _Generator)


class PretendedGenerator(torch.Generator, metaclass=_AnyGenerator):
    """A generator on the GPU that draws from one of the CPU; one on the host is torch's own."""

    def __new__(cls, device: object = None) -> PretendedGenerator:
        if device is None or torch.device(device).type == "cpu":  # type: ignore[call-overload]
            return _Generator()  # type: ignore[return-value]
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]

    def __init__(self, device: object = None) -> None:
        self._source: torch.Generator = self
        self._seeded = self._seed = _Generator.initial_seed(self)
        self._last = 0
        self._offsets: dict[bytes, int] = {}
        self._states: dict[tuple[int, int], bytes] = {}

    @classmethod
    def of(cls, source: torch.Generator) -> PretendedGenerator:
        """Return a generator that draws from an existing one of the CPU."""
        made = cls("cuda")
        made._source = source
        made._seeded = made._seed = source.initial_seed()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def manual_seed(self, seed: int) -> PretendedGenerator:
        _Generator.manual_seed(self._source, seed)
        return self

    def seed(self) -> int:
        return _Generator.seed(self._source)

    def initial_seed(self) -> int:
        found = _Generator.initial_seed(self._source)
        return self._seed if found == self._seeded else found

    def get_offset(self) -> int:
        return int(self.get_state().view(torch.int64)[1])

    def set_offset(self, offset: int) -> PretendedGenerator:
        self._set(self.initial_seed(), offset)
        return self

    def get_state(self) -> Tensor:
        """Return 16 bytes on the host: the seed and the offset, an int64 each."""
        seed, state = self.initial_seed(), _bytes(_Generator.get_state(self._source))
        if state == _bytes(_Generator().manual_seed(seed).get_state()):
            offset = 0
        elif state in self._offsets:
            offset = self._offsets[state]
        else:
            offset = self._last = self._last + STEP
        self._keep(seed, offset, state)
        signed = seed - (1 << 64) if seed >> 63 else seed
        return torch.tensor([signed, offset], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, state: Tensor) -> PretendedGenerator:
        """Go on from a state: one that was returned, or any seed and offset."""
        seed, offset = (int(one) for one in state.view(torch.int64))
        self._set(seed % (1 << 64), offset)
        return self

    def _set(self, seed: int, offset: int) -> None:
        state = self._states.get((seed, offset))
        if state is not None:
            _Generator.set_state(
                self._source, torch.frombuffer(bytearray(state), dtype=torch.uint8)
            )
        else:
            _Generator.manual_seed(self._source, (seed + offset * MIX) % (1 << 64))
            self._keep(seed, offset, _bytes(_Generator.get_state(self._source)))
            self._last = max(self._last, offset)
        self._seed, self._seeded = seed, _Generator.initial_seed(self._source)

    def _keep(self, seed: int, offset: int, state: bytes) -> None:
        self._offsets[state], self._states[seed, offset] = offset, state
        for kept in (self._offsets, self._states):
            if len(kept) > MOST_KEPT:
                kept.pop(next(iter(kept)))  # type: ignore[call-overload]


def _bytes(state: Tensor) -> bytes:
    with torch._C.DisableTorchFunction():
        return bytes(state.numpy())


PRETENDED_HIP: Final = "7.0"
"""`torch.version.hip` to a program: public code chooses warps and blocks by it."""
UNTIMED: Final = "an event's elapsed_time, which is nan: nothing is timed here"
_ZERO: Final = (
    "memory_allocated max_memory_allocated memory_reserved max_memory_reserved "
    "memory_cached max_memory_cached "
)
_NOTHING: Final = (
    "_lazy_init init synchronize empty_cache ipc_collect reset_peak_memory_stats "
    "reset_max_memory_allocated reset_accumulated_memory_stats set_per_process_memory_fraction "
    "set_stream _sleep "
)
_HOMES: Final = (torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs)
"""Modules that torch.cuda has its functions from; programs ask them too."""
_MARKS: Final = ("range_push", "range_pop", "range_start", "range_end", "mark")
"""Functions of torch.cuda.nvtx, which note things for a profiler."""
_TENSORS: Final = "Float Double Half BFloat16 Byte Char Short Int Long Bool"


asked: Counter[str] = Counter()  # questions of a program that have no true answer here, with counts


def changes(device: PretendedDevice) -> Iterator[tuple[Any, str, object]]:
    """Yield the attributes of torch that describe the GPU: their owner, name and value."""
    answers = device_answers(device)
    for name, value in answers.items():
        for place in (torch.cuda, *(one for one in _HOMES if hasattr(one, name))):
            yield place, name, value
    for name, value in _accelerator_answers(answers).items():
        yield torch.accelerator, name, value
    for name in _MARKS:
        yield torch.cuda.nvtx, name, lambda *_, **__: 0
    yield torch.version, "hip", PRETENDED_HIP if device.architecture.backend == "hip" else None
    yield torch.version, "cuda", PRETENDED_HIP if device.architecture.backend == "cuda" else None


@contextlib.contextmanager
def changed(attributes: Iterable[tuple[Any, str, object]]) -> Iterator[None]:
    """Have attributes, as owner, name and value, changed inside."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in attributes:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield


def device_answers(device: PretendedDevice) -> dict[str, object]:
    """Return the attributes of torch.cuda that describe the GPU."""
    properties, stream = _properties(device), PretendedStream()
    one = capability(device.architecture)
    generator = PretendedGenerator.of(torch.default_generator)
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "set_device": check_index,
        "current_device": lambda: 0,
        "get_device_properties": _of_the_first(properties),
        "get_device_capability": _of_the_first(one),
        "get_device_name": _of_the_first(properties.name),
        "get_arch_list": lambda: [device.architecture.name],
        "can_device_access_peer": lambda *both: any(map(check_index, both)),
        "mem_get_info": lambda *_, **__: (device.memory_bytes, device.memory_bytes),
        "memory_stats": lambda *_, **__: Counter(),  # 0 under every name
        "memory_summary": lambda *_, **__: "memory of an emulated GPU is not counted",
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": lambda *_, **__: stream,
        "default_stream": lambda *_, **__: stream,
        "device": PretendedContext,
        "device_of": PretendedContext,
        "_DeviceGuard": PretendedContext,
        "stream": PretendedContext,
        "StreamContext": PretendedContext,
        "Stream": PretendedStream,
        "ExternalStream": lambda *_, **__: stream,
        "Event": UntimedEvent,
        "CUDAGraph": RefusedGraph,
        "graph": RefusedGraph,
        "make_graphed_callables": RefusedGraph,
        "manual_seed": generator.manual_seed,
        "manual_seed_all": lambda _: None,  # torch.manual_seed has seeded the only generator
        "seed": generator.seed,
        "seed_all": lambda: None,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda *_, **__: generator.get_state(),
        "set_rng_state": lambda state=None, *_, new_state=None, **__: generator.set_state(
            new_state if state is None else state
        ),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "default_generators": (generator,),
    }
    answers |= {name: lambda *_, **__: 0 for name in _ZERO.split()}
    answers |= {name: lambda *_, **__: None for name in _NOTHING.split()}
    kinds = {f"{name}Tensor": getattr(torch, f"{name}Tensor") for name in _TENSORS.split()}
    return answers | kinds


def _accelerator_answers(answers: Mapping[str, object]) -> dict[str, object]:
    """Return the attributes of torch.accelerator that describe the GPU, from torch.cuda's."""
    same = (
        "is_available device_count current_stream memory_stats memory_allocated "
        "max_memory_allocated memory_reserved max_memory_reserved synchronize empty_cache "
        "set_stream reset_peak_memory_stats reset_accumulated_memory_stats"
    )
    return {
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": check_index,
        "set_device_idx": check_index,
        "device_index": PretendedContext,
        "get_memory_info": answers["mem_get_info"],
        **{name: _apart(answers[name]) for name in same.split()},
    }


def _apart(answer: object) -> Callable[..., object]:
    """Return a function of its own: torch.compile refuses to know one by two names."""
    assert callable(answer)
    return lambda *given, **named: answer(*given, **named)


class RefusedGraph:
    """A graph of launches, which cannot be made; as a class, so that annotations may name it."""

    def __init__(self, *_: object, **__: object) -> None:
        raise KernelError("CUDA graphs are not emulated: launch the kernels without one")


def check_index(device: object) -> None:
    """Raise KernelError for a GPU other than the first, as an index, a name or a device."""
    if isinstance(device, str):
        last = device.rpartition(":")[2]
        index = int(last) if last.isdecimal() else None
    else:
        index = device if isinstance(device, int) else getattr(device, "index", None)
    if isinstance(index, int) and index > 0:  # torch takes any other object for the current GPU
        raise KernelError(f"cuda:{index} does not exist: one GPU is emulated, cuda:0")


def _of_the_first(value: object) -> Callable[..., object]:
    """Return a function of a device that gives the value; another device is a KernelError."""

    def answer(device: object = None) -> object:
        check_index(device)
        return value

    return answer


class PretendedStream:
    """A stream that accepts every call."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0
    priority = 0

    def __init__(self, device: object = None, *_: object, **__: object) -> None:
        check_index(device)
        self.device = torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def __enter__(self) -> PretendedStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        """Return True: every launch is over when it returns."""
        return True

    def record_event(self, event: object = None) -> object:
        return event or UntimedEvent()


class UntimedEvent:
    """An event that times nothing."""

    cuda_event = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, *_: object) -> None:
        """Do nothing."""

    wait = synchronize = record

    def query(self) -> bool:
        """Return True: every launch is over when it returns."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Return nan, and note that it was asked."""
        asked[UNTIMED] += 1
        return math.nan


class PretendedContext:
    """`with torch.cuda.device(...)`, which does nothing."""

    idx = 0  # the GPU's index

    def __init__(self, device: object = None, *_: object, **__: object) -> None:
        if not isinstance(device, torch.Tensor):
            check_index(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[..., object]) -> Callable[..., object]:
        """Decorate a function, which stays as it is."""
        return function


def _properties(device: PretendedDevice) -> SimpleNamespace:
    """Return what torch's `_CudaDeviceProperties` has on ROCm, under the same names."""
    one = device.architecture
    major, minor, clocks = *capability(one), clocks_of(one)
    waves = one.max_waves_per_simd * one.simds_per_unit
    features = ":sramecc+:xnack-" if one.name.startswith("gfx9") and device.name != one.name else ""
    return SimpleNamespace(
        name=device.name,
        gcnArchName=one.name + features,
        major=major,
        minor=minor,
        multi_processor_count=device.units,
        warp_size=one.wavefront_size,
        total_memory=device.memory_bytes,
        is_integrated=False,
        is_multi_gpu_board=False,
        L2_cache_size=clocks.l2_bytes,
        clock_rate=clocks.engine_khz,
        memory_clock_rate=clocks.memory_khz,
        memory_bus_width=clocks.bus_bits,
        uuid=uuid.UUID(int=0),
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        shared_memory_per_block=one.lds_bytes_per_workgroup,
        shared_memory_per_block_optin=one.lds_bytes_per_workgroup,
        shared_memory_per_multiprocessor=one.lds_bytes_per_unit,
        regs_per_multiprocessor=one.vgprs_per_lane * one.wavefront_size * one.simds_per_unit,
        max_threads_per_multi_processor=waves * one.wavefront_size,
        max_threads_per_block=1024,
    )


# Tensors that claim to be on a GPU, on a machine without one; only for a candidate's sandbox.
#
# Meta tensors have shapes, strides and dtypes but no values, so a problem of any size costs
# nothing. An entry that reads a value on the host (`lengths.max().item()`) needs values, and gets
# tensors on the CPU. Both only claim the GPU as their device: torch's fake tensors cannot even be
# sliced for a device that this build of torch lacks.

FIRST_ADDRESS, ADDRESS_STEP = 1 << 40, 1 << 36
"""Each storage begins at its own multiple, as aligned as by a GPU's allocator."""


@contextlib.contextmanager
def pretended_device(architecture: Architecture, units: int, *, values: bool) -> Iterator[None]:
    """Make `device="cuda"` work, and torch.cuda describe the GPU, inside."""
    device = PretendedDevice.of(architecture.name, {"units": units})
    with changed(changes(device)), torch.no_grad(), _SayCuda("cpu" if values else "meta"):
        yield


def moved(tensors: Sequence[Tensor], *, values: bool) -> list[Tensor]:
    """Return the tensors on the pretended device, with values or without."""
    if values:
        return list(tensors)
    return [
        torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="cuda")
        for one in tensors
    ]


class _SayCuda(TorchFunctionMode):
    """Makes tensors claim the GPU as their device, and creates new ones on the real device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)
        self._addresses: dict[int, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        tensor = args[0] if args else None
        if isinstance(tensor, Tensor):
            if func is torch.Tensor.data_ptr and tensor.is_meta:
                return self._address(tensor)
            if func in (torch.Tensor.cuda, torch.Tensor.cpu) and self._device.type == "cpu":
                return tensor
            if func is torch.Tensor.cuda:
                return tensor.to(self._device)
        own = {key: self._real(value) for key, value in (kwargs or {}).items()}
        return func(*(self._real(value) for value in args), **own)

    def _real(self, value: object) -> object:
        """Return the real device for the pretended one, and other values unchanged."""
        named = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
        if named or (isinstance(value, torch.device) and value.type == "cuda"):
            return self._device
        return value

    def _address(self, tensor: Tensor) -> int:
        """Return the address of a tensor's storage, always the same, plus its offset."""
        new = FIRST_ADDRESS + ADDRESS_STEP * len(self._addresses)
        first = self._addresses.setdefault(tensor.untyped_storage()._cdata, new)
        return first + int(tensor.storage_offset()) * tensor.element_size()
