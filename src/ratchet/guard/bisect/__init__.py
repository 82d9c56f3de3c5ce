"""Bisect a slowdown: confirm the endpoints, search, confirm the commit against its parent."""

from __future__ import annotations

import fcntl
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn

from ratchet.base.devices.probe import short_hash
from ratchet.base.errors import MeasureError, RepositoryError
from ratchet.base.files import make_folder, write_whole
from ratchet.base.git import git, has_changes, resolve
from ratchet.base.measure import WIDEST
from ratchet.base.show import model as m
from ratchet.base.show.terminal import MovingLine
from ratchet.guard.bisect.search import GOOD, STOP, CommitPair, CommitSearch, Effect, evidence
from ratchet.guard.checkouts import Checkouts
from ratchet.guard.checkouts.provenance import prove
from ratchet.guard.command import MeasuredCommand
from ratchet.guard.history.plot import short_revision


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    revision: str
    subject: str
    merge: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRange:
    """GOOD, and the commits after it up to BAD along the first parents."""

    root: Path
    good: str
    after: tuple[CommitLine, ...]

    @property
    def bad(self) -> str:
        return self.after[-1].revision


def commit_range(folder: Path, good: str, bad: str) -> CommitRange:
    """Return the commits between two revisions.

    Raises RepositoryError: no repository, no such revision, the same commit twice, or GOOD is not
    an ancestor of BAD.
    """
    root = Path(git(folder, "rev-parse", "--show-toplevel"))
    first, last = resolve(folder, good), resolve(folder, bad)
    if first == last:
        raise RepositoryError(f"{good!r} and {bad!r} are the same commit {first[:10]}: give two")
    try:
        base = git(folder, "merge-base", first, last)
    except RepositoryError:
        base = ""
    if base != first:
        shallow = git(folder, "rev-parse", "--is-shallow-repository") == "true"
        remedy = (
            "this clone is shallow: run git fetch --unshallow"
            if shallow
            else f"bisect from where they part: {base[:12]}"
            if base
            else "they share no history"
        )
        raise RepositoryError(f"GOOD {good!r} is not an ancestor of BAD {bad!r}; {remedy}")
    lines = git(
        folder, "log", "--reverse", "--first-parent", "--format=%H%x00%P%x00%s", f"{first}..{last}"
    ).splitlines()
    after = []
    for line in lines:
        revision, parents, subject = line.split("\0", 2)
        after.append(CommitLine(revision=revision, subject=subject, merge=" " in parents))
    return CommitRange(root=root, good=first, after=tuple(after))


