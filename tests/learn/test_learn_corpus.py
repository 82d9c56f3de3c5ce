"""The corpus as the ledger grows: what is taught, and what stays held out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_bench import SMALL, tasks

from ratchet.learn.corpus import KNOWN_WELL, Corpus, build_corpus
from ratchet.learn.forgetting import BaseMemory
from ratchet.learn.languages import ScheduleLanguage
from ratchet.learn.models import load_policy
from ratchet.learn.replay import TextWindows
from ratchet.learn.stages import sft


def answers(judged: int, failed: int) -> list[dict[str, Any]]:
    """Rows of the first problem: kernels each faster than the one before, and wrong ones."""
    task = tasks()[0]
    schedule = task.space.first()[0]
    return [
        {
            "problem_hash": task.key,
            "kernel_hash": f"k{place}",
            "status": "screened" if place < judged else "wrong",
            "ratio": 1.0 + place if place < judged else None,
            "reason": f"case {place}",
            "schedule": schedule,
        }
        for place in range(judged + failed)
    ]


def corpus_of(folder: Path, rows: list[dict[str, Any]]) -> Corpus:
    for name in "abcdefgh":
        words = " ".join(f"{name} {n % 7} reads a row and writes a sum" for n in range(60))
        (folder / f"{name}.txt").write_text(words)
    ledger: Any = SimpleNamespace(writing_answers=lambda fingerprint: rows)
    unseen = {"losses": ["softmax"]}
    language = ScheduleLanguage()
    return build_corpus(tasks(), unseen, language, ledger=ledger, texts=[folder], draws=16)


@pytest.mark.parametrize("judged", [KNOWN_WELL - 1, KNOWN_WELL])
def test_a_problem_that_is_known_well_is_taught_by_its_best_alone(
    tmp_path: Path, judged: int
) -> None:
    found = corpus_of(tmp_path, answers(judged, 0))
    kinds = {name: {e.kind for e in found.examples if e.problem == name} for name in NAMES}
    assert kinds[NAMES[0]] == ({"screened"} if judged == KNOWN_WELL else {"screened", "generated"})
    assert kinds[NAMES[1]] == {"generated"}


def test_what_is_held_out_stays_so_while_failures_grow(tmp_path: Path) -> None:
    before, after = (corpus_of(tmp_path, answers(1, failed)) for failed in (0, 3))
    assert after.held_out == before.held_out
    assert len(after.text) == len(before.text) + 3
    assert after.card.counts["documents"] == len(after.text) + len(after.held_out)


def test_what_was_forgotten_is_that_of_the_last_step(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(steps=7, measure_every=100)
    start, base = load_policy(base_folder, training=True), load_policy(base_folder)
    done = sft(config, material, start, base, tasks(), tmp_path / "sft")
    held_out = TextWindows(material.held_out, base.tokenizer, config.context)
    wanted = BaseMemory(base.model, held_out).measure(done.policy.model).forgetting
    assert done.trained.forgetting == pytest.approx(wanted, abs=1e-6)


NAMES = [one.name for one in tasks()]
