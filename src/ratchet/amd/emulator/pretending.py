"""The environment of an emulated program: tensors say that they are on `cuda`, torch.cuda answers.

All tensors lie in main memory. A tensor that a program makes on the host carries a mark on its
storage, so its device is `cpu`; every other tensor says `cuda:0`. Moves between the two copy, as
they do on a GPU. The judge's emulated launchers and `ratchet emulate` share this environment.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.compile.torch_cuda import PretendedGenerator, changed, changes, check_index
from ratchet.judge.problems.free_memory import GIB

# Operators that a program registers for the GPU, in a process whose tensors are all the CPU's.
#
# They are registered for the CPU. A call that has nothing on the GPU goes to the CPU's own kernel.

Operator = str | OpOverload


def registered(gpu: EmulatedGpu, register: Callable[..., object]) -> Callable[..., object]:
    """Return `Library.impl` that registers a GPU's operator for the CPU."""

    def impl(
        library: Library,
        name: Operator,
        function: Callable[..., object],
        dispatch_key: str = "",
        **named: object,
    ) -> object:
        is_own = not str(getattr(function, "__module__", "")).startswith("torch.")
        key = "CPU" if dispatch_key == "CUDA" and is_own else dispatch_key
        run = function if key in ("Meta", "Autograd") else gpu.callback(function)
        if key != dispatch_key and not named.get("with_keyset"):
            run = _for_gpu_alone(gpu, run, _own_kernel(library, name))
        return register(library, name, run, key, **named)

    return impl


def _own_kernel(library: Library, name: Operator) -> Callable[..., object] | None:
    """Return the CPU's kernel of an operator; None where torch has none."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    full = (
        f"{library.ns}::{name.rpartition('::')[2]}" if isinstance(name, str) else str(name.name())  # type: ignore[no-untyped-call]
    )
    try:
        kernel = torch.library.get_kernel(full, "CPU")
        schema = torch._C._get_schema(*(full.split(".") if "." in full else (full, "")))
    except (RuntimeError, ValueError):
        return None
    tensors = [str(one.type) == "Tensor" for one in schema.arguments]

    def own(*given: object, **named: object) -> object:
        # a number in a tensor's place comes as a number to Python's kernels alone
        is_number = [isinstance(one, (bool, int, float, complex)) for one in given]
        places = zip(given, is_number, tensors, strict=False)
        values = [torch.tensor(one) if plain and wants else one for one, plain, wants in places]
        return kernel.call_boxed(keys, *values, **named)

    return own


def _for_gpu_alone(
    gpu: EmulatedGpu, run: Callable[..., object], own: Callable[..., object] | None
) -> Callable[..., object]:
    @functools.wraps(run)
    def chosen(*given: object, **named: object) -> object:
        if own is not None and gpu.is_for_host(given, named, gpu.told.device):
            return own(*given, **named)
        if gpu.told.device is not None and named.get("device") is not None:
            named["device"] = gpu.told.device  # torch knows the CPU alone
        return run(*given, **named)

    return chosen


MARK: Final = "ratchet_on_host"
"""Attribute of the storages that lie on the host as the program sees it."""
GPU: Final = torch.device("cuda", 0)
HOST: Final = torch.device("cpu")
NAMES_A_DEVICE: Final[tuple[Callable[..., object], ...]] = (torch.device, torch._C._nn._parse_to)
"""Functions whose result is a device as the program named it; `Module.to` asks the second."""
FOR_INTEGERS_TOO: Final = (torch.histc, Tensor.histc)
"""Functions that a GPU has for integers, and the CPU for floats alone."""
WITH_RESULT_TYPE: Final = (torch.mm, torch.bmm, torch.addmm, torch.baddbmm)
"""Products that a GPU gives in a wider type than its operands': `out_dtype`."""
SPECIAL: Final = frozenset((*FOR_INTEGERS_TOO, *WITH_RESULT_TYPE))
GIVES_NO_TENSOR: Final = frozenset(
    (
        *(getattr(Tensor, f"__{one}__") for one in ("len", "bool", "float", "int", "index")),
        *(Tensor.item, Tensor.tolist, Tensor.size, Tensor.stride, Tensor.dim, Tensor.numel),
        *(Tensor.is_contiguous, Tensor.is_floating_point, Tensor.element_size, Tensor.data_ptr),
        *(
            getattr(Tensor, one).__get__
            for one in ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "layout", "_version")
        ),
    )
)
"""Functions of a tensor that ask for no device and make no tensor."""
NO_MEMORY: Final = re.compile(r"you tried to allocate (\d+) bytes")
"""The words of torch's allocator for the CPU."""
AUTOCAST: Final = (
    "is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype",
)  # fmt: skip


class _NamedDevice(threading.local):
    """The device that the call of torch named which this thread is in; None where it named none."""

    device: torch.device | None = None


