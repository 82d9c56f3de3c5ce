"""Load a Triton source inside the sandbox: from a file, or for Triton's interpreter.

The interpreter is repaired first, or right kernels would be called wrong. It keeps bfloat16 numbers
as 16-bit integers and adds those; its documentation asks kernels to cast to float32, which a GPU
does not need. The repair widens operands to float32, which is exact, and rounds results to the
nearest, ties to even, as hardware does. Triton 3.6 also converts a one-element array to a number
for loop bounds, which numpy 2.4 refuses.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.fake_driver import FakeDriver
from ratchet.judge.kernels.source_files import load_source

if TYPE_CHECKING:
    import torch

PRETENDED = "gfx942"  # the GPU that the interpreter reports to a kernel


def load_interpreted(source: str, entry: str) -> Callable[..., object]:
    """Return the entry of a Triton source whose kernels run in Triton's interpreter, on the CPU."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated
    repair_interpreter()
    InterpreterDriver(ARCHITECTURES[PRETENDED], units=1).install()
    folder = Path(tempfile.mkdtemp(prefix="triton-"))
    return load_source(source, entry, folder / "kernel.py")


class InterpreterDriver(FakeDriver):
    """A driver for the interpreter; autotuners keep their first configuration."""

    def time(self, call: Callable[[], object]) -> float:
        """Return the same time for every configuration, without running it."""
        return 1.0

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")


QUIET_NAN = 0x7FC0


def repair_interpreter() -> None:
    """Repair this process's interpreter, once."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "repaired", False):
        return
    builder.repaired = True
    patch = interpreter._patch_lang_tensor

    def with_loop_bounds(tensor: object, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_loop_bounds
    numbers = _Numbers(interpreter.TensorHandle, tl.bfloat16, tl.float32)
    for name, operands in (("binary_op", 2), ("ternary_op", 3), ("unary_op", 1), ("create_fma", 3)):
        setattr(builder, name, numbers.in_float32(getattr(builder, name), operands))
    builder.create_dot = numbers.dot_in_float32(builder.create_dot)
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, numbers.by_float32(getattr(builder, name)))


class Handle(Protocol):
    """A tensor of the interpreter."""

    data: np.ndarray
    dtype: Any


class _Numbers:
    """Widens and rounds the interpreter's tensors."""

    def __init__(
        self, handle: Callable[[np.ndarray, object], Handle], bfloat16: object, float32: object
    ) -> None:
        self._handle = handle
        self._bfloat16 = bfloat16
        self._float32 = float32

    def in_float32(self, original: Callable[..., Handle], operands: int) -> Callable[..., object]:
        """Return an operation that computes in float32 if an operand is a bfloat16."""

        def operation(builder: object, *arguments: Handle) -> Handle:
            given, rest = arguments[:operands], arguments[operands:]
            if not any(self._is_bfloat16(one) for one in given):
                return original(builder, *arguments)
            result = original(builder, *(self._widened(one) for one in given), *rest)
            return self._rounded(result) if result.data.dtype == np.float32 else result

        return operation

    def dot_in_float32(self, original: Callable[..., Handle]) -> Callable[..., object]:
        """Return a dot whose sums have the type of its accumulator."""

        def dot(builder: object, a: Handle, b: Handle, sums: Handle, *rest: object) -> Handle:
            wide = original(builder, self._widened(a), self._widened(b), self._widened(sums), *rest)
            return self._rounded(wide) if self._is_bfloat16(sums) else wide

        return dot

    def by_float32(self, original: Callable[..., Handle]) -> Callable[..., object]:
        """Return a cast that goes through float32 if one side is a bfloat16."""

        def cast(builder: object, source: Handle, target: Any, *rest: object) -> Handle:
            into = target.scalar == self._bfloat16
            if self._is_bfloat16(source):
                wide = self._widened(source)
                if into:
                    return source
                same = target.scalar == self._float32
                return wide if same else original(builder, wide, target, *rest)
            if not into:
                return original(builder, source, target, *rest)
            if source.dtype.scalar == self._float32:
                return self._rounded(source)
            return self._rounded(original(builder, source, self._float32, *rest))

        return cast

    def _is_bfloat16(self, tensor: Handle) -> bool:
        return bool(getattr(tensor, "dtype", None) == self._bfloat16)

    def _widened(self, tensor: Handle) -> Handle:
        if not self._is_bfloat16(tensor):
            return tensor
        bits = np.asarray(tensor.data).astype(np.uint32) << np.uint32(16)
        return self._handle(bits.view(np.float32), self._float32)

    def _rounded(self, tensor: Handle) -> Handle:
        return self._handle(round_to_bfloat16(np.asarray(tensor.data)), self._bfloat16)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bfloat16 of each float32, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(values.shape)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    near = ((bits.astype(np.uint64) + 0x7FFF + odd) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(QUIET_NAN), near)
