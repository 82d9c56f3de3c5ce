"""Show progress on stderr: a moving line on a terminal, one plain line per stage when piped."""

from __future__ import annotations

import time

from rich.console import Console

from ratchet.base import Json
from ratchet.base.show.terminal import BudgetLine
from ratchet.base.show.words import show_ratio
from ratchet.train.turn.show.comparisons import DECIDED


class TurnProgress(BudgetLine):
    """Reports what a turn is doing and how much of its budget is spent.

    It is a turn's listener: call it with an event's name and details. On a terminal, the results of
    screenings and verdicts stay above one moving line. In a pipe or a file, every stage is one
    plain line with the seconds since the start. The first line is held until the second, so that an
    immediate failure prints only its own line.
    """

    def __init__(self, budget_s: float, *, console: Console | None = None) -> None:
        super().__init__(budget_s, console=console)
        self._launch = 0
        self._rounds = 0
        self._said = ""
        self._held: str | None = ""

    def __call__(self, event: str, details: dict[str, Json]) -> None:
        """Show one event; an event without words of its own shows its name."""
        if event == "proof":
            self._launch, self._rounds = int(details["launch"]), int(details["rounds"])
        if self._bar is None:
            if event != "trial":
                self._say(_done(event, details) or self._doing(event, details))
            return
        self.spend(self._doing(event, details))
        done = _done(event, details)
        if done:
            self._bar.console.print(done)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            line = f"[{time.monotonic() - self._began_s:5.0f} s] {words}\n"
            if self._held == "":
                self._held = line
                return
            print((self._held or "") + line, file=self._console.file, end="", flush=True)
            self._held = None

    def _doing(self, event: str, details: dict[str, Json]) -> str:
        title = str(details.get("title", ""))
        if event == "trial":
            return self._trial(details)
        return {
            "start": f"starting {title}",
            "looking": f"looking for {title}",
            "profile": f"profiling {title}",
            "screened": f"screened {title}",
            "judging": f"judging kernel {details.get('kernel', '')}",
            "judged": f"judged kernel {details.get('kernel', '')}",
            "writing": f"writing a kernel for {details.get('problem', '')}",
            "written": f"wrote a kernel for {details.get('problem', '')}",
            "losses": f"200 steps of {title}, seed {details.get('seed', '')}",
            "proof": f"final run, launch {self._launch + 1}",
        }.get(event, event)

    def _trial(self, details: dict[str, Json]) -> str:
        launch = f"final run, launch {self._launch + 1}"
        if details.get("kind") == "round":
            return f"{launch}, round {int(details.get('round', 0)) + 1} of {self._rounds}"
        return f"{launch}, {details.get('kind', '')} {details.get('arm', '')}"


def _done(event: str, details: dict[str, Json]) -> str:
    """Return the line that stays, for a verdict or a screening; empty for other events."""
    if event == "warning":
        return f"warning: {details['text']}"
    if event == "judged":
        return f"kernel {details['kernel']}: {details['status']}"
    if event == "proven":
        return f"proven: {details['title']}, {show_ratio(float(details['ratio']))}"
    if event == "written":
        return f"region {details['problem']}: {details['status']}"
    if event == "screened" and details.get("ratio"):
        ratio = show_ratio(float(details["ratio"]))
        clear = details.get("answer", "faster") in DECIDED
        return f"{details['title']}: {ratio if clear else f'no clear difference ({ratio})'}"
    return ""
