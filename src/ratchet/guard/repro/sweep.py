"""Write a script that shows what a sweep found of one model type."""

from __future__ import annotations

from pathlib import Path

from ratchet.guard.repro.needs import RATCHET
from ratchet.guard.repro.scripts import SWEEP_SCRIPT
from ratchet.guard.repro.write import SCRIPT, Reported, Reproduction, quoted, write_finding


def write_type(name: str, arm: str, title: str, facts: tuple[str, ...], out: Path, *,
               versions: str, quick: bool) -> Reproduction:  # fmt: skip
    """Write the script that runs one arm of a model type beside the step as written."""
    needs = (RATCHET, versions)
    text = SWEEP_SCRIPT.format(
        title=quoted([title]), needs=quoted(needs), type=name, arm=arm, quick=quick
    )
    found = Reported(kind="sweep", title=title, facts=facts, texts={SCRIPT: text}, needs=needs)
    return write_finding(found, out)
