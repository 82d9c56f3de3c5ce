"""Admit a recipe's kernels to a training script: only those proven on this machine.

A kernel that the ledger does not list as proven is judged again in the sandbox. Any failure there
leaves the kernel out and never stops the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.base.errors import RatchetError, RecipeError
from ratchet.devices.probe import Device
from ratchet.judge.revision import revision
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages.build import build_kernel, load_entry
from ratchet.ledger import Fingerprint, Ledger
from ratchet.optimize.step.installed import AnyKernel, InstalledKernel
from ratchet.problems.problem import Problem
from ratchet.workloads.config import StepConfig

ADAMW = "adamw"
SHOWN = 24
"""Characters of a kernel's name that a message shows: a region's key is long."""
_Asked = tuple[AnyKernel, Kernel]


@dataclass(kw_only=True)
class ReadyKernels:
    """Compiled kernels of a recipe that may be loaded, and those that may not."""

    compiled: list[tuple[AnyKernel, Kernel, Path]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Name in the library -> the reason why torch's own op runs instead."""

    def activate(self) -> None:
        """Load the kernels into this process."""
        for installed, kernel, path in self.compiled:
            installed.activate(kernel, path)

    def why(self) -> str:
        """Return the names and reasons of the kernels left out, in one line."""
        return ", ".join(f"{name[:SHOWN]} ({reason})" for name, reason in self.left_out.items())

    def without_left_out(self, config: StepConfig) -> StepConfig:
        """Return the config with torch's own ops in place of the kernels left out."""
        changes: dict[str, object] = {
            "kernels": tuple(name for name in config.kernels if name not in self.left_out)
        }
        if config.optimizer == "kernel" and ADAMW in self.left_out:
            changes["optimizer"] = "as_written"
        return config.model_copy(update=changes)


def ready_kernels(
    installed: Sequence[AnyKernel], device: Device, ledger_url: str | None
) -> ReadyKernels:
    """Find, prove and compile a recipe's kernels; nothing is loaded yet.

    A library kernel is all or nothing: if one of its entries is not proven, none is loaded.
    """
    ready = ReadyKernels()
    if not installed:
        return ready
    found: dict[str, list[_Asked]] = {}
    for name in dict.fromkeys(kernel.library for kernel in installed):
        own = [kernel for kernel in installed if kernel.library == name]
        try:
            found[name] = [(kernel, kernel.find()) for kernel in own]
        except RecipeError as error:
            ready.left_out[name] = str(error)
    try:
        with Ledger.open(ledger_url) as ledger:
            reasons = _Reproof(ledger=ledger, fingerprint=ledger.here(device)).of_all(found)
    except (RatchetError, OSError) as error:
        reasons = dict.fromkeys(found, _line(error))
    ready.left_out |= {name: reason for name, reason in reasons.items() if reason}
    for name in found.keys() - ready.left_out.keys():
        try:
            ready.compiled += _compiled(found[name])
        except (RatchetError, OSError) as error:
            ready.left_out[name] = _line(error)
    return ready


def _compiled(kernels: Sequence[_Asked]) -> list[tuple[AnyKernel, Kernel, Path]]:
    """Return the kernels with their built files, after checking that each one loads."""
    compiled = [(one, kernel, build_kernel(kernel)) for one, kernel in kernels]
    for _, kernel, path in compiled:
        load_entry(kernel, path)
    return compiled


@dataclass(frozen=True, kw_only=True)
class _Reproof:
    """Asks the judge about the kernels that a ledger does not list as proven."""

    ledger: Ledger
    fingerprint: Fingerprint

    def of_all(self, found: Mapping[str, Sequence[_Asked]]) -> dict[str, str]:
        """Return the reason why each library kernel may not be loaded; "" if it may."""
        unproven = {name: self._unproven(kernels) for name, kernels in found.items()}
        if not any(unproven.values()):
            return {}
        with KernelJudge() as judge:
            return {name: self._of_one(judge, own) for name, own in unproven.items()}

    def _unproven(self, kernels: Sequence[_Asked]) -> list[_Asked]:
        return [(one, kernel) for one, kernel in kernels if not self._is_proven(one, kernel)]

    def _is_proven(self, installed: AnyKernel, kernel: Kernel) -> bool:
        if not self.ledger.proven(kernel.hash, self.fingerprint, judge=revision()):
            return False
        if isinstance(installed, InstalledKernel):
            return True
        # A library kernel belongs to its op. A region's kernel must be proven for this region.
        verdicts = [self._known(kernel, problem) for problem in installed.problems()]
        return all(one is not None and one["status"] == "proven" for one in verdicts)

    def _of_one(self, judge: KernelJudge, kernels: Sequence[_Asked]) -> str:
        """Check all entries for correctness before timing any; return the objection, or ""."""
        try:
            asked = [
                (one, kernel, problem) for one, kernel in kernels for problem in one.problems()
            ]
            for _, kernel, problem in asked:
                verdict = self._verdict(judge, kernel, problem.untimed())
                if verdict["status"] not in ("correct", "proven"):
                    return _said(kernel, verdict)
            for one, kernel, problem in asked:
                verdict = self._verdict(judge, kernel, problem)
                if not self._is_proven(one, kernel):
                    return _said(kernel, verdict)
        except (RatchetError, OSError) as error:
            return _line(error)
        left = self._unproven(kernels)
        return f"{left[0][1].entry}: the library has no problem to prove it on" if left else ""

    def _verdict(self, judge: KernelJudge, kernel: Kernel, problem: Problem) -> Mapping[str, Any]:
        """Return the ledger's verdict unless it is `unmeasured`; otherwise judge and record."""
        known = self._known(kernel, problem)
        if known is not None and known["status"] != "unmeasured":
            return known
        verdict: dict[str, Any] = judge.judge(kernel, problem).model_dump(mode="json")
        self.ledger.record_verdict(verdict, fingerprint=self.fingerprint)
        return verdict

    def _known(self, kernel: Kernel, problem: Problem) -> dict[str, Any] | None:
        return self.ledger.verdict(kernel.hash, problem.hash, self.fingerprint, judge=revision())


def _said(kernel: Kernel, verdict: Mapping[str, Any]) -> str:
    if verdict["status"] == "proven":
        return f"{kernel.entry} is proven here but disproven on another problem"
    return f"{kernel.entry} is {verdict['status']} here: {verdict['reason']}"


def _line(error: Exception) -> str:
    """Return an error as one line; file errors name the file."""
    if isinstance(error, RatchetError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())
