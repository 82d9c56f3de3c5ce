"""The kernels of a run so far, as a strategy sees them: the best, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.authors.author import RIGHT, Answer, Progress
from ratchet.kernels.kernel import Kernel, Language


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A kernel with the best that the judge said of it."""

    kernel: Kernel
    answer: Answer
    parents: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Return whether its answers are right."""
        return self.answer.status in RIGHT

    @property
    def ratio(self) -> float:
        """Return its speed-up over the reference; 0 if it was not timed."""
        return self.answer.ratio or 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """The members of one problem's run, in one language."""

    best: tuple[Member, ...]
    """Right ones, the fastest first; those that were not timed last."""
    failed: tuple[Member, ...]
    """The others, the newest first."""

    @staticmethod
    def of(progress: Progress, languages: Sequence[Language]) -> Population:
        """Return the population of a run: every author's kernels in these languages."""
        members: dict[str, Member] = {}
        for answer in progress.answers:
            kernel = answer.kernel
            if kernel.language not in languages:
                continue
            earlier = members.pop(kernel.hash, None)
            newest = Member(kernel=kernel, answer=answer, parents=answer.parents)
            # A verdict counts more than a screening; a later one of the same kind replaces it.
            screened = answer.stage == "screened"
            kept = earlier if earlier and screened and earlier.answer.stage == "judged" else newest
            members[kernel.hash] = kept
        right = [one for one in members.values() if one.right]
        failed = [one for one in members.values() if not one.right]
        right.sort(key=lambda one: -one.ratio)
        return Population(best=tuple(right), failed=tuple(reversed(failed)))

    @property
    def hashes(self) -> frozenset[str]:
        return frozenset(one.kernel.hash for one in (*self.best, *self.failed))
