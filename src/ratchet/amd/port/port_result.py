"""The result of a port: files, findings, compilations, the patch; as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from ratchet.amd.port.compile import Compilation, by_file
from ratchet.amd.port.finding import PortFinding
from ratchet.amd.port.scan import ScannedFile

UNTRIED: Final = "not executed"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProof:
    """The judge's answer on one ported kernel, executed as a target's machine code."""

    file: str
    entry: str
    target: str
    status: str
    """A verdict's status, or `not executed`."""
    why: str = ""
    """Why it is not right, or was not executed."""

    @property
    def is_right(self) -> bool:
        """Return whether it was executed and its outputs were right."""
        return self.status in ("correct", "proven")

    @property
    def was_executed(self) -> bool:
        """Return whether the judge tried it."""
        return self.status != UNTRIED

    @property
    def said(self) -> str:
        """Return the answer in words."""
        if self.is_right:
            return f"executed right on {self.target}"
        if self.status == "wrong":
            return f"executed wrong on {self.target}"
        return f"{self.status} on {self.target}"


@dataclass(frozen=True, kw_only=True)
class PortResult:
    path: str
    scanned: tuple[ScannedFile, ...]
    new: Mapping[str, bytes]
    """The texts of the files that the patch changes."""
    patch: bytes
    compiled: tuple[Compilation, ...] = ()
    proofs: tuple[KernelProof, ...] = ()
    written: bool = False
    """True if the tree has the new texts."""
    outputs: tuple[str, ...] = ()
    """The files that were written beside the tree."""
    seconds: float = 0.0

    @property
    def findings(self) -> list[PortFinding]:
        """All findings, by file and line."""
        return [one for scanned in self.scanned for one in scanned.findings]

    @property
    def left(self) -> list[PortFinding]:
        """The errors and warnings that the tree still has."""
        return [
            one
            for one in self.findings
            if one.severity != "note" and not (self.written and self._is_fixed(one))
        ]

    def _is_fixed(self, finding: PortFinding) -> bool:
        return finding.fixable or (finding.rule == "api-name" and finding.file in self.new)

    def by_hand(self, findings: list[PortFinding]) -> list[PortFinding]:
        """Return those that the patch does not fix."""
        return [one for one in findings if one.severity != "note" and not self._is_fixed(one)]

    @property
    def lines(self) -> int:
        """The lines that were read."""
        return sum(one.found.text.count(b"\n") for one in self.scanned)

    def as_json(self) -> dict[str, object]:
        """Return the result as plain data."""
        return {
            "path": self.path,
            "lines": self.lines,
            "scan_s": self.seconds,
            "written": self.written,
            "left": len(self.left),
            "by_hand": len(self.by_hand(self.findings)),
            "counts": dict(Counter(one.severity for one in self.findings)),
            "files": [self._file(one) for one in self.scanned],
            "findings": [one.as_json(self._is_fixed(one)) for one in self.findings],
            "compiled": [asdict(one) | {"executed": False} for one in self.compiled],
            "proofs": [asdict(one) for one in self.proofs],
            "outputs": list(self.outputs),
        }

    def _file(self, scanned: ScannedFile) -> dict[str, object]:
        found = scanned.found
        compiled = by_file(self.compiled).get(found.name, [])
        return {
            "file": found.name,
            "kind": found.kind,
            "skipped": found.skipped,
            "generated": found.generated,
            "unparsed": scanned.unparsed,
            "built_by_torch": scanned.for_torch and found.kind == "cuda",
            "readiness": self.readiness(scanned),
            "fixed_by_patch": sum(self._is_fixed(one) for one in scanned.findings),
            "by_hand": len(self.by_hand(list(scanned.findings))),
            "changed": found.name in self.new,
            "compiled": {one.target: one.status for one in compiled},
        }

    def readiness(self, scanned: ScannedFile) -> str:
        """Return how far a file is: `ready`, `patched`, `by hand`, `not read`."""
        if scanned.found.skipped:
            return "not read"
        if self.by_hand(list(scanned.findings)):
            return "by hand"
        return "patched" if scanned.found.name in self.new else "ready"
