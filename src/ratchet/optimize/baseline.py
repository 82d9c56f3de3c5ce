"""The baselines: the step as the user wrote it, and the best that torch.compile makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.errors import ArmFailure
from ratchet.kernels.languages.cpp import find_compiler
from ratchet.optimize.candidate import Candidate, with_config
from ratchet.optimize.levers import Situation
from ratchet.optimize.result import Rival
from ratchet.optimize.screen import Oracle, Screening, expect, screen
from ratchet.optimize.turn import Turn
from ratchet.workloads.config import StepConfig

MODES = ("default", "max-autotune")
MOST_WORDS = 300
"""Characters of torch's own reason that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What every claim is measured against."""

    written: Candidate
    best: Candidate
    """The fastest torch.compile, whatever its arithmetic."""
    best_same: Candidate
    """The fastest torch.compile in the arithmetic of the step as written."""
    rivals: tuple[Rival, ...]


def rival_configs(
    written: StepConfig, *, adamw: bool, keep_precision: bool
) -> Iterator[StepConfig]:
    """torch.compile's modes in each acceptable precision, with the fused optimizer."""
    optimizer = "fused" if adamw else "as_written"
    precisions = [written.precision]
    if written.precision == "fp32" and not keep_precision:
        precisions.insert(0, "bf16_autocast")
    for mode in MODES:
        for precision in precisions:
            yield written.model_copy(
                update={"compile_mode": mode, "precision": precision, "optimizer": optimizer}
            )


def find_baseline(turn: Turn, written: Candidate, situation: Situation) -> Baseline:
    """Time the rivals against each other, one launch each, and keep the fastest.

    A rival in bf16 is named but not timed where the device multiplies bf16 far slower than fp32.
    CompilerMissing where torch.compile cannot work without one; ArmFailure where it fails anyway.
    """
    rivals: list[Rival] = []
    best: dict[str, Candidate] = {}
    configs = list(
        rival_configs(
            written.config,
            adamw=situation.optimizer_is_adamw,
            keep_precision=turn.settings.keep_precision,
        )
    )
    if situation.bf16_is_slow is not None:
        hopeless = [one for one in configs if one.precision != written.config.precision]
        configs = [one for one in configs if one not in hopeless]
        reason = f"not timed: {situation.bf16_is_slow}"
        rivals += [_not_timed(with_config(one, {}), reason) for one in hopeless]
    for mode in MODES:
        chosen = [with_config(one, {}) for one in configs if one.compile_mode == mode]
        expect(turn, [(best.get(one.config.precision, written), one) for one in chosen], None)
        for rival in chosen:
            rivals.append(_time_rival(turn, rival, written, best))
    if not best:
        if turn.device.kind == "cpu":
            find_compiler()
        first = " ".join(rivals[-1].reason.split())[:MOST_WORDS]
        raise ArmFailure(
            f"torch.compile failed in every mode, so there is no rival to prove against: {first}"
        )
    same = best.get(written.config.precision, next(iter(best.values())))
    fastest = same
    for rival in best.values():
        if rival is not same:
            screening = screen(turn, fastest, rival, None)
            fastest = rival if screening.looks_faster else fastest
    return Baseline(written=written, best=fastest, best_same=same, rivals=tuple(rivals))


def _time_rival(
    turn: Turn, rival: Candidate, written: Candidate, best: dict[str, Candidate]
) -> Rival:
    """Time one against the best of its precision; the winner takes its place in `best`."""
    precision = rival.config.precision
    incumbent = best.get(precision, written)
    screening = screen(turn, incumbent, rival, None)
    if screening.passed and (screening.ratio > 1.0 or incumbent is written):
        best[precision] = rival
        if incumbent is not written:
            turn.drop(incumbent)
    else:
        turn.drop(rival)
    return _as_rival(rival, screening)


def _as_rival(rival: Candidate, screening: Screening) -> Rival:
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
    """Whose gradient error a config may have: its own precision's, as torch runs it eagerly."""
    reference = with_config(written.config.model_copy(update={"precision": "fp32"}), {})
    if config.precision == written.config.precision:
        return Oracle(reference=reference, allowed=written)
    autocast = written.config.model_copy(update={"precision": "bf16_autocast"})
    return Oracle(reference=reference, allowed=with_config(autocast, {}))
