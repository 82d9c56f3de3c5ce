"""The two languages a policy answers in: the generator's schedule as text, and a kernel's source.

A schedule is written as `block=512;grain=8192;...`, every choice of the problem's space once. An
answer that says anything else is invalid: it is never repaired.
"""

from __future__ import annotations

import abc
import random
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, cast

from ratchet.judge.kernels.kernel import Language
from ratchet.write.author import Proposal, Schedule
from ratchet.write.generator.schedule import OPTIONS, TILE_OPTIONS
from ratchet.write.learn.rollouts import DrawRequest
from ratchet.write.learn.tasks import LearnTask, blurred, loop_summary

if TYPE_CHECKING:
    from ratchet.write.agent.prompt import Parent

TASK, ANSWER, END, JUDGED = "<task>", "<answer>", "<end>", "<judged>"
AUTHOR: Final = "policy"
MOST_SAID: Final = 200  # Characters of the judge's words that a short prompt takes up
_PAIR: Final = re.compile(r"([a-z_]+)=([a-z0-9]+);")


class AnswerLanguage(abc.ABC):
    """A form in which a problem is put to a model, and a reader of its answer."""

    name: str
    most_tokens: int

    @abc.abstractmethod
    def prompt(self, task: LearnTask) -> str:
        """Return the text that a model continues."""

    @abc.abstractmethod
    def again(
        self, task: LearnTask, answer: str, said: str, *, right: bool, prompt: str = ""
    ) -> str:
        """Return the prompt for another try after `answer`, with the judge's words `said` on it.

        `prompt` is the first prompt, if it was blurred.
        """

    @abc.abstractmethod
    def read(self, task: LearnTask, answer: str) -> Proposal | str:
        """Return the kernel that an answer proposes, or why it holds none."""

    def blurred(self, prompt: str, share: float, source: random.Random) -> str:
        """Return a less exact prompt to teach with; by default the prompt itself."""
        return prompt

    def choices(self, task: LearnTask) -> Sequence[Sequence[str]]:
        """Return the words allowed at each place of an answer; none if any text is."""
        return ()

    def request(
        self,
        task: LearnTask,
        count: int,
        *,
        prompt: str = "",
        temperature: float = 1.0,
        seed: int = 0,
    ) -> DrawRequest:
        """Return a request for `count` answers to `prompt`, by default the problem's own."""
        return DrawRequest(
            prompt=prompt or self.prompt(task),
            count=count,
            most_tokens=self.most_tokens,
            temperature=temperature,
            seed=seed,
            choices=self.choices(task),
        )


def choice_words() -> list[str]:
    """Return every choice of every space as a word of an answer: `block=512;`."""
    options = [*OPTIONS.items(), *TILE_OPTIONS.items()]
    return list(dict.fromkeys(f"{name}={one};" for name, values in options for one in values))


def schedule_text(schedule: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{name}={value};" for name, value in sorted(schedule))


def read_schedule(text: str, options: dict[str, tuple[str, ...]]) -> Schedule | str:
    """Return the schedule that an answer names, or why it names none.

    A schedule names each choice of `options` once.
    """
    text = text.strip()
    pairs = _PAIR.findall(text)
    if "".join(f"{name}={value};" for name, value in pairs) != text or not pairs:
        return "the answer is no list of choices"
    given = dict(pairs)
    if len(given) != len(pairs):
        return "the answer names a choice twice"
    if set(given) != set(options):
        return "the answer names other choices than the problem has"
    bad = next((name for name in given if given[name] not in options[name]), None)
    if bad is not None:
        return f"{bad} cannot be {given[bad]}"
    return tuple(sorted(given.items()))


class ScheduleLanguage(AnswerLanguage):
    """The generator's schedules. The small Llama has one token for each choice."""

    name = "schedule"
    most_tokens = 160

    def prompt(self, task: LearnTask) -> str:
        """Return the sizes of a problem and of its loops, and its choices, in about 60 words."""
        return f"{TASK} {loop_summary(task)}\n{ANSWER}"

    def again(
        self, task: LearnTask, answer: str, said: str, *, right: bool, prompt: str = ""
    ) -> str:
        """Return the problem with the last answer and the judge's words on it."""
        return f"{prompt or self.prompt(task)}{answer}\n{JUDGED} {said[:MOST_SAID]}\n{ANSWER}"

    def blurred(self, prompt: str, share: float, source: random.Random) -> str:
        """Leave a share of the sizes out, and move as many by one."""
        summary = prompt.removeprefix(f"{TASK} ").removesuffix(f"\n{ANSWER}")
        return f"{TASK} {blurred(summary, share, source)}\n{ANSWER}"

    def read(self, task: LearnTask, answer: str) -> Proposal | str:
        schedule = read_schedule(answer, task.space.options)
        if isinstance(schedule, str):
            return schedule
        return Proposal(kernel=task.space.kernel(schedule), author=AUTHOR, schedule=schedule)

    def choices(self, task: LearnTask) -> Sequence[Sequence[str]]:
        options = sorted(task.space.options.items())
        return [[f"{name}={one};" for one in values] for name, values in options]


class SourceLanguage(AnswerLanguage):
    """Whole kernels, asked for with the agent's own prompt."""

    name = "source"
    most_tokens = 2048

    def __init__(self, language: Language = "cpp") -> None:
        self._language = language

    def prompt(self, task: LearnTask) -> str:
        """Return the agent's prompt for a first draft, as one text."""
        return "\n".join(content for _, content in agent_messages(task, self._language)) + "\n"

    def again(
        self, task: LearnTask, answer: str, said: str, *, right: bool, prompt: str = ""
    ) -> str:
        """Return the agent's prompt with the last try, and the judge's evidence on it."""
        from ratchet.write.agent.prompt import MOST_SOURCE, Parent

        written = self.read(task, answer)
        source = answer if isinstance(written, str) else written.kernel.source
        tried = Parent(source=source[:MOST_SOURCE], verdict=said, evidence=(), profile=())
        messages = agent_messages(task, self._language, tried, kind="improve" if right else "fix")
        return "\n".join(content for _, content in messages) + "\n"

    def read(self, task: LearnTask, answer: str) -> Proposal | str:
        """Return the kernel of the answer's last fenced code block."""
        from ratchet.write.agent.prompt import read_answer

        entry = task.problem.name if task.problem.name.isidentifier() else "generated"
        name = f"{entry}:policy"
        found = read_answer(answer, language=self._language, entry=entry, name=name)
        if isinstance(found, str):
            return found
        return Proposal(kernel=found.kernel, author=AUTHOR)


def agent_messages(
    task: LearnTask,
    language: Language,
    tried: Parent | None = None,
    *,
    kind: Literal["draft", "fix", "improve"] = "draft",
) -> list[tuple[str, str]]:
    """Return the messages (role, text) that the agent sends for a draft, or for another try."""
    from ratchet.base.devices.probe import probe
    from ratchet.write.agent.brief import brief_of, device_facts
    from ratchet.write.agent.prompt import TurnFacts, render
    from ratchet.write.agent.strategy import Assignment

    facts = TurnFacts(
        brief=brief_of(task.problem, language),
        device=tuple(device_facts(probe("cpu"))),
        passages=(),
        best=(),
        failed=(),
        unusable=(),
    )
    parents = [] if tried is None else [tried]
    messages = render(language, facts, Assignment(kind=kind), parents)
    return [(one.role, one.content) for one in messages]


def language_of(answers: str, language: str) -> AnswerLanguage:
    return ScheduleLanguage() if answers == "schedule" else SourceLanguage(cast(Language, language))
