"""Authors with nothing to invent: the shipped library, and kernels that the ledger holds."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.authors.author import Progress, Proposal
from ratchet.kernels.kernel import Kernel
from ratchet.problems.problem import Problem


class GivenAuthor:
    """Proposes kernels that exist already, each once."""

    def __init__(self, name: str, kernels: Sequence[Kernel], *, note: str = "") -> None:
        self.name = name
        self._left = list(kernels)
        self._note = note

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return the next ones; see `Author.propose`."""
        taken, self._left = self._left[:count], self._left[count:]
        return [
            Proposal(kernel=one, author=self.name, note=self._note, opener=True) for one in taken
        ]


def library_author(problem: Problem, *, name: str = "library") -> GivenAuthor:
    """Return the author that proposes the shipped kernels for a problem, in C++ and in Triton.

    A kernel of the library answers the problem that has its name; the judge finds out whether a
    file's problem of that name is another one.
    """
    from ratchet.devices.probe import best_isa
    from ratchet.kernels.library import kernels_for
    from ratchet.kernels.library.sources import ANY_GPU

    found = [kernels_for(target).get(problem.name) for target in (best_isa(), ANY_GPU)]
    return GivenAuthor(
        name, [one for one in found if one is not None], note="from the shipped library"
    )
