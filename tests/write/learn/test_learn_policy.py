"""A policy as an author, and what a server needs to serve it."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_bench import tasks

from ratchet.base.errors import LearnError, RatchetError
from ratchet.write.author import Progress
from ratchet.write.learn.evaluate import PolicyAuthor, policy_author
from ratchet.write.learn.languages import SourceLanguage, agent_messages
from ratchet.write.learn.models import Policy, load_policy
from ratchet.write.writing_result import parse_authors


def test_a_server_that_puts_chats_by_the_policys_template_asks_as_it_was_taught(
    taught_folder: Path,
) -> None:
    """`vllm serve` and `transformers serve` need a chat template, and read it from the folder."""
    tokenizer = load_policy(taught_folder).tokenizer
    task = tasks()[0]
    messages = [{"role": role, "content": text} for role, text in agent_messages(task, "cpp")]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == SourceLanguage("cpp").prompt(task)


def test_the_policy_is_an_author(taught: Policy) -> None:
    author = PolicyAuthor(taught, "policy:x")
    progress = Progress(problem=tasks()[0].problem)
    found = author.propose(progress, 4)
    more = author.propose(progress, 4)
    hashes = [one.kernel.hash for one in (*found, *more)]
    assert found and len(hashes) == len(set(hashes))
    assert all(one.author == "policy:x" and one.schedule for one in found)
    assert len(found[0].features) == len(tasks()[0].space.features(found[0].schedule))


def test_a_folder_without_a_policy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LearnError, match="holds no policy"):
        policy_author(str(tmp_path))
    with pytest.raises(RatchetError, match="names no folder"):
        parse_authors("search,policy:", has_agent=False)
