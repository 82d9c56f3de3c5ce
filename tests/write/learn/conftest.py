"""A small base model and a corpus for all tests of the room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_bench import SMALL, corpus, tasks

from ratchet.write.learn.corpus import Corpus
from ratchet.write.learn.models import Policy, load_policy
from ratchet.write.learn.stages import LearnStage, pretrain, sft

MadeOnce = Callable[[str, Callable[[], Path]], Path]


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def base_folder(material: Corpus, shared: Path, made_once: MadeOnce) -> Path:
    """A base model that knows a little of the text."""
    return made_once("learn-base", lambda: pretrain(SMALL, material, shared / "base").folder)


@pytest.fixture(scope="session")
def taught_folder(base_folder: Path, material: Corpus, shared: Path, made_once: MadeOnce) -> Path:
    """A policy that writes valid schedules most of the time."""

    def teach() -> Path:
        base, start = load_policy(base_folder), load_policy(base_folder, training=True)
        config = SMALL.changed(steps=100, measure_every=50, save_every=50, replay=0.05)
        return sft(LearnStage(config, material, start, base, tasks(), shared / "taught")).folder

    return made_once("learn-taught", teach)


@pytest.fixture
def base(base_folder: Path) -> Policy:
    return load_policy(base_folder)


@pytest.fixture
def start(base_folder: Path) -> Policy:
    """The base model again, to train."""
    return load_policy(base_folder, training=True)


@pytest.fixture
def taught(taught_folder: Path) -> Policy:
    return load_policy(taught_folder, training=True)
