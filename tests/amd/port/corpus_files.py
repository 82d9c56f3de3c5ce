"""The annotated corpus: what each file should be told, what a scan tells, and what is right.

A comment `port: RULE, RULE` names the rules that match on its line, or, if it stands alone, on the
next line. A line `problem: NAME: x, w = INPUTS -> OUTPUT` says what a kernel computes: NAME is a
bound function, or is left out for the `ModelNew` of the file.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from ratchet.amd.port.scan import ScannedFile, scan

CORPUS = Path(__file__).parent / "corpus"
MARK = re.compile(r"(?://|#|/\*) ?port: ([\w, -]+)")
PROBLEM = re.compile(r"^(?:// )?problem: (?:(\w+): )?([\w, ]+?) = (.+) -> (.+)$", re.MULTILINE)
PROBLEM_FILE = """\
import torch
import torch.nn.functional as F
from torch import bincount, cat, int8, rand, randint, randn, zeros


class Model(torch.nn.Module):
    def forward(self, {names}):
        return {output}


def get_inputs():
    {names} = {inputs}
    return [{names}]


def get_init_inputs():
    return []
"""
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


def write_problems(folder: Path, root: Path = CORPUS) -> int:
    """Write a problem file for each kernel that says what it computes; return their number."""
    count = 0
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.cu"))):
        for name, names, inputs, output in PROBLEM.findall(path.read_text()):
            text = PROBLEM_FILE.format(names=names, inputs=inputs, output=output)
            (folder / f"{name or path.stem}.py").write_text(text)
            count += 1
    return count


def told(scanned: list[ScannedFile]) -> Counter[Place]:
    """Return the findings of a scan: file, line, rule."""
    return Counter((one.file, one.line, one.rule) for file in scanned for one in file.findings)


def scores(root: Path = CORPUS) -> tuple[Counter[Place], Counter[Place], Counter[Place]]:
    """Return what was found and expected, what was found alone, what was missed."""
    wanted, got = expected(root), told(scan(root))
    return wanted & got, got - wanted, wanted - got
