"""Generators of random numbers that say they are a GPU's.

A GPU's generator counts: its state is a seed and an offset, and kernels draw from both. What is
drawn here comes from a generator of the CPU, whose state is much larger. So each of its states
that a program asks for is kept under an offset.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

STEP: Final = 4
"""Offsets are multiples of it, as on a GPU."""
MIX: Final = 0x9E3779B97F4A7C15
MOST_KEPT: Final = 4096
"""The last states that are remembered."""
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
