"""Find the baselines: the step as written, and torch.compile's best version of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratchet.errors import ArmFailure, DeadlinePassed
from ratchet.kernels.languages.cpp import find_compiler
from ratchet.optimize.levers import Situation
from ratchet.optimize.step.candidate import Candidate, with_config
from ratchet.optimize.turn.budget import reserve_s
from ratchet.optimize.turn.result import Rival
from ratchet.optimize.turn.screen import LeverScreening, Oracle, expect, screen, screening_s
from ratchet.optimize.turn.state import Turn
from ratchet.workloads.config import StepConfig

MODES = ("default", "max-autotune")
RIVAL_SHARE = 0.15
"""Share of the search's time that a further rival may take."""
NO_ROOM = "not timed: the budget has no room for it"
MOST_WORDS = 300
"""Maximum number of characters of torch's own reason that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The candidates that every claim is measured against."""

    written: Candidate
    best: Candidate
    """The fastest torch.compile candidate in any arithmetic."""
    best_same: Candidate
    """The fastest torch.compile candidate in the arithmetic of the step as written."""
    rivals: tuple[Rival, ...]
    written_is_faster: bool = False
    """True if the screenings say that the step as written beats `best`."""
    modes: frozenset[str] = frozenset()
    """The compile modes that were timed."""
    alike: tuple[Candidate, ...] = ()
    """Rivals that compile faster and could not be told apart from `best` or `best_same`."""

    @property
    def start(self) -> Candidate:
        """Where a climb in any arithmetic begins: `best`, or the one alike that compiles faster."""
        return self._start(self.best)

    @property
    def start_same(self) -> Candidate:
        """Where a climb in the arithmetic of the step as written begins."""
        return self._start(self.best_same)

    def _start(self, rival: Candidate) -> Candidate:
        precision = rival.config.precision
        return next((one for one in self.alike if one.config.precision == precision), rival)

    @property
    def has_rival(self) -> bool:
        """Return True if any torch.compile candidate was timed."""
        return self.best.key() != self.written.key()


RuleOut = Callable[[Candidate, StepConfig], str | None]
"""Returns the reason not to time a config beside the fastest rival so far, or None to time it."""


def rival_configs(
    written: StepConfig, *, adamw: bool, keep_precision: bool
) -> Iterator[StepConfig]:
    """Yield torch.compile's modes in each acceptable precision, with the fused optimizer."""
    optimizer = "fused" if adamw else "as_written"
    precisions = [written.precision]
    if written.precision == "fp32" and not keep_precision:
        precisions.append("bf16_autocast")
    for mode in MODES:
        for precision in precisions:
            yield written.model_copy(
                update={"compile_mode": mode, "precision": precision, "optimizer": optimizer}
            )


def find_baseline(
    turn: Turn,
    written: Candidate,
    situation: Situation,
    rule_out: RuleOut = lambda best, config: None,
) -> Baseline:
    """Time the rivals against each other, one launch each, and keep the fastest.

    A rival that is ruled out is named but not timed: by `rule_out`, by the budget, or because the
    device multiplies bf16 far slower than fp32. If the budget ends before the first rival, the step
    as written takes its place. Raises CompilerMissing if torch.compile lacks a compiler it needs,
    and ArmFailure if it fails for another reason.
    """
    rivals: list[Rival] = []
    best: dict[str, Candidate] = {}
    alike: dict[str, Candidate] = {}
    slower: list[str] = []
    modes: set[str] = set()
    configs = _configs(turn, written, situation, rivals)
    for config in configs:
        rival = with_config(config, {})
        known = best.get(config.precision) or next(iter(best.values()), None)
        reason = rule_out(known, config) if known is not None else None
        if known is None and any(one.reason == NO_ROOM for one in rivals):
            rivals.append(_not_timed(rival, NO_ROOM))
            continue
        if reason is not None:
            rivals.append(_not_timed(rival, f"not timed: {reason}"))
            turn.leave_out(f"the rival {rival.title}", reason, for_want_of_budget=False)
            continue
        try:
            with turn.stage(_rival_ends_s(turn, written, rival, known)):
                # The arms of both precisions compile side by side, so the second is already running
                # in its turn.
                mode = config.compile_mode
                beside = [one for one in configs if known is None and one.compile_mode == mode]
                beside = beside or [config]
                pairs = [(best.get(one.precision, written), with_config(one, {})) for one in beside]
                expect(turn, pairs, None)
                rivals.append(_time_rival(turn, rival, written, best, alike, slower))
            modes.add(str(config.compile_mode))
        except DeadlinePassed:
            rivals.append(_not_timed(rival, NO_ROOM))
            turn.leave_out(f"the rival {rival.title}", "the budget has no room for it")
    if not best:
        return _without_rival(turn, written, rivals)
    same = best.get(written.config.precision, next(iter(best.values())))
    fastest = same
    for rival in best.values():
        if rival is not same and _fastest(turn, fastest, rival):
            fastest = rival
    return Baseline(
        written=written,
        best=fastest,
        best_same=same,
        rivals=tuple(rivals),
        written_is_faster=fastest.key() in slower,
        modes=frozenset(modes),
        alike=tuple(alike.values()),
    )


