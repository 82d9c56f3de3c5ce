"""A rule: its name, what it matches, severity, reason and fix. A file's RULES are added there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ratchet.port.finding import Match, PortFinding, Severity
from ratchet.port.source import SourceText

Tree = TypeVar("Tree")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[Tree]):
    """One rule on the syntax of one language."""

    name: str
    severity: Severity
    why: str
    fix: str
    matches: Callable[[Tree], Iterator[Match]]

    def findings(self, tree: Tree, source: SourceText) -> Iterator[PortFinding]:
        """Yield what the rule finds in a text."""
        for match in self.matches(tree):
            yield source.finding(
                match, rule=self.name, severity=self.severity, why=self.why, fix=self.fix
            )
