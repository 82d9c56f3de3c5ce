"""The corpus as the ledger grows: what is taught, and what stays held out."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_bench import SMALL, tasks

from ratchet.base.errors import LearnError
from ratchet.write.learn.corpus import COMPARED, KNOWN_WELL, Corpus, TaughtAnswer, build_corpus
from ratchet.write.learn.languages import ScheduleLanguage, schedule_text
from ratchet.write.learn.models import load_policy
from ratchet.write.learn.objectives import tokenized
from ratchet.write.learn.rollouts import answer_logs
from ratchet.write.learn.stages import LearnStage, sft
from ratchet.write.learn.training import BaseMemory, TextWindows, read_curve


def answers(judged: int, failed: int) -> list[dict[str, Any]]:
    """Rows of the first problem: kernels each faster than the one before, and wrong ones."""
    task = tasks()[0]
    schedules = task.space.first()
    return [
        {
            "problem_hash": task.key,
            "kernel_hash": f"k{place}",
            "status": "screened" if place < judged else "wrong",
            "ratio": 1.0 + place if place < judged else None,
            "reason": f"case {place}",
            "schedule": schedules[place % len(schedules)],
        }
        for place in range(judged + failed)
    ]


@pytest.mark.parametrize("judged", [COMPARED - 1, COMPARED, 6])
def test_judged_schedules_are_taught_by_how_they_compare(tmp_path: Path, judged: int) -> None:
    found = corpus_of(tmp_path, answers(judged, 0))
    worths = [one.worth for one in found.examples if one.kind == "screened"]
    assert all(one.worth == 1.0 for one in found.examples if one.kind == "generated")
    if judged < COMPARED:
        assert worths == [1.0]  # the best alone
    else:
        assert sum(worths) == pytest.approx(0.0, abs=1e-3)
        assert worths == sorted(worths)
        assert worths[0] < -1.0 < 1.0 < worths[-1]


def test_repeated_screenings_count_with_their_mean_and_equal_kernels_teach_nothing(
    tmp_path: Path,
) -> None:
    rows = answers(4, 0)
    for row, ratio in zip(rows, (1.0, 4.0, 2.0, 3.0), strict=True):
        row["ratio"] = ratio
    lucky = [row | {"ratio": 64.0} for row in rows[:1]]  # the mean of 1 and 64 is 8
    worths = {e.kernel: e.worth for e in corpus_of(tmp_path, rows + lucky).examples}
    assert max(worths, key=worths.__getitem__) == "k0"
    assert worths["k1"] < worths["k0"]
    for row in rows:
        row["ratio"] = 2.0
    assert {e.worth for e in corpus_of(tmp_path, rows).examples} == {1.0}


def test_slow_answers_become_less_likely_and_fast_ones_more(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    task = tasks()[0]
    schedules = list(dict.fromkeys(task.space.first()))[:2]
    examples = tuple(
        TaughtAnswer(
            kind="screened",
            problem=task.name,
            family=task.family,
            prompt=ScheduleLanguage().prompt(task),
            answer=schedule_text(schedule),
            kernel="",
            worth=worth,
        )
        for schedule, worth in zip(schedules, (1.0, -1.0), strict=True)
    )
    start, base = load_policy(base_folder, training=True), load_policy(base_folder)
    rows = [tokenized(base.tokenizer, one.prompt, one.answer) for one in examples]
    pad = base.tokenizer.pad_token_id

    def likely(model: Any) -> float:
        with torch.no_grad():
            logs, asked = answer_logs(model, rows, pad)
        first, second = (logs * asked).sum(-1).tolist()
        return float(first - second)

    before = likely(base.model)
    corpus = replace(material, examples=examples)
    done = sft(LearnStage(SMALL.changed(steps=30), corpus, start, base, tasks(), tmp_path / "sft"))
    assert likely(done.policy.model) > before + 0.5


def corpus_of(folder: Path, rows: list[dict[str, Any]]) -> Corpus:
    for name in "abcdefgh":
        words = " ".join(f"{name} {n % 7} reads a row and writes a sum" for n in range(60))
        (folder / f"{name}.txt").write_text(words)
    ledger: Any = SimpleNamespace(writing_answers=lambda fingerprint: rows)
    unseen = {"losses": ["softmax"]}
    language = ScheduleLanguage()
    return build_corpus(tasks(), unseen, language, ledger=ledger, texts=[folder], draws=16)


@pytest.mark.parametrize("judged", [COMPARED - 1, COMPARED])
def test_where_enough_problems_are_compared_only_what_was_judged_is_taught(
    tmp_path: Path, judged: int
) -> None:
    found = corpus_of(tmp_path, answers(judged, 0))
    kinds = {name: {e.kind for e in found.examples if e.problem == name} for name in NAMES}
    assert 1 / len(NAMES) >= KNOWN_WELL
    if judged == COMPARED:
        assert kinds[NAMES[0]] == {"screened"}
        assert not any(kinds[name] for name in NAMES[1:])
    else:
        assert kinds[NAMES[0]] == {"screened", "generated"}
        assert all(kinds[name] == {"generated"} for name in NAMES[1:])


def test_a_soup_has_the_mean_weights_of_its_members_and_goes_on_after_a_kill(
    material: Corpus, base_folder: Path, tmp_path: Path
) -> None:
    config = SMALL.changed(steps=2, soup=3)

    def soup() -> dict[str, Any]:
        start, base = load_policy(base_folder, training=True), load_policy(base_folder)
        done = sft(LearnStage(config, material, start, base, tasks(), tmp_path / "sft"))
        assert done.trained.steps == 6
        return weights(tmp_path / "sft")

    whole = soup()
    members = [weights(tmp_path / "sft" / f"member-{place}") for place in range(3)]
    for name, one in whole.items():
        each = torch.stack([member[name] for member in members])
        assert torch.allclose(one, each.mean(0), atol=1e-6)
    assert any(not torch.equal(members[0][name], members[1][name]) for name in whole)
    shutil.rmtree(tmp_path / "sft" / "member-2")
    (tmp_path / "sft" / "policy.json").unlink()
    assert all(torch.equal(one, whole[name]) for name, one in soup().items())
    steps = [float(row["step"]) for row in read_curve(tmp_path / "sft")]
    assert steps == [float(one) for one in range(6)]
    config = config.changed(soup=2)
    with pytest.raises(LearnError, match="has soup 3, and this one 2"):
        soup()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_blurred_prompt_keeps_its_choices_and_moves_its_sizes_by_one(share: float) -> None:
    prompt = ScheduleLanguage().prompt(tasks()[0])
    facts, kept, moved = facts_of(prompt), 0, 0
    for seed in range(300):
        found = ScheduleLanguage().blurred(prompt, share, random.Random(seed))
        assert found.split("; ")[2] == prompt.split("; ")[2]
        blurred = facts_of(found)
        assert all(abs(value - facts[name]) <= 1 and value >= 1 for name, value in blurred.items())
        kept += len(blurred)
        moved += sum(value != facts[name] for name, value in blurred.items())
    assert kept / (300 * len(facts)) == pytest.approx(1 - share, abs=0.05)
    assert (moved > 0) == (share > 0)
    assert (found == prompt) == (share == 0)


def facts_of(prompt: str) -> dict[str, int]:
    words = prompt.split("; ")[1].split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_policy(folder).model.named_parameters())


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
    done = sft(LearnStage(config, material, start, base, tasks(), tmp_path / "sft"))
    held_out = TextWindows(material.held_out, base.tokenizer, config.context)
    wanted = BaseMemory(base.model, held_out).measure(done.policy.model).forgetting
    assert done.trained.forgetting == pytest.approx(wanted, abs=1e-6)


NAMES = [one.name for one in tasks()]