class EmulatedGpu(TorchFunctionMode):
    """Puts what a program creates on `cuda` into main memory, and tells devices as a GPU would."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._device = device
        self._default_is_gpu = False
        self.told = _NamedDevice()
        self._ways: dict[object, Callable[..., object]] = {
            **{one: one for one in (*GIVES_NO_TENSOR, *NAMES_A_DEVICE)},
            Tensor.device.__get__: self.device_of,
            _getter("is_cuda"): lambda one: self.device_of(one).type == "cuda",
            _getter("is_cpu"): lambda one: self.device_of(one).type == "cpu",
            Tensor.get_device: lambda one: 0 if self.is_on_gpu(one) else -1,
            Tensor.pin_memory: lambda one: one,
            Tensor.is_pinned: lambda _: False,
            Tensor.to: self._to,
            Tensor.cuda: lambda one, index=None, *_, **__: self._to(
                one, GPU if index is None else index
            ),
            Tensor.cpu: lambda one, *_, **__: self._to(one, HOST),
        }

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        # Every operation of the program comes by: one look-up, and no generators.
        way = self._ways.get(func)
        if way is not None:
            return way(*args, **(kwargs or {}))
        given, named, told = args, kwargs or {}, None
        if kwargs:
            given, named, told = self._real(args, kwargs)
        else:
            for one in args:
                if isinstance(one, (str, torch.device)):
                    given, named, told = self._real(args, {})
                    break
        if func in SPECIAL:
            if func in FOR_INTEGERS_TOO and not given[0].is_floating_point():
                func = _in_float64(func)
            if func in WITH_RESULT_TYPE:
                given, named = _widened([*given], {**named})
        outer, self.told.device = self.told.device, told
        try:
            result = func(*given, **named)
        except RuntimeError as error:
            wanted = NO_MEMORY.search(str(error))
            if wanted is None or self.is_for_host(args, named, told):
                raise
            raise torch.OutOfMemoryError(
                f"a tensor of {int(wanted[1]) / GIB:.1f} GiB does not fit: emulated memory is this "
                "machine's"
            ) from error
        finally:
            self.told.device = outer
        is_new = result is not None and not (args and result is args[0])  # in place, or nothing
        if is_new and self.is_for_host(args, named, told):
            mark(result)
        return result

    def _real(
        self, args: Sequence[Any], kwargs: Mapping[str, object]
    ) -> tuple[list[Any], dict[str, object], torch.device | None]:
        """Return arguments for the CPU, and the device that they named."""
        told: torch.device | None = None
        given, named = list(args), dict(kwargs)
        for place, value in enumerate(given):
            if isinstance(value, (str, torch.device)) and is_gpu(value):
                given[place], told = HOST, GPU
        device = named.get("device")
        if device is not None:
            told = as_device(device)
            named["device"] = HOST if told.type == "cuda" else device
        if named.get("pin_memory"):
            named["pin_memory"] = False
        return given, named, told

    def is_for_host(
        self, args: Sequence[Any], named: Mapping[str, object], told: torch.device | None
    ) -> bool:
        """Return True for a call that names the host, or names nothing and has nothing on the GPU.

        `told` is the device that it names. New tensors may be made on the GPU where it names none.
        """
        if told is not None:
            return told == HOST
        some = False
        for value in (*args, *named.values()) if named else args:
            if isinstance(value, Tensor):
                if self.is_on_gpu(value):
                    return False
                some = True
            elif isinstance(value, (list, tuple)):
                for one in _tensors(value):
                    if self.is_on_gpu(one):
                        return False
                    some = True
        return some or not self._default_is_gpu

    def is_on_gpu(self, tensor: Tensor) -> bool:
        """Return True if the program sees the tensor on the GPU."""
        try:
            return not getattr(tensor.untyped_storage(), MARK, False)
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            return True

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the device as the program sees it."""
        with torch._C.DisableTorchFunction():
            real = tensor.device
        if real.type != "cpu":
            return real
        return GPU if self.is_on_gpu(tensor) else HOST

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Move or convert a tensor; a move to the other device copies."""
        given, named = list(args), dict(kwargs)
        target: torch.device | None = None
        if named.get("device") is not None:
            target = as_device(named["device"])
            named["device"] = HOST if target.type == "cuda" else named["device"]
        for place, one in enumerate(given):
            if isinstance(one, Tensor):
                target = self.device_of(one)
            elif isinstance(one, (str, torch.device)) or (type(one) is int and place == 0):
                target = as_device(one)
                given[place] = HOST if target.type == "cuda" else target
        here = self.device_of(tensor)
        wanted = target or here
        if wanted.type != here.type and "meta" not in (wanted.type, here.type):
            named["copy"] = True
            given = given[:3]
        result: Tensor = tensor.to(*given, **named)
        if wanted == HOST and result.device.type == "cpu":
            mark(result)
        return result

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Have this mode inside, also where torch has taken it away for one of its functions."""
        if self in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
            yield
            return
        with self:
            yield

    def callback(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the function as one that runs under this mode."""

        @functools.wraps(function)
        def under(*given: object, **named: object) -> object:
            with self.again():
                return function(*given, **named)

        return under

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run a program inside: torch.cuda, tensors, gradients, threads, autocast."""
        with changed(changes(self._device)), changed(self._changes()), self.again():
            yield

    def _changes(self) -> Iterator[tuple[Any, str, object]]:
        """Return the attributes that change inside: their owner, name and value.

        torch takes a mode away while one of its own functions runs. Code of the program that such
        a function calls back needs it again.
        """
        backward = vars(torch.autograd)["_engine_run_backward"]
        yield torch.autograd, "_engine_run_backward", self.callback(backward)
        pushed = "_push_saved_tensors_default_hooks"  # checkpointing compares devices in its hooks
        push = getattr(torch._C._autograd, pushed)
        yield torch._C._autograd, pushed, lambda *hooks: push(*map(self.callback, hooks))
        yield threading.Thread, "run", self.callback(threading.Thread.run)
        yield torch._C, "_cuda_getCurrentRawStream", lambda *_: 0
        yield Tensor, "record_stream", lambda *_: None
        yield (  # by which code that Inductor wrote asks for memory
            torch._C._dynamo.guards,
            "_empty_strided_cuda",
            lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=GPU),
        )
        yield torch, "set_default_device", self._set_default_device
        yield torch, "compile", _uncompiled
        yield torch, "Generator", PretendedGenerator
        yield torch.library.Library, "impl", registered(self, torch.library.Library.impl)
        files = vars(torch.serialization)["_package_registry"]
        yield torch.serialization, "_package_registry", [(0, _saved_as, _loaded_to), *files]
        for name in AUTOCAST:
            yield torch, name, _on_cpu(getattr(torch, name))
        yield torch.autocast, "__init__", _autocast(torch.autocast.__init__)

    def _set_default_device(self, device: Any) -> None:
        self._default_is_gpu = device is not None and as_device(device).type == "cuda"
        if not self._default_is_gpu:
            _set_default_device(device)


