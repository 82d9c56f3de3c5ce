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

MOST_ROUND_TRIP: Final = 1.0
"""A round trip up to this many times a batch's work is subtracted from its time."""
ROUND_TRIP_FACTOR: Final = 2.0
"""A candidate's round trip may take this many times the reference's."""
ROUND_TRIP_FLOOR_S: Final = 0.0002
SHARE: Final = 0.05
"""And this share of its time in addition: a process may wait for a core."""
IMPOSSIBLE: Final = 1.02
"""A device cannot work longer than the judge waits. Two clocks differ by less than this."""
SAVABLE: Final = 0.5
"""A process could save at most this share of its round trip: the driver and judge take the rest."""
DISTURBED: Final = 1.15
"""The reference may be this much slower beside a candidate than alone, by clocks and heat."""


class DeviceClock:
    """The times of each batch by both clocks, by case and arm."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, str], list[tuple[float, float | None]]] = {}
        self._round_trips: dict[int, list[float]] = {}
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
            self._round_trips.setdefault(case, []).append(wall_s - device_s)
            self._launch.setdefault(case, []).append((wall_s, device_s))

    def round_trip_s(self, case: int) -> float:
        """Return the round trip of a trusted batch of this launch; 0 without such a clock.

        It consists of mapping, messages and fences. A candidate's takes as long, so it is
        subtracted from both times. It is a median, because some batches wait for a core. A round
        trip longer than the work scatters too much to be subtracted: then it stays in both times.
        """
        pairs = self._launch.get(case)
        if not pairs:
            return 0.0
        round_trip_s = statistics.median(wall_s - device_s for wall_s, device_s in pairs)
        work_s = statistics.median(device_s for _, device_s in pairs)
        return round_trip_s if 0 < round_trip_s <= MOST_ROUND_TRIP * work_s else 0.0

    def exceeds_round_trip(self, case: int, name: str, saved_s: float) -> tuple[Evidence, str]:
        """Check that a win is more than a shorter round trip; `saved_s` is the gain per batch."""
        least_s = SAVABLE * max(0.0, statistics.median(self._round_trips.get(case, [0.0])))
        could = f"a process could save {least_s:.3g} s of its round trip"
        detail = f"a batch saves {saved_s:.3g} s, and {could}"
        found = Evidence(check=f"gain on {name}", passed=saved_s > least_s, detail=detail)
        return found, "" if found.passed else f"its gain may be a shorter round trip: {detail}"

    def compare(self, case: int, name: str, *, candidate: str) -> tuple[Evidence, str]:
        """Return the evidence on a case, and why its time is not believed, or ""."""
        pairs = self._pairs.get((case, candidate), [])
        round_trips = self._round_trips.get(case, [])
        named = [(wall_s, device_s) for wall_s, device_s in pairs if device_s is not None]
        if not round_trips or not named or len(named) < len(pairs):
            return _evidence(name, "not every batch has a time by the device's own clock")
        round_trip_s = max(0.0, statistics.median(round_trips))
        wall_s = statistics.median(wall for wall, _ in named)
        gap_s = statistics.median(wall - device for wall, device in named)
        longest = max(device / wall for wall, device in named)
        detail = (
            f"{wall_s:.3g} s a batch by the judge's clock, {wall_s - gap_s:.3g} s by the device's; "
            f"the round trip takes the reference {round_trip_s:.3g} s"
        )
        if longest > IMPOSSIBLE:
            return _evidence(name, f"the device would have worked longer than it took: {detail}")
        most_s = max(ROUND_TRIP_FACTOR * round_trip_s, round_trip_s + ROUND_TRIP_FLOOR_S)
        if gap_s > most_s + SHARE * wall_s:
            return _evidence(name, f"they disagree: {detail}")
        return Evidence(check=f"device clock on {name}", passed=True, detail=detail), ""


def _evidence(name: str, detail: str) -> tuple[Evidence, str]:
    found = Evidence(check=f"device clock on {name}", passed=False, detail=detail)
    return found, f"the judge's clock and the device's do not agree on {name}: {detail}"


def undisturbed(
    name: str, *, alone: Sequence[float], beside_s: float, candidate_s: float, least: float
) -> tuple[Evidence, str]:
    """Check that the reference was as fast beside the candidate as alone; return why not, or "".

    All in seconds per call: `alone` for each batch without a candidate, medians otherwise. A GPU's
    clock falls when it rests or gets hot, and a candidate works or pauses between the batches as it
    likes. So the candidate must be `least` times as fast as the reference alone, too.
    """
    alone_s = statistics.median(alone)
    detail = (
        f"the reference takes {alone_s:.3g} s a call alone and {beside_s:.3g} s beside the "
        f"candidate, which takes {candidate_s:.3g} s"
    )
    slowed = beside_s > DISTURBED * alone_s
    only_so = candidate_s < beside_s and least * candidate_s >= alone_s
    found = Evidence(
        check=f"device at rest on {name}", passed=not slowed and not only_so, detail=detail
    )
    if slowed:
        what = "something kept the device busy, or its clock low, while the reference ran"
        return found, f"{what}: {detail}"
    if only_so:
        what = "faster than the reference beside it, but not clearly than it is alone"
        return found, f"{what} ({least:g} times): {detail}"
    return found, ""
