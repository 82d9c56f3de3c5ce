"""The kernels of a run so far, as a strategy sees them: the best, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.judge.kernels.kernel import Language
from ratchet.write.author import RIGHT, Answer, Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """The kernels of one problem's run, in one language, each with the best that is known of it."""

    best: tuple[Answer, ...]
    """Right ones, the fastest first; those that were not timed last."""
    failed: tuple[Answer, ...]
    """The others, the newest first."""

    @staticmethod
    def of(progress: Progress, language: Language) -> Population:
        """Return the population of a run: every author's kernels in this language."""
        members: dict[str, Answer] = {}
        for answer in progress.answers:
            if answer.language != language:
                continue
            earlier = members.pop(answer.kernel_hash, None)
            # A verdict counts more than a screening; a later one of the same kind replaces it.
            screened = answer.stage == "screened"
            kept = earlier if earlier and screened and earlier.stage == "judged" else answer
            members[answer.kernel_hash] = kept
        right = [one for one in members.values() if one.status in RIGHT]
        failed = [one for one in members.values() if one.status not in RIGHT]
        right.sort(key=lambda one: -(one.ratio or 0.0))
        return Population(best=tuple(right), failed=tuple(reversed(failed)))

    @property
    def hashes(self) -> frozenset[str]:
        return frozenset(one.kernel_hash for one in (*self.best, *self.failed))
