"""The trained policy as an author of `ratchet write`: `--authors policy:FOLDER`."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Final

from ratchet.write.author import Progress, Proposal
from ratchet.write.learn.evaluate import policy_drawer
from ratchet.write.learn.models import Policy, load_policy
from ratchet.write.learn.objectives import HOTTER
from ratchet.write.learn.tasks import LearnTask, task_of

TRIES: Final = 4
"""Draws in a row without a new kernel after which the policy has nothing left to say."""


class PolicyAuthor:
    """Proposes a policy's kernels. One object serves all problems of a run."""

    def __init__(self, policy: Policy, name: str, *, seed: int = 0) -> None:
        self.name = name
        self.ended = ""  # Why it has nothing left to say on the last problem
        self._policy, self._seed = policy, seed
        self._tasks: dict[str, LearnTask] = {}
        self._drawn: dict[str, int] = {}
        self._said: dict[str, set[str]] = {}

    def propose(self, progress: Progress, count: int) -> list[Proposal]:
        """Return up to `count` new proposals; see `Author.propose`.

        Raises:
            RatchetError: the generator lacks one of the problem's ops.
        """
        key = progress.problem.hash
        if key not in self._tasks:
            language = self._policy.card.language
            self._tasks[key] = task_of(progress.problem, language=language)
        task, said = self._tasks[key], self._said.setdefault(key, set())
        said |= {one.kernel_hash for one in progress.answers}
        found: list[Proposal] = []
        self.ended = ""
        for attempt in range(TRIES):
            draw = policy_drawer(self._policy, temperature=HOTTER**attempt)
            turn = self._drawn.get(key, 0)
            self._drawn[key] = turn + 1
            for one in draw(task, count, random.Random(f"{self._seed} {turn}").getrandbits(31)):
                if one is None or one.kernel.hash in said or len(found) == count:
                    continue
                said.add(one.kernel.hash)
                found.append(
                    Proposal(
                        kernel=one.kernel,
                        author=self.name,
                        note="drawn from the policy",
                        schedule=one.schedule,
                        features=task.space.features(one.schedule) if one.schedule else (),
                    )
                )
            if len(found) == count:
                return found
        if not found:
            self.ended = f"{TRIES} draws in a row held no new kernel"
        return found


@functools.lru_cache(maxsize=2)
def policy_author(folder: str, *, seed: int = 0) -> PolicyAuthor:
    """Return the author `policy:FOLDER`, which is loaded once for all problems of a run.

    Raises:
        LearnError: the folder holds no policy.
    """
    return PolicyAuthor(load_policy(Path(folder)), f"policy:{folder}", seed=seed)
