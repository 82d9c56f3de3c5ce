"""A GPU's own clock beside the judge's, and the reference's speed without a candidate.

Only the judge's clock decides. A kernel is `unmeasured` if the two clocks disagree by more than the
round trip between the processes explains, or if it would win against a reference that its own
process slowed down: work on a GPU goes on while its process is stopped.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from ratchet.judge.verdict import Evidence

MOST_WAY: Final = 1.0
"""A round trip up to this many times a batch's work is subtracted from its time."""
WAY_FACTOR: Final = 2.0
"""A candidate's round trip may take this many times the reference's."""
WAY_FLOOR_S: Final = 0.0002
SHARE: Final = 0.05
"""And this share of its time in addition: a process may wait for a core."""
IMPOSSIBLE: Final = 1.02
"""A device cannot work longer than the judge waits. Two clocks differ by less than this."""
OF_THE_WAY: Final = 0.5
"""A process could save at most this share of its round trip: the driver and judge take the rest."""
DISTURBED: Final = 1.15
"""The reference may be this much slower beside a candidate than alone, by clocks and heat."""


class DeviceClock:
    """The times of each batch by both clocks, by case and arm."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, str], list[tuple[float, float | None]]] = {}
        self._ways: dict[int, list[float]] = {}
        """Round trips of trusted batches, by case."""
        self._launch: dict[int, list[tuple[float, float]]] = {}
        """The trusted batches of this launch."""

    def begin(self, case: int) -> None:
        """Begin a launch of a case."""
        self._launch[case] = []

    def note(
        self,
        case: int,
        arm: str,
        wall_s: float,
        device_s: float | None,
        *,
        trusted: bool = False,
    ) -> None:
        """Note one batch; `device_s` is None without such a clock, or without a claim."""
        self._pairs.setdefault((case, arm), []).append((wall_s, device_s))
        if trusted and device_s is not None:
            self._ways.setdefault(case, []).append(wall_s - device_s)
            self._launch.setdefault(case, []).append((wall_s, device_s))

    def way_s(self, case: int) -> float:
        """Return the round trip of a trusted batch of this launch; 0 without such a clock.

        It consists of mapping, messages and fences. A candidate's takes as long, so it is
        subtracted from both times. It is a median, because some batches wait for a core. A round
        trip longer than the work scatters too much to be subtracted: then it stays in both times.
        """
        pairs = self._launch.get(case)
        if not pairs:
            return 0.0
        way_s = statistics.median(wall_s - device_s for wall_s, device_s in pairs)
        work_s = statistics.median(device_s for _, device_s in pairs)
        return way_s if 0 < way_s <= MOST_WAY * work_s else 0.0

    def worth_more_than_a_way(self, case: int, name: str, saved_s: float) -> tuple[Evidence, str]:
        """Check that a win is more than a shorter round trip; `saved_s` is the gain per batch."""
        least_s = OF_THE_WAY * max(0.0, statistics.median(self._ways.get(case, [0.0])))
        detail = (
            f"a batch saves {saved_s:.3g} s, and a process could save {least_s:.3g} s of its way"
        )
        found = Evidence(check=f"gain on {name}", passed=saved_s > least_s, detail=detail)
        return found, "" if found.passed else f"its gain may be one of its way: {detail}"

    def compare(self, case: int, name: str, *, candidate: str) -> tuple[Evidence, str]:
        """Return the evidence on a case, and why its time is not believed, or ""."""
        pairs = self._pairs.get((case, candidate), [])
        ways = self._ways.get(case, [])
        named = [(wall_s, device_s) for wall_s, device_s in pairs if device_s is not None]
        if not ways or not named or len(named) < len(pairs):
            return _evidence(name, "not every batch has a time by the device's own clock")
        way_s = max(0.0, statistics.median(ways))
        wall_s = statistics.median(wall for wall, _ in named)
        gap_s = statistics.median(wall - device for wall, device in named)
        longest = max(device / wall for wall, device in named)
        detail = (
            f"{wall_s:.3g} s a batch by the judge's clock, {wall_s - gap_s:.3g} s by the device's; "
            f"the way there and back takes the reference {way_s:.3g} s"
        )
        if longest > IMPOSSIBLE:
            return _evidence(name, f"the device would have worked longer than it took: {detail}")
        if gap_s > max(WAY_FACTOR * way_s, way_s + WAY_FLOOR_S) + SHARE * wall_s:
            return _evidence(name, f"they disagree: {detail}")
        return Evidence(check=f"device clock on {name}", passed=True, detail=detail), ""


def _evidence(name: str, detail: str) -> tuple[Evidence, str]:
    found = Evidence(check=f"device clock on {name}", passed=False, detail=detail)
    return found, f"the judge's clock and the device's do not agree on {name}: {detail}"


def undisturbed(
    name: str, *, alone: Sequence[float], beside_s: float, candidate_s: float
) -> tuple[Evidence, str]:
    """Check that the reference was as fast beside the candidate as alone; return why not, or "".

    All in seconds per call: `alone` for each batch without a candidate, medians otherwise.
    """
    alone_s = statistics.median(alone)
    detail = (
        f"the reference takes {alone_s:.3g} s a call alone and {beside_s:.3g} s beside the "
        f"candidate, which takes {candidate_s:.3g} s"
    )
    slowed = beside_s > DISTURBED * alone_s
    only_so = candidate_s < beside_s and candidate_s >= alone_s
    found = Evidence(
        check=f"device at rest on {name}", passed=not slowed and not only_so, detail=detail
    )
    if slowed:
        return found, f"something kept the device busy while the reference ran: {detail}"
    if only_so:
        return found, f"faster than the reference beside it, but not than it is alone: {detail}"
    return found, ""