BisectAnswer = Literal["found", "narrowed", "not reproduced"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A commit of the credible set."""

    revision: str
    subject: str
    probability: float
    skipped: str  # Why it could not be measured; empty if it was, or was not needed


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectResult:
    answer: BisectAnswer
    reason: str
    good: str
    bad: str
    commits: int  # Between GOOD and BAD, with BAD
    suspects: tuple[Suspect, ...]
    """The credible set at 95 %, the most probable first; empty if nothing was reproduced."""
    change: float | None  # Change of the metric from GOOD to BAD: 0.02 is 2 % more
    low: float | None
    high: float | None
    pairs: dict[str, int]  # The number measured at the ends, in the search and in the confirmation
    resumed_pairs: int
    notes: tuple[str, ...]

    @property
    def found(self) -> Suspect | None:
        return self.suspects[0] if self.answer == "found" else None


class JournalLine(CommitPair, frozen=True, kw_only=True, omit_defaults=True):
    """One pair, or a commit that is skipped."""

    phase: str  # `ends`, `search`, `confirm` or `skip`
    why: str = ""


class Journal:
    """The lines of one bisection; a line cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        self._path = path
        self.lines: list[JournalLine] = []
        if not path.exists():
            return
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        self.lines = [msgspec.json.decode(one, type=JournalLine) for one in whole.splitlines()]
        if whole != content:
            write_whole(path, whole)

    def add(self, line: JournalLine) -> None:
        """Append a line; it is on the disk when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.lines.append(line)

    def of(self, phase: str) -> list[JournalLine]:
        return [one for one in self.lines if one.phase == phase]


LEAST_ENDS, MOST_ENDS, ALIKE_AFTER = 4, 128, 8
DIFFERENT = 0.2
"""The search begins once the endpoints are alike with less than this probability. That they are
stays one of its hypotheses, and more pairs of them one of its probes."""
SURELY_DIFFERENT = 0.01
"""Nothing is found while it is more likely that nothing changed. Where noise is as the model has
it, endpoints that are alike so have a commit found in at most 1 of 100 bisections."""
LIKELY, DOUBTED = 0.6, 0.25
"""A commit is paired with its parent once it is likely, until it is doubted: near the end that
tells more than a probe does."""
_CONFIRMING = math.log(20)
_MOST_CONFIRMING, _LEAST_CONFIRMING = 128, 4
OnPair = Callable[[str, int, float], None]
"""Called with the phase, the pairs so far, and the highest probability of a commit."""
Measure = Callable[[int], float | str]
"""Measures a commit of the range once; returns its metric, or why it has none."""
CERTAIN = 2.5  # Standard errors of the effect within which it surely lies


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectOptions:
    command: MeasuredCommand
    build: str = ""
    build_limit_s: float = 3600.0
    most_pairs: int = 400  # In the search
    at_least: float = 0.005  # A difference of the endpoints that is surely smaller is none
    seed: int = 0


def state_folder(place: Path, commits: CommitRange, options: BisectOptions) -> Path:
    """Return the folder of this very bisection: the same question continues there."""
    asked = {
        "root": str(commits.root),
        "ends": [commits.good, commits.bad],
        "command": [*options.command.words, options.command.metric],
        "build": options.build,
    }
    return place / short_hash(asked)


def bisect_commits(
    folder: Path,
    commits: CommitRange,
    options: BisectOptions,
    *,
    place: Path,
    on_pair: OnPair = lambda phase, pairs, best: None,
    on_work: Callable[[str], None] = lambda words: None,
) -> BisectResult:
    """Bisect in checkouts under `place`, where a killed run has left its pairs and builds.

    `on_work` hears which commit is built or run. Raises MeasureError (an endpoint cannot be built
    or measured); RepositoryError (another run bisects the same right now); GuardError (a commit
    runs other code than its checkout's).
    """
    notes: list[str] = []
    with _locked(place):
        journal = Journal(place / "pairs.jsonl")
        checkouts = Checkouts(folder, place / "checkouts", options.build, options.build_limit_s)
        proven: set[str] = set()

        def measure(commit: int) -> float | str:
            revision = commits.good if commit == GOOD else commits.after[commit].revision
            if not checkouts.is_built(revision):
                on_work(f"building {revision[:10]}")
                proven.clear()  # a build may have changed what others import
            checkout = checkouts.get(revision)
            if checkout.why:
                return checkout.why
            on_work(f"running {revision[:10]}")

            def run(environment: Mapping[str, str]) -> float | str:
                more = {**environment, "RATCHET_COMMIT": revision}
                return options.command.run(checkout.folder, more)

            if revision not in proven:
                words = options.command.words
                figure, missing = prove(run, words, checkout, f"commit {revision[:10]}")
                if isinstance(figure, str):
                    return figure
                proven.add(revision)
                if missing and not any(note.endswith(missing) for note in notes):
                    notes.append(f"commit {revision[:10]}: {missing}")
            return run(checkout.environment)

        if has_changes(folder):
            notes.append("your checkout has uncommitted changes; they were not measured")
        run_all = BisectRun(commits, options, journal, measure, on_pair)
        return run_all.answer(notes)


class BisectRun:
    """One bisection over anything that measures a commit by its number."""

    def __init__(
        self,
        commits: CommitRange,
        options: BisectOptions,
        journal: Journal,
        measure: Measure,
        on_pair: OnPair,
    ) -> None:
        self._commits, self._options, self._journal = commits, options, journal
        self._measure, self._on_pair = measure, on_pair
        self._last = len(commits.after) - 1
        self._skipped = {one.commit: one.why for one in journal.of("skip")}
        self._resumed = len(journal.lines) - len(self._skipped)

    def answer(self, notes: Sequence[str] = ()) -> BisectResult:
        """Run to the answer, from where the journal ends; `notes` may grow on the way."""
        measured = [one for one in self._journal.lines if one.phase != "skip"]
        search = CommitSearch(len(self._commits.after), measured)
        if alike := self._confirm_ends(search):
            return self._result("not reproduced", alike, search, notes)
        while not (reason := self._search(search)):
            confirmed = self._confirm(search)
            if confirmed:
                return self._result("found", "", search, notes)
            if confirmed is None:
                reason = "the most probable commit could not be confirmed against its parent"
                break
        if search.unchanged > DIFFERENT:
            return self._result("not reproduced", _unchanged(search), search, notes)
        return self._result("narrowed", reason, search, notes)

    def _confirm_ends(self, search: CommitSearch) -> str:
        """Measure the endpoints until they differ; return why they do not, or an empty text."""
        while not self._journal.of("search"):
            count, effect = self._of_ends(), search.effect
            if count >= LEAST_ENDS and search.unchanged < DIFFERENT:
                break
            reach = abs(effect.mean) + CERTAIN * effect.error
            if count >= ALIKE_AFTER and reach < math.log1p(self._options.at_least):
                return (
                    f"GOOD and BAD are alike: they differ by less than {self._options.at_least:.1%}"
                )
            if count >= MOST_ENDS:
                return (
                    f"{count} pairs show no clear difference between GOOD and BAD "
                    f"({math.expm1(effect.mean):+.2%}, one pair varies by {effect.noise:.1%})"
                    f"{_too_noisy(effect)}"
                )
            line = self._pair("ends", self._last, GOOD)
            if line is None:
                raise MeasureError(
                    f"BAD {self._commits.bad[:10]} cannot be measured: {self._skipped[self._last]}"
                )
            search.add(line)
        return ""

    def _of_ends(self) -> int:
        """Return how many pairs of the endpoints were measured, in whatever phase."""
        lines = self._journal.lines
        return sum((one.commit, one.against) == (self._last, GOOD) for one in lines)

    def _search(self, search: CommitSearch) -> str:
        """Probe until one commit stands out; return why none does, or an empty text."""
        while not self._stands_out(search):
            count = len(self._journal.of("search"))
            if count >= self._options.most_pairs:
                return f"{count} pairs do not suffice (--max-pairs)"
            commit = search.next_probe(self._skipped)
            if commit is None:
                return (
                    "the commits that are left cannot be measured"
                    if self._skipped
                    else "no further pair would tell the commits apart"
                )
            if search.unchanged > DIFFERENT and self._of_ends() >= MOST_ENDS:
                return "the endpoints do not differ clearly"
            line = self._pair("search", commit, GOOD, float(search.posterior.max()))
            if line is not None:
                search.add(line)
        return ""

    def _stands_out(self, search: CommitSearch) -> bool:
        """Return whether the best commit is to be confirmed, or is the answer if it cannot be."""
        child = search.best()
        alone = {child, child - 1} & self._skipped.keys()
        return float(search.posterior[child]) >= (STOP if alone else LIKELY)

    def _confirm(self, search: CommitSearch) -> bool | None:
        """Pair the best commit with its parent until that shows the effect.

        False if the commit is no longer the likely one, None if it stays undecided.
        """
        child = search.best()
        parent = child - 1 if child else GOOD
        if child in self._skipped or parent in self._skipped:
            return None
        lines = self._journal.of("confirm")
        own = [one.difference for one in lines if (one.commit, one.against) == (child, parent)]
        while len(own) < _MOST_CONFIRMING:
            if search.posterior[child] < DOUBTED:
                return False
            if (
                len(own) >= _LEAST_CONFIRMING
                and search.posterior[child] >= STOP
                and search.unchanged < SURELY_DIFFERENT
                and evidence(own, search.effect) >= _CONFIRMING
            ):
                return True
            line = self._pair("confirm", child, parent, float(search.posterior[child]))
            if line is None:
                return False
            own.append(line.difference)
            search.add(line)
        return None

    def _pair(self, phase: str, commit: int, against: int, best: float = 0.0) -> JournalLine | None:
        """Measure two commits in random order and write the pair down; None if one is skipped."""
        measured = len(self._journal.lines)
        order = [commit, against]
        random.Random(f"{self._options.seed} {measured}").shuffle(order)
        values = {}
        for one in order:
            figure = self._measure(one)
            if isinstance(figure, str):
                figure = self._measure(one)  # once is chance
            if isinstance(figure, str):
                if one == GOOD:
                    raise MeasureError(
                        f"GOOD {self._commits.good[:10]} cannot be measured: {figure}"
                    )
                self._skipped[one] = figure
                self._journal.add(JournalLine(phase="skip", commit=one, why=figure))
                return None
            values[one] = math.log(figure)
        line = JournalLine(
            phase=phase,
            commit=commit,
            against=against,
            value=values[commit],
            reference=values[against],
        )
        self._journal.add(line)
        self._on_pair(phase, measured + 1, best)
        return line

    def _result(
        self, answer: BisectAnswer, reason: str, search: CommitSearch, notes: Sequence[str]
    ) -> BisectResult:
        names, effect, suspects = self._commits.after, search.effect, []
        if answer != "not reproduced":
            share = search.posterior / (1 - search.unchanged)
            suspects = [
                Suspect(
                    revision=names[one].revision,
                    subject=names[one].subject,
                    probability=float(share[one]),
                    skipped=self._skipped.get(one, ""),
                )
                for one in sorted(search.credible(), key=lambda one: -share[one])
            ]
        if answer == "found" and names[search.best()].merge:
            notes = [*notes, "it is a merge: bisect between its parents to look inside"]
        if self._skipped:
            notes = [*notes, f"{len(self._skipped)} commits could not be measured and were skipped"]
        sure = np.expm1([effect.mean, *(effect.mean + s * 2 * effect.error for s in (-1, 1))])
        return BisectResult(
            answer=answer,
            reason=reason,
            good=self._commits.good,
            bad=self._commits.bad,
            commits=len(names),
            suspects=tuple(suspects),
            change=float(sure[0]),
            low=float(sure[1]),
            high=float(sure[2]),
            pairs={name: len(self._journal.of(name)) for name in ("ends", "search", "confirm")},
            resumed_pairs=self._resumed,
            notes=tuple(notes),
        )


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    make_folder(place)
    with (place / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RepositoryError(
                "another ratchet bisect asks the same right now: wait for it, or stop it"
            ) from error
        yield


def _unchanged(search: CommitSearch) -> str:
    """Say that the endpoints do not differ, unless noise could hide a difference that matters."""
    noisy = _too_noisy(search.effect)
    if noisy:
        varies = f"one pair varies by {search.effect.noise:.1%}"
        return f"GOOD and BAD do not differ clearly ({varies}){noisy}"
    return f"GOOD and BAD are alike with a probability of {search.unchanged:.0%}"


def _too_noisy(effect: Effect) -> str:
    """Return what to do if the pairs leave room for a difference of WIDEST, or an empty text."""
    room = abs(effect.mean) + CERTAIN * effect.error
    return ": the machine was too noisy: bisect again" if room > math.log(WIDEST) else ""


SUSPECTS = (
    m.Column("commit", "revision", short_revision),
    m.number("probability", "probability", lambda share: f"{share:.1%}"),
    m.why("why", lambda one: one.skipped or one.subject),
)
_PHASES = {"ends": "of the endpoints", "search": "in the search", "confirm": "against the parent"}


def bisect_report(result: BisectResult) -> m.ResultReport:
    """Describe the answer, the credible set and what it rests on."""
    counts = ", ".join(f"{count} {_PHASES[name]}" for name, count in result.pairs.items() if count)
    change = ""
    if result.change is not None and result.answer != "not reproduced":
        change = (
            f"from GOOD to BAD the metric changes by {result.change:+.2%} "
            f"[{result.low:+.2%}, {result.high:+.2%}]"
        )
    several = len(result.suspects) > 1 or result.answer == "narrowed"
    earlier = f"{result.resumed_pairs} of these pairs are from an earlier run"
    notes = [f"note: {note}" for note in result.notes]
    header = m.blocks(
        m.Lines([_headline(result)], indent=0),
        change,
        m.ResultTable(SUSPECTS, result.suspects) if several else None,
        m.Words(f"pairs measured: {counts or 'none'}; commits: {result.commits}"),
        earlier if result.resumed_pairs else "",
        m.Lines(notes, indent=0) if notes else None,
    )
    return m.ResultReport(header=header)


def _headline(result: BisectResult) -> str:
    if result.found is not None:
        return (
            f"found: {short_revision(result.found.revision)} {result.found.subject} "
            f"({result.found.probability:.1%}, confirmed against its parent)"
        )
    if result.answer == "narrowed":
        return f"narrowed to {len(result.suspects)} commits: {result.reason}"
    return f"not reproduced: {result.reason}"


class PairProgress(MovingLine):
    """A progress line for a bisection; silent when piped."""

    def __init__(self, commits: int, *, console: Console | None = None) -> None:
        super().__init__(f"{commits} commits: the endpoints", 1.0, BarColumn(), console=console)

        self._so_far = f"{commits} commits"

    def measured(self, phase: str, pairs: int, best: float) -> None:
        """Show a measured pair, and how sure the search is."""
        self._so_far = f"{phase}: {pairs} pairs, the best commit {best:.0%}"
        self.move(self._so_far, best)

    def working(self, words: str) -> None:
        """Show which commit is built or run."""
        self.move(f"{self._so_far}; {words}")
