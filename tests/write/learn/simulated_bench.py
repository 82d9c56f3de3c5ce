"""A bench whose answers are a formula of the schedule, and a small world to train in."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from pathlib import Path

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.verdict import Screening, ScreeningStatus
from ratchet.write.author import Proposal
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.corpus import Corpus, build_corpus
from ratchet.write.learn.languages import ScheduleLanguage
from ratchet.write.learn.tasks import LearnTask, make_tasks

SMALL = LearnConfig(
    size="tiny",
    vocabulary=640,
    context=32,
    batch=8,
    steps=20,
    rate=4e-3,
    measure_every=5,
    save_every=5,
    replay=0.1,
    max_forgetting=10.0,
)


class SimulatedBench:
    """Answers at once: a schedule is fast if it keeps the defaults of some choices."""

    def __init__(
        self, *, status: ScreeningStatus = "screened", full: str = "proven", flat: bool = False
    ):
        self.judged = 0
        self.status, self.full, self.flat = status, full, flat
        self.asked: list[str] = []
        self._known: dict[tuple[str, str], Screening] = {}

    def outcomes(self, task: LearnTask, candidates: Sequence[Proposal]) -> list[Screening]:
        for one in candidates:
            key = (task.key, one.kernel.hash)
            if key not in self._known:
                self.judged += 1
                self.asked.append(one.kernel.hash)
                ratio = 1.0 if self.flat else ratio_of(one.schedule)
                self._known[key] = Screening(
                    kernel_hash=one.kernel.hash,
                    status=self.status,
                    ratio=ratio if self.status == "screened" else None,
                )
        return [self._known[task.key, one.kernel.hash] for one in candidates]

    def in_full(self, task: LearnTask, kernel: Kernel) -> str:
        return self.full


def ratio_of(schedule: Sequence[tuple[str, str]]) -> float:
    """Wide vectors and unrolling are fast, on every problem; the rest is a little noise."""
    given = dict(schedule)
    found = 0.8 * (2.0 if given.get("width") == "512" else 1.0)
    found *= 1.5 if given.get("unroll") == "yes" else 1.0
    return found * (1 + 0.001 * (zlib.crc32(repr(schedule).encode()) % 100) / 100)


@functools.cache
def tasks() -> tuple[LearnTask, ...]:
    """Two problems whose loops are read at once."""
    return tuple(make_tasks({"activations": ["gelu", "hard_swish"]}))


@functools.cache
def corpus(folder: Path) -> Corpus:
    """A corpus of these problems, and of a text that repeats itself."""
    for name in "abcdefgh":
        words = " ".join(f"{name} loop {n % 7} reads a row and writes a sum" for n in range(60))
        (folder / f"{name}.txt").write_text(words)
    return build_corpus(
        tasks(), {"losses": ["softmax"]}, ScheduleLanguage(), ledger=None, texts=[folder], draws=16
    )
