"""The annotated corpus: what each file should be told, and what a scan tells.

A comment `port: RULE, RULE` names the rules that match on its line, or, if it stands alone, on the
next line.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ratchet.port.scan import ScannedFile, scan

CORPUS = Path(__file__).parent / "corpus"
MARK = re.compile(r"(?://|#|/\*) ?port: ([\w, -]+)")
Place = tuple[str, int, str]


def expected(root: Path = CORPUS) -> Counter[Place]:
    """Return the annotated findings: file, line, rule."""
    found: Counter[Place] = Counter()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(root).as_posix()
            for line, rules in annotations(path.read_text()):
                found.update((name, line, rule) for rule in rules)
    return found


def annotations(text: str) -> list[tuple[int, list[str]]]:
    """Return the rules of each annotated line."""
    found = []
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if mark := MARK.search(line):
            at = index + 1
            if not line[: mark.start()].strip():
                at += 1
            found.append((at, [rule.strip() for rule in mark[1].split(",") if rule.strip()]))
    return found


def told(scanned: list[ScannedFile]) -> Counter[Place]:
    """Return the findings of a scan: file, line, rule."""
    return Counter((one.file, one.line, one.rule) for file in scanned for one in file.findings)


def scores(root: Path = CORPUS) -> tuple[Counter[Place], Counter[Place], Counter[Place]]:
    """Return what was found and expected, what was found alone, what was missed."""
    wanted, got = expected(root), told(scan(root))
    return wanted & got, got - wanted, wanted - got