def _configs(
    turn: Turn, written: Candidate, situation: Situation, rivals: list[Rival]
) -> list[StepConfig]:
    """Return the configs to time, written precision first; add those ruled out to `rivals`."""
    configs = list(
        rival_configs(
            written.config,
            adamw=situation.optimizer_is_adamw,
            keep_precision=turn.settings.keep_precision,
        )
    )
    if situation.bf16_is_slow is None:
        return configs
    hopeless = [one for one in configs if one.precision != written.config.precision]
    reason = f"not timed: {situation.bf16_is_slow}"
    rivals += [_not_timed(with_config(one, {}), reason) for one in hopeless]
    return [one for one in configs if one not in hopeless]


def _rival_ends_s(
    turn: Turn, written: Candidate, rival: Candidate, known: Candidate | None
) -> float:
    """Return when timing this rival must end, in seconds spent; the first may use all that is left.

    Raises DeadlinePassed if it would take too much of the search's time.
    """
    if known is None or turn.is_live(rival):
        return turn.ends_s
    ends_s = search_ends_s(turn, written, known)
    needed_s = screening_s(turn, known, rival, None)
    if needed_s > RIVAL_SHARE * (ends_s - turn.spent_s):
        raise DeadlinePassed(f"{rival.title} would take {needed_s:.0f} s")
    return ends_s


def search_ends_s(turn: Turn, written: Candidate, rival: Candidate) -> float:
    """Return when the search must end, in seconds spent; the final run gets the rest."""
    settings = turn.settings
    return turn.ends_s - reserve_s(
        turn.costs, written, rival, budget_s=settings.budget_s, launches=settings.launches
    )


def _without_rival(turn: Turn, written: Candidate, rivals: list[Rival]) -> Baseline:
    """Use the step as written as the rival if the budget ended before the first one."""
    if any(rival.reason == NO_ROOM for rival in rivals):
        return Baseline(written=written, best=written, best_same=written, rivals=tuple(rivals))
    if turn.device.kind == "cpu":
        find_compiler()
    first = " ".join(rivals[-1].reason.split())[:MOST_WORDS]
    raise ArmFailure(
        f"torch.compile failed in every mode, so there is no rival to prove against: {first}"
    )


def _fastest(turn: Turn, incumbent: Candidate, challenger: Candidate) -> bool:
    """Return True if the challenger looks faster; compare separate screenings if time is short."""
    try:
        with turn.stage(search_ends_s(turn, incumbent, incumbent)):
            return screen(turn, incumbent, challenger, None).looks_faster
    except DeadlinePassed:
        return turn.costs.step_s(challenger) < turn.costs.step_s(incumbent)


def _time_rival(
    turn: Turn,
    rival: Candidate,
    written: Candidate,
    best: dict[str, Candidate],
    alike: dict[str, Candidate],
    slower: list[str],
) -> Rival:
    """Time one rival against the best of its precision; the winner takes its place in `best`.

    A loser that is not clearly slower goes to `alike`: every change on top of the winner, which
    came later and so compiles longer, would compile as long. If the step as written beats the
    rival, the rival's key is added to `slower`.
    """
    precision = rival.config.precision
    incumbent = best.get(precision, written)
    screening = screen(turn, incumbent, rival, None)
    if screening.passed and (screening.ratio > 1.0 or incumbent is written):
        best[precision] = rival
        if incumbent is written and screening.high < 1.0:
            slower.append(rival.key())
        if incumbent is not written and screening.low <= 1.0:
            alike[precision] = incumbent
            turn.drop(rival)
        elif incumbent is not written:
            turn.drop(incumbent)
    else:
        turn.drop(rival)
    return _as_rival(rival, screening)


def _as_rival(rival: Candidate, screening: LeverScreening) -> Rival:
    if not screening.passed:
        return _not_timed(rival, screening.reason)
    return Rival(
        title=rival.title,
        precision=rival.config.precision,
        step_time_s=screening.step_time_s,
        setup_time_s=screening.setup_s,
        reason=screening.reason,
    )


def _not_timed(rival: Candidate, reason: str) -> Rival:
    return Rival(
        title=rival.title,
        precision=rival.config.precision,
        step_time_s=None,
        setup_time_s=None,
        reason=reason,
    )


def oracle_for(written: Candidate, config: StepConfig) -> Oracle:
    """Return whose gradient error a config may have: its own precision's, run eagerly by torch."""
    reference = with_config(written.config.model_copy(update={"precision": "fp32"}), {})
    if config.precision == written.config.precision:
        return Oracle(reference=reference, allowed=written)
    autocast = written.config.model_copy(update={"precision": "bf16_autocast"})
    return Oracle(reference=reference, allowed=with_config(autocast, {}))
