"""Repairs of Triton's interpreter, without which right kernels would be called wrong.

bfloat16: it keeps such numbers as 16-bit integers and adds those up; its documentation asks kernels
to cast to float32 first, which a GPU does not ask. Here operands are widened to float32, which is
exact, and results rounded to the nearest, ties to even, as the hardware does. Loop bounds: Triton
3.6 makes a number of a one-element array, which numpy 2.4 refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

QUIET_NAN = 0x7FC0


def install() -> None:
    """Repair the interpreter of this process; may be called twice."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "repaired", False):
        return
    builder.repaired = True
    interpreter._patch_lang_tensor = _with_loop_bounds(interpreter._patch_lang_tensor)
    numbers = _Numbers(interpreter.TensorHandle, tl.bfloat16, tl.float32)
    for name, operands in (("binary_op", 2), ("ternary_op", 3), ("unary_op", 1), ("create_fma", 3)):
        setattr(builder, name, numbers.in_float32(getattr(builder, name), operands))
    builder.create_dot = numbers.dot_in_float32(builder.create_dot)
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, numbers.by_float32(getattr(builder, name)))


def _with_loop_bounds(original: Callable[..., None]) -> Callable[..., None]:
    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


class _Numbers:
    """Widening and rounding of the interpreter's tensors."""

    def __init__(self, handle: Any, bfloat16: Any, float32: Any) -> None:
        self._handle = handle
        self._bfloat16 = bfloat16
        self._float32 = float32

    def in_float32(self, original: Callable[..., Any], operands: int) -> Callable[..., Any]:
        """An operation on numbers, in float32 where one of them is a bfloat16."""

        def operation(builder: Any, *arguments: Any) -> Any:
            given, rest = arguments[:operands], arguments[operands:]
            if not any(self._is_bfloat16(one) for one in given):
                return original(builder, *arguments)
            result = original(builder, *(self._widened(one) for one in given), *rest)
            return self._rounded(result) if result.data.dtype == np.float32 else result

        return operation

    def dot_in_float32(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A dot whose sums have the type of its accumulator."""

        def dot(builder: Any, a: Any, b: Any, sums: Any, *rest: Any) -> Any:
            wide = original(builder, self._widened(a), self._widened(b), self._widened(sums), *rest)
            return self._rounded(wide) if self._is_bfloat16(sums) else wide

        return dot

    def by_float32(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A cast, by way of float32 where one side is a bfloat16."""

        def cast(builder: Any, source: Any, target: Any, *rest: Any) -> Any:
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

    def _is_bfloat16(self, tensor: Any) -> bool:
        return bool(getattr(tensor, "dtype", None) == self._bfloat16)

    def _widened(self, tensor: Any) -> Any:
        if not self._is_bfloat16(tensor):
            return tensor
        bits = np.asarray(tensor.data).astype(np.uint32) << np.uint32(16)
        return self._handle(bits.view(np.float32), self._float32)

    def _rounded(self, tensor: Any) -> Any:
        return self._handle(round_to_bfloat16(np.asarray(tensor.data)), self._bfloat16)


def round_to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bfloat16 of each float32, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(values.shape)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    near = ((bits.astype(np.uint64) + 0x7FFF + odd) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(QUIET_NAN), near)
