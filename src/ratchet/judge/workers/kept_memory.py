"""Memory that stays from batch to batch: for the reference, from whom nothing is hidden.

New pages are most of what a batch costs. A candidate needs them, or it could look through a mapping
of an earlier batch before the clock starts; the reference maps the same pages anew each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.judge.workers.memory import Block, Memory, Place


class KeptMemory:
    """One block for each name; a batch writes its values over those of the last."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._blocks: dict[str, tuple[int, Block]] = {}
        self.device = memory.device
        self.seals = memory.seals

    def block(self, name: str, size_bytes: int) -> Block:
        """The block of that name, a new one where it is too small."""
        size, block = self._blocks.get(name, (0, None))
        if block is None or size < size_bytes:
            if block is not None:
                block.close()
            size, block = size_bytes, self._memory.block(f"kept-{name}", size_bytes)
            block.blank()
            self._blocks[name] = (size, block)
        return _Lent(block)

    def region(self, size_bytes: int, slack: int) -> Place:
        """Addresses for a block of that size, `slack` steps into a larger range."""
        return self._memory.region(size_bytes, slack)

    def tensor(
        self, address: int, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """A tensor at an address, behind which there may be nothing yet."""
        return self._memory.tensor(address, dtype, size, stride)

    def close(self) -> None:
        """Give it up; no batch may use it."""
        for _, block in self._blocks.values():
            block.close()
        self._blocks.clear()


class _Lent:
    """A block as one batch has it, who neither blanks nor seals nor closes it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self.descriptor = block.descriptor
        self.write, self.read = block.write, block.read
        self.holds, self.places = block.holds, block.places

    def blank(self) -> None:
        """It was blanked once, and nobody reads what the reference's calls leave there."""

    def finish(self, *, fixed: bool) -> None:
        """The next batch writes it again."""

    def close(self) -> None:
        """The next batch needs it."""