_set_default_device: Final = torch.set_default_device


def _in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of a tensor of integers that computes in float64."""

    def widened(one: Tensor, *given: object, **named: object) -> Tensor:
        return function(one.double(), *given, **named).to(one.dtype)

    return widened


def _widened(
    given: list[object], named: dict[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Return a product's arguments with the operands in the result's type, which they may name."""
    types = [one for one in given if isinstance(one, torch.dtype)]
    wanted = named.pop("out_dtype", None) or next(iter(types), None)
    if not isinstance(wanted, torch.dtype):
        return given, named

    def wide(one: object) -> object:
        return one.to(wanted) if isinstance(one, Tensor) else one

    kept = {key: one if key == "out" else wide(one) for key, one in named.items()}
    return [wide(one) for one in given if not isinstance(one, torch.dtype)], kept


def mark(value: object) -> None:
    """Note that new tensors lie on the host."""
    for one in (value,) if isinstance(value, Tensor) else _tensors((value,)):
        try:
            setattr(one.untyped_storage(), MARK, True)
        except (NotImplementedError, RuntimeError):  # sparse tensors have no storage
            continue


def _saved_as(storage: Any) -> str | None:
    """Return the device that `torch.save` notes for a storage; None for one that holds nothing."""
    if storage.device.type != "cpu":
        return None
    return "cpu" if getattr(_untyped(storage), MARK, False) else "cuda:0"


def _loaded_to(storage: Any, place: str) -> Any:
    """Return a storage that `torch.load` has read, on the device of that name; None if not ours."""
    if place == "cpu":
        setattr(_untyped(storage), MARK, True)
    return storage if place == "cpu" or is_gpu(place) else None


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", storage)


def as_device(device: Any) -> torch.device:
    """Return a device; a number is a GPU's. Raises KernelError for a second GPU."""
    if isinstance(device, int):
        check_index(device)
        return GPU
    found = torch.device(device)
    if found.type == "cuda":
        check_index(found)
    return found


def is_gpu(device: str | torch.device) -> bool:
    """Return True for `cuda` and `cuda:0`. Raises KernelError for a second GPU."""
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if kind != "cuda" or not (index == "" or index.isdecimal()):
            return False
    elif device.type != "cuda":
        return False
    check_index(device)
    return True


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)


def _getter(name: str) -> object:
    return getattr(Tensor, name).__get__


def _uncompiled(model: object = None, **_: object) -> object:
    """Return a function as it is: torch.compile would generate code for the CPU."""
    if model is None:
        return lambda function: function
    return model


def _on_cpu(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function of torch's autocast that takes the CPU where it is given the GPU."""

    @functools.wraps(function)
    def mapped(*given: object, **named: object) -> object:
        if named.get("device_type") == "cuda":
            named["device_type"] = "cpu"
        return function(*("cpu" if one == "cuda" else one for one in given), **named)

    return mapped


def _autocast(begin: Callable[..., None]) -> Callable[..., None]:
    """Return `torch.autocast.__init__` that computes on the CPU in the GPU's default type, f16."""

    @functools.wraps(begin)
    def mapped(
        one: torch.autocast, device_type: str, dtype: object = None, *given: object, **named: object
    ) -> None:
        on_gpu = device_type == "cuda"
        half = torch.float16 if on_gpu and dtype is None else dtype
        begin(one, "cpu" if on_gpu else device_type, half, *given, **named)

    return mapped
