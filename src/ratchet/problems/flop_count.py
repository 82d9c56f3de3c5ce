"""The arithmetic of a call, counted as torch's FlopCounterMode does it and without its import.

Its first call imports torch._dynamo, which takes longer than torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of products and convolutions in what runs under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, so dynamo need not be told to look away

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, or what it is composed of, and count it."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch's operators of higher order
            return func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func.namespace == "aten":
            with self:
                composed = func.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        output = func(*args, **kwargs)
        if formula is not None:
            self.total += float(formula(*args, **kwargs, out_val=output))
        return output
