"""A rule: its name, what it matches, severity, reason and fix; and the table that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ratchet.amd.port.finding import Match, PortFinding, Severity
from ratchet.amd.port.source import CodeText

Tree = TypeVar("Tree")
Matching = Callable[[Tree], Iterator[Match]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[Tree]):
    """One rule on the syntax of one language."""

    name: str
    severity: Severity
    why: str
    fix: str
    matches: Matching[Tree]

    def findings(
        self, tree: Tree, source: CodeText, leave: Callable[[int], bool] = lambda _: False
    ) -> Iterator[PortFinding]:
        """Yield what the rule finds in a text; `leave` says which bytes are not looked at."""
        for match in self.matches(tree):
            if leave(match.at):
                continue
            yield source.finding(
                match, rule=self.name, severity=self.severity, why=self.why, fix=self.fix
            )


class Rules(Generic[Tree]):
    """The rules of one file: a function becomes one by the decorator `add`."""

    def __init__(self) -> None:
        self._rules: list[Rule[Tree]] = []

    def __iter__(self) -> Iterator[Rule[Tree]]:
        return iter(self._rules)

    def add(
        self, name: str, severity: Severity, *, fix: str
    ) -> Callable[[Matching[Tree]], Matching[Tree]]:
        """Return the decorator that makes a rule of what matches; its docstring is the reason."""

        def added(matches: Matching[Tree]) -> Matching[Tree]:
            why = " ".join((matches.__doc__ or "").split())
            rule = Rule(name=name, severity=severity, why=why, fix=fix, matches=matches)
            self._rules.append(rule)
            return matches

        return added
