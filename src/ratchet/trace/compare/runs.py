"""Runs by path: a trace's file, or a folder with one file for each rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ratchet.base import files
from ratchet.base.errors import TraceError
from ratchet.trace.analysis.analyse import analyse
from ratchet.trace.answers.report import Report
from ratchet.trace.answers.roofline import Rooflines
from ratchet.trace.compare.diff import Diff, Side, compare, side, together
from ratchet.trace.compare.ranks import Ranks, each_rank, read_ranks, report_file
from ratchet.trace.read.columns import Trace
from ratchet.trace.read.file import read


def report_run(
    path: Path, ceilings: Rooflines | None = None, rank: int | None = None
) -> Report | Ranks:
    """Report a file, a folder's ranks together, or the one that `rank` names.

    A folder with one trace counts as that trace. TraceError if nothing can be read.
    """
    check(path)
    if not path.is_dir():
        return report_file(path, read(path), ceilings)
    if rank is not None:
        file, trace, faults = _one(path, rank)
        answers = report_file(file, trace, ceilings)
        return replace(answers, rank=rank, faults=(*faults, *answers.faults))
    ranks = read_ranks(path, ceilings)
    if len(ranks.reports) > 1:
        return ranks
    alone = ranks.reports[0]
    return replace(alone, faults=(*ranks.faults, *alone.faults))


def diff_runs(before: Path, after: Path, rank: int | None = None) -> Diff:
    """Compare two files or two folders: the sums over their ranks, or the one that `rank` names."""
    check(before)
    check(after)
    names = [path.resolve().name for path in (before, after)]
    if names[0] == names[1]:
        names = [str(before), str(after)]
    first = _side(before, names[0], rank)
    return compare(first, _side(after, names[1], rank))


def _side(path: Path, name: str, rank: int | None) -> Side:
    """Return a file's side, the sum over a folder's ranks, or that of the one that `rank` names."""
    if not path.is_dir():
        return replace(side(analyse(read(path))), name=name)
    faults: list[str] = []
    if rank is not None:
        _, trace, faults = _one(path, rank)
        sides = [side(analyse(trace))]
    else:
        sides = [
            replace(side(analyse(trace)), ranks=(number,))
            for number, _, trace in each_rank(path, faults)
        ]
    whole = together(name, sides)
    return replace(whole, faults=(*faults, *whole.faults))


def check(path: Path) -> None:
    """Raise TraceError if a path is not a file or folder that can be opened.

    Pipes and devices are refused before they are opened: reading one could wait for ever.
    """
    why = files.why_not_folder(path) if path.is_dir() else files.why_not_file(path)
    if why:
        raise TraceError(f"{path} {why}: give a trace's file, or a folder of them")


def _one(folder: Path, rank: int) -> tuple[Path, Trace, list[str]]:
    """Return the file and trace of one rank in a folder, and the faults of files before it."""
    faults: list[str] = []
    seen = []
    for number, path, trace in each_rank(folder, faults):
        if number == rank:
            return path, trace, faults
        seen.append(str(number))
    raise TraceError(f"{folder} has no rank {rank}: it has {', '.join(seen)}")
