"""See that the named work runs in the candidate's own code, for problems whose task is `own`.

While some batches run, among the timed ones and at secret places, the judge stops the candidate at
random moments and looks whose code its threads stand in (`looks`, `code_places`). A moment at which
any thread runs a library's code, or code that was not in the file that was compiled, speaks against
it; waiting threads and the system do not count. Of the Python around a compiled kernel only its one
thread is free, for as long as it can take to call the kernel. Kernels in Python are asked first
which of torch's operations they used (`library_ops`); who admits nothing is looked at too.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ratchet.judge.integrity.code_places import CodePlace, CodePlaces, Mapping, Owner, read_mappings
from ratchet.judge.integrity.thread_samples import Stand, Unseen, WatchedFamily, watch
from ratchet.judge.sandbox.view import compiler_folders
from ratchet.judge.stage_result import Decided, Ok
from ratchet.judge.verdict import Evidence
from ratchet.kernels.kernel import Kernel, Language
from ratchet.problems.problem import Problem

CHECK: Final = "own work"
FOREIGN_SHARE: Final[dict[Language, float]] = {
    "cpp": 0.1,
    "torch": 0.25,
    "triton": 0.5,
    "hip": 0.5,
}
"""At most this share of the moments may stand against a kernel. An honest one in cpp has none (none
of 891 moments of work of 89 kernels); in Python every kernel has its memory from torch, and the
interpreter of Triton stands on it too."""
NO_ACCIDENT: Final = 2
"""So many moments stand against a compiled kernel whatever their share: it may spin beside them."""
ENOUGH, MANY = 16, 40
"""Moments at which somebody worked, or all moments that were looked at: without so many of the one
or the other nothing is known. A kernel of a microsecond, or one that waits for its threads, is at
work at few of many moments. 16 moments miss what is a third of the work once in 700 times; 40 looks
miss what takes a tenth of a batch once in 70 times, and a third of it once in ten million."""
BATCH_S, CALL_S = 0.001, 0.00001
"""What the Python around a compiled kernel may seem to take of a batch, and more for each call."""
INTERPRETED_SHARE, INTERPRETED = 0.25, 8
"""And it must be seen at more than this share of the looks at which anybody ran, and so often: one
look stands for much of a long batch. In 104 trials of honest kernels, of a microsecond to 4 ms a
call, 25 of them beside two or three busy loops on two cores, it came to 0.37 of what is allowed
where these two held, and to 0.8 at 4 looks of 25."""
PLENTY: Final = 80
"""Moments of a kernel in Python, where LOOKING_S has room for them: between two calls of a few
microseconds the worker's Python thins out torch's share, to 0.36 where it did all of the work."""
LOOKING_S: Final = 0.2
"""What looking at a case may take, batches and all, where a kernel is long enough to be seen."""
PATIENCE_S: Final = 5.0
"""And what it may take until ENOUGH is seen of a kernel that takes microseconds."""
MOST_BATCHES: Final = 8
BATCH_COST_S: Final = 0.02
"""Drawing the values of a batch, stopping the reference worker and looking."""
SHOWN: Final = 4
INTERPRETER: Final = ("triton", "numpy", "numpy.libs", "ratchet")
"""Packages that run a Triton kernel where there is no GPU."""
AGAINST: Final[frozenset[Owner]] = frozenset({"library", "made"})


class Watch:
    """The moments at which one candidate's threads were seen, over all of its launches."""

    def __init__(self, places: CodePlaces, language: Language, *, mixed: bool = False) -> None:
        """`mixed`: what is allowed cannot be told from what is not, so nobody is convicted."""
        self._places = places
        self._compiled = language == "cpp"
        self._mixed = mixed
        self._most = FOREIGN_SHARE.get(language, 0.0)
        self.looked = 0
        """Looks before the answer came, whatever was going on."""
        self.moments = 0
        """Of these, at which somebody worked."""
        self.against = 0
        self.firsts = 0
        """Of these, the first look at a batch: nothing in the process foretells it."""
        self.first_against = 0
        self.active = 0
        """Looks at which anybody ran, the Python around a compiled kernel too."""
        self.interpreted = 0
        """Of these, at which that Python did."""
        self._interpreted_s = self._allowed_s = 0.0
        self._worker = 0
        self._by_name: Counter[str] = Counter()
        self._made = 0

    def looks(
        self, family: WatchedFamily, expected_s: float, calls: int
    ) -> Callable[[Callable[[], bool]], None]:
        """Return what to do once a batch of some calls has begun, which takes `expected_s` in all.

        The family stands now. Raises Unseen, in the batch, if it cannot be looked at.
        """
        self._worker = family.worker
        rng = secrets.SystemRandom()

        def meanwhile(over: Callable[[], bool]) -> None:
            looked, interpreted = self.looked, self.interpreted
            watch(family, self._note, over=over, expected_s=expected_s, draw=rng.random)
            share = (self.interpreted - interpreted) / max(1, self.looked - looked)
            self._note_batch(share * expected_s, calls)

        return meanwhile

    def _note(self, stands: Sequence[Stand], *, first: bool) -> None:
        self.looked += 1
        mappings: dict[int, list[Mapping]] = {}
        seen: list[CodePlace | None] = []
        for stand in stands:
            try:
                if stand.pid not in mappings:
                    mappings[stand.pid] = read_mappings(stand.pid)
                if not mappings[stand.pid]:
                    continue  # it has given up its memory, and only waits to be reaped
                place = self._places.place(stand.pid, stand.address, mappings[stand.pid])
                seen.append(self._counted(stand, place))
            except PermissionError as error:
                raise Unseen("this machine does not let the judge read its memory") from error
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError as error:
                seen.append(CodePlace(owner="made", name=f"code that cannot be read ({error})"))
        self.active += bool(seen)
        self.interpreted += None in seen
        working = {place for place in seen if place is not None}
        if not working:
            return
        foreign = {place for place in working if place.owner in AGAINST}
        self.moments += 1
        self.firsts += first
        self.against += bool(foreign)
        self.first_against += bool(foreign) and first
        self._made += any(place.owner == "made" for place in foreign)
        # One name a moment, so that idle company of a library's thread does not thin it out.
        self._by_name[min(place.name for place in foreign or working)] += 1

    def _counted(self, stand: Stand, place: CodePlace) -> CodePlace | None:
        """The place as it counts; None for the Python that calls a compiled kernel.

        That has one thread: whoever else runs Python there has it do the work.
        """
        if not self._compiled or place.owner != "worker":
            return place
        if stand.pid == stand.thread == self._worker:
            return None
        return CodePlace(owner="library", name=f"{place.name} in another thread")

    def _note_batch(self, interpreted_s: float, calls: int) -> None:
        """Note how long the Python around a compiled kernel seems to have run in one batch."""
        self._interpreted_s += interpreted_s
        self._allowed_s += BATCH_S + calls * CALL_S

    @property
    def _interpreter_works(self) -> bool:
        """True if the Python around a compiled kernel ran longer than calling it can take."""
        return (
            self._interpreted_s > self._allowed_s
            and self.interpreted >= INTERPRETED
            and self.interpreted > INTERPRETED_SHARE * self.active
        )

    @property
    def enough(self) -> bool:
        """True if what was seen carries an answer."""
        return self.moments >= ENOUGH or self.looked >= MANY

    @property
    def plenty(self) -> bool:
        """True if more looks would say no more: shares near what is allowed take more moments."""
        return self.enough and (self._compiled or self.moments >= PLENTY)

    @property
    def failed(self) -> bool:
        """True if the work was seen to run elsewhere than in the candidate's code."""
        at_once = self._compiled and (
            self.against >= NO_ACCIDENT
            or self.first_against > self._most * self.firsts
            or self._interpreter_works
        )
        return at_once or self.against > self._most * self.moments

    @property
    def _mostly_made(self) -> bool:
        """True if what spoke against it was mainly code that no file holds."""
        return 2 * self._made > self.against

    def shares(self) -> str:
        """The share of the moments by file, the largest first."""
        shown = [
            f"{100 * count / self.moments:.0f} % {name}"
            for name, count in self._by_name.most_common(SHOWN)
        ]
        more = len(self._by_name) - SHOWN
        return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])

    def conclude(self) -> Ok[str] | Decided:
        """Decide whether the work was seen to be the candidate's own.

        The value says why that is not known, or nothing: a compiled kernel that was seen at work
        too rarely, and never elsewhere than in its own code, is not `proven`, but nothing speaks
        against it. Of one in Python there is only its own process's word besides: `unmeasured`.
        """
        seen = f"{self.shares()}, of " if self.moments else ""
        detail = f"{seen}{self.moments} moments of work among {self.looked} that were looked at"
        if self._interpreter_works:
            detail += f", at {self.interpreted} of which the Python around it worked"
        unseen = not self.enough and not self.against and self._compiled
        passed = None if unseen and not self.failed else self.enough and not self.failed
        evidence = (Evidence(check=CHECK, passed=passed, detail=detail),)
        if self.failed and self._mostly_made and not self._compiled:
            why = f"nobody can say whose work code is that is made at run time: {detail}"
            return Decided("unmeasured", f"right, but {why}; write it in cpp", evidence)
        if self.failed and self._mixed:
            why = (
                "nobody can say whose work it is, as what the problem allows lies in "
                f"one file with torch's other operations: {detail}; write it in cpp, or in Triton "
                "where it runs on a GPU"
            )
            return Decided("unmeasured", f"right, but {why}", evidence)
        if self.failed:
            reason = f"the problem asks for its own work, and it runs elsewhere: {detail}"
            return Decided("cheating", reason, evidence)
        if self.enough:
            return Ok("", evidence)
        why = (
            "it runs too shortly to say whose code works: it was seen at "
            f"{self.moments} moments, and {ENOUGH} are needed; give the problem a larger "
            "case, or judge where less else is going on"
        )
        if not unseen:
            return Decided("unmeasured", f"right, but {why}; {detail}", evidence)
        return Ok(why, evidence)


@contextlib.contextmanager
def places_of(problem: Problem, kernel: Kernel, library: int | None) -> Iterator[CodePlaces | None]:
    """Tell whose code is whose for a kernel; None if the problem takes the work from anybody."""
    if problem.task == "any":
        yield None
        return
    with CodePlaces(
        library,
        allowed=problem.libraries,
        folders=compiler_folders() if kernel.language == "cpp" else (),
        interpreter=INTERPRETER if kernel.language in ("triton", "hip") else (),
    ) as places:
        yield places


def watch_for(places: CodePlaces | None, problem: Problem, kernel: Kernel) -> Watch | None:
    """A watch over a kernel; None where none is asked for.

    In Python a library that is allowed by name lies in the same file as all of torch's others.
    """
    if places is None:
        return None
    mixed = kernel.language != "cpp" and bool(problem.libraries)
    return Watch(places, kernel.language, mixed=mixed)


def batches_to_watch(expected_s: float, cases: int) -> int:
    """Return how many batches of a case, over all launches, are looked at: at least one."""
    fitting = int(LOOKING_S / cases / (expected_s + BATCH_COST_S))
    return max(1, min(MOST_BATCHES, fitting))
