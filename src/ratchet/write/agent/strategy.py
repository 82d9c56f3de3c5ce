"""Choose what to ask for next: beam search and evolution over kernels, by prompt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.kernel import Language
from ratchet.write.author import RIGHT, Answer, Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """The kernels of one problem's run, in one language, each with the best that is known of it."""

    best: tuple[Answer, ...]  # Right ones, the fastest first; those that were not timed last
    failed: tuple[Answer, ...]  # The others, the newest first

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


StrategyName = Literal["beam", "evolve"]
Kind = Literal["draft", "improve", "fix", "cross", "mutate"]
BEAM_WIDTH: Final = 3
POOL: Final = 12  # Kernels that evolution draws its parents from
MOST_FIXES: Final = 2  # Attempts to repair one kernel, and its repairs
CROSS_SHARE: Final = 0.3
DRAFT_SHARE: Final = 0.1

DIRECTIONS: Final[Mapping[Language, tuple[str, ...]]] = {
    "cpp": (
        "move fewer bytes: fuse passes over a tensor, keep a row or tile in cache, write once",
        "vectorise the inner loop: unit stride, `omp simd`, vector types, masked tails",
        "use the cores better: coarser loops, one parallel region, one thread for small sizes",
        "shorten dependency chains: several accumulators, unrolling, no division in the inner loop",
        "replace slow functions: polynomial exp, tanh or log, reciprocals, a table",
        "add a fast path for contiguous tensors of the timed sizes, and keep the plain one",
        "change the order of loops or the tile sizes to fit L1 and L2",
        "use another algorithm: one pass, online, blocked or recomputed instead of stored",
    ),
    "triton": (
        "change BLOCK sizes, num_warps and num_stages to fit the registers and LDS",
        "move fewer bytes: one pass over each tensor, keep a row in registers",
        "let a program do more: several rows or tiles, a persistent loop over them",
        "fuse the launches into one, or split a long reduction over programs",
        "make accesses wide: contiguous inner index, hints of multiples, strides as constexpr",
        "use tl.dot with bf16 or fp16 operands and fp32 sums, in tiles of the matrix units",
        "use another algorithm: online reductions, recomputation instead of stores",
        "tune for occupancy: fewer live values, waves_per_eu, fewer stages",
    ),
    "torch": (
        "use fewer operations and fewer temporaries",
        "write in place, or into tensors that exist already",
        "use one library call in place of several",
        "change the layout so that reads are contiguous",
        "use another algorithm with less work",
    ),
    "hip": (
        "make accesses wide and coalesced: 16 bytes a lane",
        "stage shared data in LDS without bank conflicts: pad or swizzle",
        "use fewer registers for more waves, or more work per lane for fewer loads",
        "use MFMA or WMMA instructions for products",
        "reduce with wave shuffles before LDS",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    kind: Kind
    parents: tuple[Answer, ...] = ()
    direction: str = ""  # A hint on what to change; empty for a free hand


@dataclass(slots=True)
class Planner:
    """Plans the turns on one problem."""

    language: Language
    own: set[str]  # Hashes of this author's kernels: only these are repaired
    strategy: StrategyName = "beam"
    repairs: dict[str, int] = field(default_factory=dict)
    """Attempts so far to repair a kernel or one of its repairs."""
    _roots: dict[str, str] = field(default_factory=dict)  # The kernel that a repair began with

    def plan(self, population: Population, samples: int, source: random.Random) -> list[Assignment]:
        """Return repairs, and then what the strategy makes of the best kernels.

        `beam` improves the few fastest kernels, each in several directions; repairs take up to half
        of a turn. `evolve` breeds kernels: mutations and crossovers of tournament winners, and
        fresh drafts; repairs take up to a third.
        """
        beam = self.strategy == "beam"
        pool = population.best[: BEAM_WIDTH if beam else POOL]
        most = -(-samples // (2 if beam else 3)) if pool else samples
        planned = self.to_fix(population, most)
        directions = source.sample(DIRECTIONS[self.language], len(DIRECTIONS[self.language]))
        while len(planned) < samples:
            place = len(planned)
            hint = directions[place % len(directions)]
            # The first draft has no hint, so that the model's own idea is among them.
            draft = Assignment(kind="draft", direction=hint if place else "")
            drawn = 1.0 if beam else source.random()
            if not pool or drawn < DRAFT_SHARE:
                planned.append(draft)
            elif beam:
                parent = pool[place % len(pool)]
                planned.append(Assignment(kind="improve", parents=(parent,), direction=hint))
            elif len(pool) > 1 and drawn < DRAFT_SHARE + CROSS_SHARE:
                first = _winner(pool, source)
                second = _winner([one for one in pool if one is not first], source)
                planned.append(Assignment(kind="cross", parents=(first, second)))
            else:
                parent = _winner(pool, source)
                planned.append(Assignment(kind="mutate", parents=(parent,), direction=hint))
        return planned

    def to_fix(self, population: Population, most: int) -> list[Assignment]:
        """Return repairs of the newest failures that were not repaired too often."""
        found: list[Assignment] = []
        for member in population.failed:
            root = self._roots.get(member.kernel.hash, member.kernel.hash)
            tried = self.repairs.get(root, 0)
            if member.kernel.hash not in self.own or tried >= MOST_FIXES or len(found) >= most:
                continue
            self.repairs[root] = tried + 1
            found.append(Assignment(kind="fix", parents=(member,)))
        return found

    def note(self, child: str, kind: str, parents: Sequence[str]) -> None:
        """Take note of a new kernel; a repair's own repairs count as its parent's."""
        if kind == "fix" and parents:
            self._roots[child] = self._roots.get(parents[0], parents[0])


def _winner(pool: Sequence[Answer], source: random.Random) -> Answer:
    """Return the faster of two answers drawn at random; the pool is sorted."""
    return pool[min(source.randrange(len(pool)), source.randrange(len(pool)))]


def parse_strategy(given: str) -> StrategyName:
    """Return a strategy's name; `evolution` is `evolve`. A RatchetError for any other text."""
    given = "evolve" if given == "evolution" else given
    if given not in get_args(StrategyName):
        raise RatchetError(f"no strategy {given!r}: use one of {', '.join(get_args(StrategyName))}")
    return cast(StrategyName, given)
